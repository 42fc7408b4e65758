"""Preferences that hold are kept when nodes are consolidated or replaced: what was bought for one stays."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import STEP, hashed, replacement, run
from tests.cluster.test_mixed_pools import required
from tests.cluster.test_preferences import SMALL, machines, node_terms, pod_term, spread
from tests.cluster.test_provisioning import start
from tests.cluster.test_spread_pools import WEB, ZONE, in_zones

APART = {"affinity": pod_term("podAntiAffinity", WEB, names.HOSTNAME)}
BLOCK = {
    "consolidationPolicy": "WhenEmptyOrUnderutilized",
    "consolidateAfter": "30s",
    "budgets": [{"nodes": "100%"}],
}


def node(
    stack: Stack, name: str, zone: str, spec: dict[str, Any], kind: str = ON_DEMAND, **more: str
) -> None:
    stack.claim(name, **{"pool": "team", **more}, capacity=(kind,), types=("m5.large",), zones=(zone,))
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


def drifted(stack: Stack, name: str) -> NodeClaim:
    """The replacement of a node that drifts."""
    hashed(stack, name)
    stack.edit(NodePool, "team", {"spec": {"template": {"spec": {"expireAfter": "100h"}}}})
    new = stack.until(lambda: replacement(stack, name), "a replacement", step=STEP)
    assert new is not None
    stack.until_ready(new.name)
    return stack.get(NodeClaim, new.name)


IN_B = {"affinity": node_terms((1, ZONE, B))}
KEPT = {**BLOCK, "consolidateAfter": "Never"}


@pytest.mark.covers("FLT-34")
@pytest.mark.parametrize(("policy", "old", "new"), [("Respect", B, B), ("Ignore", B, A), ("Respect", A, B)])
def test_replacement_of_a_drifted_node_meets_the_preferences_of_its_pods(
    stack: Stack, policy: str, old: str, new: str
) -> None:
    """Also one that no machine met before."""
    stack.node_class(preference="none")
    machines(stack, disruption=KEPT)
    start(stack, preference_policy=policy)
    node(stack, "b-0", old, IN_B)
    assert drifted(stack, "b-0").labels[ZONE] == new


@pytest.mark.covers("FLT-34")
def test_pods_of_a_drifted_node_that_prefer_to_be_apart_get_a_node_again(stack: Stack) -> None:
    """They would fit on the other node."""
    stack.node_class(preference="none")
    machines(stack, disruption=KEPT)
    stack.node_pool("other", node_class="gpu")
    start(stack)
    node(stack, "other-0", A, {}, pool="other")
    node(stack, "b-0", A, APART)
    drifted(stack, "b-0")


@pytest.mark.covers("FLT-34")
def test_replacement_drops_a_preference_for_a_free_slot(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large", A, 1)
    stack.node_class(id_=odcr)
    machines(stack, "team", RESERVED, ON_DEMAND, disruption=KEPT)
    start(stack)
    node(stack, "b-0", B, IN_B)
    new = drifted(stack, "b-0")
    assert stack.reservation_of(new.name) == odcr


@pytest.mark.covers("FLT-34")
def test_node_in_a_slot_is_replaced_there_though_its_pods_prefer_another_zone(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large", A, 1)
    stack.node_class(id_=odcr)
    machines(stack, "team", RESERVED, ON_DEMAND, disruption=KEPT)
    start(stack)
    node(stack, "b-0", A, {"affinity": {**IN_B["affinity"], **APART["affinity"]}}, RESERVED)
    assert stack.reservation_of("b-0") == odcr
    new = drifted(stack, "b-0")
    stack.until(lambda: stack.reservation_of(new.name) == odcr, "it has the slot", step=STEP)


@pytest.mark.covers("FLT-34")
def test_no_preference_is_dropped_to_end_a_node_while_its_rollout_waits(stack: Stack) -> None:
    """Without it, the pods of the second node would fit on a node that stays."""
    stack.node_class(id_=stack.aws.odcr("m5.large", A, 2))
    stack.node_class("plain", preference="none")
    machines(stack, "team", RESERVED, disruption=KEPT)
    stack.node_pool("other", node_class="plain")
    start(stack)
    node(stack, "other-0", A, {}, pool="other", node_class="plain")
    olds = ("b-0", "b-1")
    for name in olds:
        node(stack, name, A, APART, RESERVED)
    hashed(stack, *olds)
    stack.kubelets.stop()  # the replacement's node, which would have room as well, never joins
    stack.edit(NodePool, "team", {"spec": {"template": {"spec": {"expireAfter": "100h"}}}})

    def held() -> list[str]:
        """The claims whose event says that they wait for the replacement of the other one."""
        return [n for n in olds for e in stack.events(n) if "its node is not ready yet" in e.message]

    stack.until(held, "one waits for the other", step=STEP)
    (waits,) = {*held()}
    for _ in range(4):
        stack.advance(STEP)
        stack.passes(1)
    assert not stack.get(NodeClaim, waits).deleting and replacement(stack, waits) is None


@pytest.mark.covers("FLT-34")
def test_node_is_replaced_elsewhere_if_no_machine_meets_the_preference_any_more(stack: Stack) -> None:
    stack.node_class(preference="none")
    machines(stack, disruption=KEPT)
    start(stack)
    node(stack, "b-0", B, IN_B)
    hashed(stack, "b-0")
    only = [*required(["m5.large"], [ON_DEMAND]), in_zones(A)]
    stack.edit(NodePool, "team", {"spec": {"template": {"spec": {"requirements": only}}}})
    assert drifted(stack, "b-0").labels[ZONE] == A
