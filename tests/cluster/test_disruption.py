"""Nodes of the broker's NodePools end as Karpenter ends its own: empty, expired and drifted ones."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import is_true
from broker.kube.client import Request
from broker.kube.errors import Forbidden
from broker.oncall.metrics import REGISTRY
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import Stack
from tests.cluster.test_page_details import by_command

STEP = 5.0
DAEMON_SET = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "logs", "uid": "u", "controller": True}


def pool(stack: Stack, name: str = "web", **disruption: Any) -> None:
    """A pool that removes nodes after 30 seconds, with all of them at once."""
    stack.node_class("web", preference="none", zones=(A,))
    stack.node_pool(name, node_class="web")
    block = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]}
    change(stack, name, disruption={**block, **disruption})


def change(stack: Stack, name: str, **spec: Any) -> None:
    stack.edit(NodePool, name, {"spec": spec})


def node(stack: Stack, name: str, *pods: str, **more: Any) -> str:
    """A Ready claim of the pool with running pods. Returns its Node's name."""
    stack.claim(name, **{"node_class": "web", "pool": "web", "capacity": (ON_DEMAND,), **more})
    stack.until_ready(name)
    node_name = stack.get(NodeClaim, name).status.node_name
    for pod in pods:
        run(stack, pod, node_name)
    return node_name


def run(stack: Stack, name: str, on: str, *, cpu: str = "500m", **more: Any) -> None:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    stack.pod(name, node=on, containers=[container], **more)


def gone(stack: Stack, *claims: str) -> None:
    for name in claims:
        stack.until(lambda n=name: stack.find(NodeClaim, n) is None, f"{name} ends", step=STEP)  # type: ignore[misc]


def hashed(stack: Stack, *claims: str) -> None:
    """The claims have the hash of their pool's present template, and the broker knows all pods.

    A pod on another node takes the room that is left there.
    """
    pods, present = stack.broker.read.pods.cache, {pod.key for pod in stack.all(Pod)}  # type: ignore[union-attr]
    stack.until(lambda: present <= {pod.key for pod in pods.list()}, "the pods are known")
    for name in claims:
        stack.until(
            lambda n=name: names.NODEPOOL_HASH in stack.get(NodeClaim, n).annotations,  # type: ignore[misc]
            f"{name} has a hash",
            step=STEP,
        )


def replacement(stack: Stack, of: str) -> NodeClaim | None:
    """The claim that replaces this one."""
    claims = stack.all(NodeClaim)
    return next((c for c in claims if c.annotations.get(names.REPLACES, "").startswith(f"{of}/")), None)


def disrupted(reason: str) -> float:
    labels = {"reason": reason, "nodepool": "web"}
    return REGISTRY.get_sample_value("capacity_broker_claims_disrupted_total", labels) or 0.0


def later(stack: Stack, seconds: float) -> None:
    """Time passes, and the broker makes passes meanwhile."""
    for _ in range(int(seconds // STEP)):
        stack.advance(STEP)
        stack.passes(1)


def test_empty_node_ends_after_consolidate_after_and_others_stay(stack: Stack) -> None:
    pool(stack)
    stack.start()
    node(stack, "empty")
    node(stack, "full", "app")
    stack.claim("alone", capacity=(ON_DEMAND,), node_class="web")  # of no pool
    before = disrupted("Empty")
    gone(stack, "empty")
    stack.until_event("empty", "DisruptionTerminating", text="Disrupting NodeClaim: Empty")
    assert disrupted("Empty") == before + 1
    later(stack, 60)
    assert not stack.get(NodeClaim, "full").deleting
    assert not stack.get(NodeClaim, "alone").deleting
    assert is_true(stack.get(NodeClaim, "full"), names.CONSOLIDATABLE)


def test_empty_node_stays_for_a_pod_that_fits_on_it(stack: Stack) -> None:
    """A scheduler may bind a pod to another pod's node: the node of the first is then for the other."""
    pool(stack)
    stack.start()
    node(stack, "empty")
    small = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "500m"}}}
    gated = {"containers": [small], "schedulingGates": [{"name": "example.com/wait"}]}
    stack.pod("gated", **gated)
    stack.pod("app", containers=[small])
    stack.until(lambda: is_true(stack.get(NodeClaim, "empty"), names.CONSOLIDATABLE), "quiet", step=STEP)
    stack.until_event("empty", "DisruptionBlocked", text="nominated for a pending pod (Pod=default/app)")
    later(stack, 240)
    assert not stack.get(NodeClaim, "empty").deleting
    stack.pod("newer", containers=[small])
    gone(stack, "empty")  # what keeps pods off the node for so long is not known


def test_empty_node_does_not_stay_for_a_pod_that_its_taint_keeps_off(stack: Stack) -> None:
    """Such as that of an agent that does not run: else the node would take up its slot for ever."""
    pool(stack)
    stack.start()
    small = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "500m"}}}
    stack.pod("app", containers=[small])
    tainted = node(stack, "made", annotations={names.PODS: "default/app"})
    agent = {"key": "example.com/agent-not-ready", "effect": "NoSchedule"}
    stack.edit(Node, tainted, {"spec": {"taints": [agent]}})
    later(stack, 30)
    stack.until_event("made", "DisruptionBlocked", text="nominated for a pending pod (Pod=default/app)")
    later(stack, 170)
    assert not stack.get(NodeClaim, "made").deleting  # the agent had time until now
    gone(stack, "made")


def test_budget_of_zero_keeps_empty_nodes(stack: Stack) -> None:
    pool(stack, budgets=[{"nodes": "0", "reasons": ["Empty"]}])
    stack.start()
    node(stack, "empty")
    stack.until(lambda: is_true(stack.get(NodeClaim, "empty"), names.CONSOLIDATABLE), "quiet", step=STEP)
    stack.until_event("web", "DisruptionBlocked", kind="NodePool", text="disruption reason Empty")
    later(stack, 30)
    assert not stack.get(NodeClaim, "empty").deleting
    change(stack, "web", disruption={"budgets": [{"nodes": "1"}]})
    gone(stack, "empty")


@pytest.mark.covers("FLT-70")
def test_disruptions_of_one_pass_count_in_its_budgets(stack: Stack) -> None:
    pool(stack, budgets=[{"nodes": "0"}])
    stack.start()
    for name in ("one", "two"):  # a pod that takes long to end keeps the node that is drained
        run(stack, f"logs-{name}", node(stack, name), terminationGracePeriodSeconds=600)
        slow = {"ownerReferences": [DAEMON_SET], "finalizers": ["example.com/slow"]}
        stack.client.patch(Pod.KIND, f"logs-{name}", {"metadata": slow}, namespace="default")
    both = ("one", "two")
    stack.until(lambda: all(stack.is_true(n, names.CONSOLIDATABLE) for n in both), "quiet", step=STEP)
    change(stack, "web", disruption={"budgets": [{"nodes": "1"}]})
    stack.until(lambda: any(stack.get(NodeClaim, n).deleting for n in both), "one ends", step=STEP)
    later(stack, 60)
    assert sum(stack.get(NodeClaim, n).deleting for n in both) == 1


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize("held_by", ["pod", "pdb"])
def test_grace_period_ends_no_empty_node_that_its_pods_hold_up(stack: Stack, held_by: str) -> None:
    """It bounds the wait of an expired or drifted node. An empty one has no need to end."""
    pool(stack)
    stack.start()
    node_name = node(stack, "bounded", terminationGracePeriod="1h")
    run(stack, "logs-1", node_name, labels={"app": "logs"})
    owned: dict[str, Any] = {"ownerReferences": [DAEMON_SET]}
    if held_by == "pod":
        owned |= {"annotations": {names.DO_NOT_DISRUPT: "true"}}
    stack.client.patch(Pod.KIND, "logs-1", {"metadata": owned}, namespace="default")
    if held_by == "pdb":
        stack.budget("logs", app="logs", allowed=0)
    stack.until(lambda: stack.is_true("bounded", names.CONSOLIDATABLE), "quiet", step=STEP)
    later(stack, 60)
    assert not stack.get(NodeClaim, "bounded").deleting


def test_do_not_disrupt_and_consolidate_after_never_keep_empty_nodes(stack: Stack) -> None:
    pool(stack)
    stack.start()
    held = node(stack, "held")
    stack.edit(Node, held, {"metadata": {"annotations": {names.DO_NOT_DISRUPT: "true"}}})
    stack.until(lambda: is_true(stack.get(NodeClaim, "held"), names.CONSOLIDATABLE), "quiet", step=STEP)
    later(stack, 30)
    assert not stack.get(NodeClaim, "held").deleting
    change(stack, "web", disruption={"consolidateAfter": "Never"})
    stack.edit(Node, held, {"metadata": {"annotations": {names.DO_NOT_DISRUPT: None}}})
    stack.until(lambda: not is_true(stack.get(NodeClaim, "held"), names.CONSOLIDATABLE), "cleared", step=STEP)
    later(stack, 60)
    assert not stack.get(NodeClaim, "held").deleting


@pytest.mark.both_servers
def test_expired_claim_ends_whatever_the_budget_allows(stack: Stack) -> None:
    pool(stack, budgets=[{"nodes": "0"}])
    stack.start()
    node(stack, "old", "app", expireAfter="1h")
    node(stack, "lasting", "app-2", expireAfter="Never")
    stack.advance(3700)
    stack.until_event("old", "DisruptionTerminating", text="Expired")
    gone(stack, "old")
    assert not stack.get(NodeClaim, "lasting").deleting


def test_drifted_node_is_replaced_before_it_ends(stack: Stack) -> None:
    pool(stack)
    stack.start()
    old = node(stack, "old", "app")
    hashed(stack, "old")
    stack.kubelets.stop()
    taint = [{"key": "example.com/new", "effect": "PreferNoSchedule"}]
    change(stack, "web", template={"spec": {"taints": taint}})
    new = stack.until(lambda: replacement(stack, "old"), "replacement", step=STEP)
    assert new is not None
    drifted = stack.claim_condition("old", names.DRIFTED)
    assert drifted is not None and drifted.reason == "NodePoolDrifted"
    # The new node has not joined: the old one gets no new pods, and keeps those that it has.
    later(stack, 30)
    assert not stack.get(NodeClaim, "old").deleting
    assert stack.find(Pod, "app", namespace="default") is not None
    assert names.DISRUPTED_TAINT in {taint.key for taint in stack.get(Node, old).spec.taints}
    stack.until_event(new.name, "DisruptionWaitingReadiness")
    before = disrupted("Drifted")
    stack.kubelets_again()
    gone(stack, "old")
    assert disrupted("Drifted") == before + 1
    replaced = stack.get(NodeClaim, new.name)
    assert is_true(replaced, names.READY) and not replaced.deleting
    assert replaced.spec.taints[0].key == "example.com/new"
    assert replaced.labels[names.NODEPOOL] == "web"
    assert float(replaced.spec.resources.requests["cpu"].removesuffix("m")) >= 500


@pytest.mark.covers("FLT-70")
def test_replacement_stays_empty_while_the_pods_of_the_old_node_drain(stack: Stack) -> None:
    pool(stack)
    stack.start()
    old = node(stack, "old", terminationGracePeriod="1h")
    run(stack, "app", old, labels={"app": "web"})
    stack.budget("web", app="web")
    hashed(stack, "old")
    taint = [{"key": "example.com/new", "effect": "PreferNoSchedule"}]
    change(stack, "web", template={"spec": {"taints": taint}})
    new = stack.until(lambda: replacement(stack, "old"), "replacement", step=STEP)
    assert new is not None
    stack.until(lambda: stack.get(NodeClaim, "old").deleting, "the old node drains", step=STEP)
    stack.advance(400)  # longer than pods of an ended node may take to come
    later(stack, 20)
    assert stack.find(Pod, "app", namespace="default") is not None
    assert is_true(stack.get(NodeClaim, new.name), names.CONSOLIDATABLE)
    assert not stack.get(NodeClaim, new.name).deleting
    stack.client.delete(Pod.KIND, "app", namespace="default")
    gone(stack, "old", new.name)  # no pod came


def test_drifted_nodes_of_a_gang_are_replaced_together(stack: Stack) -> None:
    pool(stack, budgets=[{"nodes": "1"}])
    stack.node_pool("other", node_class="web")
    change(stack, "other", disruption={"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]})
    stack.start()
    whole = ("g-0", "g-1", "g-2")
    for name, of in zip(whole, ("web", "web", "other"), strict=True):
        node(stack, name, f"app-{name}", annotations={names.GANG: "train"}, pool=of)
    hashed(stack, "g-0", "g-1", "g-2")
    template = {"spec": {"taints": [{"key": "example.com/new", "effect": "PreferNoSchedule"}]}}
    change(stack, "web", template=template)
    stack.until_event("g-0", "DisruptionBlocked", text="Gang train is replaced whole or not at all: g-2")
    change(stack, "other", template=template)
    stack.until_event("g-0", "DisruptionBlocked", text="needs 2 disruptions of NodePool web at once")
    later(stack, 20)
    assert not any(replacement(stack, name) for name in whole)
    stack.kubelets.stop()
    change(stack, "web", disruption={"budgets": [{"nodes": "2"}]})
    stack.until(lambda: all(replacement(stack, name) for name in whole), "replacements", step=STEP)
    new = [claim for name in whole if (claim := replacement(stack, name))]
    assert {claim.annotations[names.GANG_SIZE] for claim in new} == {"3"}
    later(stack, 30)
    assert not any(stack.get(NodeClaim, name).deleting for name in whole)
    stack.kubelets_again()
    gone(stack, *whole)


def test_first_claim_of_a_gang_to_expire_takes_the_others_along(stack: Stack) -> None:
    pool(stack)
    stack.start()
    for name, expires in (("first", "1h"), ("second", "90h"), ("lasting", "Never")):
        gang = {names.GANG: "train"}
        node(stack, name, f"app-{name}", annotations=gang, expireAfter=expires)
    node(stack, "other", "app", expireAfter="90h")
    stack.advance(3700)
    gone(stack, "first", "second")
    assert not stack.get(NodeClaim, "lasting").deleting
    assert not stack.get(NodeClaim, "other").deleting


@pytest.mark.parametrize("held_by", ["pod", "node", "budget", "budgets"])
def test_pods_hold_up_drift_unless_a_grace_period_bounds_it(stack: Stack, held_by: str) -> None:
    pool(stack)
    stack.start()
    for name, more in (("held", {}), ("bounded", {"terminationGracePeriod": "1h"})):
        node_name = node(stack, name, **more)
        run(stack, f"app-{name}", node_name, cpu="1500m", labels={"app": "db"})
    if held_by == "pod":
        for name in ("app-held", "app-bounded"):
            body = {"metadata": {"annotations": {names.DO_NOT_DISRUPT: "true"}}}
            stack.client.patch(Pod.KIND, name, body, namespace="default")
    elif held_by == "node":
        body = {"metadata": {"annotations": {names.DO_NOT_DISRUPT: "true"}}}
        stack.client.patch(Node.KIND, stack.get(NodeClaim, "held").status.node_name, body)
    elif held_by == "budget":
        stack.budget("db", app="db", allowed=0)
    else:  # the API server evicts no pod of both
        for name in ("db", "all"):
            stack.budget(name, app="db", allowed=1)
    hashed(stack, "held", "bounded")
    change(stack, "web", template={"spec": {"expireAfter": "100h"}})
    new = stack.until(lambda: replacement(stack, "bounded"), "replacement", step=STEP)
    assert new is not None
    later(stack, 30)
    assert replacement(stack, "held") is None
    assert not stack.get(NodeClaim, "held").deleting
    (step,) = by_command(stack, "default/app-held", stack.clock.now())["next"]
    assert step.startswith("NodeClaim held has drifted (NodePoolDrifted): its node is replaced once ")
    if held_by in ("budget", "budgets"):
        stack.until_event("held", "DisruptionBlocked", text="Pdb prevents pod evictions")
        assert step.endswith("room elsewhere, and the budgets of its pods and of its NodePool allow it")
    else:  # no event names what the user wrote
        kept = stack.get(NodeClaim, "held").status.node_name
        kept = f"Node {kept}" if held_by == "node" else "pod default/app-held"
        assert f"the annotation {names.DO_NOT_DISRUPT} of {kept} no longer keeps it" in step


def test_drift_of_the_class_and_of_requirements_shows_its_reason(stack: Stack) -> None:
    pool(stack, budgets=[{"nodes": "0"}])
    stack.start()
    node(stack, "one", "app")
    stack.until(lambda: names.NODECLASS_HASH in stack.get(NodeClaim, "one").annotations, "hash")
    later(stack, 20)
    assert stack.claim_condition("one", names.DRIFTED) is None

    def reason() -> str:
        condition = stack.claim_condition("one", names.DRIFTED)
        return condition.reason if condition is not None else ""

    stack.edit(EC2NodeClass, "web", {"spec": {"tags": {"team": "a"}}})
    stack.until(lambda: reason() == "NodeClassDrift", "class drift", step=STEP)
    stack.edit(EC2NodeClass, "web", {"spec": {"tags": None}})
    stack.until(lambda: not reason(), "no drift", step=STEP)
    other = stack.aws.image_named("amzn2-ami-hvm*arm64*")
    stack.edit(EC2NodeClass, "web", {"spec": {"amiSelectorTerms": [{"id": other}]}})
    stack.until(lambda: reason() == "AMIDrift", "AMI drift", step=STEP)
    requirements = [{"key": names.INSTANCE_TYPE, "operator": "In", "values": ["c5.large"]}]
    change(stack, "web", template={"spec": {"requirements": requirements}})
    stack.until(lambda: reason() == "RequirementsDrifted", "requirements", step=STEP)
    assert not stack.get(NodeClaim, "one").deleting


def test_refused_step_for_one_node_does_not_stop_the_others(stack: Stack) -> None:
    pool(stack)
    stack.start()
    node(stack, "stuck")
    node(stack, "empty")

    def refuse(_: Request) -> None:
        raise Forbidden(403, "Forbidden", "a policy of the cluster keeps this claim")

    stack.tap.on(lambda r: r.method == "DELETE" and r.path.endswith("/nodeclaims/stuck"), refuse, times=-1)
    gone(stack, "empty")
    stack.until_event("stuck", "DisruptionBlocked", text="a policy of the cluster keeps this claim")
    assert not stack.get(NodeClaim, "stuck").deleting
    stack.tap.heal()
    gone(stack, "stuck")


def test_replacement_that_cannot_be_created_is_reported_and_not_repeated_at_once(stack: Stack) -> None:
    pool(stack)
    stack.start()
    node(stack, "old", "app")
    hashed(stack, "old")
    tried: list[str] = []

    def refuse(request: Request) -> None:
        tried.append(request.path)
        raise Forbidden(403, "Forbidden", "no more claims")

    stack.tap.on(lambda r: r.method == "POST" and r.path.endswith("/nodeclaims"), refuse, times=-1)
    change(stack, "web", template={"spec": {"expireAfter": "100h"}})
    stack.until_event("old", "DisruptionFailed", text="cannot be created")
    for _ in range(12):
        stack.advance(STEP)
        stack.polls()
    assert len(tried) == 1
    failed = stack.claim_condition("old", names.DISRUPTION_REASON)
    assert failed is not None and (failed.status, failed.reason) == ("False", "ReplacementFailed")
    stack.tap.heal()
    stack.until(lambda: replacement(stack, "old"), "tried again", step=60.0)
    gone(stack, "old")


@pytest.mark.covers("KRP-23")
def test_drifted_node_that_a_policy_keeps_gets_no_successor_in_vain(stack: Stack) -> None:
    """Nothing is launched and no pod is kept off it, and the event names the policy."""
    pool(stack)
    stack.start()
    node(stack, "old", "app")
    hashed(stack, "old")

    def refuse(_: Request) -> None:
        raise Forbidden(403, "Forbidden", "a policy of the cluster keeps this claim")

    stack.tap.on(lambda r: r.method == "DELETE" and r.path.endswith("/nodeclaims/old"), refuse, times=-1)
    change(stack, "web", template={"spec": {"expireAfter": "100h"}})
    stack.until_event("old", "DisruptionBlocked", text="a policy of the cluster keeps this claim")
    for _ in range(12):
        stack.advance(STEP)
        stack.polls()
    assert [claim.name for claim in stack.all(NodeClaim)] == ["old"] and stack.calls("CreateFleet") == 1
    assert not any(item.disrupted for item in stack.all(Node))
    stack.tap.heal()
    gone(stack, "old")


def test_drifted_node_that_cannot_be_replaced_does_not_use_up_the_budget(stack: Stack) -> None:
    pool(stack, budgets=[{"nodes": "1"}])
    stack.start()
    # The pods of `stuck` run on this node only; as the older one, it comes first.
    pinned = node(stack, "a-stuck")
    run(stack, "app-stuck", pinned, nodeSelector={"kubernetes.io/hostname": pinned})
    run(stack, "app", node(stack, "other"))
    hashed(stack, "a-stuck", "other")
    change(stack, "web", template={"spec": {"expireAfter": "100h"}})
    gone(stack, "other")
    stack.until_event("a-stuck", "DisruptionBlocked", text="Cannot replace it")
    assert not stack.get(NodeClaim, "a-stuck").deleting


def test_refused_end_does_not_use_up_the_budget(stack: Stack) -> None:
    pool(stack, budgets=[{"nodes": "1"}])
    stack.start()

    def refuse(_: Request) -> None:
        raise Forbidden(403, "Forbidden", "a policy of the cluster keeps this claim")

    stack.tap.on(lambda r: r.method == "DELETE" and r.path.endswith("/nodeclaims/a-stuck"), refuse, times=-1)
    node(stack, "a-stuck")
    node(stack, "b-empty")
    gone(stack, "b-empty")
    stack.until_event("a-stuck", "DisruptionBlocked", text="a policy of the cluster keeps this claim")
