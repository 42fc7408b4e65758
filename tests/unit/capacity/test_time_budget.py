"""One time limit for a plan: many unlike claims are planned in parts. A look at the timer is a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from broker.capacity.model import Claim, Inventory, Plan, Selection
from broker.capacity.plan import plan
from broker.capacity.shortages import Shortages

from .builders import NOW, TYPES, chosen, claim, inventory, node_class, odcr

OPEN = Selection(preference="open")
BOTH = ["reserved", "on-demand"]
LIMIT = 20.0


def ticking() -> tuple[Callable[[], float], Callable[[], float]]:
    """A timer that moves on by one second at each look, and the seconds so far."""
    looks = [0.0]

    def timer() -> float:
        looks[0] += 1.0
        return looks[0]

    return timer, lambda: looks[0]


def unlike(count: int) -> list[Claim]:
    """Claims of which no two have the same requests."""
    return [
        claim(f"c{number:03}", kinds=BOTH, requests={"cpu": 1 + number / 1000}) for number in range(count)
    ]


def part(claims: Sequence[Claim], world: Inventory) -> tuple[Plan, float]:
    timer, passed = ticking()
    classes = {"default": node_class(OPEN, world)}
    made = plan(claims, classes, TYPES, world, Shortages(), NOW, seconds=LIMIT, timer=timer)
    return made, passed()


@pytest.mark.covers("SAF-44")
def test_claims_that_are_all_different_are_planned_in_parts_within_the_limit() -> None:
    world = inventory(odcr("cr-1", free=30))
    waiting = unlike(60)
    most, parts, order = 0.0, 0, []
    while waiting:
        made, seconds = part(waiting, world)
        most, parts = max(most, seconds), parts + 1
        assert made.later == {each.uid for each in waiting} - {each.claim.uid for each in made.assignments}
        if made.later:
            assert (
                not made.solution.optimal
                and f"{len(made.later)} of {len(waiting)} claims" in made.solution.note
            )
            assert {each.reason for each in made.unplaced} == {"PlannedLater"}
        order += [each.claim.name for each in made.assignments]
        waiting = [each for each in waiting if each.uid in made.later]
    assert parts > 1
    assert most <= LIMIT + 3  # the looks of the last step
    assert order == sorted(order)  # the first claims come first


@pytest.mark.covers("SAF-44")
def test_claims_that_are_alike_cost_no_time() -> None:
    world = inventory(odcr("cr-1", free=30))
    made, _ = part([claim(f"c{number}", kinds=BOTH) for number in range(200)], world)
    assert made.solution.optimal and not made.later
    assert len(made.assignments) == 200


@pytest.mark.covers("SAF-44")
def test_gang_is_planned_whole_or_later() -> None:
    world = inventory(odcr("cr-1", free=60))
    waiting = [replace(each, gang=f"g{number // 7}") for number, each in enumerate(unlike(140))]
    made, _ = part(waiting, world)
    assert made.later and made.assignments
    launched = {each.claim.uid for each in made.assignments}
    for gang in {each.gang for each in waiting}:
        members = {each.uid for each in waiting if each.gang == gang}
        assert members <= launched or members <= made.later


def test_first_claim_is_considered_even_without_time() -> None:
    world = inventory(odcr("cr-1"))
    timer, _ = ticking()
    made = plan(
        unlike(3),
        {"default": node_class(OPEN, world)},
        TYPES,
        world,
        Shortages(),
        NOW,
        seconds=0,
        timer=timer,
    )
    assert [*chosen(made)] == ["c000"]
    assert made.later == {"uid-c001", "uid-c002"}
