"""The ids of full reservations in a reason: written and read in one place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.capacity.full_slots import MOST_NAMED, full_ids, none_left, none_of

IDS = st.lists(st.from_regex(r"cr-[0-9a-f]{1,17}", fullmatch=True), min_size=1, max_size=6, unique=True)
PLACES = st.sampled_from(["", "m5.large, us-east-1a", "u-6tb1.112xlarge, us-west-2-lax-1a"])
# The rest of a reason, which names reservations for other causes.
OTHERS = st.sampled_from(
    [
        "",
        "NodePool team: ",
        "no free slot: cr-0e (m5.large, us-east-1a): ",
        "cr-0e (p5.48xlarge, us-east-1a): its 1 free slot went to claims that come before; ",
        "free slots (2 of cr-0e) are held until 2026-01-01T00:00:00Z for gang g; ",
        "reservation cr-0e is scheduled, starts at 2026-01-01T00:00:00Z; ",
    ]
)


@given(ids=IDS, place=PLACES, before=OTHERS, after=OTHERS)
def test_listed_ids_are_read_as_they_were_written(
    ids: list[str], place: str, before: str, after: str
) -> None:
    reason = f"{before}{none_left(dict.fromkeys(ids, place))}; {after}"
    assert full_ids(reason) == tuple(sorted(ids)[:MOST_NAMED])


@given(ids=IDS, total=st.integers(1, 10_000), before=OTHERS, after=OTHERS)
def test_counted_ids_are_read_as_they_were_written(
    ids: list[str], total: int, before: str, after: str
) -> None:
    counts = ", ".join(f"{none_of(id_, total)} (1 kept for a node that replaces another)" for id_ in ids)
    assert full_ids(f"{before}free slots: {counts}; {after}") == tuple(ids)


@given(ids=IDS, more=IDS)
def test_both_forms_in_one_reason_are_read_and_each_id_once(ids: list[str], more: list[str]) -> None:
    reason = f"NodePool a: {none_of(ids[0], 1)}; NodePool b: {none_left(dict.fromkeys([*ids, *more], ''))}"
    assert full_ids(reason) == tuple(dict.fromkeys([ids[0], *sorted({*ids, *more})[:MOST_NAMED]]))


@pytest.mark.parametrize(
    "text", ["", "cr-1", "1 of 2 free in cr-1", "cr-1 (m5.large, us-east-1a): TenancyMismatch"]
)
def test_ids_that_are_named_for_another_cause_are_not_read(text: str) -> None:
    assert full_ids(text) == ()
