"""The input of `benchmarks.plan`: types, reservations, classes and claims, the same at every run.

Sizes and prices follow EC2's pattern (a price per vCPU for each family, accelerators extra). Claims come in
shapes as NodePools give them: families, sizes, a zone now and then, priorities, and whether they may leave
the reservations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random

from broker.capacity.inventory import Inventory
from broker.capacity.matching import resolve
from broker.capacity.model import Claim, NodeClass, Plan, Selection
from broker.capacity.plan import plan
from broker.capacity.requirements import Requirements
from broker.capacity.shortages import Shortages
from broker.capacity.supply import LaunchSupply
from broker.kube.clock import SystemClock
from providers.model import Gpu, Image, InstanceType, Odcr, ReservationGroup, Subnet

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
ACCOUNT = "111122223333"
ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
# Dollars an hour for a vCPU, and GiB of memory to a vCPU.
FAMILIES = {
    "c": (0.0425, 2),
    "m": (0.048, 4),
    "r": (0.063, 8),
    "x": (0.0834, 16),
    "g": (0.0503, 4),
    "i": (0.078, 8),
}
VCPUS = {
    "large": 2,
    "xlarge": 4,
    "2xlarge": 8,
    "4xlarge": 16,
    "8xlarge": 32,
    "12xlarge": 48,
    "16xlarge": 64,
    "24xlarge": 96,
}
SUFFIXES = ("", "i", "a", "n", "d", "e", "b", "id", "ad")
GROUPS = tuple(f"arn:aws:resource-groups:us-east-1:{ACCOUNT}:group/team-{team}" for team in range(6))


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    types: Mapping[str, InstanceType]
    inventory: Inventory
    classes: Mapping[str, NodeClass]
    claims: Sequence[Claim]

    @property
    def supply(self) -> LaunchSupply:
        return LaunchSupply(
            classes=self.classes, types=self.types, inventory=self.inventory, shortages=Shortages(), now=NOW
        )

    def planned(self, *, seconds: float = 5.0) -> Plan:
        return plan(self.claims, self.supply, seconds=seconds, timer=SystemClock().monotonic)


def world(
    claims: int,
    *,
    odcrs: int = 1000,
    types: int = 400,
    shapes: int = 200,
    gangs: int = 0,
    equal: bool = False,
    seed: int = 1,
) -> World:
    """So many claims in so many shapes; `gangs` of eight that never leave the reservations come on top.

    With `equal` all have one priority and may fall back.
    """
    random = Random(seed)
    known = _types(types)
    inventory = _inventory(random, [*known.values()], odcrs)
    classes = {node_class.name: _resolved(node_class, inventory) for node_class in _classes()}
    claim_shapes = _shapes(random, [*known], [*classes], shapes, equal)
    alone = [_claim(claim_shapes[number % shapes], number, random) for number in range(claims)]
    together = [
        replace(
            _claim(claim_shapes[gang % shapes], claims + 8 * gang + number, random),
            gang=f"gang-{gang}",
            requirements=claim_shapes[gang % shapes].reserved,
            priority=claim_shapes[gang % shapes].priority,
        )
        for gang in range(gangs)
        for number in range(8)
    ]
    return World(types=known, inventory=inventory, classes=classes, claims=[*alone, *together])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    node_class: str
    requirements: Requirements
    reserved: Requirements  # the same without a way out of the reservations
    requests: Mapping[str, float]
    priority: int


def _types(count: int) -> dict[str, InstanceType]:
    types: dict[str, InstanceType] = {}
    for generation in range(5, 9):
        for suffix in SUFFIXES:
            for place, (family, (price, memory)) in enumerate(FAMILIES.items()):
                for size, vcpus in VCPUS.items():
                    if len(types) == count:
                        return types
                    gpus = max(1, vcpus // 16) if family == "g" else 0
                    name = f"{family}{generation}{suffix}.{size}"
                    types[name] = InstanceType(
                        name=name,
                        vcpus=vcpus,
                        memory_mib=vcpus * memory * 1024,
                        zones=frozenset(ZONES),
                        gpus=(Gpu(name="L4", manufacturer="NVIDIA", count=gpus, memory_mib=24576),)
                        if gpus
                        else (),
                        # Each generation and suffix has its own price.
                        on_demand_price=round(
                            vcpus
                            * price
                            * (1 + 0.02 * (generation - 5))
                            * (1 + 0.013 * SUFFIXES.index(suffix))
                            + gpus * 0.35
                            + 0.0001 * place,
                            4,
                        ),
                        max_pods=110,
                    )
    raise ValueError(f"there are names for {len(types)} types, not for {count}")


def _inventory(random: Random, types: Sequence[InstanceType], count: int) -> Inventory:
    odcrs = {}
    for number in range(count):
        free = random.randint(0, 12)
        odcr_id = f"cr-{number:05d}"
        odcrs[odcr_id] = Odcr(
            id=odcr_id,
            instance_type=random.choice(types).name,
            zone=random.choice(ZONES),
            total=free + random.randint(0, 4),
            available=free,
            owner_id=ACCOUNT,
            match_criteria="open" if number % 3 == 0 else "targeted",
            end=None if number % 4 else NOW + timedelta(days=random.randint(1, 60)),
        )
    members = {arn: tuple(sorted(random.sample([*odcrs], count // 3))) for arn in GROUPS}
    return Inventory(
        odcrs=odcrs,
        groups={arn: ReservationGroup(arn=arn, name=arn, member_ids=ids) for arn, ids in members.items()},
        debits={f"cr-{number:05d}": 1 for number in range(0, count, 17)},
        described=NOW,
    )


def _classes() -> list[NodeClass]:
    selections = {f"team-{place}": Selection(group_arn=arn) for place, arn in enumerate(GROUPS)}
    subnets = tuple(
        Subnet(id=f"subnet-{zone[-1]}", zone=zone, zone_id="", available_addresses=4000) for zone in ZONES
    )
    return [
        NodeClass(name=name, selection=selection, subnets=subnets, images=(Image(id="ami-1"),))
        for name, selection in ({"open": Selection(preference="open")} | selections).items()
    ]


def _resolved(node_class: NodeClass, inventory: Inventory) -> NodeClass:
    return replace(node_class, resolved=resolve(node_class, inventory, account_id=ACCOUNT, now=NOW))


def _shapes(
    random: Random, types: Sequence[str], classes: Sequence[str], count: int, equal: bool
) -> list[_Shape]:
    shapes = []
    for _ in range(count):
        required: list[tuple[str, str, Sequence[str]]] = []
        kind = random.random()
        if kind < 0.4:
            families = random.sample([*FAMILIES], random.randint(1, 3))
            required.append(("karpenter.k8s.aws/instance-category", "In", families))
        elif kind < 0.8:
            required.append(
                ("node.kubernetes.io/instance-type", "In", random.sample(types, random.randint(5, 60)))
            )
        if random.random() < 0.3:
            required.append(("topology.kubernetes.io/zone", "In", random.sample(ZONES, random.randint(1, 2))))
        kinds = ["reserved"] if random.random() < 0.15 and not equal else ["reserved", "on-demand"]
        capacity_type = "karpenter.sh/capacity-type"
        shapes.append(
            _Shape(
                node_class=random.choice(classes),
                requirements=Requirements.of([*required, (capacity_type, "In", kinds)]),
                reserved=Requirements.of([*required, (capacity_type, "In", ["reserved"])]),
                requests={
                    "cpu": random.choice([1.0, 3.0, 6.5, 14.0, 30.0]),
                    "memory": random.choice([2, 12, 50]) * 2.0**30,
                },
                priority=0 if equal else random.choice([0, 0, 0, 10, 100]),
            )
        )
    return shapes


def _claim(shape: _Shape, number: int, random: Random) -> Claim:
    return Claim(
        name=f"claim-{number:06d}",
        uid=f"uid-{number:06d}",
        node_class=shape.node_class,
        requirements=shape.requirements,
        requests=shape.requests,
        priority=shape.priority,
        created=NOW - timedelta(seconds=random.randint(0, 30)),
    )
