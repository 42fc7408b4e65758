"""The reservation target of a launch.

Invariant: EC2 rejects no target built here. EC2 accepts a preference together with a target only if it is
capacity-reservations-only. It rejects a target of both an id and a group, and any target on Spot. A group
without that preference spills to On-Demand inside EC2. So the preference is set for each reserved option, and
the broker falls back itself (EC2 API Reference, CapacityReservationSpecification).

An instance outside reservations is launched `open`, or with the group and no preference: EC2 can then count
it in a slot that becomes free later (see `absorption`).
"""

from __future__ import annotations

from broker.capacity.model import Option, Selection
from providers.launch import RESERVATIONS_ONLY, ReservationTarget


def target_for(
    selection: Selection,
    option: Option,
    claim_allows_on_demand: bool,
    *,
    absorbable: bool = False,
) -> ReservationTarget:
    """The CapacityReservationSpecification for launching `option` of a class with this selection.

    `absorbable`: an instance outside reservations may be counted in one later.
    Raises ValueError if the option does not follow from the selection: then nothing may be launched.
    """
    pool = option.pool
    if pool.capacity_type == "reserved":
        return _reserved(selection, option, claim_allows_on_demand)
    if (
        pool.reservation
        or option.odcr_ids
        or option.market
        in (
            "capacity-block",
            "interruptible-capacity-reservation",
        )
    ):
        raise ValueError(
            f"option {pool}: {pool.capacity_type} capacity cannot be launched into a reservation"
        )
    if selection.preference == RESERVATIONS_ONLY:
        raise ValueError(
            f"option {pool}: the class's preference is {RESERVATIONS_ONLY}, "
            f"which excludes {pool.capacity_type}; use preference open to allow it"
        )
    selects = selection != Selection() and selection.preference != "none"
    if pool.capacity_type == "spot" or not (absorbable and selects):
        return ReservationTarget(preference="none")
    return (
        ReservationTarget(group_arn=selection.group_arn, spills=True)
        if selection.group_arn
        else ReservationTarget(preference="open")
    )


def _reserved(selection: Selection, option: Option, claim_allows_on_demand: bool) -> ReservationTarget:
    reservation = option.pool.reservation
    if selection.preference == "none":
        raise ValueError(
            f"option {option.pool}: the class's preference is none, which excludes reservations; "
            "use preference open or a target"
        )
    if option.pool.target == "group":
        if reservation != selection.group_arn:
            raise ValueError(f"option {option.pool}: the class's group is {selection.group_arn or '(none)'}")
        return ReservationTarget(preference=RESERVATIONS_ONLY, group_arn=reservation)
    if reservation:
        if selection.reservation_id not in ("", reservation):
            raise ValueError(f"option {option.pool}: the class's reservation is {selection.reservation_id}")
        return ReservationTarget(preference=RESERVATIONS_ONLY, reservation_id=reservation)
    if not selection.matches_openly:
        raise ValueError(f"option {option.pool}: the class's preference is not open; name the reservation")
    if option.market != "on-demand":
        raise ValueError(f"option {option.pool}: a {option.market} reservation is never matched openly")
    if selection.preference == "open" and claim_allows_on_demand:
        return ReservationTarget(preference="open")
    # The claim takes reserved capacity alone: EC2 must not spill it to On-Demand.
    return ReservationTarget(preference=RESERVATIONS_ONLY)
