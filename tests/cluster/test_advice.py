"""Advice from days of a broker's own record, by EC2's counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.apis.karpenter import NodeClaim
from broker.commands.explain.live import LIVE
from broker.history.advice import AdviceQuery, AdviceRow, advise
from broker.history.demand import EVERY
from broker.webpage.assembly import OnCallViews
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import SETTINGS, Stack


@pytest.mark.covers("ONC-10")
def test_days_of_a_full_reservation_advise_more_slots(stack: Stack, tmp_path: Path) -> None:
    odcr = stack.aws.odcr(count=1)
    stack.node_class(id_=odcr, zones=(A,))
    broker = stack.start()
    assert stack.current is not None
    views = OnCallViews(SETTINGS, stack.client, clock=stack.clock, explainer=LIVE)
    views.follow(broker)
    views.start()

    def rows() -> list[AdviceRow]:
        if not views.history.version:  # its database is not open yet
            return []
        return advise(views.history.store, AdviceQuery(), stack.clock.now())

    def counts() -> tuple[int, ...]:
        """The reservation's slots and used ones, the instances outside, and the claims that wait."""
        return next((tuple(row.spans[-1][2:]) for row in rows()), ())

    try:
        stack.claim("c-0", capacity=(RESERVED,))
        stack.until_launched("c-0")
        stack.claim("c-1", capacity=(RESERVED,))
        stack.claim("c-2", capacity=(RESERVED, ON_DEMAND))
        stack.until_launched("c-2")
        stack.until_waiting("c-1")
        stack.until(lambda: counts() == (1, 1, 1, 1), "the demand of three claims", step=20)
        assert rows()[0].best is None
        before = rows()[0].days
        while rows()[0].days < 2.1:
            days = rows()[0].days
            stack.advance(EVERY)
            stack.until(lambda: rows()[0].days > days, "another part of the record", step=20)  # noqa: B023
        (row,) = rows()
        assert before < 0.2 and row.reservation == odcr and row.slots == 1
        assert counts() == (1, 1, 1, 1)
        assert (row.best, row.short_hours_then) == (2, 0.0)
        assert row.saved is not None and row.saved > 0
        stack.delete(NodeClaim, "c-1")
        stack.until(lambda: counts() == (1, 1, 1, 0), "the end of the wait", step=20)
    finally:
        views.close()


def test_a_new_term_of_leadership_begins_with_a_full_sample(stack: Stack) -> None:
    """Another leader may have written since the last one."""
    stack.node_class(id_=stack.aws.odcr(count=1), zones=(A,))
    broker = stack.start()
    assert stack.current is not None
    views = OnCallViews(SETTINGS, stack.client, clock=stack.clock, explainer=LIVE)
    views.follow(broker)
    views.start()

    def full_samples() -> int:
        levels = views.history.store.levels(since=0) if views.history.version else []
        return sum(not level.instance_type for level in levels)

    try:
        stack.until(lambda: full_samples() == 1, "the first sample", step=20)
        views.follow(None)
        views.follow(broker)
        begun = stack.clock.now()
        stack.until(lambda: full_samples() == 2, "a full sample of the new term", step=20)
        assert (stack.clock.now() - begun).total_seconds() < EVERY
    finally:
        views.close()


def test_a_fault_of_the_counts_stops_no_launch_and_no_other_record(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a fault of the record")

    monkeypatch.setattr("broker.webpage.assembly.levels", fails)
    stack.node_class(id_=stack.aws.odcr(count=1), zones=(A,))
    broker = stack.start()
    assert stack.current is not None
    views = OnCallViews(SETTINGS, stack.client, clock=stack.clock, explainer=LIVE)
    views.follow(broker)
    views.start()
    try:
        stack.claim("c-0", capacity=(RESERVED,))
        stack.until_ready("c-0")
        stack.polls(2)
        stack.until(lambda: views.history.version and views.history.store.outcomes(since=0), "its record")
    finally:
        views.close()
