"""One time limit for a plan: unlike claims are planned in parts. Each read of the timer takes a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from broker.apis.names import ZONE
from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim, Plan, Selection
from broker.capacity.plan import plan

from .builders import chosen, claim, inventory, node_class, odcr, supply

OPEN = Selection(preference="open")
BOTH = ["reserved", "on-demand"]
LIMIT = 20.0


def ticking() -> tuple[Callable[[], float], Callable[[], float]]:
    """A timer that advances by one second at each read, and the seconds so far."""
    seconds = [0.0]

    def timer() -> float:
        seconds[0] += 1.0
        return seconds[0]

    return timer, lambda: seconds[0]


def unlike(count: int) -> list[Claim]:
    """Claims of which no two have the same requests."""
    return [
        claim(f"c{number:03}", kinds=BOTH, requests={"cpu": 1 + number / 1000}) for number in range(count)
    ]


def part(claims: Sequence[Claim], world: Inventory) -> tuple[Plan, float]:
    timer, passed = ticking()
    classes = {"default": node_class(OPEN, world)}
    result = plan(claims, supply(classes, world), seconds=LIMIT, timer=timer)
    return result, passed()


@pytest.mark.covers("SAF-44")
def test_claims_that_are_all_different_are_planned_in_parts_within_the_limit() -> None:
    world = inventory(odcr("cr-1", free=30))
    waiting = unlike(60)
    most, parts, order = 0.0, 0, []
    while waiting:
        plan, seconds = part(waiting, world)
        most, parts = max(most, seconds), parts + 1
        assigned = {assignment.claim.uid for assignment in plan.assignments}
        assert plan.later == {claim.uid for claim in waiting} - assigned
        if plan.later:
            assert (
                not plan.solution.optimal
                and f"{len(plan.later)} of {len(waiting)} claims" in plan.solution.note
            )
            assert {unplaced.reason for unplaced in plan.unplaced} == {"PlannedLater"}
        order += [assignment.claim.name for assignment in plan.assignments]
        waiting = [claim for claim in waiting if claim.uid in plan.later]
    assert parts > 1
    assert most <= LIMIT + 3  # the timer reads of the last step
    assert order == sorted(order)  # the first claims come first


@pytest.mark.covers("SAF-44")
def test_claims_that_are_alike_cost_no_time() -> None:
    world = inventory(odcr("cr-1", free=30))
    plan, _ = part([claim(f"c{number}", kinds=BOTH) for number in range(200)], world)
    assert plan.solution.optimal and not plan.later
    assert len(plan.assignments) == 200


@pytest.mark.covers("SAF-44")
def test_gang_is_planned_whole_or_later() -> None:
    world = inventory(odcr("cr-1", free=60))
    waiting = [replace(claim, gang=f"g{number // 7}") for number, claim in enumerate(unlike(140))]
    plan, _ = part(waiting, world)
    assert plan.later and plan.assignments
    launched = {assignment.claim.uid for assignment in plan.assignments}
    for gang in {member.gang for member in waiting}:
        members = {claim.uid for claim in waiting if claim.gang == gang}
        assert members <= launched or members <= plan.later


def test_first_claim_is_considered_even_without_time() -> None:
    world = inventory(odcr("cr-1"))
    timer, _ = ticking()
    result = plan(
        unlike(3),
        supply({"default": node_class(OPEN, world)}, world),
        seconds=0,
        timer=timer,
    )
    assert [*chosen(result)] == ["c000"]
    assert result.later == {"uid-c001", "uid-c002"}


@pytest.mark.covers("FLT-30")
def test_the_domains_of_gangs_leave_time_for_the_plan() -> None:
    """A plan with all claims for each domain of each gang would take longer than the limit."""
    world = inventory(odcr("cr-1", free=10))
    gangs = [claim(f"{name}{n}", kinds=BOTH, gang=name, domain=ZONE) for name in "ghij" for n in range(2)]
    waiting = [*(replace(single, priority=1) for single in unlike(40)), *gangs]
    timer, passed = ticking()
    classes = {"default": node_class(OPEN, world)}
    result = plan(waiting, supply(classes, world), seconds=1000.0, timer=timer)
    assert (len(result.assignments), result.later) == (48, frozenset())
    assert passed() <= 1000.0
