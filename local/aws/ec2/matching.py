"""Which reservations a launch can run in, and how its instances spread over them and On-Demand.

A launch runs in a reservation that agrees with it on instance type, platform, zone, tenancy and placement
group. Which of them it may use is its specification: nothing or `open` (open ones, else On-Demand), `none`,
one id (else it fails), a group (else On-Demand), and with `capacity-reservations-only` never On-Demand.
Capacity Blocks and interruptible reservations are used only by launches that name their market type and
target them, and those never run On-Demand.

Sources: EC2 User Guide, "Launch instances into an existing Capacity Reservation", "Work with Capacity
Reservation groups", "Launch instances using Capacity Blocks"; API reference,
CapacityReservationSpecification. Which of several open reservations is taken first is not documented: here
the oldest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol

from local.aws.ec2 import errors
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.launch_needs import ON_DEMAND, RESERVED_MARKETS, SPOT, LaunchNeeds
from local.aws.ec2.reservations import Ec2Reservation


class CapacityLookup(Protocol):
    """The reservations and free capacity of local AWS, as matching reads them from the ledger."""

    @property
    def codes(self) -> Mapping[str, str]: ...

    def now(self) -> datetime: ...

    def find(self, account_id: str, region: str, reservation_id: str) -> Ec2Reservation: ...

    def in_scope(self, account_id: str, region: str) -> Mapping[str, Ec2Reservation]: ...

    def same_shape(self, instance_type: str, zone: str) -> Iterable[Ec2Reservation]: ...

    def free(self, capacity_type: str, instance_type: str, zone: str) -> int | None: ...


def fits(needs: LaunchNeeds, reservation: Ec2Reservation) -> bool:
    return (
        reservation.usable
        and reservation.launchable
        and not reservation.reclaiming
        and reservation.visible_to(needs.account_id)
        and reservation.instance_type == needs.instance_type
        and reservation.zone == needs.zone
        and reservation.platform == needs.platform
        and reservation.tenancy == needs.tenancy
        and reservation.market == needs.market
        and reservation.outpost_arn is None
        and _same_placement(needs, reservation)
    )


def _same_placement(needs: LaunchNeeds, reservation: Ec2Reservation) -> bool:
    if needs.placement_group_arn is None and needs.target.group:
        return True  # a group may lead an instance without placement group into a reservation that has one
    return reservation.placement_group_arn == needs.placement_group_arn


def candidates(capacity: CapacityLookup, needs: LaunchNeeds) -> list[Ec2Reservation]:
    """The usable reservations that this launch may run in, the first to be taken first."""
    target = needs.target
    if needs.market == SPOT:
        return []
    if target.reservation_id:
        reservation = _targeted(capacity, needs, target.reservation_id)
        return [reservation] if fits(needs, reservation) else []
    if target.group:
        now = capacity.now()
        members = _members(capacity, needs, target.group)
        fitting = [r for r in members if fits(needs, r) and not r.is_draining(now)]
        return sorted(fitting, key=lambda reservation: reservation.placement_group_arn is not None)
    if target.preference == "none" or needs.market in RESERVED_MARKETS:
        return []
    same_shape: Iterable[Ec2Reservation] = capacity.same_shape(needs.instance_type, needs.zone)
    return [r for r in same_shape if r.match_criteria == "open" and fits(needs, r)]


def _targeted(capacity: CapacityLookup, needs: LaunchNeeds, reservation_id: str) -> Ec2Reservation:
    reservation = capacity.find(needs.account_id, needs.region, reservation_id)
    if reservation.state == "scheduled":
        raise Ec2Error(
            "InvalidCapacityReservationState.PendingActivation",
            f"The capacity reservation {reservation_id} is scheduled and not active before "
            f"{reservation.start_date}",
        )
    if reservation.state == "unavailable" or reservation.reclaiming:
        raise Ec2Error(
            "InvalidCapacityReservationState.Unavailable",
            f"The capacity reservation {reservation_id} is being reclaimed",
        )
    if not reservation.usable:
        raise Ec2Error(
            capacity.codes["id-target-not-usable"],
            f"The capacity reservation {reservation_id} is in the {reservation.state} state",
        )
    if not reservation.launchable:
        raise Ec2Error(
            capacity.codes["id-target-not-usable"],
            f"The launch status of capacity reservation {reservation_id} is unlaunchable",
        )
    if reservation.is_draining(capacity.now()):
        raise Ec2Error(
            capacity.codes["block-draining"],
            f"The Capacity Block {reservation_id} ends soon; EC2 is terminating its instances",
        )
    if reservation.market != needs.market:
        raise Ec2Error(
            capacity.codes["market-type-mismatch"],
            f"The capacity reservation {reservation_id} takes launches of market type {reservation.market}, "
            f"not {needs.market}",
        )
    if not fits(needs, reservation):
        raise Ec2Error(
            capacity.codes["id-target-mismatch"],
            "The requested reservation does not have sufficient compatible and available capacity for this "
            f"request: {reservation_id} is {reservation.instance_type}, {reservation.platform}, "
            f"{reservation.tenancy} in {reservation.zone}, the launch is {needs.instance_type}, "
            f"{needs.platform}, {needs.tenancy} in {needs.zone}",
        )
    return reservation


def _members(capacity: CapacityLookup, needs: LaunchNeeds, group: str) -> list[Ec2Reservation]:
    from local.aws import groups  # the EC2 part starts first

    try:
        arns = groups.members(needs.account_id, needs.region, group)
    except LookupError as unknown:
        raise Ec2Error(
            capacity.codes["group-unknown"], f"The resource group '{group}' does not exist"
        ) from unknown
    by_id = capacity.in_scope(needs.account_id, needs.region)
    reservations = (by_id.get(arn.rpartition("/")[2]) for arn in arns)
    return [reservation for reservation in reservations if reservation is not None]


def place(
    capacity: CapacityLookup, needs: LaunchNeeds, *, at_least: int, at_most: int, spill: bool = True
) -> list[Ec2Reservation | None]:
    """A reservation (or None: outside any) for each of `at_least` to `at_most` instances, or EC2's refusal.

    With `spill` off only reservations are used, even if the specification allows more.
    """
    if needs.market in RESERVED_MARKETS and not (needs.target.reservation_id or needs.target.group):
        raise Ec2Error(
            capacity.codes["market-type-without-target"],
            f"Market type {needs.market} needs a CapacityReservationTarget",
        )
    chosen: list[Ec2Reservation | None] = []
    for reservation in candidates(capacity, needs):
        chosen += [reservation] * min(reservation.available, at_most - len(chosen))
    if spill and needs.target.spills and needs.market not in RESERVED_MARKETS:
        free = capacity.free(SPOT if needs.market == SPOT else ON_DEMAND, needs.instance_type, needs.zone)
        missing = at_most - len(chosen)
        chosen += [None] * (missing if free is None else max(0, min(free, missing)))
    if len(chosen) >= at_least:
        return chosen
    raise refusal(needs, capacity.codes)


def refusal(needs: LaunchNeeds, codes: Mapping[str, str]) -> Ec2Error:
    """EC2's refusal of a launch without room."""
    if needs.target.reservation_id:
        return errors.reservation_full(needs.target.reservation_id)
    if needs.target.spills and needs.market not in RESERVED_MARKETS:
        return errors.no_capacity(needs.instance_type, needs.zone)
    situation = "group-only-exhausted" if needs.target.group else "open-only-exhausted"
    where = (
        f"the resource group {needs.target.group}" if needs.target.group else "any open Capacity Reservation"
    )
    return Ec2Error(
        codes[situation],
        f"There is no available capacity for {needs.instance_type} in {needs.zone} in {where}",
    )
