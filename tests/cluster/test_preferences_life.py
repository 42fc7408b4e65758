"""Preferences that hold are kept when nodes are consolidated: what was bought for one is not given up."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import STEP, run
from tests.cluster.test_preferences import SMALL, machines, node_terms, pod_term, spread
from tests.cluster.test_provisioning import start
from tests.cluster.test_spread_pools import WEB, ZONE

APART = {"affinity": pod_term("podAntiAffinity", WEB, names.HOSTNAME)}
BLOCK = {
    "consolidationPolicy": "WhenEmptyOrUnderutilized",
    "consolidateAfter": "30s",
    "budgets": [{"nodes": "100%"}],
}


def node(stack: Stack, name: str, zone: str, spec: dict[str, Any]) -> None:
    stack.claim(name, pool="team", capacity=(ON_DEMAND,), types=("m5.large",), zones=(zone,))
    stack.until_ready(name)
    run(stack, f"{name}-0", stack.get(NodeClaim, name).status.node_name, cpu=SMALL, labels=WEB, **spec)


@pytest.mark.covers("FLT-34")
@pytest.mark.parametrize(
    ("policy", "spec", "stays"),
    [
        ("Respect", APART, True),
        ("Ignore", APART, False),
        ("Respect", spread(ZONE), True),
        # No node has the label: there is no preference to keep.
        ("Respect", {"affinity": node_terms((1, "team.example/rack", "7"))}, False),
    ],
)
def test_node_whose_pods_would_lose_a_preference_is_not_consolidated(
    stack: Stack, policy: str, spec: dict[str, Any], stays: bool
) -> None:
    stack.node_class(preference="none")
    machines(stack, disruption=BLOCK)
    start(stack, preference_policy=policy)
    node(stack, "b-0", A, spec)
    node(stack, "b-1", B, spec)
    if not stays:
        stack.until(lambda: len(stack.all(NodeClaim)) == 1, "one node is left", step=STEP)
        return
    for _ in range(int(120 // STEP)):
        stack.advance(STEP)
        stack.passes(1)
    assert [claim.name for claim in stack.all(NodeClaim)] == ["b-0", "b-1"]
