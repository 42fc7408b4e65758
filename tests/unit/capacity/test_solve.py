"""Assigned slots: exact, within a time limit, and within the reported bound, compared with every choice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.capacity import greedy, network
from broker.capacity.problem import ClaimDemand, Rank, SlotFlow, SlotProblem, problem_of
from broker.capacity.solve import SolvedSlots, solve

from .builders import NOW, TYPES, inventory, odcr

SLOTS = ("cr-1", "cr-2", "cr-3")


def wish(
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
    return ClaimDemand(slots=slots, rank=rank, gang=gang)


def problem(room: Sequence[int], wishes: Sequence[ClaimDemand]) -> SlotProblem:
    world = inventory(
        *(
            odcr(id_, type_name, free=free)
            for id_, type_name, free in zip(SLOTS, ("m5.large", "m5.xlarge", "m5.2xlarge"), room, strict=True)
        )
    )
    return problem_of({f"c{place}": each for place, each in enumerate(wishes)}, world, TYPES)


@st.composite
def problems(draw: st.DrawFn) -> SlotProblem:
    reach = st.lists(st.sampled_from(SLOTS), unique=True, min_size=1).map(sorted)
    wishes = [
        wish(draw(reach), priority=draw(st.integers(0, 1)), cost=draw(st.sampled_from([None, 1.0, 2.0])))
        for _ in range(draw(st.integers(0, 4)))
    ]
    for number in range(draw(st.integers(1, 4))):
        priority, slots = draw(st.integers(0, 1)), draw(reach)
        for member in range(draw(st.integers(1, 4))):
            cost = None if member == 0 else draw(st.sampled_from([None, None, 1.0]))
            other = draw(st.sampled_from([slots, slots, list(SLOTS)]))
            wishes.append(wish(other, priority=priority, cost=cost, gang=f"g{number}"))
    return problem([draw(st.integers(0, 5)) for _ in SLOTS], wishes)


def objective(of: SlotProblem, taken: SlotFlow, absent: frozenset[str]) -> tuple[float, ...]:
    """By priority the claims in reservations; launched; on-demand cost; sizes; ends. Larger is better."""
    served = {place: int(count) for place, count in enumerate(taken.served)}
    bundles = [*enumerate(of.bundles)]
    here = [(place, each) for place, each in bundles if each.gang not in absent or not each.gang]
    return (
        *(
            sum(served[place] for place, each in bundles if each.rank.priority == -priority)
            for priority in (1, 0)
        ),
        sum(each.count if each.rank.falls_back or each.gang else served[place] for place, each in here),
        sum(each.rank.cost * (each.count - served[place]) for place, each in here),
        -float((taken.flow * of.sizes[of.arc_slot]).sum()),
        -float((taken.flow * of.ends[of.arc_slot]).sum()),
    )


def choices(of: SlotProblem) -> Iterator[tuple[SlotFlow, frozenset[str]]]:
    """Every choice of gangs that fits, with the gangs that it leaves out."""
    for size in range(len(of.gangs) + 1):
        for some in itertools.combinations(of.gangs, size):
            absent = frozenset(of.gangs) - set(some)
            at_most = of.counts.copy()
            at_most[[place for place, each in enumerate(of.bundles) if each.gang in absent]] = 0
            taken = network.solve(of, at_most=at_most, first=frozenset(some))
            if whole(of, taken, absent):
                yield taken, absent


def whole(of: SlotProblem, taken: SlotFlow, absent: frozenset[str]) -> bool:
    """Whether each gang has all its required slots, or none."""
    for place, each in enumerate(of.bundles):
        count = int(taken.served[place])
        if each.gang in absent and count:
            return False
        if each.gang and each.gang not in absent and each.must and count != each.count:
            return False
    return True


def ticking(step: float) -> Callable[[], float]:
    """A timer that advances by this much at every call."""
    ticks = itertools.count()
    return lambda: step * next(ticks)


def standing() -> float:
    return 0.0


@pytest.mark.covers("KRP-20", "KRP-22")
@given(problems())
def test_no_choice_of_gangs_is_better(of: SlotProblem) -> None:
    got = solve(of, timer=standing)
    assert got.solution.optimal and got.solution.gap == 0
    assert not got.taken.problems(of)
    assert whole(of, got.taken, got.absent)
    assert objective(of, got.taken, got.absent) == max(objective(of, *each) for each in choices(of))


@pytest.mark.covers("SAF-44")
@given(problems(), st.sampled_from([0.0, 0.5, 2.0]))
def test_result_without_time_is_valid_and_within_its_reported_bound(of: SlotProblem, step: float) -> None:
    got = solve(of, seconds=1.0 if step else 0.0, timer=ticking(step))
    assert not got.taken.problems(of)
    assert whole(of, got.taken, got.absent)
    most = max(taken.reserved for taken, _ in choices(of))
    if not got.solution.optimal:
        assert got.solution.note
        assert got.solution.reserved <= most <= got.solution.bound
        assert 0 <= got.solution.gap <= 1
        gaps = dict(got.solution.gaps)
        reached = {name: level for name, level in levels(of, got.taken, got.absent).items() if name in gaps}
        assert gaps.keys() - reached.keys() <= {"instance sizes", "reservation ends"}
        for taken, absent in choices(of):
            for name, level in levels(of, taken, absent).items():
                assert level - reached[name] <= gaps[name] + 1e-6, name


def levels(of: SlotProblem, taken: SlotFlow, absent: frozenset[str]) -> dict[str, float]:
    """The levels that are compared with all other plans, larger if better."""
    if not of.bundles:
        return {}
    high, low, launched, cost, *_ = objective(of, taken, absent)
    asked = sorted({-each.rank.priority for each in of.bundles}, reverse=True)
    by_priority = {1: high, 0: high + low}
    return {f"claims at priority {each} and above": by_priority[each] for each in asked} | {
        "claims that wait": launched,
        "on-demand dollars an hour": cost,
    }


@given(problems())
def test_one_greedy_pass_is_within_its_factor_at_every_priority(of: SlotProblem) -> None:
    taken, launched = greedy.solve(of)
    absent = frozenset(of.gangs) - launched
    assert not taken.problems(of)
    assert whole(of, taken, absent)
    largest = max(sum(of.bundles[each].count for each in gang) for gang in of.gangs.values())

    def reserved(some: SlotFlow, priority: int) -> int:
        return sum(
            int(some.served[place])
            for place, each in enumerate(of.bundles)
            if each.rank.priority <= -priority
        )

    for priority in (1, 0):
        for other, _ in choices(of):
            assert reserved(other, priority) <= (1 + largest) * reserved(taken, priority)
    assert max(other.reserved for other, _ in choices(of)) <= greedy.bound(of, taken)


def test_greedy_pass_over_single_claims_fills_at_least_half_of_the_optimum() -> None:
    # The first takes the slot that the second needs, though it could use the other.
    of = problem([1, 1, 0], [wish(["cr-1", "cr-2"], priority=1), wish(["cr-1"])])
    got = solve(of, seconds=0.0, timer=standing)
    assert (got.solution.solver, got.solution.reserved, got.solution.bound) == ("greedy", 1, 2)
    assert got.solution.gap == 0.5
    assert "not proven optimal, gap at most 50.0%" in str(got.solution)
    assert solve(of, timer=standing).solution.reserved == 2


def gangs_of(sizes: Sequence[int], slots: Sequence[str] = ("cr-1",), **more: int) -> list[ClaimDemand]:
    return [
        wish(slots, gang=f"g{number:03}", **more) for number, size in enumerate(sizes) for _ in range(size)
    ]


def names(of: SlotProblem, got: SolvedSlots) -> list[str]:
    return sorted(set(of.gangs) - got.absent)


@pytest.mark.covers("KRP-22")
def test_of_equal_gangs_as_many_launch_as_fit_the_first_first() -> None:
    of = problem([100, 0, 0], gangs_of([8] * 40))
    got = solve(of, timer=standing)
    assert got.solution.optimal
    assert names(of, got) == [f"g{number:03}" for number in range(12)]


@pytest.mark.covers("KRP-22")
def test_gangs_that_together_fill_the_reservation_launch_rather_than_the_first() -> None:
    of = problem([10, 0, 0], gangs_of([7, 6, 4]))
    assert names(of, solve(of, timer=standing)) == ["g001", "g002"]


@pytest.mark.covers("KRP-20", "KRP-22")
def test_a_gang_of_higher_priority_launches_even_if_others_would_fill_more() -> None:
    of = problem(
        [10, 0, 0], [*gangs_of([6, 4]), *(wish(["cr-1"], priority=1, gang="high") for _ in range(7))]
    )
    assert names(of, solve(of, timer=standing)) == ["high"]


@pytest.mark.covers("KRP-22")
def test_a_gang_that_is_larger_than_all_there_is_leaves_its_slots_to_others() -> None:
    of = problem([3, 0, 0], [*gangs_of([4], priority=5), wish(["cr-1"])])
    got = solve(of, timer=standing)
    assert (names(of, got), got.solution.reserved) == ([], 1)
    assert got.solution.solver == "min-cost flow"


def test_many_gangs_of_unequal_sizes_are_proven_in_few_steps() -> None:
    sizes = [2 + (number * 7) % 23 for number in range(40)]
    of = problem([60, 90, 50], [*gangs_of(sizes, SLOTS), *(wish(["cr-2"], cost=1.0) for _ in range(30))])
    looks = itertools.count()
    got = solve(of, timer=lambda: 0.001 * next(looks))
    assert got.solution.optimal
    assert got.solution.reserved == 200


def test_nothing_waits_nothing_is_solved() -> None:
    got = solve(problem([1, 1, 1], []), timer=standing)
    assert (got.solution.solver, got.solution.optimal, got.solution.gap) == ("nothing to solve", True, 0.0)


def test_a_solver_that_fails_is_replaced_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> SlotFlow:
        raise network.SolverFailed("min-cost flow: Status.BAD_COST_RANGE")

    monkeypatch.setattr(network, "solve", broken)
    of = problem([2, 0, 0], [wish(["cr-1"]), wish(["cr-1"])])
    got = solve(of, timer=standing)
    assert (got.solution.solver, got.solution.reserved, got.solution.optimal) == ("greedy", 2, False)
    assert "BAD_COST_RANGE" in got.solution.note
