"""Makes EC2's choice of a reservation equal to the plan's, where calls could take each other's slots.

Invariant: in any order of the calls of one wave, and with any member that EC2 picks, every planned claim
finds a slot. Calls that name a reservation are made first. A group or an open match is called as such only
if no other call of its wave, and no kept slot, shares a reservation with it. Otherwise each claim names the
member that the plan gave it. EC2 documents no order among several matching reservations (EC2 User Guide,
"Launch instances into Capacity Reservations in a group").

An instance outside reservations opts out of matching wherever EC2 could count it, now or later, in a slot of
another owner, or in one that is kept (see `absorption`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from broker.capacity.absorption import NOWHERE, ClosedPlaces, Place, open_places
from broker.capacity.model import Assignment, Claim, Option
from broker.capacity.options import tenancy
from broker.capacity.supply import LaunchSupply
from broker.lists import lists_by_key


def separated(
    assignments: Sequence[Assignment],
    slots: Mapping[str, str],
    kept: Collection[str],
    supply: LaunchSupply,
    member: Callable[[Claim, str], Option],
) -> tuple[Assignment, ...]:
    """The assignments, with members named where calls could take each other's slots.

    `slots`: the reservation that the plan gave each claim (by uid). `kept`: reservations with slots that
    claims keep while they wait. `member`: the option that names a reservation.
    """
    spanning = {assignment.option for assignment in assignments if _spans(assignment.option)}
    crowded = _crowded(spanning, kept, supply)
    if not crowded:
        return tuple(assignments)
    named = {option for option in spanning if _reach(option) in crowded}
    return tuple(
        replace(assignment, option=member(assignment.claim, slots[assignment.claim.uid]))
        if assignment.option in named
        else assignment
        for assignment in assignments
    )


def opted_out(
    assignments: Sequence[Assignment], kept: Collection[str], supply: LaunchSupply
) -> tuple[Assignment, ...]:
    """The assignments, with the places where an instance outside reservations must match none.

    `kept`: reservations with slots that other claims keep or await.
    """
    places = ClosedPlaces(kept, supply)

    def closed(assignment: Assignment) -> frozenset[Place]:
        claim = assignment.claim
        if assignment.option.pool.capacity_type != "on-demand":
            return NOWHERE
        node_class = supply.classes[claim.node_class].of_tenancy(tenancy(claim.requirements))
        return places.of(node_class, supply.entitlements.draws.get(claim.uid, ""))

    return tuple(
        replace(assignment, closed=closed_places) if (closed_places := closed(assignment)) else assignment
        for assignment in assignments
    )


def _crowded(
    options: Iterable[Option], kept: Collection[str], supply: LaunchSupply
) -> frozenset[frozenset[str]]:
    """The reaches that share a reservation with another reach, or could take a kept or owned slot."""
    entitlements, inventory = supply.entitlements, supply.inventory
    reaches: dict[frozenset[str], bool] = {}  # and whether a call of it is an open match
    for option in options:
        reach = _reach(option)
        reaches[reach] = reaches.get(reach, False) or not option.pool.reservation
    by_member = lists_by_key((odcr_id, reach) for reach in reaches for odcr_id in reach)

    def crowded(reach: frozenset[str], is_open: bool) -> bool:
        odcrs = [inventory.odcrs[odcr_id] for odcr_id in reach if odcr_id in inventory.odcrs]
        if any(len(by_member[odcr_id]) > 1 or odcr_id in kept for odcr_id in reach):
            return True
        # A launch has one image, so it reaches the members of one platform only.
        if len({odcr.platform for odcr in odcrs}) > 1:
            return True
        others = {*kept, *entitlements.slot_pools} - reach
        other_places = open_places(others, inventory) if is_open else NOWHERE
        return any((odcr.instance_type, odcr.zone) in other_places for odcr in odcrs)

    return frozenset(reach for reach, is_open in reaches.items() if crowded(reach, is_open))


def _spans(option: Option) -> bool:
    """Whether EC2 picks the reservation: the option is a group or an open match."""
    return option.pool.target in ("group", "open")


def _reach(option: Option) -> frozenset[str]:
    return frozenset(option.odcr_ids)
