"""Each kind has a watch: what a person changes first may be seen last. A node that it protects stays.

Without late watches, `test_disruption.py` and `test_standing.py` show the same.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.controllers.lifecycle.registration import REGISTRATION_TIMEOUT
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
from tests.cluster.test_disruption_gangs import drifting
from tests.cluster.test_repair import GPU, XID48, Machines, full, node_of, sign, tainted
from tests.cluster.test_standing import cluster, left, nodes, scale
from tests.cluster.test_static_pools import own, settled, static_pool

NODEPOOLS, PODS = "/apis/karpenter.sh/v1/nodepools", "/api/v1/pods"
NODECLAIMS, NODES = "/apis/karpenter.sh/v1/nodeclaims", "/api/v1/nodes"
BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
ANOTHER = "aws:///us-east-1a/i-0123456789abcdef0"
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
    # An answer to a write of the broker may show the rule early: then the empty node ends.
    assert scale(stack, 1, ("r-0",), 60)[0] == 0
    assert "d-0" in left(stack) and not stack.get(Pod, "app-d-0", namespace="default").deleting
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


def test_reboot_waits_for_a_protected_pod_that_came_beside_those_of_daemon_sets(stack: Stack) -> None:
    pods = stack.tap.slow(PODS)
    full(stack, "r-0", "r-1")
    machines, id_ = Machines(stack), stack.get(NodeClaim, "r-0").instance_id
    machines.boot("r-0", "r-1")
    of_daemon_set = {"metadata": {"ownerReferences": [DAEMON_SET]}}
    stack.client.patch(Pod.KIND, "app-r-0", of_daemon_set, namespace="default")
    later(stack, 10)
    pods.clear()
    run(stack, "late", node_of(stack, "r-0"))
    protect(stack, "late", "pod")
    stack.advance(1000)
    sign(stack, "r-0", GPU, reason=XID48, age=700)
    stack.until(lambda: tainted(stack, "r-0"), "it is closed", step=STEP)
    later(stack, 60)
    assert stack.control.reboots(id_) == 0
    pods.set()
    stack.client.delete(Pod.KIND, "late", namespace="default", grace_period=0)
    stack.until(lambda: stack.control.reboots(id_) == 1, "it is rebooted without it", step=STEP)


def test_replacement_to_which_a_pod_came_meanwhile_outlives_its_move(stack: Stack) -> None:
    pods = stack.tap.slow(PODS)
    used, unused = drifting(stack)
    later(stack, 10)
    pods.clear()
    run(stack, "early", stack.get(NodeClaim, used).status.node_name)
    stack.advance(560)
    gone(stack, unused)
    stack.until_event("g-0", "DisruptionFailed", text="it was held up for 0:10:00")
    assert not stack.get(NodeClaim, used).deleting
    assert names.MOVE not in stack.get(NodeClaim, used).annotations


def test_claim_whose_node_joined_meanwhile_outlives_the_registration_timeout(stack: Stack) -> None:
    nodes_ = stack.tap.slow(NODES)
    stack.node_class(preference="none")
    stack.start()
    nodes_.clear()
    stack.claim("c-0", capacity=(ON_DEMAND,))
    stack.until(lambda: stack.all(Node), "its node joins")
    stack.until(lambda: stack.claim_condition("c-0", names.REGISTERED_CONDITION), "it waits for its node")
    stack.advance(REGISTRATION_TIMEOUT.total_seconds() + 60.0)
    stack.passes()
    assert not stack.get(NodeClaim, "c-0").deleting and stack.calls("TerminateInstances") == 0
    nodes_.set()
    stack.until_ready("c-0")


def test_node_that_joined_meanwhile_is_drained_before_its_instance_ends(stack: Stack) -> None:
    nodes_ = stack.tap.slow(NODES)
    stack.node_class(preference="none")
    stack.start()
    nodes_.clear()
    stack.claim("c-0", capacity=(ON_DEMAND,))
    joined = stack.until(lambda: stack.all(Node), "its node joins")
    run(stack, "app", joined[0].name)
    protect(stack, "app", "pod")
    stack.until_launched("c-0")
    stack.delete(NodeClaim, "c-0")
    later(stack, 30)
    assert stack.calls("TerminateInstances") == 0
    nodes_.set()
    stack.until(lambda: stack.get(Node, joined[0].name).disrupted, "it drains", step=STEP)
    later(stack, 30)
    assert stack.calls("TerminateInstances") == 0
    stack.client.delete(Pod.KIND, "app", namespace="default", grace_period=0)
    gone(stack, "c-0")


def give(stack: Stack, claim: str) -> None:
    """The claim gets an instance that is not the broker's."""
    stack.edit(NodeClaim, claim, {"status": {"providerID": ANOTHER}}, subresource="status")


def test_claim_that_has_an_instance_meanwhile_is_not_launched(stack: Stack) -> None:
    claims = stack.tap.slow(NODECLAIMS)
    stack.start()
    stack.claim("c-0", capacity=(ON_DEMAND,))
    stack.until_waiting("c-0", "NodeClassNotFound")
    claims.clear()
    give(stack, "c-0")
    stack.tap.forget()
    stack.node_class(preference="none")
    marked = ("PATCH", f"{NODECLAIMS}/c-0")
    stack.until(lambda: marked in stack.tap.log, "the broker would launch it")
    stack.polls(3)
    assert not stack.aws.instances()
    claims.set()
    stack.polls(2)
    assert not stack.aws.instances() and stack.get(NodeClaim, "c-0").status.provider_id == ANOTHER


def test_claim_that_gets_an_instance_during_its_launch_keeps_it(stack: Stack) -> None:
    claims = stack.tap.slow(NODECLAIMS)
    stack.node_class(preference="none")
    stack.start()

    def given() -> None:
        claims.clear()
        give(stack, "c-0")

    stack.after_launch(given)
    stack.claim("c-0", capacity=(ON_DEMAND,))
    stack.until(lambda: stack.aws.instances(), "it is launched")
    stack.polls(3)
    assert stack.get(NodeClaim, "c-0").status.provider_id == ANOTHER
    claims.set()
    stack.until(lambda: not stack.aws.instances(), "the second instance ends", step=STEP)


def test_class_stays_for_a_claim_that_came_meanwhile(stack: Stack) -> None:
    claims = stack.tap.slow(NODECLAIMS)
    stack.node_class(preference="none")
    stack.start()
    stack.claim("first", capacity=(ON_DEMAND,))
    stack.until_ready("first")
    stack.delete(NodeClaim, "first")
    stack.until_gone(NodeClaim, "first")
    later(stack, 10)
    assert names.CLASS_FINALIZER in stack.get(EC2NodeClass, "gpu").metadata.finalizers
    claims.clear()
    stack.claim("late", capacity=(ON_DEMAND,))
    stack.tap.forget()
    stack.delete(EC2NodeClass, "gpu")
    stack.until(
        lambda: ("GET", NODECLAIMS) in stack.tap.log or not stack.find(EC2NodeClass, "gpu"), "it decides"
    )
    stack.polls(2)
    assert stack.find(EC2NodeClass, "gpu")
    claims.set()
    stack.until_waiting("late", "NodeClassTerminating")
    stack.delete(NodeClaim, "late")
    stack.until_gone(EC2NodeClass, "gpu")


def test_claim_whose_instance_ended_is_deleted_once_while_the_watch_is_late(stack: Stack) -> None:
    stack.node_class(preference="none")
    claims = stack.tap.slow(NODECLAIMS)
    stack.start()
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_ready("c-0")
    stack.kubelets.stop()  # otherwise the Node may go first, and the claim with it
    claims.clear()
    stack.aws.ec2.terminate_instances(InstanceIds=[stack.get(NodeClaim, "c-0").instance_id])
    deleted = ("DELETE", f"{NODECLAIMS}/c-0")
    for _ in range(2):
        listed = stack.calls("DescribeInstances")
        stack.advance(61)
        stack.until(lambda before=listed: stack.calls("DescribeInstances") > before, "EC2 lists it again")  # type: ignore[misc]
        stack.until(lambda: deleted in stack.tap.log, "the claim is deleted")
    assert stack.tap.log.count(deleted) == 1
    claims.set()
    stack.until_gone(NodeClaim, "c-0")
