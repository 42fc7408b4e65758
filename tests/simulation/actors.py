"""The actions of people and tenants, hostile ones too: each operation takes the world and its own chance."""

from __future__ import annotations

import random
from typing import Any

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.ome import CapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from tests.cluster import objects
from tests.cluster.ome.reserved import GPU, spec
from tests.simulation import setting
from tests.simulation.setting import BORROWER, BOUGHT, GPUS, MEDIUM, OWNER, PER, SMALL
from tests.simulation.world import World, ready

Json = dict[str, Any]
RESERVED, ON_DEMAND = "reserved", "on-demand"
BOTH = (RESERVED, ON_DEMAND)
MOST_CLAIMS = 10
# Words without meaning on these objects, or with another meaning than a stranger gives them.
LAUNCH_REQUEST, RELEASED, BUYING = (
    f"{names.BROKER}/{word}" for word in ("launch-request", "released", "buying")
)


def claim(world: World, rng: random.Random) -> None:
    """A claim of one of the teams."""
    existing = world.claims()
    if len(existing) >= MOST_CLAIMS:
        return
    name = f"c-{rng.randrange(1000):03}"
    kinds: list[Json] = [
        {"node_class": "by-id", "types": (SMALL,), "capacity": (RESERVED,)},
        {"node_class": "by-id", "types": (SMALL,), "capacity": BOTH},
        {"node_class": "by-group", "types": (SMALL, MEDIUM), "capacity": BOTH},
        {"node_class": "by-group", "types": (SMALL, MEDIUM), "capacity": (RESERVED,)},
        {"node_class": "plain", "types": (SMALL, "c5.large"), "capacity": (ON_DEMAND,)},
    ]
    if ("", "lent") in world.objects(EC2NodeClass.KIND):
        for owner in (OWNER, BORROWER, BORROWER):
            noted = {names.DRAWS_FROM: owner}
            kinds.append(
                {"node_class": "lent", "types": (GPUS,), "capacity": (RESERVED,), "annotations": noted}
            )
    world.client.create(NodeClaim.KIND, objects.claim(name, **rng.choice(kinds)))


def gang(world: World, rng: random.Random) -> None:
    """Two or three claims that launch together."""
    name = f"g-{rng.randrange(1000):03}"
    if len(world.claims()) > MOST_CLAIMS - 3:
        return
    size = rng.randint(2, 3)
    noted = {names.GANG: name, names.GANG_SIZE: str(size)}
    for number in range(size):
        body = objects.claim(
            f"{name}-{number}",
            node_class="by-group",
            types=(SMALL, MEDIUM),
            capacity=BOTH,
            annotations=noted,
        )
        world.client.create(NodeClaim.KIND, body)


def _a_claim(world: World, rng: random.Random) -> Json | None:
    broker_claims = [c for c in world.claims() if c["metadata"]["name"] != "karpenters"]
    return rng.choice(broker_claims) if broker_claims else None


def delete_claim(world: World, rng: random.Random) -> None:
    if (chosen := _a_claim(world, rng)) is not None:
        world.client.delete(NodeClaim.KIND, chosen["metadata"]["name"])


def delete_and_make_again(world: World, rng: random.Random) -> None:
    """A claim of the same name, as soon as the old one has gone, or beside it in vain."""
    if (chosen := _a_claim(world, rng)) is None or names.DEDICATED in chosen["metadata"].get("labels", {}):
        return
    name = chosen["metadata"]["name"]
    world.client.delete(NodeClaim.KIND, name)
    spec_ = {key: value for key, value in chosen["spec"].items() if key != "expireAfter"}
    noted = {k: v for k, v in chosen["metadata"].get("annotations", {}).items() if k == names.DRAWS_FROM}
    world.client.create(NodeClaim.KIND, {"metadata": {"name": name, "annotations": noted}, "spec": spec_})


def pod(world: World, rng: random.Random) -> None:
    """A pod on one of the machines that the scheduler may use."""
    nodes = [key[1] for key, node in world.objects(Node.KIND).items() if ready(node) and key[1] != "theirs"]
    nodes = [name for name in nodes if not _drains(world.objects(Node.KIND)["", name])]
    if nodes:
        world.client.create(Pod.KIND, objects.pod(f"p-{rng.randrange(1000)}", node=rng.choice(nodes)))


def _drains(node: Json) -> bool:
    return any(taint["key"] == names.DISRUPTED_TAINT for taint in node["spec"].get("taints", ()))


def finish_pods(world: World, rng: random.Random) -> None:
    for pod in world.pods():
        if rng.random() < 0.7:
            meta = pod["metadata"]
            world.client.delete(Pod.KIND, meta["name"], namespace=meta["namespace"], grace_period=0)


def buy(world: World, rng: random.Random) -> None:
    """A reservation that the broker is to buy for: made, resized, set to be observed, or deleted."""
    name = rng.choice(("bought", "bought", "second"))
    exists = ("default", name) in world.objects(CapacityReservation.KIND)
    draw = rng.random()
    if not exists:
        setting.buy(world, name, rng.randint(1, 3), cancel=rng.random() < 0.7)
    elif draw < 0.6:
        instances = rng.randint(0, 4)
        setting.note_request(world, name, instances)
        body = {"spec": spec(BOUGHT, quotas={GPU: str(PER[BOUGHT] * instances)})}
        world.client.patch(CapacityReservation.KIND, name, body, namespace="default")
    elif draw < 0.75:
        noted = {names.RESERVATION_POLICY: rng.choice(("Observe", "Manage"))}
        world.client.patch(
            CapacityReservation.KIND, name, {"metadata": {"annotations": noted}}, namespace="default"
        )
    else:
        world.client.delete(CapacityReservation.KIND, name, namespace="default")


def cluster(world: World, rng: random.Random) -> None:
    """A dedicated cluster: made, resized or deleted."""
    if ("", "lent") not in world.objects(EC2NodeClass.KIND):
        return
    existing = [name for _, name in world.objects(DedicatedAICluster.KIND)]
    name = rng.choice(("red", "teal"))
    size = rng.randint(1, 2)
    body = {
        "capacityReservationId": rng.choice(("training", "training", "research")),
        "resources": {"requests": {GPU: 8 * size}},
    }
    world.facts.clusters[name] = max(size, world.facts.clusters.get(name, 0))
    if name not in existing:
        metadata = {"name": name, "annotations": {names.NODE_CLASS: "lent"}}
        world.client.create(DedicatedAICluster.KIND, {"metadata": metadata, "spec": body})
    elif rng.random() < 0.6:
        world.client.patch(DedicatedAICluster.KIND, name, {"spec": {"resources": body["resources"]}})
    else:
        world.client.delete(DedicatedAICluster.KIND, name)


def edit_class(world: World, rng: random.Random) -> None:
    """Tags, which make another template; or another target."""
    name = rng.choice(("by-id", "by-group", "plain"))
    body: Json = {"tags": {"team": f"t{rng.randrange(3)}"}}
    if name == "by-id" and rng.random() < 0.3:
        small = [o.id for o in world.odcrs() if o.instance_type == SMALL]
        body = {"capacityReservationSpec": objects.reservation_spec(id_=rng.choice(small))}
    world.client.patch(EC2NodeClass.KIND, name, {"spec": body})


# ---- by hand


def touch(world: World, rng: random.Random) -> None:
    """Another writer changes a claim: the broker's copy is old."""
    if (chosen := _a_claim(world, rng)) is not None:
        noted = {"metadata": {"annotations": {"example.com/seen": str(rng.randrange(1000))}}}
        world.client.patch(NodeClaim.KIND, chosen["metadata"]["name"], noted)


def delete_node(world: World, rng: random.Random) -> None:
    nodes = [name for _, name in world.objects(Node.KIND) if name != "theirs"]
    if nodes:
        world.client.delete(Node.KIND, rng.choice(nodes))


def strip(world: World, rng: random.Random) -> None:
    """Removes a record that the broker wrote for itself."""
    if (chosen := _a_claim(world, rng)) is None:
        return
    _remember_launch(world, chosen)
    noted = {"metadata": {"annotations": {rng.choice((names.LAUNCH, names.ATTEMPTS)): None}}}
    world.client.patch(NodeClaim.KIND, chosen["metadata"]["name"], noted)
    world.facts.broken_by_hand = True


def _remember_launch(world: World, claim: Json) -> None:
    """Keeps the launch that a claim names, which no check sees again if the launch is under way now."""
    if launch := claim["metadata"].get("annotations", {}).get(names.LAUNCH):
        world.facts.launches[launch].add(claim["metadata"]["uid"])


def force_away(world: World, rng: random.Random) -> None:
    """Removes a claim's finalizers by hand: the instance has no claim any more."""
    if (chosen := _a_claim(world, rng)) is None:
        return
    name = chosen["metadata"]["name"]
    _remember_launch(world, chosen)
    world.client.delete(NodeClaim.KIND, name)
    world.facts.forced.add(chosen["metadata"]["uid"])
    world.client.patch(NodeClaim.KIND, name, {"metadata": {"finalizers": None}})
    world.facts.broken_by_hand = True


# ---- hostile tenants


def forge(world: World, rng: random.Random) -> None:
    """A claim with made-up annotations: a call that was never made, nonsense, or depth."""
    if len(world.claims()) >= MOST_CLAIMS:
        return
    other = next((c for c in world.claims() if c["metadata"].get("annotations", {}).get(names.LAUNCH)), None)
    stolen = other["metadata"]["annotations"] if other is not None else {}
    forged: Json = rng.choice(
        (
            {LAUNCH_REQUEST: "[" * 2000},
            {LAUNCH_REQUEST: '{"launch": "x", "claims": ["y"], "count": 100}', names.LAUNCH: "x"},
            {k: v for k, v in stolen.items() if k in (names.LAUNCH, LAUNCH_REQUEST)},
            {names.ATTEMPTS: "[" * 2000},
            {names.PRIORITY: "9" * 400},
            {names.GANG: "mine", names.GANG_SIZE: "99999999999999999999"},
            {names.EXPECT: "[" * 2000},
            {names.DRAWS_FROM: "default/../training"},
            {names.PODS: "," * 500},
        )
    )
    body = objects.claim(
        f"evil-{rng.randrange(1000)}", node_class="plain", types=(SMALL,), capacity=(ON_DEMAND,)
    )
    body["metadata"]["annotations"].update(forged)
    world.client.create(NodeClaim.KIND, body)


def grab(world: World, rng: random.Random) -> None:
    """A reservation that claims capacity of others, or spends without end."""
    foreign_ids = ",".join(sorted(i for i in world.facts.foreign if i.startswith("cr-")))
    name = f"greedy-{rng.randrange(3)}"
    noted: Json = rng.choice(
        (
            {
                names.ADOPT_IDS: foreign_ids,
                names.RESERVATION_POLICY: "Manage",
                names.DELETION_POLICY: "Cancel",
            },
            {names.RESERVATION_POLICY: "Manage", RELEASED: "[" * 2000},
            {names.RESERVATION_POLICY: "Manage", BUYING: "{" * 2000},
            {names.RESERVATION_POLICY: "Manage"},
        )
    )
    amount = rng.choice(("400", "4", "9e99", "1" * 60))
    world.facts.requested[f"default/{name}"] = 10**9
    setting.reserve(world, name, spec(BOUGHT, quotas={GPU: amount}), noted)


def ungrab(world: World, rng: random.Random) -> None:
    for _, name in world.objects(CapacityReservation.KIND):
        if name.startswith("greedy") and rng.random() < 0.7:
            world.client.delete(CapacityReservation.KIND, name, namespace="default")
