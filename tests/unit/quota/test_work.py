"""The cost of a round over many queues of one cohort, in calls: twice the queues need about twice the
work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest

from benchmarks.quota_world import FLAVORS, admitted, lent_slots, queues
from broker.quota.cycle import Head, decide
from broker.quota.flavors import FlavorRequest
from broker.quota.ledger import QuotaLedger
from broker.quota.model import Preemption
from broker.quota.slot_model import Member, OwnedSlots, SlotHolder, SlotRequest
from broker.quota.slots import SlotTree
from broker.quota.tree import Tree

FEW, MANY = 200, 400
LINEAR = 2.4  # for twice as many; reading every queue for each head would give 4


def calls(work: Callable[[], object]) -> int:
    """The number of function calls."""
    count = 0

    def counted(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def heads(ledger: QuotaLedger) -> list[Head]:
    """A head in each queue, within its quota or beyond it; some queues borrow, others lend."""
    return [
        Head(
            name=f"head-{number:04}",
            queue=name,
            request=FlavorRequest(requests={"cpu": (16_000, 24_000)[number // 2 % 2]}),
            priority=(50, 100, 200)[number % 3],
            queued=float(number % 7),
        )
        for number, name in enumerate(sorted(ledger.tree.queues))
    ]


@pytest.mark.covers("SAF-38")
@pytest.mark.parametrize("full", [False, True], ids=["empty", "full"])
def test_round_grows_with_its_queues(full: bool) -> None:
    def work(many: int) -> int:
        ledger = admitted(1, many, 20 * many) if full else QuotaLedger(Tree(queues(1, many)))
        waiting = heads(ledger)
        return calls(lambda: decide(ledger, waiting, FLAVORS))

    assert work(MANY) < LINEAR * work(FEW)


def slots(
    many: int, *, shared: bool
) -> tuple[Sequence[OwnedSlots], Sequence[Member], Sequence[SlotHolder], Sequence[SlotRequest]]:
    """Each queue owns four slots, of which it lends two; or one queue owns a slot for each borrower.

    Then the owners reclaim theirs.
    """
    members = [
        Member(
            name=f"q{number:04}",
            cohort="c",
            borrowing_limit={"f": None if number % 3 else 8},
            preemption=Preemption(within="LowerPriority", reclaim="Any", borrow="LowerPriority"),
        )
        for number in range(many)
    ]
    if shared:
        owned = [OwnedSlots(owner="q0000", flavor="f", slots={"cr": many - 1}, quota=many)]
        holders = [
            SlotHolder(name=f"h{n:04}", queue=f"q{n:04}", odcr_id="cr", priority=n % 3, since=float(n % 101))
            for n in range(1, many)
        ]
        requests = [
            SlotRequest(name=f"w{n:04}", queue="q0000", odcr_ids=("cr",), priority=2)
            for n in range(many // 2)
        ]
        return owned, members, holders, requests
    owned, holders = lent_slots(many)
    requests = [
        SlotRequest(name=f"w{n:04}", queue=f"q{n:04}", odcr_ids=(f"cr-{n:04}",), priority=2)
        for n in range(many)
    ]
    return owned, members, holders, requests


@pytest.mark.covers("SAF-38")
@pytest.mark.parametrize("shared", [False, True], ids=["each its own", "all of one"])
def test_decision_about_slots_grows_with_its_queues(shared: bool) -> None:
    def work(many: int) -> int:
        owned, members, holders, requests = slots(many, shared=shared)
        return calls(lambda: SlotTree(owned, members, holders).reclaim(requests))

    assert work(MANY) < LINEAR * work(FEW)
