"""Turns assignments into fleet calls, and a fleet's response back into results for claims.

Invariant: no call holds two entries of one instance type and zone (EC2 refuses the whole call:
InvalidFleetConfig, "duplicate instance pools"). No call mixes markets or reservation targets, or requests
more than 1,000 instances. Every returned instance goes to exactly one claim or is surplus. Whether an
instance is reserved is read from EC2's description of it, never from the request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple

from broker.capacity.class_catalog import image_for
from broker.capacity.demand import order
from broker.capacity.model import Assignment, Claim, NodeClass, Option, Pool
from broker.capacity.options import on_demand_too, tenancy
from broker.capacity.shortages import Scope, Shortages
from broker.capacity.template import target_for
from broker.capacity.types import EFA, exotic
from broker.capacity.vacancy import absorbable
from broker.text import counted
from providers.errors import ErrorClass, ProviderError
from providers.launch import LaunchError, LaunchResult, Override, ReservationTarget
from providers.model import Image, Instance, InstanceType, Market, Odcr, Subnet

MAX_INSTANCES: Final = 1000
MAX_TYPES: Final = 60  # as many as Karpenter requests in one call
MAX_POOLS: Final = 300  # EC2 takes no more launch template overrides in a fleet
_WAVES: Final = {"id": 0, "group": 1, "open": 2, "unreserved": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchGroup:
    """One fleet call: its claims, in order, and all its decided parameters.

    `minimum` > 0: all or nothing below that count. `wave`: calls of a lower wave are made first, so that
    a group or an open match does not take the slot that another launch names. `spills`: EC2 may fall
    back to On-Demand itself. `closed`: outside reservations, where EC2 must count it in none later either.
    `placement_group`: that of the named reservation, if the class has none. `price_limit`: dollars an hour
    that one instance may cost outside reservations; 0 if no price is known.
    """

    node_class: str
    capacity_type: str
    market: Market
    target: ReservationTarget
    image: Image
    overrides: tuple[Override, ...]
    assignments: tuple[Assignment, ...]
    wave: int = 0
    gang: str = ""
    minimum: int = 0
    tenancy: str = ""  # empty: that of the class
    closed: bool = False
    placement_group: str = ""
    price_limit: float = 0.0
    efa_interfaces: int = 0  # of the first override's type

    @property
    def count(self) -> int:
        return len(self.assignments)

    @property
    def fleet_market(self) -> Market:
        """The market of the fleet call; a template has none for spot."""
        return "spot" if self.capacity_type == "spot" else self.market

    @property
    def spills(self) -> bool:
        return self.capacity_type == "reserved" and self.target.preference == "open"

    def option(self, instance_type: str, zone: str) -> Option:
        """The option of an override, or of an error about it."""
        first = self.assignments[0]
        for option in (first.option, *first.rest):
            if (option.pool.instance_type, option.pool.zone) == (instance_type, zone) and (
                option.pool.capacity_type == self.capacity_type
            ):
                return option
        return first.option

    def subnet(self, instance_type: str, zone: str) -> str:
        """The requested subnet for this type and zone; the first one's if the call does not name them."""
        matching = (
            override
            for override in self.overrides
            if (override.instance_type, override.zone) == (instance_type, zone)
        )
        return next(matching, self.overrides[0]).subnet_id


class LaunchedClaim(NamedTuple):
    """A claim and its instance. `spilled`: EC2 shows it outside the planned reservation."""

    assignment: Assignment
    instance: Instance
    spilled: bool = False

    @property
    def claim(self) -> Claim:
        return self.assignment.claim

    @property
    def unwanted(self) -> bool:
        """Whether the claim accepts reserved capacity alone, and the instance is not reserved."""
        return self.spilled and not (self.instance.reservation_id or on_demand_too(self.claim.requirements))


class RefusedAssignment(NamedTuple):
    """A claim without an instance, and the refusals."""

    assignment: Assignment
    errors: tuple[LaunchError, ...]

    @property
    def claim(self) -> Claim:
        return self.assignment.claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The instances of a fleet's response by claim. `surplus` are instances beyond the request."""

    pairs: tuple[LaunchedClaim, ...] = ()
    refused: tuple[RefusedAssignment, ...] = ()
    surplus: tuple[Instance, ...] = ()


class _Call(NamedTuple):
    """What assignments that one call can serve have in common: its group without overrides, gang and
    members, and its pools."""

    group: LaunchGroup
    pools: tuple[Pool, ...]


def group(
    assignments: Iterable[Assignment],
    *,
    node_classes: Mapping[str, NodeClass],
    types: Mapping[str, InstanceType],
    shortages: Shortages,
    now: datetime,
) -> list[LaunchGroup]:
    """Groups equal assignments into one call each, in the order of the calls."""
    waiting = sorted(assignments, key=lambda assignment: order(assignment.claim))
    calls: dict[tuple[object, ...], list[tuple[Assignment, _Call]]] = defaultdict(list)
    members: dict[tuple[_Call, str, str], list[Assignment]] = defaultdict(list)
    for assignment in waiting:
        claim = assignment.claim
        # The further options are compared and not hashed: equal claims of a plan share one tuple of them.
        alike = calls[claim.node_class, claim.requirements, assignment.option, assignment.closed]
        call = next((call for other, call in alike if other.rest == assignment.rest), None)
        if call is None:
            node_class = node_classes[claim.node_class].of_tenancy(tenancy(claim.requirements))
            call = _call(assignment, node_class, types)
            alike.append((assignment, call))
        members[call, claim.gang, claim.template].append(assignment)
    groups = []
    by_wave = sorted(members.items(), key=lambda item: (item[0][0].group.wave, order(item[1][0].claim)))
    for (call, gang, _), equal in by_wave:
        node_class = node_classes[call.group.node_class].of_tenancy(call.group.tenancy)
        overrides = _overrides(call.pools, equal[0], node_class, shortages, now)
        for start in range(0, len(equal), MAX_INSTANCES):
            part = tuple(equal[start : start + MAX_INSTANCES])
            minimum = len(part) if gang else 0
            groups.append(
                replace(call.group, overrides=overrides, assignments=part, gang=gang, minimum=minimum)
            )
    return groups


def distribute(group: LaunchGroup, result: LaunchResult) -> Distribution:
    """Gives the instances to the claims in order; the others are left over with the refusals."""
    ranks = {(override.instance_type, override.zone): rank for rank, override in enumerate(group.overrides)}
    odcr_ids = set(group.assignments[0].option.odcr_ids)

    def outside(instance: Instance) -> bool:
        return (
            group.capacity_type == "reserved"
            and instance.described
            and instance.reservation_id not in odcr_ids
        )

    def rank(instance: Instance) -> tuple[bool, bool, int, str]:
        place = ranks.get((instance.instance_type, instance.zone), len(ranks))
        return (outside(instance), not instance.described, place, instance.id)

    instances = sorted(result.instances, key=rank)
    usable = [instance for instance in instances if (instance.instance_type, instance.zone) in ranks]
    unrequested = [instance for instance in instances if (instance.instance_type, instance.zone) not in ranks]
    pairs = tuple(
        LaunchedClaim(assignment, instance, spilled=outside(instance))
        for assignment, instance in zip(group.assignments, usable, strict=False)
    )
    errors = result.errors or (
        LaunchError(
            code="NoInstances",
            message=f"EC2 gave {len(usable)} of {counted(group.count, 'instance')} and no error",
            class_=ErrorClass.TRANSIENT,
        ),
    )
    return Distribution(
        pairs=pairs,
        refused=tuple(
            RefusedAssignment(assignment, errors) for assignment in group.assignments[len(pairs) :]
        ),
        surplus=(*usable[len(pairs) :], *unrequested),
    )


def refused(group: LaunchGroup, error: ProviderError) -> Distribution:
    """Applies the refusal of a whole call to every requested pool."""
    errors = tuple(
        LaunchError(
            code=error.code,
            message=error.message,
            class_=error.class_,
            instance_type=override.instance_type,
            zone=override.zone,
            subnet_id=override.subnet_id,
        )
        for override in group.overrides
    )
    return Distribution(
        refused=tuple(RefusedAssignment(assignment, errors) for assignment in group.assignments)
    )


def undone(distributions: Iterable[Distribution]) -> tuple[LaunchedClaim, ...]:
    """The instances of gangs that did not launch whole, with their claims: they are terminated."""
    launched = list(distributions)
    broken = {
        refusal.claim.gang
        for distribution in launched
        for refusal in distribution.refused
        if refusal.claim.gang
    }
    return tuple(
        pair for distribution in launched for pair in distribution.pairs if pair.claim.gang in broken
    )


def _call(assignment: Assignment, node_class: NodeClass, types: Mapping[str, InstanceType]) -> _Call:
    option, requirements = assignment.option, assignment.claim.requirements
    odcr = node_class.first_usable(option.odcr_ids)
    image = image_for(node_class, types[option.pool.instance_type], odcr)
    if image is None:
        raise ValueError(f"EC2NodeClass {node_class.name} has no image for option {option.pool}")
    pools = _pools(assignment, node_class, image, types)
    counted_later = _absorbable(option.pool, assignment, node_class)
    launch = LaunchGroup(
        wave=_WAVES[option.pool.target],
        node_class=node_class.name,
        capacity_type=option.pool.capacity_type,
        market=option.market,
        target=target_for(
            node_class.selection,
            option,
            on_demand_too(requirements),
            absorbable=counted_later,
        ),
        image=image,
        overrides=(),
        assignments=(),
        tenancy=node_class.tenancy,
        closed=not option.pool.reserved and not counted_later,
        placement_group=_placement_group(option, odcr, node_class),
        price_limit=_price_limit(assignment, node_class),
        efa_interfaces=types[option.pool.instance_type].efa_interfaces,
    )
    return _Call(launch, pools)


def _price_limit(assignment: Assignment, node_class: NodeClass) -> float:
    """The price ceiling of the cheapest option of the call; 0 if no price is known."""
    kind = assignment.option.pool.capacity_type
    if kind == "reserved":
        return 0.0
    prices = (
        option.price
        for option in (assignment.option, *assignment.rest)
        if option.pool.capacity_type == kind and option.price is not None
    )
    return min(prices, default=0.0) * node_class.defaults.price_ceiling


def _placement_group(option: Option, odcr: Odcr | None, node_class: NodeClass) -> str:
    """The name of a named reservation's placement group, if the class has none: EC2 launches into such a
    reservation only with its group. A launch by resource group needs no name."""
    if odcr is None or option.pool.reservation != odcr.id or node_class.placement_group_arn:
        return ""
    return odcr.placement_group_arn.rpartition("/")[2]


def _pools(
    assignment: Assignment, node_class: NodeClass, image: Image, types: Mapping[str, InstanceType]
) -> tuple[Pool, ...]:
    """The pools of one call: a reserved option alone, otherwise also the claim's further options of its
    kind."""
    first = assignment.option.pool
    if first.capacity_type == "reserved":
        return (first,)
    counted_later = _absorbable(first, assignment, node_class)
    pools = dict.fromkeys([first])
    names = {first.instance_type}
    efas = types[first.instance_type].efa_interfaces
    unusual = exotic(types[first.instance_type], assignment.option.price)
    for option in assignment.rest:
        pool = option.pool
        if pool.capacity_type != first.capacity_type:
            continue
        if exotic(types[pool.instance_type], option.price) != unusual:
            continue
        if image_for(node_class, types[pool.instance_type]) != image:
            continue
        if EFA in assignment.claim.requests and efas != types[pool.instance_type].efa_interfaces:
            continue  # a template names an interface for each
        if len(pools) == MAX_POOLS or (pool.instance_type not in names and len(names) == MAX_TYPES):
            break
        if _absorbable(pool, assignment, node_class) != counted_later:
            break  # it needs another template, and the order of the options stays
        names.add(pool.instance_type)
        pools[pool] = None
    return tuple(pools)


def _absorbable(pool: Pool, assignment: Assignment, node_class: NodeClass) -> bool:
    return absorbable(pool, assignment.claim.requirements, node_class, assignment.closed)


def _overrides(
    pools: Iterable[Pool],
    assignment: Assignment,
    node_class: NodeClass,
    shortages: Shortages,
    now: datetime,
) -> tuple[Override, ...]:
    overrides: list[Override] = []
    for pool in pools:
        subnets = node_class.subnets_in(pool.zone, assignment.option.odcr_ids)
        if not subnets:
            raise ValueError(f"EC2NodeClass {node_class.name} has no subnet for {pool.shown}")
        subnet = min(subnets, key=lambda candidate: _preference(candidate, shortages, now))
        overrides.append(
            Override(
                instance_type=pool.instance_type,
                zone=pool.zone,
                subnet_id=subnet.id,
                priority=len(overrides),
            )
        )
    return tuple(overrides)


def _preference(subnet: Subnet, shortages: Shortages, now: datetime) -> tuple[bool, int, str]:
    """The sort key of subnets: those that did not recently run out, then the most addresses."""
    return (
        shortages.get(Scope("subnet", subnet.id), now) is not None,
        -subnet.available_addresses,
        subnet.id,
    )
