"""Pods and NodePools: the actions of people on them, and their faults.

Pods of this part begin with `w-`, so that they meet no other part's. `cluster_parts` makes and places them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace
from broker.apis.meta import Kind
from broker.apis.policy import PodDisruptionBudget
from tests.simulation.setting import GPUS, MEDIUM, OWNER, SMALL
from tests.simulation.world import World

Json = dict[str, Any]
Act = Callable[[World, random.Random], None]
PREFIX = "w-"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
RACK = "example.com/rack"  # a label that no machine has
MOST_PODS, MOST_REPLICAS = 9, 3
TENANT, STRANGER = "default", "team-b"
RESERVED, ON_DEMAND = "reserved", "on-demand"
CPUS = {SMALL: 2, MEDIUM: 4, GPUS: 192}
LIMITS = (None, None, "2", "4", "8")
BUDGETS: tuple[Json, ...] = ({"nodes": "100%"}, {"nodes": "1"}, {"nodes": "50%"}, {"nodes": "0"})


@dataclass(frozen=True, kw_only=True)
class PoolShape:
    """What a NodePool keeps when it is edited. `replicas`: of a static pool; `follows`: all slots."""

    node_class: str
    capacity: tuple[str, ...]
    types: tuple[str, ...]
    limited: bool = True
    replicas: int | None = None
    follows: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def static(self) -> bool:
        return self.follows or self.replicas is not None


POOLS: Mapping[str, PoolShape] = {
    "web": PoolShape(node_class="plain", capacity=(ON_DEMAND,), types=(SMALL, MEDIUM)),
    "team": PoolShape(node_class="by-group", capacity=(RESERVED, ON_DEMAND), types=(SMALL, MEDIUM)),
    "gpu": PoolShape(node_class="lent", capacity=(RESERVED,), types=(GPUS,), limited=False),
}


@dataclass
class App:
    """A workload: its controller keeps `replicas` pods of one template."""

    name: str
    namespace: str
    cpu: str
    pool: str  # that its pods select; empty: none
    replicas: int
    gang: bool = False
    draws_from: str = ""
    grace: int = 0
    gpus: int = 0
    created: int = 0

    @property
    def preferences(self) -> Json:
        """What its pods prefer, by its number: what no machine meets, one rule, or nothing."""
        chosen = {"labelSelector": {"matchLabels": {"app": self.name}}}
        anyway = {"maxSkew": 1, "topologyKey": names.ZONE, "whenUnsatisfiable": "ScheduleAnyway", **chosen}
        apart = {"podAffinityTerm": {"topologyKey": names.HOSTNAME, **chosen}, "weight": 1}
        rack = {"matchExpressions": [{"key": RACK, "operator": "Exists"}]}
        choices: tuple[Json, ...] = (
            {},
            {"affinity": {"nodeAffinity": {PREFERRED: [{"preference": rack, "weight": 1}]}}},
            {"topologySpreadConstraints": [anyway]},
            {"affinity": {"podAntiAffinity": {PREFERRED: [apart]}}},
        )
        return choices[int(self.name.removeprefix(PREFIX)) % len(choices)]


@dataclass
class PoolFacts:
    """What people requested, as far as the objects do not show it any more."""

    apps: dict[str, App] = field(default_factory=dict)
    shapes: Mapping[str, PoolShape] = field(default_factory=lambda: POOLS)
    # What new workloads select (empty: no pool), and the CPUs of their pods.
    selected: Sequence[str] = ("web", "web", "team", "team", "")
    cpus: Sequence[str] = ("500m", "1", "1500m", "3")
    # Pool -> the highest limit of CPUs that it ever had.
    limits: dict[str, float] = field(default_factory=dict)
    classes: dict[str, Json] = field(default_factory=dict)  # deleted classes, to be made again
    named: int = 0  # workloads

    def name(self) -> str:
        """Of a new workload: no earlier one had it."""
        self.named += 1
        return f"{PREFIX}{self.named:03}"


def pods_of(world: World) -> list[Json]:
    return [pod for pod in world.pods() if pod["metadata"]["name"].startswith(PREFIX)]


def pools_of(world: World) -> dict[str, Json]:
    return {name: pool for (_, name), pool in world.objects(NodePool.KIND).items()}


def app_of(world: World, pod: Json) -> App | None:
    return world.pool_facts.apps.get(pod["metadata"]["labels"].get("app", ""))


def millis(cpu: str) -> int:
    return int(cpu[:-1]) if cpu.endswith("m") else 1000 * int(cpu)


def pod_cpu(pod: Json) -> int:
    return sum(millis(c["resources"]["requests"]["cpu"]) for c in pod["spec"]["containers"])


def pod_gpus(pod: Json) -> int:
    return sum(int(c["resources"]["requests"].get("nvidia.com/gpu", 0)) for c in pod["spec"]["containers"])


def begin(world: World, rng: random.Random) -> None:
    """The pools, as far as they have a class, and a namespace of another tenant."""
    world.client.create(Namespace.KIND, {"metadata": {"name": STRANGER}})
    for name, shape in world.pool_facts.shapes.items():
        if ("", shape.node_class) in world.objects(EC2NodeClass.KIND):
            make_pool(world, name, rng)


def make_pool(world: World, name: str, rng: random.Random) -> None:
    shape = world.pool_facts.shapes[name]
    limit = rng.choice(LIMITS) if shape.limited else None
    template: Json = {
        "nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": shape.node_class},
        "requirements": [
            {"key": names.CAPACITY_TYPE, "operator": "In", "values": [*shape.capacity]},
            {"key": names.INSTANCE_TYPE, "operator": "In", "values": [*shape.types]},
        ],
    }
    if rng.random() < 0.25:
        template["terminationGracePeriod"] = "5m"
    spec: Json = {
        "template": {"spec": template},
        "disruption": {
            "consolidateAfter": rng.choice(("30s", "30s", "Never")),
            "budgets": [rng.choice(BUDGETS[:3])],
        },
        **({"limits": {"cpu": limit}} if limit else {}),
        **({} if shape.replicas is None else {"replicas": shape.replicas}),
    }
    note_limit(world, name, limit)
    followed = {names.REPLICAS: "all-reserved"} if shape.follows else {}
    meta = {"name": name, "annotations": {**shape.annotations, **followed}}
    world.client.create(NodePool.KIND, {"metadata": meta, "spec": spec})


def note_limit(world: World, pool: str, limit: str | None) -> None:
    cpus = float(limit) if limit else float("inf")
    world.pool_facts.limits[pool] = max(cpus, world.pool_facts.limits.get(pool, 0.0))


# ---- people


def app(world: World, rng: random.Random) -> None:
    """A workload appears, or has another number of replicas."""
    apps = world.pool_facts.apps
    if apps and rng.random() < 0.4:
        chosen = rng.choice([*apps.values()])
        if not chosen.gang:
            chosen.replicas = rng.randint(0, MOST_REPLICAS)
        return
    if sum(item.replicas for item in apps.values()) >= MOST_PODS:
        return
    name, gang = world.pool_facts.name(), rng.random() < 0.15
    owner = ("", "lent") in world.objects(EC2NodeClass.KIND) and rng.random() < 0.25
    apps[name] = App(
        name,
        TENANT,
        "1" if owner else rng.choice(world.pool_facts.cpus),
        "gpu" if owner else rng.choice(world.pool_facts.selected),
        rng.randint(2, 3) if gang else rng.randint(1, MOST_REPLICAS),
        gang=gang,
        draws_from=OWNER if owner else "",
        grace=rng.choice((0, 30)),
        gpus=8 if owner else 0,
    )


def stranger_app(world: World, rng: random.Random) -> None:
    """A tenant who may only write pods names a reservation of others in them."""
    if ("", "lent") not in world.objects(EC2NodeClass.KIND):
        return
    name = world.pool_facts.name()
    draws_from = rng.choice((OWNER, OWNER, "training", "", f"{STRANGER}/training"))
    world.pool_facts.apps[name] = App(
        name, STRANGER, "1", rng.choice(("gpu", "")), 1, draws_from=draws_from, gpus=8
    )


def crowd(world: World, rng: random.Random) -> None:
    """Pods come to a limited pool while EC2 answers no launch, and more while claims wait for one."""
    from tests.simulation.cluster_parts import run_cluster

    present = [name for name in ("web", "team") if name in pools_of(world)]
    if not present:
        return
    name, limit = rng.choice(present), "4"
    note_limit(world, name, limit)
    world.client.patch(NodePool.KIND, name, {"spec": {"limits": {"cpu": limit}}})
    world.control.fault(action="CreateFleet", code="RequestLimitExceeded", status=503, times=12)
    world.gate.injected("aws throttled")

    def wave() -> None:
        apps = world.pool_facts.apps
        if sum(item.replicas for item in apps.values()) < MOST_PODS:
            chosen = App(world.pool_facts.name(), TENANT, "1500m", name, 2)
            apps[chosen.name] = chosen
        run_cluster(world)

    wave()
    world.gate.arm(1, "after", wave, of="POST /apis/karpenter.sh/v1/nodeclaims", kind="meanwhile")


def app_gone(world: World, rng: random.Random) -> None:
    if apps := world.pool_facts.apps:
        del apps[rng.choice([*apps])]


def pod_lost(world: World, rng: random.Random) -> None:
    """A pod is deleted by hand: its controller makes another."""
    if pods := pods_of(world):
        meta = rng.choice(pods)["metadata"]
        world.client.delete(Pod.KIND, meta["name"], namespace=meta["namespace"])


def edit_pool(world: World, rng: random.Random) -> None:
    """A pool is made again, or gets another limit, template, budget or wait."""
    shapes = world.pool_facts.shapes
    name = rng.choice([*shapes])
    if name not in pools_of(world):
        if ("", shapes[name].node_class) in world.objects(EC2NodeClass.KIND):
            make_pool(world, name, rng)
        return
    limit = rng.choice(LIMITS)
    spec: Json = rng.choice(
        (
            {"limits": {"cpu": limit} if limit else None},
            {"limits": {"cpu": limit} if limit else None},
            {"template": {"metadata": {"labels": {"example.com/round": str(rng.randrange(3))}}}},
            {"disruption": {"budgets": [rng.choice(BUDGETS)]}},
            {"disruption": {"consolidateAfter": rng.choice(("30s", "Never"))}},
            {"weight": rng.randint(1, 3)},
        )
    )
    if "limits" in spec:
        note_limit(world, name, limit)
    world.client.patch(NodePool.KIND, name, {"spec": spec})


def delete_pool(world: World, rng: random.Random) -> None:
    if pools := sorted(pools_of(world)):
        world.client.delete(NodePool.KIND, rng.choice(pools))


def delete_class(world: World, rng: random.Random) -> None:
    """A class is deleted while claims use it; later it is made again."""
    removed = world.pool_facts.classes
    for name in [*removed]:
        if ("", name) not in world.objects(EC2NodeClass.KIND):
            world.client.create(EC2NodeClass.KIND, removed.pop(name))
            return
    name = rng.choice(("by-id", "by-group", "plain"))
    if (node_class := world.objects(EC2NodeClass.KIND).get(("", name))) is not None:
        removed[name] = {"metadata": {"name": name}, "spec": node_class["spec"]}
        world.client.delete(EC2NodeClass.KIND, name)


def budget(world: World, rng: random.Random) -> None:
    """A PodDisruptionBudget of a workload: made, changed or deleted."""
    if not world.pool_facts.apps:
        return
    chosen = rng.choice([*world.pool_facts.apps.values()])
    spec = {"maxUnavailable": rng.choice((0, 0, 1)), "selector": {"matchLabels": {"app": chosen.name}}}
    if (chosen.namespace, chosen.name) not in world.objects(PodDisruptionBudget.KIND):
        body = {"metadata": {"name": chosen.name, "namespace": chosen.namespace}, "spec": spec}
        world.client.create(PodDisruptionBudget.KIND, body)
    elif rng.random() < 0.3:
        world.client.delete(PodDisruptionBudget.KIND, chosen.name, namespace=chosen.namespace)
    else:
        body = {"spec": spec}
        world.client.patch(PodDisruptionBudget.KIND, chosen.name, body, namespace=chosen.namespace)


def edit_tags(world: World, rng: random.Random) -> None:
    """A person adds tags in EC2, or removes one of the cluster's claims' names."""
    ids = [i.id for i in world.instances()] + [o.id for o in world.odcrs() if o.usable]
    own = [id_ for id_ in ids if id_ not in world.facts.foreign]
    if not own:
        return
    chosen = rng.choice(own)
    if rng.random() < 0.3:
        world.aws.ec2.delete_tags(Resources=[chosen], Tags=[{"Key": "Name"}])
    tags = [{"Key": "example.com/cost", "Value": str(rng.randrange(9))}]
    world.aws.ec2.create_tags(Resources=[chosen], Tags=tags)


# ---- faults of this part


def node_not_ready(world: World, rng: random.Random) -> None:
    """A kubelet reports no more, or reports again."""
    if world.sick and rng.random() < 0.4:
        world.sick.clear()
        return
    nodes = [name for (_, name), node in world.objects(Node.KIND).items() if name.endswith(".ec2.internal")]
    if nodes:
        name = rng.choice(nodes)
        world.sick.add(name)
        status = {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]}
        world.client.patch(Node.KIND, name, {"status": status}, subresource="status")


def account_quota(world: World, rng: random.Random) -> None:
    """The account may run few vCPUs, or as many as it likes."""
    world.control.quota(instance_type=SMALL, vcpus=rng.choice((2, 4, 6, None)))
    world.gate.injected("account quota")


def watch_gap(world: World, rng: random.Random) -> None:
    """Watches end in the middle, or with 410 Gone."""
    world.gate.watch_faults.extend(rng.choice(("dropped", "gone")) for _ in range(rng.choice((1, 2, 5))))


def _meanwhile() -> tuple[Act, ...]:
    from tests.simulation import actors, faults

    return (
        *(app, app_gone, pod_lost, pod_lost, edit_pool, edit_pool, delete_pool, delete_class, budget),
        *(node_not_ready, actors.delete_claim, actors.delete_node, faults.end_instance, faults.rival),
    )


def pools_meanwhile(world: World, rng: random.Random) -> None:
    """Something happens between two calls of one decision."""
    from tests.simulation.cluster_parts import run_cluster
    from tests.simulation.faults import attempt

    chosen, when = rng.choice(_meanwhile()), rng.choice(("before", "after"))
    of = rng.choice(("", "CreateFleet", "/nodeclaims", "/nodeclaims", "/eviction", "TerminateInstances"))
    inner = random.Random(rng.random())

    def happens() -> None:
        world.gate.trace(f"meanwhile {chosen.__name__}")
        attempt(chosen, world, inner)
        run_cluster(world)

    world.gate.arm(rng.choice((1, 2, 4)), when, happens, of=of, kind="meanwhile")  # type: ignore[arg-type]


def heal(world: World) -> None:
    """Nothing of this part is in the way any more."""
    world.sick.clear()
    world.control.quota(instance_type=SMALL, vcpus=None)
    for (namespace, name), listed in [*world.objects(PodDisruptionBudget.KIND).items()]:
        if name.startswith(PREFIX) and listed["spec"].get("maxUnavailable") == 0:
            body = {"spec": {"maxUnavailable": 1}}
            world.client.patch(PodDisruptionBudget.KIND, name, body, namespace=namespace)


KINDS: tuple[Kind, ...] = (NodePool.KIND, PodDisruptionBudget.KIND)
