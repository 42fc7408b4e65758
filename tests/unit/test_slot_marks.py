"""The picture of capacity."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.oncall.slot_holders import SlotUse, SlotUser
from broker.oncall.slot_marks import USES, by_group, slot_rows

AT = datetime(2026, 11, 27, tzinfo=UTC)


def user(claim: str, owner: str = "", ends: str = "") -> SlotUser:
    return SlotUser(claim=claim, pods=(), owner=owner, since=AT, ends=ends)


def use(
    id_: str, total: int, free: int, *holders: SlotUser, kept: int = 0, owner: str = "", zone: str = "a"
) -> SlotUse:
    return SlotUse(
        id=id_,
        type="m5.large",
        zone=zone,
        state="active",
        total=total,
        free=free,
        kept=kept,
        owner=owner,
        node_classes=frozenset(),
        holders=holders,
    )


def price(_: SlotUse) -> float:
    return 2.0


@pytest.mark.covers("ONC-04")
def test_each_slot_has_the_mark_of_its_use() -> None:
    users = [user("a", "x/own"), user("b", "y/b"), user("c", "x/own", ends="it ends"), user("d", "x/own")]
    (row,) = slot_rows([use("cr-1", 8, 2, *users, kept=1, owner="x/own")], broken={"d"}, price=price)
    letters = "".join(mark.letter for mark in row.marks)
    assert letters == "!EL··KXO"
    assert [mark.user.claim for mark in row.marks if mark.user] == ["d", "c", "b", "a"]
    assert row.usd_hour == 2.0


@pytest.mark.covers("ONC-04")
def test_borrower_has_its_slots_in_its_own_group() -> None:
    lent = use("cr-1", 2, 0, user("a", "x/own"), user("b", "y/b"), owner="x/own", zone="b")
    rows = slot_rows([lent, use("cr-2", 1, 1, zone="a")], broken=(), price=price)
    groups = by_group(rows, "owner")
    assert {name: [(row.id, row.lender) for row in held] for name, held in groups.items()} == {
        "": [("cr-2", "")],
        "x/own": [("cr-1", "")],
        "y/b": [("cr-1", "x/own")],
    }
    (borrowed,) = groups["y/b"]
    assert [(mark.letter, mark.user.claim) for mark in borrowed.marks if mark.user] == [("B", "b")]
    assert [*by_group(rows, "zone")] == ["a", "b"]


@pytest.mark.covers("ONC-04")
def test_broken_and_ending_slots_come_first_and_then_the_dearest_idle_ones() -> None:
    uses = [
        use("cr-full", 1, 0, user("a")),
        use("cr-idle", 3, 3),
        use("cr-ends", 1, 0, user("b", ends="it ends")),
        use("cr-broken", 1, 0, user("c")),
    ]
    rows = slot_rows(uses, broken={"c"}, price=price)
    assert [row.id for row in rows] == ["cr-broken", "cr-ends", "cr-idle", "cr-full"]


@given(
    total=st.integers(0, 9),
    free=st.integers(0, 9),
    claims=st.integers(0, 9),
    kept=st.integers(0, 9),
)
def test_row_has_as_many_marks_as_ec2_counts_slots(total: int, free: int, claims: int, kept: int) -> None:
    """Also while the claims differ from EC2's count."""
    unused = min(free, total)
    kept = min(kept, unused)
    counted = use("cr-1", total, unused - kept, *(user(str(n)) for n in range(claims)), kept=kept)
    (row,) = slot_rows([counted], broken=(), price=price)
    assert len(row.marks) == total
    assert sum(count for _, count in row.counts) == total
    assert {mark.use for mark in row.marks} <= {*USES}
