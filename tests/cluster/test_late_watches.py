"""Each kind has a watch: what a person changes first may be seen last. A node that it protects stays.

Without late watches, `test_disruption.py` and `test_standing.py` show the same.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import (
    DAEMON_SET,
    STEP,
    change,
    gone,
    hashed,
    later,
    node,
    pool,
    replacement,
    run,
)
from tests.cluster.test_standing import cluster, left, nodes, scale
from tests.cluster.test_static_pools import own, settled, static_pool

NODEPOOLS, PODS = "/apis/karpenter.sh/v1/nodepools", "/api/v1/pods"
NODECLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
PROTECTED = {"metadata": {"annotations": {names.DO_NOT_DISRUPT: "true"}}}


def protect(stack: Stack, pod: str, held_by: str) -> None:
    """By an annotation of the pod, or by a budget of its app."""
    if held_by == "pod":
        stack.client.patch(Pod.KIND, pod, PROTECTED, namespace="default")
    else:
        stack.budget("app", app="web", allowed=0)


@pytest.mark.parametrize("forbidden", [{"consolidateAfter": "Never"}, {"budgets": [{"nodes": "0"}]}])
def test_pool_that_forbids_it_while_the_watch_is_late_keeps_its_empty_node(
    stack: Stack, forbidden: dict[str, Any]
) -> None:
    pool(stack)
    pools = stack.tap.slow("/apis/karpenter.sh/v1/nodepools")
    stack.start()
    held = node(stack, "held")
    stack.edit(Node, held, {"metadata": {"annotations": {names.DO_NOT_DISRUPT: "true"}}})
    stack.until(lambda: stack.is_true("held", names.CONSOLIDATABLE), "quiet", step=STEP)
    pools.clear()
    change(stack, "web", disruption=forbidden)
    stack.edit(Node, held, {"metadata": {"annotations": {names.DO_NOT_DISRUPT: None}}})
    later(stack, 30)
    assert not stack.get(NodeClaim, "held").deleting
    pools.set()
    later(stack, 30)
    assert not stack.get(NodeClaim, "held").deleting
    assert not stack.get(Node, held).disrupted


@pytest.mark.parametrize("held_by", ["pod", "budget"])
def test_pod_of_a_daemon_set_that_is_protected_meanwhile_keeps_its_empty_node(
    stack: Stack, held_by: str
) -> None:
    pool(stack, budgets=[{"nodes": "0"}])
    watches = [stack.tap.slow(path) for path in (PODS, BUDGETS)]
    stack.start()
    run(stack, "logs", node(stack, "held"), labels={"app": "web"})
    stack.client.patch(Pod.KIND, "logs", {"metadata": {"ownerReferences": [DAEMON_SET]}}, namespace="default")
    stack.until(lambda: stack.is_true("held", names.CONSOLIDATABLE), "quiet", step=STEP)
    for watch in watches:
        watch.clear()
    protect(stack, "logs", held_by)
    change(stack, "web", disruption={"budgets": [{"nodes": "100%"}]})
    later(stack, 30)
    assert not stack.get(NodeClaim, "held").deleting
    for watch in watches:
        watch.set()
    later(stack, 30)
    assert not stack.get(NodeClaim, "held").deleting


@pytest.mark.parametrize("held_by", ["pod", "budget"])
def test_drifted_node_whose_pod_is_protected_meanwhile_is_not_replaced(stack: Stack, held_by: str) -> None:
    pool(stack)
    watches = [stack.tap.slow(path) for path in (PODS, BUDGETS)]
    stack.start()
    run(stack, "app", node(stack, "held"), labels={"app": "web"})
    hashed(stack, "held")
    later(stack, 10)
    for watch in watches:
        watch.clear()
    protect(stack, "app", held_by)
    change(stack, "web", template={"spec": {"expireAfter": "100h"}})
    stack.until(lambda: stack.is_true("held", names.DRIFTED), "drifted", step=STEP)
    later(stack, 30)
    assert replacement(stack, "held") is None and not stack.get(NodeClaim, "held").deleting
    for watch in watches:
        watch.set()
    later(stack, 30)
    assert replacement(stack, "held") is None and not stack.get(NodeClaim, "held").deleting


def test_pod_that_is_protected_before_its_new_node_is_ready_keeps_the_old_one(stack: Stack) -> None:
    pool(stack)
    pods = stack.tap.slow(PODS)
    stack.start()
    run(stack, "app", node(stack, "held"))
    hashed(stack, "held")
    stack.kubelets.stop()
    change(stack, "web", template={"spec": {"expireAfter": "100h"}})
    new = stack.until(lambda: replacement(stack, "held"), "a replacement", step=STEP)
    assert new is not None
    pods.clear()
    protect(stack, "app", "pod")
    stack.kubelets_again()
    stack.until(lambda: stack.is_true(new.name, names.INITIALIZED_CONDITION), "its node is ready", step=1.0)
    later(stack, 30)
    assert not stack.get(NodeClaim, "held").deleting
    pods.set()
    later(stack, 30)
    assert not stack.get(NodeClaim, "held").deleting


@pytest.mark.covers("FLT-10")
def test_pods_do_not_move_to_a_reserved_node_if_their_pool_forbids_it_meanwhile(stack: Stack) -> None:
    cluster(stack, slots=1, pools=("web", "idle"))
    pools = stack.tap.slow(NODEPOOLS)
    stack.start()
    nodes(stack, RESERVED, "r-0", pool="idle")
    nodes(stack, ON_DEMAND, "d-0", types=("m5.large",))
    stack.until(lambda: stack.is_true("d-0", names.CONSOLIDATABLE), "quiet", step=STEP)
    pools.clear()
    change(stack, "web", disruption={"consolidateAfter": "Never"})
    assert scale(stack, 1, ("r-0",), 60) == (0, 0)
    assert "d-0" in left(stack)
    pools.set()
    assert scale(stack, 1, (), 30)[0] == 0 and "d-0" in left(stack)


def test_drain_evicts_no_other_pod_that_has_the_name_of_one_that_is_gone(stack: Stack) -> None:
    pool(stack)
    pods = stack.tap.slow(PODS)
    stack.start()
    other = node(stack, "other")
    run(stack, "web-0", node(stack, "ends"))
    later(stack, 10)
    pods.clear()
    stack.client.delete(Pod.KIND, "web-0", namespace="default", grace_period=0)
    run(stack, "web-0", other)  # as a StatefulSet does
    uid = stack.get(Pod, "web-0", namespace="default").uid
    stack.delete(NodeClaim, "ends")
    later(stack, 30)
    pod = stack.get(Pod, "web-0", namespace="default")
    assert pod.uid == uid and not pod.deleting
    pods.set()
    stack.until(lambda: stack.find(NodeClaim, "ends") is None, "it ends", step=STEP)
    assert not stack.get(Pod, "web-0", namespace="default").deleting


def test_drain_evicts_no_pod_that_was_protected_before(stack: Stack) -> None:
    pool(stack)
    pods = stack.tap.slow(PODS)
    stack.start()
    run(stack, "app", node(stack, "ends"))
    later(stack, 10)
    pods.clear()
    protect(stack, "app", "pod")
    stack.delete(NodeClaim, "ends")
    later(stack, 30)
    assert not stack.get(Pod, "app", namespace="default").deleting
    pods.set()
    later(stack, 10)
    assert not stack.get(Pod, "app", namespace="default").deleting
    assert stack.get(NodeClaim, "ends").deleting


@pytest.mark.covers("FUL-30")
def test_static_pool_ends_the_node_without_the_pod_that_came_meanwhile(stack: Stack) -> None:
    static_pool(stack, 2, kinds=(ON_DEMAND,), preference="none")
    pods = stack.tap.slow(PODS)
    stack.start()
    settled(stack, 2)
    first, second = sorted(own(stack), key=lambda claim: claim.name)
    pods.clear()
    run(stack, "app", first.status.node_name)
    change(stack, "web", replicas=1)
    stack.until(lambda: len(own(stack)) == 1, "one ends", step=STEP)
    assert [claim.name for claim in own(stack)] == [first.name]
    pods.set()
    gone(stack, second.name)
    assert [claim.name for claim in own(stack)] == [first.name]


def test_label_that_is_removed_from_claim_and_node_does_not_come_back(stack: Stack) -> None:
    pool(stack)
    claims = stack.tap.slow(NODECLAIMS)
    stack.start()
    node_name = node(stack, "one")
    label: dict[str, Any] = {"metadata": {"labels": {"team": "a"}}}
    stack.edit(NodeClaim, "one", label)
    stack.until(lambda: "team" in stack.get(Node, node_name).labels, "the node has it")
    claims.clear()
    without: dict[str, Any] = {"metadata": {"labels": {"team": None}}}
    stack.edit(NodeClaim, "one", without)
    stack.tap.forget()
    stack.edit(Node, node_name, without)
    stack.until(lambda: ("GET", NODECLAIMS) in stack.tap.log, "the broker compares them")
    claims.set()
    later(stack, 10)
    assert "team" not in stack.get(Node, node_name).labels
