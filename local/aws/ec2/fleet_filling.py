"""Ways to fill an instant fleet: pool after pool, reservations first, or reservations only.

Invariant: each pool has at most one error, that of its last refusal, and none once it launched all its
requested instances. Sources: EC2 API reference, CreateFleet, ReservedCapacityOptionsRequest (kinds of
reservation in the given order, On-Demand only as a requested fallback), CreateFleetError (its `Lifecycle`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import Reservation

from local.aws.ec2 import errors, fleet_launch, matching
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.launch_needs import ON_DEMAND, ONLY, CapacityTarget, LaunchNeeds
from local.aws.ec2.pools import FleetPool
from local.aws.ec2.world import AwsWorld

RESERVATIONS_FIRST = "use-capacity-reservations-first"
RESERVED_MARKET = {
    "on-demand-capacity-reservation": ON_DEMAND,
    "capacity-block": "capacity-block",
    "interruptible-capacity-reservation": "interruptible-capacity-reservation",
}


@dataclass
class Filling:
    """A fleet on its way to its target."""

    target: float
    got: float = 0.0
    errors: dict[int, tuple[FleetPool, EC2ClientError, str]] = field(default_factory=dict)
    launched: list[tuple[FleetPool, LaunchNeeds, Reservation]] = field(default_factory=list)

    @property
    def missing(self) -> float:
        return self.target - self.got

    def refused(self, pool: FleetPool, error: EC2ClientError, lifecycle: str) -> None:
        self.errors[id(pool)] = (pool, error, lifecycle)


Fill = Callable[[Filling, list[FleetPool]], None]


def way_to_fill(
    world: AwsWorld,
    run: fleet_launch.Run,
    kind: str,
    options: Mapping[str, Any],
    reserved: Mapping[str, Any],
) -> Fill:
    if kind == "reserved-capacity":
        return lambda filling, ordered: _reserved(world, run, filling, ordered, reserved)
    usage = (options.get("CapacityReservationOptions") or {}).get("UsageStrategy")
    if usage == RESERVATIONS_FIRST:
        return lambda filling, ordered: _reservations_first(world, run, filling, ordered)
    return lambda filling, ordered: _one_after_another(run, filling, ordered)


def _one_after_another(run: fleet_launch.Run, filling: Filling, ordered: list[FleetPool]) -> None:
    for pool in ordered:
        assert pool.needs is not None
        _attempt(run, filling, pool, pool.needs)


def _reservations_first(
    world: AwsWorld, run: fleet_launch.Run, filling: Filling, ordered: list[FleetPool]
) -> None:
    used = []
    for pool in ordered:
        assert pool.needs is not None
        if pool.needs.target.reservation_id:
            code = world.codes["fleet-id-target-with-usage-strategy"]
            why = f"A launch template that targets a reservation by id is not used with {RESERVATIONS_FIRST}"
            filling.refused(pool, Ec2Error(code, why), pool.needs.market)
        else:
            used.append((pool, pool.needs))
    for pool, needs in used:
        if any(reservation.available for reservation in matching.candidates(world.ledger, needs)):
            _attempt(run, filling, pool, needs, spill=False, partly=True)
    for pool, needs in used:
        _attempt(run, filling, pool, needs)


def _reserved(
    world: AwsWorld,
    run: fleet_launch.Run,
    filling: Filling,
    ordered: list[FleetPool],
    options: Mapping[str, Any],
) -> None:
    """`reserved-capacity`: kinds of reservation in order, On-Demand only if the request allows it."""
    named = _named_targets(options)
    for kind in options.get("ReservationTypes") or list(RESERVED_MARKET):
        for pool in ordered:
            assert pool.needs is not None
            choices = named or [replace(pool.needs.target, preference=ONLY)]
            _into_kind(world, run, filling, pool, kind, choices)
    if (options.get("ReservedCapacityFallbackOptions") or {}).get("MarketTypes"):
        for pool in ordered:
            assert pool.needs is not None
            needs = replace(pool.needs, market=ON_DEMAND, target=CapacityTarget("none"))
            _attempt(run, filling, pool, needs)


def _into_kind(
    world: AwsWorld,
    run: fleet_launch.Run,
    filling: Filling,
    pool: FleetPool,
    kind: str,
    choices: list[CapacityTarget],
) -> None:
    """One pool into one kind of reservation, through each target that has that kind."""
    assert pool.needs is not None
    market = RESERVED_MARKET[kind]
    refused = False
    for choice in choices:
        needs = replace(pool.needs, market=market, target=choice)
        if _leads_to(world, needs):
            _attempt(run, filling, pool, needs, spill=False, lifecycle=kind)
            refused = True
    if not refused and filling.missing > 0 and id(pool) not in filling.errors:
        needs = replace(pool.needs, market=market, target=choices[0])
        filling.refused(pool, matching.refusal(needs, run.codes), kind)


def _leads_to(world: AwsWorld, needs: LaunchNeeds) -> bool:
    """Whether a target can hold reservations of the market at all; EC2 reports an invalid id."""
    if needs.target.reservation_id:
        known = world.ledger.in_scope(needs.account_id, needs.region).get(needs.target.reservation_id)
        return known is None or known.market == needs.market
    return bool(needs.target.group) or needs.market == ON_DEMAND


def _named_targets(options: Mapping[str, Any]) -> list[CapacityTarget]:
    target = options.get("CapacityReservationTarget") or {}
    named = [CapacityTarget(ONLY, reservation_id=i) for i in target.get("CapacityReservationIds") or []]
    return named + [
        CapacityTarget(ONLY, group=a) for a in target.get("CapacityReservationResourceGroupArns") or []
    ]


def check_reserved(kind: str, fleet_type: str, options: Mapping[str, Any]) -> None:
    """Refuses invalid ReservedCapacityOptions before any launch."""
    if not options:
        return
    if fleet_type != "instant" or kind != "reserved-capacity":
        raise errors.combination(
            "ReservedCapacityOptions needs a fleet of type instant with DefaultTargetCapacityType "
            "reserved-capacity"
        )
    if options.get("AllocationStrategy") not in (None, "prioritized"):
        raise errors.invalid(
            "AllocationStrategy", options["AllocationStrategy"], "Valid values: prioritized."
        )
    for type_ in options.get("ReservationTypes") or []:
        if type_ not in RESERVED_MARKET:
            raise errors.invalid("ReservationTypes", type_, f"Valid values: {', '.join(RESERVED_MARKET)}.")
    fallback = options.get("ReservedCapacityFallbackOptions") or {}
    for market in fallback.get("MarketTypes") or []:
        if market != "on-demand":
            raise errors.invalid("MarketTypes", market, "Valid values: on-demand.")
    target = options.get("CapacityReservationTarget") or {}
    if target.get("CapacityReservationIds") and target.get("CapacityReservationResourceGroupArns"):
        raise errors.combination(
            "CapacityReservationTarget takes CapacityReservationIds or "
            "CapacityReservationResourceGroupArns, not both"
        )


def _attempt(
    run: fleet_launch.Run,
    filling: Filling,
    pool: FleetPool,
    needs: LaunchNeeds,
    *,
    spill: bool = True,
    partly: bool = False,
    lifecycle: str | None = None,
) -> None:
    """Launches the missing instances into one pool; a refusal is the pool's error."""
    if filling.missing <= 0:
        return
    count = math.ceil(filling.missing / pool.weight)
    try:
        reservation = run(pool, needs, count, spill)
    except EC2ClientError as refused:
        filling.refused(pool, refused, lifecycle or needs.market)
        return
    filling.launched.append((pool, needs, reservation))
    filling.got += len(reservation.instances) * pool.weight
    filling.errors.pop(id(pool), None)
    if len(reservation.instances) < count and not partly:
        filling.refused(pool, matching.refusal(needs, run.codes), lifecycle or needs.market)
