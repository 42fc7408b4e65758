"""The options of a claim, in the order in which they are tried.

Invariant: every option satisfies the claim's requirements and requests, and its room comes only from
reservations that are usable now. The claim's karpenter.sh/capacity-type requirement is the fallback policy:
reserved first, then spot if it is requested, then on-demand. Without the requirement, reserved and on-demand
are allowed. Reserved options run from the smaller instance to the larger, then by the soonest end; the rest
by price.

Outside reservations, types with accelerators, bare metal and unknown prices come after all others. A spot
option dearer than the cheapest on-demand one is none, nor is an option above the price ceiling. These are
Karpenter's filters of exotic types and of spot offerings (pkg/providers/instance/filter), and one of the
broker's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import compress
from typing import Final

import numpy as np

from broker.apis.label_names import stable
from broker.apis.names import (
    CAPACITY_TYPE,
    INSTANCE_TENANCY,
    REGION,
    RESERVATION_ID,
    RESERVATION_INTERRUPTIBLE,
    RESERVATION_TYPE,
    ZONE,
    ZONE_ID,
)
from broker.capacity.class_catalog import (
    FOREVER,
    CandidateType,
    ClassCatalog,
    LiveReservation,
    Offering,
    named,
    offering_options,
)
from broker.capacity.model import Claim, NodeClass, Option, Pool
from broker.capacity.requirements import Requirements
from broker.capacity.type_filter import Mask
from broker.capacity.types import WELL_KNOWN
from broker.lists import lists_by_key
from providers.launch import RESERVATIONS_ONLY
from providers.model import CapacityType, Odcr

ORDER: Final[tuple[CapacityType, ...]] = ("reserved", "spot", "on-demand")

# Labels of the zone and the capacity type; the type alone decides the rest.
PLACE_KEYS: Final = frozenset(
    {CAPACITY_TYPE, RESERVATION_ID, RESERVATION_INTERRUPTIBLE, RESERVATION_TYPE, REGION, ZONE, ZONE_ID}
)
_ODCR_KEYS: Final = frozenset({RESERVATION_ID, RESERVATION_INTERRUPTIBLE, RESERVATION_TYPE})
TYPE_KEYS: Final = WELL_KNOWN - PLACE_KEYS

# Returns the owner of a reservation that the claim may use; None if it may not.
OwnerOf = Callable[[Odcr], str | None]
Hosts = Callable[[Option], bool]  # whether a machine of the option holds a need's pods


def capacity_types(requirements: Requirements) -> tuple[CapacityType, ...]:
    """The capacity types that a claim accepts, in the order in which they are tried."""
    if CAPACITY_TYPE not in requirements:
        return ("reserved", "on-demand")
    return tuple(kind for kind in ORDER if requirements.allows(CAPACITY_TYPE, kind))


def with_capacity_types(requirements: Requirements) -> Requirements:
    """The requirements with their capacity types written out, so that the selector of a pod adds none."""
    if CAPACITY_TYPE in requirements:
        return requirements
    return requirements & Requirements.of(((CAPACITY_TYPE, "In", capacity_types(requirements)),))


def tenancy(requirements: Requirements) -> str:
    """The tenancy that a claim requires: dedicated if it allows no other; empty if the class decides."""
    only = INSTANCE_TENANCY in requirements and not requirements.allows(INSTANCE_TENANCY, "default")
    return "dedicated" if only and requirements.allows(INSTANCE_TENANCY, "dedicated") else ""


def on_demand_too(requirements: Requirements) -> bool:
    """Whether the claim accepts an instance outside every reservation."""
    return "on-demand" in capacity_types(requirements) and _accepts_unreserved(requirements)


def any_reservation(requirements: Requirements) -> bool:
    """Whether EC2 may count the instance in any matching reservation."""
    return "reserved" in capacity_types(requirements) and _any_odcr(requirements)


def _accepts_unreserved(requirements: Requirements) -> bool:
    """Whether an instance may lack every label of a reservation."""
    return not requirements.unmet({}, among=_ODCR_KEYS)


def _any_odcr(requirements: Requirements) -> bool:
    """Whether the claim has no requirement on the reservation itself."""
    return not any(key in requirements for key in _ODCR_KEYS)


def suitable(
    requirements: Requirements, requests: Mapping[str, float], known: ClassCatalog
) -> tuple[CandidateType, ...]:
    """The types that have room for the requests and labels that satisfy the requirements, in any zone."""
    mask = known.type_filter.matches_labels(requirements, among=TYPE_KEYS) & known.type_filter.fits(requests)
    return tuple(compress(known.candidates.values(), mask.tolist()))


def possible_values(
    key: str, requirements: Requirements, suitable_types: Iterable[CandidateType], known: ClassCatalog
) -> frozenset[str]:
    """The values of a label over the types that are offered in a zone which the claim accepts."""
    key = stable(key)
    if key == CAPACITY_TYPE:
        return frozenset(capacity_types(requirements))
    values: set[str] = set()
    for candidate in suitable_types:
        zones = {
            zone for zone in candidate.type.zones if zone in known.zones and requirements.allows(ZONE, zone)
        }
        if key == ZONE:
            values |= zones
        elif zones and (value := candidate.labels.get(key)) is not None:
            values.add(value)
    return frozenset(values)


def choose(
    requirements: Requirements,
    suitable_types: Sequence[CandidateType],
    known: ClassCatalog,
    *,
    owner_of: OwnerOf | None = None,
    hosts: Hosts | None = None,
    compared: bool = True,
) -> tuple[Option, ...]:
    """Options in order, of the given types. With `owner_of`, no option spans two owners.

    Outside reservations, those that `hosts` accepts; `compared`: without those too dear beside the others.
    """
    kinds = capacity_types(requirements)
    chosen: list[Option] = []
    if "reserved" in kinds:
        chosen += _reserved(
            requirements, (candidate.type.name for candidate in suitable_types), known, owner_of
        )
    matched = known.absorbing.intersection(map(_place, chosen)) if _any_odcr(requirements) else ()
    offered_masks = _offered(requirements, suitable_types, known)
    if hosts is not None:
        for kind, mask in offered_masks.items():
            mask[mask] = [hosts(option) for option in known.unreserved[kind].select(mask)]
    return (*chosen, *_unreserved(offered_masks, known, matched, compared))


def too_dear(
    requirements: Requirements, suitable_types: Sequence[CandidateType], known: ClassCatalog
) -> tuple[int, float]:
    """The number of options above the price ceiling, and the ceiling in dollars an hour."""
    offered = _offered(requirements, suitable_types, known)
    ceiling = _ceiling(offered, known)
    prices = (known.unreserved[kind].prices[mask] for kind, mask in offered.items())
    return sum(
        int(((kind_prices > ceiling) & np.isfinite(kind_prices)).sum()) for kind_prices in prices
    ), ceiling


def _unreserved(
    offered: dict[CapacityType, Mask],
    known: ClassCatalog,
    matched: Collection[tuple[str, str]],
    compared: bool,
) -> list[Option]:
    """These options outside reservations: generic ones by kind, then the exotic ones by kind.

    `matched`: types and zones of reservations in which EC2 may count the instance later.
    """
    ceiling = _ceiling(offered, known)
    for kind, mask in offered.items() if compared else ():
        unreserved = known.unreserved[kind]
        limit = ceiling
        if kind == "spot" and "on-demand" in offered:
            limit = min(ceiling, known.unreserved["on-demand"].cheapest(offered["on-demand"]))
        offered[kind] = mask & ((unreserved.prices <= limit) | unreserved.unknown)
    if len(offered) == 1 and not matched:
        ((kind, mask),) = offered.items()
        return known.unreserved[kind].select(mask)  # generic ones come first
    ordered: list[Option] = []
    for generic in (True, False):
        for kind, mask in offered.items():
            unreserved = known.unreserved[kind]
            group = unreserved.select(mask & (unreserved.generic == generic))
            if matched and kind == "on-demand":
                group = _matched_first(group, matched, known.node_class.defaults.fallback_premium)
            ordered += group
    return ordered


def _matched_first(
    options: Sequence[Option], matched: Collection[tuple[str, str]], premium: float
) -> list[Option]:
    """Sorts by price, where options that EC2 may count in a reservation may cost a share more.

    EC2 counts a running instance in a reservation of its type and zone once a slot is free there, so the
    claim need not be replaced then.
    """

    def weighed(option: Option) -> float:
        price = math.inf if option.price is None else option.price
        return price / (1 + premium) if _place(option) in matched else price

    return sorted(options, key=lambda option: (weighed(option), _place(option) not in matched))


def _place(option: Option) -> tuple[str, str]:
    return option.pool.instance_type, option.pool.zone


def _offered(
    requirements: Requirements, suitable_types: Sequence[CandidateType], known: ClassCatalog
) -> dict[CapacityType, Mask]:
    """The class's options outside reservations that match the claim, by kind, in the order of kinds."""
    types = {candidate.type.name for candidate in suitable_types}
    masks: dict[CapacityType, Mask] = {}
    for kind in unreserved_kinds(requirements, known.node_class):
        zones = {
            zone
            for zone, labels in known.zones.items()
            if not requirements.unmet({**labels, CAPACITY_TYPE: kind}, among=PLACE_KEYS)
        }
        masks[kind] = known.unreserved[kind].among(types, zones)
    return masks


def _ceiling(offered: Mapping[CapacityType, Mask], known: ClassCatalog) -> float:
    """The most that an option may cost an hour; infinite if no price is known."""
    prices = (
        float(np.min(known.unreserved[kind].prices, where=mask, initial=math.inf))
        for kind, mask in offered.items()
    )
    return min(prices, default=math.inf) * known.node_class.defaults.price_ceiling


def unreserved_kinds(requirements: Requirements, node_class: NodeClass) -> tuple[CapacityType, ...]:
    """The capacity types outside reservations, if the class and the claim let it leave them."""
    if node_class.selection.preference == RESERVATIONS_ONLY or not _accepts_unreserved(requirements):
        return ()
    return tuple(kind for kind in capacity_types(requirements) if kind != "reserved")


def offered(
    claim: Claim,
    known: ClassCatalog,
    *,
    capacity_type: CapacityType,
    reservation: str,
    instance_type: str,
    zone: str,
) -> Option | None:
    """The option of a claim that uses this pool, with or without room; None if there is none.

    An option of one reservation is found even if launches go by group or by open match.
    """
    suitable_types = [
        candidate
        for candidate in suitable(claim.requirements, claim.requests, known)
        if candidate.type.name == instance_type
    ]
    choices: Iterable[Option] = choose(claim.requirements, suitable_types, known)
    pool = Pool(capacity_type=capacity_type, instance_type=instance_type, zone=zone, reservation=reservation)
    if pool.target == "id":
        matching = matching_reservations(claim.requirements, suitable_types, known.reserved)
        choices = [named(live.odcr, known) for live in matching if live.odcr.id == reservation]
    return next((option for option in choices if replace(option.pool, placement="") == pool), None)


def matching_reservations(
    requirements: Requirements, suitable_types: Sequence[CandidateType], among: Iterable[LiveReservation]
) -> Iterator[LiveReservation]:
    """The reservations that match the requirements."""
    if "reserved" not in capacity_types(requirements):
        return
    names = {candidate.type.name for candidate in suitable_types}
    for live in among:
        fits_in = live.odcr.instance_type in names and not live.problem
        if fits_in and not requirements.unmet(live.labels, among=PLACE_KEYS):
            yield live


def _reserved(
    requirements: Requirements, suitable_types: Iterable[str], known: ClassCatalog, owner_of: OwnerOf | None
) -> list[Option]:
    # All reservations of an offering match or none, unless the claim requires something of the reservation.
    any_odcr = _any_odcr(requirements)
    zones: dict[str, bool] = {}
    reserved: list[Option] = []
    for name in suitable_types:
        type_options: list[Option] = []
        for place in known.offerings.get(name, ()):
            if not any_odcr:
                good = [
                    live
                    for live in place.reservations
                    if not requirements.unmet(live.labels, among=PLACE_KEYS)
                ]
                type_options += _by_owner(good, place, known, owner_of)
                continue
            if place.zone not in zones:
                zones[place.zone] = not requirements.unmet(place.reservations[0].labels, among=PLACE_KEYS)
            if zones[place.zone]:
                type_options += (
                    place.options
                    if owner_of is None
                    else _by_owner(place.reservations, place, known, owner_of)
                )
        reserved += sorted(type_options, key=_soonest) if len(type_options) > 1 else type_options
    return reserved


def _by_owner(
    good: Sequence[LiveReservation], place: Offering, known: ClassCatalog, owner_of: OwnerOf | None
) -> list[Option]:
    """The options of one offering. A launch that EC2 matches itself is no option if it could miss its
    owner."""
    if owner_of is None:
        return offering_options(good, place.reservations, known.node_class, known.option_cache)
    owners = lists_by_key((owner, live) for live in good if (owner := owner_of(live.odcr)) is not None)
    return [
        option
        for owned in owners.values()
        for option in offering_options(owned, place.reservations, known.node_class, known.option_cache)
    ]


def _soonest(option: Option) -> tuple[datetime, Pool]:
    return option.ends or FOREVER, option.pool


def pool_of(odcr: Odcr) -> Pool:
    return Pool(
        capacity_type="reserved", instance_type=odcr.instance_type, zone=odcr.zone, reservation=odcr.id
    )
