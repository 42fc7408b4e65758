"""Builders for the decision tests: types, reservations, classes, claims with sensible defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from broker.capacity.class_catalog import ClassCatalogs
from broker.capacity.domains import LaunchedGangs
from broker.capacity.inventory import Inventory
from broker.capacity.matching import resolve
from broker.capacity.mismatches import misfits
from broker.capacity.model import Claim, NodeClass, Option, Plan, Pool, Selection, Skipped
from broker.capacity.options import choose, suitable, tenancy
from broker.capacity.plan import plan
from broker.capacity.requirements import Requirements
from broker.capacity.shortages import Shortages
from broker.capacity.supply import LaunchSupply
from providers.aws.tags import Owner
from providers.model import Gpu, Image, Instance, InstanceType, Odcr, ReservationGroup, Subnet

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
ACCOUNT = "111122223333"
CLUSTER = "blue"
ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
GROUP = "arn:aws:resource-groups:us-east-1:111122223333:group/gpus"
CAPACITY_TYPE = "karpenter.sh/capacity-type"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
ZONE = "topology.kubernetes.io/zone"


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def type_(
    name: str,
    *,
    vcpus: int = 4,
    memory_gib: int = 16,
    price: float | None = None,
    gpus: int = 0,
    zones: Iterable[str] = ZONES,
    **more: Any,
) -> InstanceType:
    cards = (Gpu(name="H100", manufacturer="NVIDIA", count=gpus, memory_mib=81559),) if gpus else ()
    return InstanceType(
        name=name,
        vcpus=vcpus,
        memory_mib=memory_gib * 1024,
        zones=frozenset(zones),
        gpus=cards,
        on_demand_price=price,
        **{"max_pods": 58, **more},
    )


TYPES: Mapping[str, InstanceType] = {
    instance_type.name: instance_type
    for instance_type in (
        type_("m5.large", vcpus=2, memory_gib=8, price=0.096, spot_prices={"us-east-1a": 0.03}),
        type_("m5.xlarge", vcpus=4, memory_gib=16, price=0.192),
        type_("m5.2xlarge", vcpus=8, memory_gib=32, price=0.384),
        type_("c6g.xlarge", vcpus=4, memory_gib=8, price=0.136, architecture="arm64"),
        type_(
            "p5.48xlarge",
            vcpus=192,
            memory_gib=2048,
            price=98.32,
            gpus=8,
            efa_interfaces=32,
            market_types=frozenset({"on-demand", "spot", "capacity-block"}),
        ),
    )
}


def odcr(
    id_: str,
    type_name: str = "m5.xlarge",
    zone: str = "us-east-1a",
    *,
    total: int | None = None,
    free: int = 1,
    **more: Any,
) -> Odcr:
    return Odcr(
        id=id_,
        instance_type=type_name,
        zone=zone,
        total=free if total is None else total,
        ownership=more.pop("ownership", Owner(CLUSTER).ownership_of(more.get("tags", {}))),
        available=free,
        owner_id=more.pop("owner_id", ACCOUNT),
        zone_id=more.pop("zone_id", "use1-az" + "abc"[ord(zone[-1]) - ord("a")]),
        **more,
    )


def inventory(*odcrs: Odcr, groups: Mapping[str, Sequence[str]] | None = None, **more: Any) -> Inventory:
    return Inventory(
        odcrs={odcr.id: odcr for odcr in odcrs},
        groups={
            arn: ReservationGroup(arn=arn, name=arn.rsplit("/", 1)[-1], member_ids=tuple(members))
            for arn, members in (groups or {}).items()
        },
        **{"described": NOW, **more},
    )


def subnets(zones: Iterable[str] = ZONES) -> tuple[Subnet, ...]:
    return tuple(
        Subnet(
            id=f"subnet-{zone[-1]}",
            zone=zone,
            zone_id=f"use1-az{zone[-1]}",
            available_addresses=100,
        )
        for zone in zones
    )


IMAGES = (Image(id="ami-amd64"), Image(id="ami-arm64", architecture="arm64"))


def node_class(
    selection: Selection | None = None,
    world: Inventory | None = None,
    *,
    name: str = "default",
    zones: Iterable[str] = ZONES,
    now: datetime = NOW,
    **more: Any,
) -> NodeClass:
    """A class with its selection resolved against `world`."""
    nodeclass = NodeClass(
        name=name,
        selection=selection or Selection(),
        **{"subnets": subnets(zones), "images": IMAGES, **more},
    )
    resolved = [
        resolve(variant, world or inventory(), account_id=ACCOUNT, now=now)
        for variant in (nodeclass, replace(nodeclass, tenancy="dedicated"))
    ]
    return replace(nodeclass, resolved=resolved[0], dedicated=resolved[1])


def claim(
    name: str = "claim-1",
    *requirements: tuple[str, str, Sequence[str]],
    node_class: str = "default",
    kinds: Sequence[str] = (),
    types: Sequence[str] = (),
    zones: Sequence[str] = (),
    **more: Any,
) -> Claim:
    required = list(requirements)
    for key, values in ((CAPACITY_TYPE, kinds), (INSTANCE_TYPE, types), (ZONE, zones)):
        if values:
            required.append((key, "In", values))
    return Claim(
        name=name,
        uid=f"uid-{name}",
        node_class=node_class,
        requirements=Requirements.of(required),
        **{"created": NOW, **more},
    )


def supply(classes: Mapping[str, NodeClass], world: Inventory, **more: Any) -> LaunchSupply:
    settings = {"types": TYPES, "shortages": Shortages(), "now": NOW, **more}
    return LaunchSupply(classes=classes, inventory=world, **settings)


def planned(
    claims: Iterable[Claim],
    classes: NodeClass | Iterable[NodeClass],
    world: Inventory,
    *,
    shortages: Shortages | None = None,
    types: Mapping[str, InstanceType] = TYPES,
    now: datetime = NOW,
    launched: LaunchedGangs | None = None,
) -> Plan:
    known = [classes] if isinstance(classes, NodeClass) else list(classes)
    by_name = {nodeclass.name: nodeclass for nodeclass in known}
    given = supply(by_name, world, shortages=shortages or Shortages(), types=types, now=now)
    return plan(claims, given, launched=launched)


def chosen(plan: Plan) -> dict[str, str]:
    """Claim → pool, as text."""
    return {assignment.claim.name: str(assignment.option.pool) for assignment in plan.assignments}


def refusals(plan: Plan) -> dict[str, str]:
    """Claim → reason."""
    return {unplaced.claim.name: unplaced.reason for unplaced in plan.unplaced}


def reserved(
    reservation: str, *ids: str, type_name: str = "m5.xlarge", zone: str = "us-east-1a", **more: Any
) -> Option:
    pool = Pool(capacity_type="reserved", instance_type=type_name, zone=zone, reservation=reservation)
    known = ids or ((reservation,) if reservation.startswith("cr-") else ())
    return Option(pool=pool, odcr_ids=known, **more)


def on_demand(type_name: str = "m5.xlarge", zone: str = "us-east-1a", **more: Any) -> Option:
    return Option(pool=Pool(capacity_type="on-demand", instance_type=type_name, zone=zone), **more)


def spot(type_name: str = "m5.large", zone: str = "us-east-1a") -> Option:
    return Option(pool=Pool(capacity_type="spot", instance_type=type_name, zone=zone), market="spot")


def instance(
    id_: str,
    type_name: str = "m5.xlarge",
    zone: str = "us-east-1a",
    reservation: str = "",
    **more: Any,
) -> Instance:
    return Instance(
        id=id_,
        instance_type=type_name,
        zone=zone,
        zone_id=f"use1-az{zone[-1]}",
        reservation_id=reservation,
        **{"state": "running", **more},
    )


def options(
    claim: Claim,
    node_class: NodeClass,
    types: Mapping[str, InstanceType],
    inventory: Inventory,
    now: datetime,
) -> tuple[tuple[Option, ...], tuple[Skipped, ...]]:
    """The claim's options in order, and the reservations of its class that are none, each with the reason."""
    known = ClassCatalogs(types, inventory, now).of(node_class.of_tenancy(tenancy(claim.requirements)))
    suitable_types = suitable(claim.requirements, claim.requests, known)
    return choose(claim.requirements, suitable_types, known), tuple(misfits(claim, suitable_types, known))
