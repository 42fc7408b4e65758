"""A broker with a history tries the zone first that gave instances lately."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from broker.apis.karpenter import NodeClaim
from broker.apis.names import ZONE
from broker.commands.explain.live import LIVE
from broker.controllers.launch.published import read_odds
from broker.kube.clock import SystemClock
from broker.webpage.assembly import OnCallViews
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import SETTINGS, Stack
from tests.unit.history.facts import OTHER, fill, launch, refusal


@pytest.mark.both_servers
def test_a_zone_that_refused_lately_comes_after_an_equal_one(stack: Stack) -> None:
    stack.node_class(zones=(A, B))
    broker = stack.start()
    assert stack.current is not None
    views = OnCallViews(SETTINGS, stack.client, clock=SystemClock(), explainer=LIVE)
    now = SystemClock().now()
    pools = {zone: replace(OTHER, instance_type="m5.large", zone=zone) for zone in (A, B)}
    fill(
        views.history.store,
        *(launch(n, pool=pools[B], at=now - timedelta(minutes=5 * n)) for n in range(1, 9)),
        refusal(10, pool=pools[A], at=now),
    )
    views.follow(broker)
    views.start()
    try:
        stack.until(lambda: views.history.odds() == {str(pools[A]): 2}, "the ranks of the pools")
        stack.claim(capacity=(ON_DEMAND,))
        stack.until_launched("c-0")
        assert stack.get(NodeClaim, "c-0").labels[ZONE] == B
        # For `plan` and `explain`, which give the running broker's order.
        stack.until(lambda: read_odds(stack.client) == views.history.odds(), "the ranks are published")
    finally:
        views.close()
