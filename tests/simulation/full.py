"""Full reservations: a pool for each way to select them, rollouts, and capacity that people change."""

from __future__ import annotations

import random
from typing import Any

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from tests.cluster import objects
from tests.cluster.account import A, B
from tests.simulation import pools
from tests.simulation.broken import RULES, Kubelets
from tests.simulation.pools import ON_DEMAND, POOLS, RESERVED, PoolShape, pods_of, pools_of
from tests.simulation.setting import BORROWER, GPUS, MEDIUM, SMALL
from tests.simulation.world import World

Json = dict[str, Any]
BOTH: tuple[str, ...] = (RESERVED, ON_DEMAND)
KINDS: tuple[tuple[str, ...], ...] = ((RESERVED,), BOTH, BOTH)
GROUP = "blue-team"
MOST_SLOTS = 4  # of a reservation that grows
MOST_ODCRS = 8  # of one account, so that a run stays short


def begin(world: World, rng: random.Random) -> None:
    """A pool for each way to select reservations; static ones in some worlds. Machines may break."""
    world.kubelets = Kubelets(world)
    world.control.freed_slot_absorbs(rng.random() < 0.6)
    noted = {names.REPAIR: RULES}
    both = (SMALL, MEDIUM)
    shapes = {
        "ids": PoolShape(
            node_class="by-id", capacity=rng.choice(KINDS), types=(SMALL,), limited=False, annotations=noted
        ),
        "team": PoolShape(node_class="by-group", capacity=rng.choice(KINDS), types=both, annotations=noted),
        "opens": PoolShape(
            node_class="by-open", capacity=rng.choice(KINDS), types=both, limited=False, annotations=noted
        ),
        "gpu": POOLS["gpu"],
    }
    if rng.random() < 0.3:
        shapes["fixed"] = PoolShape(
            node_class=rng.choice(("by-id", "by-open")),
            capacity=rng.choice(KINDS),
            types=(SMALL,),
            limited=False,
            replicas=rng.randint(1, 2),
            annotations=noted,
        )
    if rng.random() < 0.2:
        shapes["every"] = PoolShape(
            node_class="by-group",
            capacity=(RESERVED,),
            types=both,
            limited=False,
            follows=True,
            annotations=noted,
        )
    facts = world.pool_facts
    facts.shapes, facts.cpus = shapes, ("1", "1500m", "1500m")
    facts.selected = ("ids", "ids", "team", "opens", *(name for name in shapes if shapes[name].static))
    pools.begin(world, rng)


# ---- people


def rollout(world: World, rng: random.Random) -> None:
    """The template of a pool, its class or the image of that changes: all nodes of it drift."""
    present = [name for name in world.pool_facts.shapes if name in pools_of(world)]
    if not present:
        return
    name, draw = rng.choice(present), rng.random()
    if draw < 0.5:
        template = {"metadata": {"labels": {"example.com/round": str(rng.randrange(100))}}}
        body: Json = {"spec": {"template": template}}
        if rng.random() < 0.7:
            body["spec"]["disruption"] = {"budgets": [{"nodes": rng.choice(("100%", "100%", "1"))}]}
        world.client.patch(NodePool.KIND, name, body)
        return
    spec: Json = {"tags": {"round": str(rng.randrange(100))}}
    if draw < 0.75:
        images = world.aws.ec2.describe_images(
            Filters=[{"Name": "name", "Values": ["amzn2-ami-hvm*x86_64*"]}]
        )["Images"]
        spec = {"amiSelectorTerms": [{"id": rng.choice(images)["ImageId"]}]}
    world.client.patch(EC2NodeClass.KIND, world.pool_facts.shapes[name].node_class, {"spec": spec})


def end_claim(world: World, rng: random.Random) -> None:
    """A person deletes a NodeClaim with pods on its node."""
    hosts = {pod["spec"].get("nodeName") for pod in pods_of(world)}
    claims = [c for c in world.claims() if c.get("status", {}).get("nodeName") in hosts - {None, ""}]
    if claims:
        world.client.delete(NodeClaim.KIND, rng.choice(claims)["metadata"]["name"])


def replace_rules(world: World, rng: random.Random) -> None:
    """How a pool replaces its nodes, and whether they return to reservations."""
    noted: Json = rng.choice(
        (
            {names.REPLACE: rng.choice(("auto", "terminate-first", "launch-first"))},
            {names.REPLACE_AT_ONCE: rng.choice(("1", "2"))},
            {names.RETURN_TO_RESERVATIONS: rng.choice(("true", "false", None))},
        )
    )
    if present := sorted(pools_of(world)):
        world.client.patch(NodePool.KIND, rng.choice(present), {"metadata": {"annotations": noted}})


def scale(world: World, rng: random.Random) -> None:
    """A static pool gets another number of nodes."""
    fixed = [name for name, shape in world.pool_facts.shapes.items() if shape.replicas is not None]
    for name in fixed:
        if name in pools_of(world):
            world.client.patch(NodePool.KIND, name, {"spec": {"replicas": rng.randint(0, 3)}})


def loan(world: World, rng: random.Random) -> None:
    """A team borrows slots of another."""
    if ("", "lent") in world.objects(EC2NodeClass.KIND):
        noted = {names.DRAWS_FROM: BORROWER}
        body = objects.claim(
            f"c-{rng.randrange(1000):03}",
            node_class="lent",
            types=(GPUS,),
            capacity=(RESERVED,),
            annotations=noted,
        )
        world.client.create(NodeClaim.KIND, body)


# ---- capacity


def _own(world: World, *criteria: str) -> list[Any]:
    """Reservations that people may change: none that the broker buys, none of others."""
    return [
        odcr
        for odcr in world.odcrs()
        if odcr.state == "active"
        and odcr.id not in world.facts.foreign
        and odcr.instance_type in (SMALL, MEDIUM, GPUS)
        and odcr.match_criteria in (criteria or ("open", "targeted"))
    ]


def grow(world: World, rng: random.Random) -> None:
    """A reservation gets more slots."""
    if small := [odcr for odcr in _own(world) if odcr.total < MOST_SLOTS]:
        odcr = rng.choice(small)
        count = odcr.total + rng.choice((1, 1, 2))
        world.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr.id, InstanceCount=count)


def split(world: World, rng: random.Random) -> None:
    """A part of a reservation becomes one of its own, with instances that run there."""
    large = [odcr for odcr in _own(world) if odcr.total > 1 and odcr.instance_type != GPUS]
    if large and len(world.odcrs()) < MOST_ODCRS:
        odcr = rng.choice(large)
        world.facts.shrunk.add(odcr.id)
        world.aws.ec2.create_capacity_reservation_by_splitting(
            SourceCapacityReservationId=odcr.id, InstanceCount=rng.randint(1, odcr.total - 1)
        )


def move_slots(world: World, rng: random.Random) -> None:
    """Slots go from one reservation to another, with instances that run there."""
    by_shape: dict[tuple[str, str], list[Any]] = {}
    for odcr in _own(world):
        by_shape.setdefault((odcr.instance_type, odcr.zone), []).append(odcr)
    shapes = [odcrs for odcrs in by_shape.values() if len(odcrs) > 1]
    if shapes:
        source, target = rng.sample(rng.choice(shapes), 2)
        world.facts.shrunk.add(source.id)
        world.aws.ec2.move_capacity_reservation_instances(
            SourceCapacityReservationId=source.id,
            DestinationCapacityReservationId=target.id,
            InstanceCount=rng.randint(1, source.total),
        )


def join(world: World, rng: random.Random) -> None:
    """A reservation becomes a member of the group: a new one, or one that is there."""
    kind, zone = rng.choice(((SMALL, A), (MEDIUM, B)))
    present = [odcr.id for odcr in _own(world) if odcr.instance_type == kind]
    if present and (rng.random() < 0.5 or len(world.odcrs()) >= MOST_ODCRS):
        world.aws.join(GROUP, rng.choice(present))
    elif len(world.odcrs()) < MOST_ODCRS:
        criteria = rng.choice(("open", "targeted"))
        world.aws.join(GROUP, world.aws.odcr(kind, zone, rng.randint(1, 2), criteria=criteria))


def absorbs(world: World, rng: random.Random) -> None:
    """Whether EC2 counts running instances in slots that become free, which AWS does not document."""
    world.control.freed_slot_absorbs(rng.random() < 0.5)
