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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker.capacity.matching import ends_at, launchable
from broker.capacity.model import Claim, Inventory, NodeClass, Option, Pool, Selection, Skipped
from broker.capacity.requirements import Requirements
from broker.capacity.suits import Suits
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
_PLAIN: Final[tuple[CapacityType, ...]] = ("on-demand", "spot")
_FOREVER: Final = datetime.max.replace(tzinfo=UTC)


# What comes with the zone and the kind of capacity; the type alone decides the rest.
_PLACE_KEYS: Final = frozenset(
    {CAPACITY_TYPE, RESERVATION_ID, RESERVATION_INTERRUPTIBLE, RESERVATION_TYPE, REGION, ZONE, ZONE_ID}
)
_ODCR_KEYS: Final = frozenset({RESERVATION_ID, RESERVATION_INTERRUPTIBLE, RESERVATION_TYPE})
_TYPE_KEYS: Final = WELL_KNOWN - _PLACE_KEYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A type as a node of one class."""

    type: InstanceType
    labels: Mapping[str, str]
    allocatable: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A usable reservation of a class as it is now: its node's labels, or why it cannot be launched into."""

    odcr: Odcr
    labels: Mapping[str, str]
    problem: tuple[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The usable reservations of a class in one zone and of one type; their options, if all are accepted."""

    zone: str
    lives: tuple[Live, ...]
    options: tuple[Option, ...]


class Plain:
    """Options outside reservations, in order."""

    def __init__(self, options: Sequence[Option]) -> None:
        self.options = tuple(options)
        self._types = _numbered(option.pool.instance_type for option in options)
        self._zones = _numbered(option.pool.zone for option in options)

    def among(self, types: Collection[str], zones: Collection[str]) -> list[Option]:
        """Those of these types in these zones."""
        yes = np.ones(len(self.options), dtype=bool)
        for (names, places), wanted in ((self._types, types), (self._zones, zones)):
            yes &= np.array([name in wanted for name in names], dtype=bool)[places]
        return [self.options[place] for place in np.nonzero(yes)[0].tolist()]


def _numbered(values: Iterable[str]) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct values, and for each value its place among them."""
    places: dict[str, int] = {}
    numbers = [places.setdefault(value, len(places)) for value in values]
    return [*places], np.array(numbers, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """What all claims of one class choose from, worked out once: types smallest first, options in order.

    `imageless` are the types that the class has no image for. Each option is `made` once.
    """

    node_class: NodeClass
    candidates: Mapping[str, Candidate]
    imageless: Mapping[str, str]
    zones: Mapping[str, Mapping[str, str]]
    reserved: tuple[Live, ...]
    places: Mapping[str, tuple[Place, ...]]  # by type
    plain: Mapping[CapacityType, Plain]
    suits: Suits
    made: dict[tuple[str, ...], Option]


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
    known = catalog(node_class, types, inventory, now)
    suited = suitable(claim.requirements, claim.requests, known)
    return choose(claim.requirements, suited, known), tuple(misfits(claim, suited, known))


def catalog(
    node_class: NodeClass, types: Mapping[str, InstanceType], inventory: Inventory, now: datetime
) -> Catalog:
    """What claims of this class choose from now."""
    tenancy = {TENANCY: node_class.tenancy or "default"}
    ordered = sorted(types.values(), key=size_key)
    served = {each.name for each in ordered if image_for(node_class, each)}
    candidates = {
        each.name: Candidate(
            type=each, labels=type_labels(each) | tenancy, allocatable=allocatable(each, node_class)
        )
        for each in ordered
        if each.name in served
    }
    zones = {subnet.zone: zone_labels(subnet.zone, subnet.zone_id) for subnet in node_class.subnets}
    reserved = tuple(
        _live(inventory.odcrs.get(each.id, each), node_class, candidates, zones, now)
        for each in node_class.resolved.usable
    )
    made: dict[tuple[str, ...], Option] = {}
    return Catalog(
        node_class=node_class,
        candidates=candidates,
        imageless={
            each.name: f"the class has no image for {each.architecture}"
            + (" with its accelerators" if each.gpus or each.neurons else "")
            for each in ordered
            if each.name not in served
        },
        zones=zones,
        reserved=reserved,
        places=_places(reserved, node_class.selection, made),
        plain={kind: Plain(_plain(kind, candidates, zones)) for kind in _PLAIN},
        suits=Suits(
            [each.labels for each in candidates.values()], [each.allocatable for each in candidates.values()]
        ),
        made=made,
    )


def suitable(
    requirements: Requirements, requests: Mapping[str, float], known: Catalog
) -> tuple[Candidate, ...]:
    """The types that the requests fit on and whose labels satisfy the requirements, whatever the place."""
    yes = known.suits.labelled(requirements, among=_TYPE_KEYS) & known.suits.roomy(requests)
    return tuple(each for each, suits in zip(known.candidates.values(), yes.tolist(), strict=True) if suits)


def choose(requirements: Requirements, suited: Sequence[Candidate], known: Catalog) -> tuple[Option, ...]:
    """Options in order, among the types that suit."""
    kinds = capacity_types(requirements)
    chosen: list[Option] = []
    if "reserved" in kinds:
        chosen += _reserved(requirements, (each.type.name for each in suited), known)
    for kind in plain_kinds(kinds, known.node_class):
        zones = {
            zone
            for zone, labels in known.zones.items()
            if not requirements.unmet({**labels, CAPACITY_TYPE: kind}, among=_PLACE_KEYS)
        }
        types = {each.type.name for each in suited}
        chosen += known.plain[kind].among(types, zones)
    return tuple(chosen)


def plain_kinds(kinds: Sequence[CapacityType], node_class: NodeClass) -> tuple[CapacityType, ...]:
    """Those of the kinds that leave the reservations, if the class lets a claim leave them."""
    if node_class.selection.preference == "capacity-reservations-only":
        return ()
    return tuple(kind for kind in kinds if kind != "reserved")


def misfits(claim: Claim, suited: Sequence[Candidate], known: Catalog) -> Iterator[Skipped]:
    """The reservations of the class that the claim cannot go into, each with the reason."""
    kinds = capacity_types(claim.requirements)
    names = {each.type.name for each in suited}
    for odcr in known.node_class.resolved.pending:
        starts = f", starts at {odcr.start:%Y-%m-%dT%H:%M:%SZ}" if odcr.start else ""
        yield _skip(odcr, "ReservationPending", f"reservation {odcr.id} is {odcr.state}{starts}")
    for live in known.reserved:
        odcr = live.odcr
        if "reserved" not in kinds:
            takes = " or ".join(kinds) or "no known capacity type"
            yield _skip(odcr, "CapacityTypeMismatch", f"the claim takes {takes} only")
        elif odcr.instance_type not in names:
            why = unsuited(claim, odcr.instance_type, known)
            yield _skip(odcr, "InstanceTypeMismatch", f"{odcr.instance_type}: {why}")
        elif live.problem:
            yield _skip(odcr, *live.problem)
        elif unwanted := claim.requirements.accepts(live.labels, among=_PLACE_KEYS):
            yield _skip(odcr, "RequirementsMismatch", unwanted)


def unsuited(claim: Claim, instance_type: str, known: Catalog) -> str:
    """Why a type does not suit a claim."""
    candidate = known.candidates.get(instance_type)
    if candidate is None:
        return known.imageless.get(instance_type, "EC2 does not describe this instance type here")
    return (
        claim.requirements.accepts(candidate.labels, among=_TYPE_KEYS)
        or fits(claim.requests, candidate.allocatable)
        or "it suits"
    )


def dropped(claim: Claim, known: Catalog) -> dict[str, int]:
    """How many types each requirement, and each request, excludes; those that exclude most first."""
    counts = Counter({"image": len(known.imageless)} if known.imageless else {})
    for each in known.candidates.values():
        counts.update(claim.requirements.unmet(each.labels, among=_TYPE_KEYS))
        counts.update(f"requests of {name}" for name in lacking(claim.requests, each.allocatable))
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def _reserved(requirements: Requirements, suited: Iterable[str], known: Catalog) -> list[Option]:
    # Of the reservations of one place all suit or none, unless something is asked of the reservation itself.
    alike = not any(key in requirements for key in _ODCR_KEYS)
    zones: dict[str, bool] = {}
    found: list[Option] = []
    for name in suited:
        some: list[Option] = []
        for place in known.places.get(name, ()):
            if not alike:
                good = [
                    live for live in place.lives if not requirements.unmet(live.labels, among=_PLACE_KEYS)
                ]
                some += _of_place(good, place.lives, known.node_class.selection, known.made)
                continue
            if place.zone not in zones:
                zones[place.zone] = not requirements.unmet(place.lives[0].labels, among=_PLACE_KEYS)
            if zones[place.zone]:
                some += place.options
        found += sorted(some, key=_soonest) if len(some) > 1 else some
    return found


def _soonest(option: Option) -> tuple[datetime, Pool]:
    return option.ends or _FOREVER, option.pool


def _places(
    reserved: Iterable[Live], selection: Selection, made: dict[tuple[str, ...], Option]
) -> dict[str, tuple[Place, ...]]:
    """Where the reservations of each type are, those apart that cannot be launched into."""
    lives: dict[str, dict[str, list[Live]]] = defaultdict(lambda: defaultdict(list))
    for live in reserved:
        if not live.problem:
            lives[live.odcr.instance_type][live.odcr.zone].append(live)
    return {
        name: tuple(
            Place(zone=zone, lives=tuple(some), options=tuple(_of_place(some, some, selection, made)))
            for zone, some in zones.items()
        )
        for name, zones in lives.items()
    }


def _of_place(
    good: Sequence[Live], lives: Sequence[Live], selection: Selection, made: dict[tuple[str, ...], Option]
) -> list[Option]:
    """The options of one type and zone. `lives` are all there, the `good` those that the claim accepts.

    An open or group launch could land in any of them, so it is none if that could be one that is not good.
    """
    together = [live.odcr for live in good if market_of(live.odcr) == "on-demand"]
    apart = [live.odcr for live in good]
    found: list[Option] = []
    by_match = bool(selection.group_arn) or selection.preference in ("open", "capacity-reservations-only")
    if by_match and together and len(together) == sum(market_of(live.odcr) == "on-demand" for live in lives):
        found.append(_option(selection.group_arn, together, made))
        apart = [odcr for odcr in apart if market_of(odcr) != "on-demand"]
    return found + [_option(odcr.id, [odcr], made) for odcr in apart]


def _live(
    odcr: Odcr,
    node_class: NodeClass,
    candidates: Mapping[str, Candidate],
    zones: Mapping[str, Mapping[str, str]],
    now: datetime,
) -> Live:
    problem: tuple[str, str] | None = None
    candidate = candidates.get(odcr.instance_type)
    if not launchable(odcr, now):
        problem = ("ReservationNotActive", f"reservation {odcr.id} is {odcr.state} or at its end")
    elif candidate and image_for(node_class, candidate.type, odcr) is None:
        wanted = f"{odcr.instance_type} on platform {odcr.platform}"
        problem = ("PlatformMismatch", f"the class has no image for {wanted}")
    zone = zones.get(odcr.zone) or zone_labels(odcr.zone, odcr.zone_id)
    return Live(odcr=odcr, labels={**zone, **reservation_labels(odcr)}, problem=problem)


def _plain(
    kind: CapacityType, candidates: Mapping[str, Candidate], zones: Collection[str]
) -> tuple[Option, ...]:
    """On-demand or spot pools, cheapest first, then smallest; unknown prices come last."""
    market: Market = "spot" if kind == "spot" else "on-demand"
    found: list[tuple[float, int, Option]] = []
    for rank, candidate in enumerate(candidates.values()):
        type_ = candidate.type
        if kind not in type_.market_types:
            continue
        for zone in type_.zones.intersection(zones):
            price = type_.spot_prices.get(zone) if kind == "spot" else type_.on_demand_price
            pool = Pool(capacity_type=kind, instance_type=type_.name, zone=zone)
            option = Option(pool=pool, price=price, market=market)
            found.append((math.inf if price is None else price, rank, option))
    found.sort(key=lambda each: (each[0], each[1], each[2].pool))
    return tuple(option for _, _, option in found)


def image_for(node_class: NodeClass, type_: InstanceType, odcr: Odcr | None = None) -> Image | None:
    """The class's first image that serves the type, on the reservation's platform if it is to run in one."""
    return next(
        (
            image
            for image in node_class.images
            if image.serves(type_) and (odcr is None or image.platform == odcr.platform)
        ),
        None,
    )


def market_of(odcr: Odcr) -> Market:
    """The purchasing option that a launch into this reservation must name."""
    if odcr.interruptible:
        return "interruptible-capacity-reservation"
    return "capacity-block" if odcr.reservation_type == "capacity-block" else "on-demand"


def _option(reservation: str, odcrs: Sequence[Odcr], made: dict[tuple[str, ...], Option]) -> Option:
    key = (reservation, *(odcr.id for odcr in odcrs))
    if key not in made:
        made[key] = _new_option(reservation, odcrs)
    return made[key]


def _new_option(reservation: str, odcrs: Sequence[Odcr]) -> Option:
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
