"""Assigned slots: exact, within a time limit, and within the reported bound, compared with every choice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.capacity import greedy, network
from broker.capacity.problem import ClaimDemand, Rank, SlotFlow, SlotProblem, problem_of
from broker.capacity.solve import MOST_WAYS_OF_GANGS, SolvedSlots, solve

from .builders import NOW, TYPES, inventory, odcr

SLOTS = ("cr-1", "cr-2", "cr-3")


def demand(
    slots: Sequence[str], *, priority: int = 0, cost: float | None = None, gang: str = ""
) -> ClaimDemand:
    rank = Rank(
        priority=-priority,
        unheld=True,
        falls_back=cost is not None,
        cost=-(cost or 0.0),
        created=NOW,
        gang=gang,
    )
    return ClaimDemand(slots=tuple(slots), rank=rank)


def problem(room: Sequence[int], demands: Sequence[ClaimDemand]) -> SlotProblem:
    world = inventory(
        *(
            odcr(id_, type_name, free=free)
            for id_, type_name, free in zip(SLOTS, ("m5.large", "m5.xlarge", "m5.2xlarge"), room, strict=True)
        )
    )
    return problem_of({f"c{place}": demand for place, demand in enumerate(demands)}, world, TYPES)


@st.composite
def problems(draw: st.DrawFn) -> SlotProblem:
    reach = st.lists(st.sampled_from(SLOTS), unique=True, min_size=1).map(sorted)
    demands = [
        demand(draw(reach), priority=draw(st.integers(0, 1)), cost=draw(st.sampled_from([None, 1.0, 2.0])))
        for _ in range(draw(st.integers(0, 4)))
    ]
    for number in range(draw(st.integers(1, 4))):
        priority, slots = draw(st.integers(0, 1)), draw(reach)
        for member in range(draw(st.integers(1, 4))):
            cost = None if member == 0 else draw(st.sampled_from([None, None, 1.0]))
            other = draw(st.sampled_from([slots, slots, list(SLOTS)]))
            demands.append(demand(other, priority=priority, cost=cost, gang=f"g{number}"))
    return problem([draw(st.integers(0, 5)) for _ in SLOTS], demands)


def objective(
    slot_problem: SlotProblem, taken: SlotFlow, incomplete_gangs: frozenset[str]
) -> tuple[float, ...]:
    """By priority the claims in reservations; launched; on-demand cost; sizes; ends. Larger is better."""
    served = {place: int(count) for place, count in enumerate(taken.served)}
    bundles = [*enumerate(slot_problem.bundles)]
    here = [
        (place, bundle) for place, bundle in bundles if bundle.gang not in incomplete_gangs or not bundle.gang
    ]
    return (
        *(
            sum(served[place] for place, bundle in bundles if bundle.rank.priority == -priority)
            for priority in (1, 0)
        ),
        sum(
            bundle.count if bundle.rank.falls_back or bundle.gang else served[place] for place, bundle in here
        ),
        sum(bundle.rank.cost * (bundle.count - served[place]) for place, bundle in here),
        -float((taken.flow * slot_problem.sizes[2][slot_problem.arc_slot]).sum()),
        -float((taken.flow * slot_problem.ends[1][slot_problem.arc_slot]).sum()),
    )


def choices(slot_problem: SlotProblem) -> Iterator[tuple[SlotFlow, frozenset[str]]]:
    """Every choice of gangs that fits, with the gangs that it leaves out."""
    for size in range(len(slot_problem.gangs) + 1):
        for chosen_gangs in itertools.combinations(slot_problem.gangs, size):
            incomplete_gangs = frozenset(slot_problem.gangs) - set(chosen_gangs)
            at_most = slot_problem.counts.copy()
            at_most[
                [
                    place
                    for place, bundle in enumerate(slot_problem.bundles)
                    if bundle.gang in incomplete_gangs
                ]
            ] = 0
            taken = network.solve(slot_problem, at_most=at_most, first=frozenset(chosen_gangs))
            if whole(slot_problem, taken, incomplete_gangs):
                yield taken, incomplete_gangs


def whole(slot_problem: SlotProblem, taken: SlotFlow, incomplete_gangs: frozenset[str]) -> bool:
    """Whether each gang has all its required slots, or none."""
    for place, bundle in enumerate(slot_problem.bundles):
        count = int(taken.served[place])
        if bundle.gang in incomplete_gangs and count:
            return False
        if bundle.gang and bundle.gang not in incomplete_gangs and bundle.must and count != bundle.count:
            return False
    return True


def ticking(step: float) -> Callable[[], float]:
    """A timer that advances by this much at every call."""
    ticks = itertools.count()
    return lambda: step * next(ticks)


def stopped_timer() -> float:
    return 0.0


@pytest.mark.covers("KRP-20", "KRP-22")
@pytest.mark.parametrize("ways", [0, MOST_WAYS_OF_GANGS])
@given(slot_problem=problems())
def test_no_choice_of_gangs_is_better(ways: int, slot_problem: SlotProblem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("broker.capacity.solve.MOST_WAYS_OF_GANGS", ways)
        got = solve(slot_problem, timer=stopped_timer)
    assert got.solution.optimal and got.solution.gap == 0
    assert not got.taken.problems(slot_problem)
    assert whole(slot_problem, got.taken, got.incomplete_gangs)
    assert objective(slot_problem, got.taken, got.incomplete_gangs) == max(
        objective(slot_problem, *choice) for choice in choices(slot_problem)
    )


@pytest.mark.covers("SAF-44")
@pytest.mark.parametrize("ways", [0, MOST_WAYS_OF_GANGS])
@given(slot_problem=problems(), step=st.sampled_from([0.0, 0.5, 2.0]))
def test_result_without_time_is_valid_and_within_its_reported_bound(
    ways: int, slot_problem: SlotProblem, step: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("broker.capacity.solve.MOST_WAYS_OF_GANGS", ways)
        got = solve(slot_problem, seconds=1.0 if step else 0.0, timer=ticking(step))
    assert not got.taken.problems(slot_problem)
    assert whole(slot_problem, got.taken, got.incomplete_gangs)
    most = max(taken.reserved for taken, _ in choices(slot_problem))
    if not got.solution.optimal:
        assert got.solution.note
        assert got.solution.reserved <= most <= got.solution.bound
        assert 0 <= got.solution.gap <= 1
        gaps = dict(got.solution.gaps)
        reached = {
            name: level
            for name, level in levels(slot_problem, got.taken, got.incomplete_gangs).items()
            if name in gaps
        }
        assert gaps.keys() - reached.keys() <= {"instance sizes", "reservation ends"}
        for taken, incomplete_gangs in choices(slot_problem):
            for name, level in levels(slot_problem, taken, incomplete_gangs).items():
                assert level - reached[name] <= gaps[name] + 1e-6, name


def levels(slot_problem: SlotProblem, taken: SlotFlow, incomplete_gangs: frozenset[str]) -> dict[str, float]:
    """The levels that are compared with all other plans, larger if better."""
    if not slot_problem.bundles:
        return {}
    high, low, launched, cost, *_ = objective(slot_problem, taken, incomplete_gangs)
    priorities = sorted({-bundle.rank.priority for bundle in slot_problem.bundles}, reverse=True)
    by_priority = {1: high, 0: high + low}
    return {f"claims at priority {priority} and above": by_priority[priority] for priority in priorities} | {
        "claims that wait": launched,
        "on-demand dollars an hour": cost,
    }


@given(problems())
def test_one_greedy_pass_is_within_its_factor_at_every_priority(slot_problem: SlotProblem) -> None:
    choice = greedy.solve(slot_problem)
    taken, incomplete_gangs = choice.taken, frozenset(slot_problem.gangs) - choice.launched
    assert not taken.problems(slot_problem)
    assert whole(slot_problem, taken, incomplete_gangs)
    largest = max(
        sum(slot_problem.bundles[place].count for place in gang) for gang in slot_problem.gangs.values()
    )

    def reserved(slot_flow: SlotFlow, priority: int) -> int:
        return sum(
            int(slot_flow.served[place])
            for place, bundle in enumerate(slot_problem.bundles)
            if bundle.rank.priority <= -priority
        )

    for priority in (1, 0):
        for other, _ in choices(slot_problem):
            assert reserved(other, priority) <= (1 + largest) * reserved(taken, priority)


def test_greedy_pass_over_single_claims_fills_at_least_half_of_the_optimum() -> None:
    # The first takes the slot that the second needs, though it could use the other.
    slot_problem = problem([1, 1, 0], [demand(["cr-1", "cr-2"], priority=1), demand(["cr-1"])])
    got = solve(slot_problem, seconds=0.0, timer=stopped_timer)
    assert (got.solution.solver, got.solution.reserved, got.solution.bound) == ("greedy", 1, 2)
    assert got.solution.gap == 0.5
    assert "not proven optimal, gap at most 50.0%" in str(got.solution)
    assert solve(slot_problem, timer=stopped_timer).solution.reserved == 2


def gangs_of(sizes: Sequence[int], slots: Sequence[str] = ("cr-1",), **more: int) -> list[ClaimDemand]:
    return [
        demand(slots, gang=f"g{number:03}", **more) for number, size in enumerate(sizes) for _ in range(size)
    ]


def names(slot_problem: SlotProblem, got: SolvedSlots) -> list[str]:
    return sorted(set(slot_problem.gangs) - got.incomplete_gangs)


@pytest.mark.covers("KRP-22")
def test_claims_without_a_slot_need_no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_Network", None)
    got = solve(problem([0, 0, 0], gangs_of((2, 3))), timer=stopped_timer)
    assert got.solution.optimal and not got.taken.reserved


def test_as_many_equal_gangs_launch_as_fit_in_order() -> None:
    slot_problem = problem([100, 0, 0], gangs_of([8] * 40))
    got = solve(slot_problem, timer=stopped_timer)
    assert got.solution.optimal
    assert names(slot_problem, got) == [f"g{number:03}" for number in range(12)]


@pytest.mark.covers("KRP-22")
def test_gangs_that_together_fill_the_reservation_launch_rather_than_the_first() -> None:
    slot_problem = problem([10, 0, 0], gangs_of([7, 6, 4]))
    assert names(slot_problem, solve(slot_problem, timer=stopped_timer)) == ["g001", "g002"]


@pytest.mark.covers("KRP-20", "KRP-22")
def test_a_gang_of_higher_priority_launches_even_if_others_would_fill_more() -> None:
    slot_problem = problem(
        [10, 0, 0], [*gangs_of([6, 4]), *(demand(["cr-1"], priority=1, gang="high") for _ in range(7))]
    )
    assert names(slot_problem, solve(slot_problem, timer=stopped_timer)) == ["high"]


@pytest.mark.covers("KRP-22")
def test_gang_larger_than_all_slots_leaves_them_to_others() -> None:
    slot_problem = problem([3, 0, 0], [*gangs_of([4], priority=5), demand(["cr-1"])])
    got = solve(slot_problem, timer=stopped_timer)
    assert (names(slot_problem, got), got.solution.reserved) == ([], 1)
    assert got.solution.solver == "min-cost flow"


def test_many_gangs_of_unequal_sizes_are_proven_in_few_steps() -> None:
    sizes = [2 + (number * 7) % 23 for number in range(40)]
    slot_problem = problem(
        [60, 90, 50], [*gangs_of(sizes, SLOTS), *(demand(["cr-2"], cost=1.0) for _ in range(30))]
    )
    ticks = itertools.count()
    got = solve(slot_problem, timer=lambda: 0.001 * next(ticks))
    assert got.solution.optimal
    assert got.solution.reserved == 200


def test_problem_without_claims_needs_no_solver() -> None:
    got = solve(problem([1, 1, 1], []), timer=stopped_timer)
    assert (got.solution.solver, got.solution.optimal, got.solution.gap) == ("nothing to solve", True, 0.0)


def test_a_solver_that_fails_is_replaced_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> SlotFlow:
        raise network.SolverFailed("min-cost flow: Status.BAD_COST_RANGE")

    monkeypatch.setattr(network, "solve", broken)
    slot_problem = problem([2, 0, 0], [demand(["cr-1"]), demand(["cr-1"])])
    got = solve(slot_problem, timer=stopped_timer)
    assert (got.solution.solver, got.solution.reserved, got.solution.optimal) == ("greedy", 2, False)
    assert "BAD_COST_RANGE" in got.solution.note
