"""What a claim could be launched into, in the order in which it is tried.

Invariant: every option satisfies the claim's requirements and requests, and its room comes only from
reservations that are usable now. The claim's karpenter.sh/capacity-type requirement is the fallback policy:
reserved first, then on-demand, spot last and only where it is asked for; no requirement means reserved, then
on-demand. Reserved options run from the smaller instance to the larger, then from the soonest-ending
reservation on; the rest by price.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from broker.capacity.matching import ends_at, launchable
from broker.capacity.model import Claim, Inventory, NodeClass, Option, Pool, Skipped
from broker.capacity.requirements import Requirements
from broker.capacity.types import (
    CAPACITY_TYPE,
    REGION,
    RESERVATION_ID,
    RESERVATION_INTERRUPTIBLE,
    RESERVATION_TYPE,
    TENANCY,
    WELL_KNOWN,
    ZONE,
    ZONE_ID,
    allocatable,
    fits,
    lacking,
    reservation_labels,
    size_key,
    type_labels,
    zone_labels,
)
from providers.model import CapacityType, Image, InstanceType, Market, Odcr

_ORDER: Final[tuple[CapacityType, ...]] = ("reserved", "on-demand", "spot")
_FOREVER: Final = datetime.max.replace(tzinfo=UTC)


# What comes with the zone and the kind of capacity; the type alone decides the rest.
_PLACE_KEYS: Final = frozenset(
    {CAPACITY_TYPE, RESERVATION_ID, RESERVATION_INTERRUPTIBLE, RESERVATION_TYPE, REGION, ZONE, ZONE_ID}
)
_TYPE_KEYS: Final = WELL_KNOWN - _PLACE_KEYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A type as a node of one class: computed once, asked for every claim."""

    type: InstanceType
    labels: Mapping[str, str]
    allocatable: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """The types of one class, smallest first, its zones (zone → labels), and the types without an image."""

    node_class: NodeClass
    candidates: Mapping[str, Candidate]
    zones: Mapping[str, Mapping[str, str]]
    imageless: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Options in order, what was left out and why, and how many types each requirement dropped.

    `suited` types of all that were `considered` satisfy the claim, zone and kind of capacity apart. `plain`:
    claim and class allow capacity outside reservations.
    """

    options: tuple[Option, ...]
    skipped: tuple[Skipped, ...]
    dropped: Mapping[str, int]
    considered: int
    suited: int
    plain: bool


def capacity_types(requirements: Requirements) -> tuple[CapacityType, ...]:
    """The capacity types that a claim accepts, in the order in which they are tried."""
    if CAPACITY_TYPE not in requirements:
        return ("reserved", "on-demand")
    return tuple(kind for kind in _ORDER if requirements.allows(CAPACITY_TYPE, kind))


def options(
    claim: Claim,
    node_class: NodeClass,
    types: Mapping[str, InstanceType],
    inventory: Inventory,
    now: datetime,
) -> tuple[tuple[Option, ...], tuple[Skipped, ...]]:
    """The claim's options in order, and the reservations of its class that are none, each with the reason."""
    choice = choose(claim, catalog(node_class, types), inventory, now)
    return choice.options, choice.skipped


def catalog(node_class: NodeClass, types: Mapping[str, InstanceType]) -> Catalog:
    """What every claim of this class asks again."""
    tenancy = {TENANCY: node_class.tenancy or "default"}
    architectures = {image.architecture for image in node_class.images}
    ordered = sorted(types.values(), key=size_key)
    return Catalog(
        node_class=node_class,
        candidates={
            each.name: Candidate(
                type=each, labels=type_labels(each) | tenancy, allocatable=allocatable(each, node_class)
            )
            for each in ordered
            if each.architecture in architectures
        },
        zones={subnet.zone: zone_labels(subnet.zone, subnet.zone_id) for subnet in node_class.subnets},
        imageless={
            each.name: f"the class has no image for {each.architecture}"
            for each in ordered
            if each.architecture not in architectures
        },
    )


def choose(claim: Claim, catalog: Catalog, inventory: Inventory, now: datetime) -> Choice:
    """`options` over a catalog made before, with the count of types that each requirement dropped."""
    kinds = capacity_types(claim.requirements)
    suited: dict[str, Candidate] = {}
    misfits = dict(catalog.imageless)
    dropped = Counter({"image": len(misfits)} if misfits else {})
    for name, candidate in catalog.candidates.items():
        unmet = claim.requirements.unmet(candidate.labels, among=_TYPE_KEYS)
        lacks = lacking(claim.requests, candidate.allocatable)
        if not unmet and not lacks:
            suited[name] = candidate
            continue
        dropped.update([*unmet, *(f"requests of {resource}" for resource in lacks)])
        misfits[name] = (
            claim.requirements.accepts(candidate.labels, among=_TYPE_KEYS)
            or fits(claim.requests, candidate.allocatable)
            or ""
        )
    chosen, skipped = _reserved(claim, catalog, suited, misfits, kinds, inventory, now)
    plain: list[CapacityType] = []
    if catalog.node_class.selection.preference != "capacity-reservations-only":
        plain = [kind for kind in kinds if kind != "reserved"]
    for kind in plain:
        chosen += _plain(claim, catalog, suited, kind)
    return Choice(
        options=tuple(chosen),
        skipped=tuple(skipped),
        dropped=dict(dropped),
        considered=len(catalog.candidates) + len(catalog.imageless),
        suited=len(suited),
        plain=bool(plain),
    )


def _reserved(
    claim: Claim,
    catalog: Catalog,
    suited: Mapping[str, Candidate],
    misfits: Mapping[str, str],
    kinds: Collection[str],
    inventory: Inventory,
    now: datetime,
) -> tuple[list[Option], list[Skipped]]:
    resolved, selection = catalog.node_class.resolved, catalog.node_class.selection
    skipped = [
        _skip(odcr, "ReservationPending", f"reservation {odcr.id} is {odcr.state}{_starts(odcr)}")
        for odcr in resolved.pending
    ]
    good: dict[tuple[str, str], list[Odcr]] = defaultdict(list)
    shared: set[tuple[str, str]] = set()  # places where an open or group launch could land in a wrong one
    for known in resolved.usable:
        odcr = inventory.odcrs.get(known.id, known)
        reason = _misfit(claim, odcr, catalog, suited, misfits, kinds, now)
        if reason is None:
            good[odcr.instance_type, odcr.zone].append(odcr)
        else:
            skipped.append(_skip(odcr, *reason))
            if launchable(odcr, now) and market_of(odcr) == "on-demand":
                shared.add((odcr.instance_type, odcr.zone))
    found: list[Option] = []
    for (name, zone), odcrs in good.items():
        together = [odcr for odcr in odcrs if market_of(odcr) == "on-demand"]
        common = selection.group_arn if selection.group_arn else ""
        by_match = selection.preference in ("open", "capacity-reservations-only")
        if together and (common or by_match) and (name, zone) not in shared:
            found.append(_option(common, together))
        else:
            found += [_option(odcr.id, [odcr]) for odcr in together]
        found += [_option(odcr.id, [odcr]) for odcr in odcrs if odcr not in together]
    found.sort(
        key=lambda option: (
            size_key(suited[option.pool.instance_type].type),
            option.ends or _FOREVER,
            option.pool,
        )
    )
    return found, skipped


def _misfit(
    claim: Claim,
    odcr: Odcr,
    catalog: Catalog,
    suited: Mapping[str, Candidate],
    misfits: Mapping[str, str],
    kinds: Collection[str],
    now: datetime,
) -> tuple[str, str] | None:
    """Why the claim cannot go into this reservation, as (reason, message)."""
    if "reserved" not in kinds:
        return (
            "CapacityTypeMismatch",
            f"the claim takes {' or '.join(kinds) or 'no known capacity type'} only",
        )
    if not launchable(odcr, now):
        return "ReservationNotActive", f"reservation {odcr.id} is {odcr.state} or at its end"
    if odcr.instance_type not in suited:
        reason = misfits.get(odcr.instance_type, "EC2 does not describe this instance type here")
        return "InstanceTypeMismatch", f"{odcr.instance_type}: {reason}"
    architecture = suited[odcr.instance_type].type.architecture
    if image_for(catalog.node_class, architecture, odcr) is None:
        return "PlatformMismatch", f"the class has no image for {architecture} on platform {odcr.platform}"
    place = {**_zone_labels(catalog, odcr), **reservation_labels(odcr)}
    unwanted = claim.requirements.accepts(place, among=_PLACE_KEYS)
    return ("RequirementsMismatch", unwanted) if unwanted else None


def _plain(
    claim: Claim, catalog: Catalog, suited: Mapping[str, Candidate], kind: CapacityType
) -> list[Option]:
    """On-demand or spot pools, cheapest first; an unknown price comes last."""
    market: Market = "spot" if kind == "spot" else "on-demand"
    zones = [
        zone
        for zone, labels in catalog.zones.items()
        if not claim.requirements.unmet({**labels, CAPACITY_TYPE: kind}, among=_PLACE_KEYS)
    ]
    found: list[tuple[float, int, Option]] = []
    for rank, candidate in enumerate(suited.values()):
        type_ = candidate.type
        if kind not in type_.market_types:
            continue
        for zone in zones:
            if zone not in type_.zones:
                continue
            price = type_.spot_prices.get(zone) if kind == "spot" else type_.on_demand_price
            pool = Pool(capacity_type=kind, instance_type=type_.name, zone=zone)
            found.append(
                (math.inf if price is None else price, rank, Option(pool=pool, price=price, market=market))
            )
    found.sort(key=lambda each: (each[0], each[1], each[2].pool))
    return [option for _, _, option in found]


def image_for(node_class: NodeClass, architecture: str, odcr: Odcr | None = None) -> Image | None:
    """The class's first image for the architecture, and for the platform if it is to run in a reservation."""
    return next(
        (
            image
            for image in node_class.images
            if image.architecture == architecture and (odcr is None or image.platform == odcr.platform)
        ),
        None,
    )


def market_of(odcr: Odcr) -> Market:
    """The purchasing option that a launch into this reservation must name."""
    if odcr.interruptible:
        return "interruptible-capacity-reservation"
    return "capacity-block" if odcr.reservation_type == "capacity-block" else "on-demand"


def _option(reservation: str, odcrs: Sequence[Odcr]) -> Option:
    ordered = sorted(odcrs, key=lambda odcr: (ends_at(odcr) or _FOREVER, odcr.id))
    first = ordered[0]
    return Option(
        pool=Pool(
            capacity_type="reserved",
            instance_type=first.instance_type,
            zone=first.zone,
            reservation=reservation,
        ),
        odcr_ids=tuple(odcr.id for odcr in ordered),
        ends=ends_at(first),
        market=market_of(first),
    )


def _skip(odcr: Odcr, reason: str, message: str) -> Skipped:
    pool = Pool(
        capacity_type="reserved", instance_type=odcr.instance_type, zone=odcr.zone, reservation=odcr.id
    )
    return Skipped(pool=pool, reason=reason, message=message)


def _zone_labels(catalog: Catalog, odcr: Odcr) -> Mapping[str, str]:
    return catalog.zones.get(odcr.zone) or zone_labels(odcr.zone, odcr.zone_id)


def _starts(odcr: Odcr) -> str:
    return f", starts at {odcr.start:%Y-%m-%dT%H:%M:%SZ}" if odcr.start else ""
