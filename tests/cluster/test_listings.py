"""What a pass at rest costs grows with how often it goes over all claims, nodes and pods."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_rest import tick, until_at_rest
from tests.cluster.watched_reads import WatchedReads

POLLS, SECONDS = 6, 30.0
BIG = ("nodeclaims.karpenter.sh", "nodes", "pods")
# Listings of one kind in a pass, by loop; one that is not here makes two at most.
MOST: Mapping[str, int] = {"disruption": 2, "launch": 4}
# Passes a minute, by loop: disruptions have Karpenter's period, the others follow a poll or their timer.
OFTEN: Mapping[str, float] = {"disruption": 7.0}


def test_a_pass_at_rest_goes_over_all_objects_a_few_times(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index finds the claims of one node or those that replace others."""
    recorded = WatchedReads(monkeypatch)
    stack.node_class("good", id_=stack.aws.odcr(count=2))
    stack.node_pool("team", node_class="good")
    stack.start(poll_seconds=SECONDS)
    stack.claims(3, pool="team", node_class="good", capacity=(RESERVED, ON_DEMAND))
    stack.until_ready("c-0", "c-1", "c-2")
    until_at_rest(stack)
    recorded.passes.clear()
    recorded.listed.clear()
    for _ in range(POLLS):
        tick(stack)
    averages = {
        (loop, kind): round(listed / recorded.passes[loop])  # a pass may be under way as the count begins
        for (loop, kind), listed in recorded.listed.items()
        if kind in BIG
    }
    assert {loop for loop, _ in averages} >= {*MOST}
    assert {pair: n for pair, n in averages.items() if n > MOST.get(pair[0], 2)} == {}
    minutes = POLLS * SECONDS / 60
    big = {loop: recorded.passes[loop] / minutes for loop, _ in averages}
    assert {loop: n for loop, n in big.items() if n > OFTEN.get(loop, 3.0)} == {}
