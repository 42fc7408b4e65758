"""The options of one class's claims, computed once: types, offerings, and options outside reservations.

Invariant: types come smallest first and options in order. Each option is created once, so two claims with
the same option share the object; classes may share their options outside reservations. A reservation that
cannot be launched into now yields no option.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import compress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker.apis.names import INSTANCE_TENANCY
from broker.capacity.absorption import Place, absorbing_places
from broker.capacity.compatibility import incompatibility
from broker.capacity.inventory import Inventory
from broker.capacity.matching import begins_by, ends_at, state_misfit
from broker.capacity.model import RESERVATION_PENDING, NodeClass, Option, Pool, Resolved, Selection
from broker.capacity.type_filter import Mask, TypeFilter
from broker.capacity.types import allocatable, exotic, reservation_labels, size_key, type_labels, zone_labels
from broker.capacity.unknown_values import label_values, place_values
from providers.model import CapacityType, Image, InstanceType, Market, Odcr
from providers.prices import Product, usd_hour

_UNRESERVED: Final[tuple[CapacityType, ...]] = ("on-demand", "spot")
FOREVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateType:
    """A type as a node of one class."""

    type: InstanceType
    labels: Mapping[str, str]
    allocatable: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReservation:
    """A usable reservation of a class in its current state: its node labels, or the reason against a
    launch."""

    odcr: Odcr
    labels: Mapping[str, str]
    problem: tuple[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offering:
    """The usable reservations of a class in one zone and of one type, and their options if all are
    accepted."""

    zone: str
    reservations: tuple[LiveReservation, ...]
    options: tuple[Option, ...]


class UnreservedOptions:
    """Options outside reservations, on-demand or spot, in order: the first `generic` ones are not exotic."""

    def __init__(self, options: Sequence[Option], generic: int) -> None:
        self.options = tuple(options)
        self.prices = np.array([math.inf if option.price is None else option.price for option in options])
        self.unknown = np.isinf(self.prices)
        self.generic = np.arange(len(options)) < generic
        self._types = _numbered(option.pool.instance_type for option in options)
        self._zones = _numbered(option.pool.zone for option in options)

    def among(self, types: Collection[str], zones: Collection[str]) -> Mask:
        """The options of these types in these zones."""
        mask = np.ones(len(self.options), dtype=bool)
        for (names, places), accepted in ((self._types, types), (self._zones, zones)):
            mask &= np.array([name in accepted for name in names], dtype=bool)[places]
        return mask

    def cheapest(self, mask: Mask) -> float:
        """The least price of these options, of a generic one if there is any; infinite if none is known."""
        generic = mask & self.generic
        return float(np.min(self.prices, where=generic if generic.any() else mask, initial=math.inf))

    def select(self, mask: Mask) -> list[Option]:
        return [*compress(self.options, mask.tolist())]


def _numbered(values: Iterable[str]) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct values, and for each value its position among them."""
    places: dict[str, int] = {}
    numbers = [places.setdefault(value, len(places)) for value in values]
    return [*places], np.array(numbers, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCatalog:
    """The options of all claims of one class, computed once: types smallest first, options in order.

    `imageless` are types without an image in the class, `unfit` other types that it cannot launch, each
    with the reason. `option_cache` keeps each option, so that it is created once.
    """

    node_class: NodeClass
    candidates: Mapping[str, CandidateType]
    imageless: Mapping[str, str]
    unfit: Mapping[str, str]
    zones: Mapping[str, Mapping[str, str]]
    reserved: tuple[LiveReservation, ...]
    # Not launchable yet, with the latest time until they are if that is soon.
    pending: tuple[tuple[LiveReservation, datetime | None], ...]
    offerings: Mapping[str, tuple[Offering, ...]]  # by type
    unreserved: Mapping[CapacityType, UnreservedOptions]
    absorbing: frozenset[Place]  # where a reservation of the class takes running instances
    type_filter: TypeFilter
    option_cache: dict[tuple[str, ...], Option]
    region_values: Callable[[], Mapping[str, Collection[str]]]  # of each label, in the Region


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _NodeTypes:
    """The types as nodes of all classes with these settings. Equal only to itself: settings have one."""

    settings: NodeClass
    candidates: Mapping[str, CandidateType]
    imageless: Mapping[str, str]
    unfit: Mapping[str, str]
    type_filter: TypeFilter


class ClassCatalogs:
    """The catalogs of one moment. Classes share what their common settings make, as most classes differ in
    their reservations alone, and types are many."""

    def __init__(self, types: Mapping[str, InstanceType], inventory: Inventory, now: datetime) -> None:
        self._ordered = sorted(types.values(), key=size_key)
        self._inventory = inventory
        self._now = now
        self._node_types: list[_NodeTypes] = []
        self._unreserved: dict[tuple[object, ...], UnreservedOptions] = {}

    def of(self, node_class: NodeClass) -> ClassCatalog:
        nodes = self._nodes_of(node_class)
        candidates, now, odcrs = nodes.candidates, self._now, self._inventory.odcrs
        zones = {subnet.zone: zone_labels(subnet.zone, subnet.zone_id) for subnet in node_class.subnets}
        reserved = tuple(
            _live(odcrs.get(odcr.id, odcr), node_class, candidates, zones, now, known=odcr.id in odcrs)
            for odcr in node_class.resolved.usable
        )
        option_cache: dict[tuple[str, ...], Option] = {}
        return ClassCatalog(
            node_class=node_class,
            candidates=candidates,
            imageless=nodes.imageless,
            unfit=nodes.unfit,
            zones=zones,
            reserved=reserved,
            pending=tuple(
                (
                    replace(_live(_opened(odcr), node_class, candidates, zones, now), odcr=odcr),
                    begins_by(odcr, now),
                )
                for odcr in (odcrs.get(selected.id, selected) for selected in node_class.resolved.pending)
            ),
            offerings=_offerings(reserved, node_class, option_cache),
            unreserved={
                kind: self._unreserved_of(kind, nodes, zones, node_class.placement) for kind in _UNRESERVED
            },
            absorbing=absorbing_places(node_class),
            type_filter=nodes.type_filter,
            option_cache=option_cache,
            region_values=lambda: self._region_values,
        )

    @cached_property
    def _region_values(self) -> Mapping[str, Collection[str]]:
        return {**label_values(map(type_labels, self._ordered)), **place_values(self._ordered)}

    def _nodes_of(self, node_class: NodeClass) -> _NodeTypes:
        settings = replace(
            node_class,
            name="",
            selection=Selection(),
            resolved=Resolved(),
            dedicated=Resolved(),
            subnets=(),
            placement_group_arn="",
            not_ready="",
        )
        known = next((nodes for nodes in self._node_types if nodes.settings == settings), None)
        if known is None:
            known = _node_types(settings, self._ordered)
            self._node_types.append(known)
        return known

    def _unreserved_of(
        self, kind: CapacityType, nodes: _NodeTypes, zones: Collection[str], placement: str
    ) -> UnreservedOptions:
        key = (kind, nodes, frozenset(zones), placement)
        if key not in self._unreserved:
            odds = self._inventory.odds
            self._unreserved[key] = _unreserved(kind, nodes, zones, placement, odds)
        return self._unreserved[key]


def _node_types(settings: NodeClass, ordered: Sequence[InstanceType]) -> _NodeTypes:
    tenancy = {INSTANCE_TENANCY: settings.tenancy or "default"}
    with_image = {type_.name for type_ in ordered if image_for(settings, type_)}
    unfit = {
        type_.name: problem
        for type_ in ordered
        if type_.name in with_image and (problem := incompatibility(type_, settings))
    }
    candidates = {
        type_.name: CandidateType(
            type=type_, labels=type_labels(type_) | tenancy, allocatable=allocatable(type_, settings)
        )
        for type_ in ordered
        if type_.name in with_image and type_.name not in unfit
    }
    return _NodeTypes(
        settings=settings,
        candidates=candidates,
        imageless={
            type_.name: f"the class has no image for {type_.architecture}"
            + (" with its accelerators" if type_.gpus or type_.neurons else "")
            for type_ in ordered
            if type_.name not in with_image
        },
        unfit=unfit,
        type_filter=TypeFilter(
            [candidate.labels for candidate in candidates.values()],
            [candidate.allocatable for candidate in candidates.values()],
        ),
    )


def _offerings(
    reserved: Iterable[LiveReservation], node_class: NodeClass, option_cache: dict[tuple[str, ...], Option]
) -> dict[str, tuple[Offering, ...]]:
    """The reservations of each type by zone, without those that cannot be launched into."""
    reservations: dict[str, dict[str, list[LiveReservation]]] = defaultdict(lambda: defaultdict(list))
    for live in reserved:
        if not live.problem:
            reservations[live.odcr.instance_type][live.odcr.zone].append(live)
    return {
        name: tuple(
            Offering(
                zone=zone,
                reservations=tuple(zone_reservations),
                options=tuple(
                    offering_options(zone_reservations, zone_reservations, node_class, option_cache)
                ),
            )
            for zone, zone_reservations in zones.items()
        )
        for name, zones in reservations.items()
    }


def offering_options(
    good: Sequence[LiveReservation],
    reservations: Sequence[LiveReservation],
    node_class: NodeClass,
    option_cache: dict[tuple[str, ...], Option],
) -> list[Option]:
    """The options of one type and zone. `reservations` are all of them, `good` those that the claim accepts.

    An open or group launch could land in any of them. It is no option if one of them is not good.
    """
    together = [live.odcr for live in good if live.odcr.market == "on-demand"]
    apart = [live.odcr for live in good]
    options: list[Option] = []
    selection = node_class.selection
    by_match = bool(selection.group_arn) or selection.matches_openly
    if (
        by_match
        and together
        and len(together) == sum(live.odcr.market == "on-demand" for live in reservations)
    ):
        placement = "" if selection.group_arn else node_class.placement
        options.append(_option(selection.group_arn, together, option_cache, placement))
        apart = [odcr for odcr in apart if odcr.market != "on-demand"]
    return options + [_option(odcr.id, [odcr], option_cache) for odcr in apart]


def _opened(odcr: Odcr) -> Odcr:
    """The reservation as it is once launches into it are possible."""
    return replace(odcr, state="active", unlaunchable=False)


def _live(
    odcr: Odcr,
    node_class: NodeClass,
    candidates: Mapping[str, CandidateType],
    zones: Mapping[str, Mapping[str, str]],
    now: datetime,
    *,
    known: bool = True,
) -> LiveReservation:
    problem: tuple[str, str] | None = None
    candidate = candidates.get(odcr.instance_type)
    if not known:
        # The class was resolved before that. Nothing is counted, and so nothing is planned, in it.
        problem = ("ReservationNotFound", f"EC2 does not describe reservation {odcr.id} any more")
    elif misfit := state_misfit(odcr, now):
        problem = (misfit.reason, misfit.message)
    elif odcr.begins:
        problem = (RESERVATION_PENDING, f"reservation {odcr.id} is {odcr.state}, not active")
    elif candidate and image_for(node_class, candidate.type, odcr) is None:
        needed = f"{odcr.instance_type} on platform {odcr.platform}"
        problem = ("PlatformMismatch", f"the class has no image for {needed}")
    zone = zones.get(odcr.zone) or zone_labels(odcr.zone, odcr.zone_id)
    return LiveReservation(odcr=odcr, labels={**zone, **reservation_labels(odcr)}, problem=problem)


def _unreserved(
    kind: CapacityType,
    nodes: _NodeTypes,
    zones: Collection[str],
    placement: str,
    odds: Mapping[str, int],
) -> UnreservedOptions:
    """On-demand or spot pools, generic ones first, then the cheapest, then the smallest; unknown prices come
    last. `odds` order the zones of a type at one price."""
    market: Market = "spot" if kind == "spot" else "on-demand"
    types = {candidate.type.name: candidate.type for candidate in nodes.candidates.values()}
    ranked = {name for pool in odds for name in pool.split(":")[1:2]}  # the other types need no key
    ranked_options: list[tuple[bool, float, int, int, Option]] = []
    for rank, candidate in enumerate(nodes.candidates.values()):
        type_, image = candidate.type, image_for(nodes.settings, candidate.type)
        if kind not in type_.market_types:
            continue
        for zone in type_.zones.intersection(zones):
            product = Product(
                instance_type=type_.name,
                zone=zone,
                platform=image.platform if image else "",
                tenancy=candidate.labels[INSTANCE_TENANCY],
                spot=kind == "spot",
            )
            price = known = usd_hour(types, product)
            if known is None:
                price = type_.spot_prices.get(zone) if product.spot else type_.on_demand_price
            pool = Pool(capacity_type=kind, instance_type=type_.name, zone=zone, placement=placement)
            option = Option(pool=pool, price=price, estimated=known is None, market=market)
            cost = math.inf if price is None else price
            likely = odds.get(str(pool), 0) if type_.name in ranked else 0
            ranked_options.append((exotic(type_, price), cost, rank, likely, option))
    ranked_options.sort(key=lambda row: (*row[:4], row[4].pool))
    return UnreservedOptions([row[4] for row in ranked_options], sum(not row[0] for row in ranked_options))


def image_for(node_class: NodeClass, type_: InstanceType, odcr: Odcr | None = None) -> Image | None:
    """The class's first image that serves the type, and the reservation's platform if one is given."""
    return next(
        (
            image
            for image in node_class.images
            if image.serves(type_) and (odcr is None or image.platform == odcr.platform)
        ),
        None,
    )


def _option(
    reservation: str, odcrs: Sequence[Odcr], option_cache: dict[tuple[str, ...], Option], placement: str = ""
) -> Option:
    key = (reservation, *(odcr.id for odcr in odcrs))
    if key not in option_cache:
        option_cache[key] = _new_option(reservation, odcrs, placement)
    return option_cache[key]


def named(odcr: Odcr, known: ClassCatalog) -> Option:
    """The option that names one reservation."""
    return _option(odcr.id, [odcr], known.option_cache)


def _new_option(reservation: str, odcrs: Sequence[Odcr], placement: str) -> Option:
    ordered = sorted(odcrs, key=lambda odcr: (ends_at(odcr) or FOREVER, odcr.id))
    first = ordered[0]
    return Option(
        pool=Pool(
            capacity_type="reserved",
            instance_type=first.instance_type,
            zone=first.zone,
            reservation=reservation,
            placement=placement,
        ),
        odcr_ids=tuple(odcr.id for odcr in ordered),
        ends=ends_at(first),
        market=first.market,
    )
