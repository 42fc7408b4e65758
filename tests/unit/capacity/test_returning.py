"""Claims that move into idle slots: the dearest that fit, gangs whole, budgets kept."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.capacity.returning import ReturnCandidate, choose_moves, idle_for, observe_idle

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def candidate(name: str, saving: float, *slots: str, pool: str = "p", gang: str = "") -> ReturnCandidate:
    return ReturnCandidate(uid=name, name=name, pool=pool, saving=saving, slots=slots, gang=gang)


@pytest.mark.parametrize(
    ("candidates", "room", "budgets", "moved"),
    [
        ([], {"x": 1}, {"p": 9}, ""),
        ([candidate("a", 1, "x")], {}, {"p": 9}, ""),
        ([candidate("a", 1, "x"), candidate("b", 2, "x")], {"x": 1}, {"p": 9}, "b"),
        ([candidate("a", 1, "x"), candidate("b", 2, "x")], {"x": 2}, {"p": 9}, "ab"),
        # The dearer one leaves the slot that the other needs.
        ([candidate("a", 1, "x"), candidate("b", 2, "x", "y")], {"x": 1, "y": 1}, {"p": 9}, "ab"),
        # Budgets are by pool.
        ([candidate("a", 1, "x"), candidate("b", 2, "x")], {"x": 2}, {"p": 1}, "b"),
        ([candidate("a", 1, "x", pool="q"), candidate("b", 2, "x")], {"x": 2}, {"p": 1, "q": 1}, "ab"),
        ([candidate("a", 1, "x")], {"x": 1}, {}, ""),
        # A gang moves whole or not at all.
        ([candidate("a", 9, "x", gang="g"), candidate("b", 9, "x", gang="g")], {"x": 1}, {"p": 9}, ""),
        ([candidate("a", 9, "x", gang="g"), candidate("b", 9, "x", gang="g")], {"x": 2}, {"p": 1}, ""),
        (
            [candidate("a", 9, "x", gang="g"), candidate("b", 9, "x", gang="g"), candidate("c", 1, "x")],
            {"x": 1},
            {"p": 9},
            "c",
        ),
        # It counts by its average saving.
        (
            [candidate("a", 2, "x", gang="g"), candidate("b", 2, "x", gang="g"), candidate("c", 3, "x")],
            {"x": 2},
            {"p": 9},
            "c",
        ),
    ],
)
def test_dearest_claims_that_fit_move_within_budgets(
    candidates: list[ReturnCandidate], room: Mapping[str, int], budgets: Mapping[str, int], moved: str
) -> None:
    chosen = choose_moves(candidates, room, budgets)
    assert "".join(sorted(candidate.uid for candidate in chosen)) == moved


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sets(st.sampled_from("xyz"), min_size=1)), max_size=6),
    st.dictionaries(st.sampled_from("xyz"), st.integers(0, 2)),
)
def test_no_other_choice_of_single_claims_saves_more(
    given_: list[tuple[int, set[str]]], room: dict[str, int]
) -> None:
    candidates = [candidate(str(n), saving, *sorted(slots)) for n, (saving, slots) in enumerate(given_)]
    chosen = choose_moves(candidates, room, {"p": 9})
    best = max(
        sum(candidate.saving for candidate in choice)
        for size in range(len(candidates) + 1)
        for choice in combinations(candidates, size)
        if _fit(choice, room)
    )
    assert sum(candidate.saving for candidate in chosen) == best


def _fit(moves: tuple[ReturnCandidate, ...], room: Mapping[str, int]) -> bool:
    if not moves:
        return True
    first, *rest = moves
    return any(
        _fit(tuple(rest), {**room, slot: room[slot] - 1}) for slot in first.slots if room.get(slot, 0) > 0
    )


def test_slots_count_as_idle_after_a_while() -> None:
    minute = timedelta(minutes=1)
    seen = observe_idle({}, {"x": 1}, NOW)
    assert idle_for(seen, minute, NOW) == {}
    seen = observe_idle(seen, {"x": 3}, NOW + minute)
    assert idle_for(seen, minute, NOW + minute) == {"x": 1}
    seen = observe_idle(seen, {"x": 2}, NOW + 2 * minute)
    assert idle_for(seen, minute, NOW + 2 * minute) == {"x": 2}
    # A slot that was taken meanwhile begins anew.
    seen = observe_idle(seen, {}, NOW + 3 * minute)
    seen = observe_idle(seen, {"x": 1}, NOW + 3 * minute)
    assert idle_for(seen, minute, NOW + 3 * minute) == {}
