"""Broken nodes of full reservations are rebooted, or replaced in their slots."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import condition
from broker.commands.explain.explanation import explain
from broker.commands.explain.present import rendered
from broker.commands.explain.reading import read
from broker.oncall.metrics import REGISTRY
from broker.placement.reboots import reboots_of
from broker.text import format_time
from broker.webpage.live import live_state
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import STEP, later, replacement
from tests.cluster.test_full_reservation import launched, pool
from tests.cluster.test_standing import nodes, replicas

GPU = "AcceleratedHardwareReady"
XID48, XID79 = "NvidiaXID48Error", "NvidiaXID79Error"


class Machines:
    """The kubelets of the nodes: a reboot of EC2 gives a node another boot id."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._boots: dict[str, int] = {}
        self.mend = True  # whether a reboot clears the signs

    def boot(self, *claims: str) -> None:
        for name in claims:
            self._boots[name] = 0
            self._report(name, 0)

    def step(self) -> None:
        for name, known in self._boots.items():
            claim = self._stack.find(NodeClaim, name)
            if claim is None or claim.deleting:
                continue
            count = self._stack.control.reboots(claim.instance_id)
            if count != known:
                self._boots[name] = count
                self._report(name, count)
                if self.mend:
                    sign(self._stack, name, GPU, "True", "Healthy")

    def _report(self, name: str, count: int) -> None:
        body = {"status": {"nodeInfo": {"bootID": f"boot-{name}-{count}"}}}
        self._stack.edit(Node, node_of(self._stack, name), body, subresource="status")


def node_of(stack: Stack, claim: str) -> str:
    return stack.get(NodeClaim, claim).status.node_name


def sign(
    stack: Stack, claim: str, type_: str, status: str = "False", reason: str = "Broken", age: float = 0.0
) -> None:
    """The node has this condition, for so many seconds."""
    at = stack.clock.now() - timedelta(seconds=age)
    body = {"type": type_, "status": status, "reason": reason, "lastTransitionTime": format_time(at)}
    node = stack.get(Node, node_of(stack, claim))
    others = [item.wire() for item in node.status.conditions if item.type != type_]
    stack.edit(Node, node.name, {"status": {"conditions": [*others, body]}}, subresource="status")


def full(
    stack: Stack, *claims: str, annotations: dict[str, str] | None = None, kinds: Any = (RESERVED,)
) -> str:
    """A full reservation with a ready node of a pod for each claim. Returns it."""
    odcr = stack.aws.odcr(count=len(claims))
    pool(stack, *kinds, id_=odcr, annotations=annotations)
    stack.start()
    nodes(stack, RESERVED, *claims)
    for name in claims:
        stack.until(lambda n=name: shown(stack, n) == odcr, "its reservation is shown", step=1.0)  # type: ignore[misc]
    return odcr


def shown(stack: Stack, claim: str) -> str:
    return stack.get(NodeClaim, claim).labels.get(names.RESERVATION_ID, "")


def ever(stack: Stack) -> set[str]:
    """All instances that there were, those that ended too."""
    pages = stack.aws.ec2.get_paginator("describe_instances").paginate()
    return {item["InstanceId"] for page in pages for res in page["Reservations"] for item in res["Instances"]}


def tainted(stack: Stack, claim: str) -> bool:
    return stack.get(Node, node_of(stack, claim)).rebooting


def events(stack: Stack, name: str, reason: str, kind: str = "NodeClaim") -> list[str]:
    return [event.message for event in stack.events(name, kind=kind) if event.reason == reason]


def replaced(stack: Stack, claim: str, count: int) -> None:
    """Lets time pass until the claim is gone, and all nodes are ready and all pods run."""

    def done() -> bool:
        replicas(stack, count)
        if stack.find(NodeClaim, claim) is not None:  # read first: it is Ready until it is gone
            return False
        bound = [pod for pod in stack.all(Pod) if pod.spec.node_name and not pod.deleting]
        ready = [item for item in stack.all(NodeClaim) if stack.is_true(item.name, names.READY)]
        return len(bound) == count and len(ready) == count

    stack.until(done, f"{claim} is replaced", step=STEP)


@pytest.mark.covers("FUL-20", "FUL-21", "FUL-01")
@pytest.mark.parametrize("kinds", [(RESERVED,), (RESERVED, ON_DEMAND)], ids=["reserved", "with-fallback"])
def test_broken_accelerator_is_rebooted_twice_then_replaced_in_its_slot(
    stack: Stack, kinds: tuple[str, ...]
) -> None:
    odcr = full(stack, "r-0", "r-1", kinds=kinds)
    rival = stack.claim("rival", node_class="web", priority="1000")  # waits for the slot, too
    machines, first = Machines(stack), stack.get(NodeClaim, "r-0").instance_id
    machines.mend = False
    machines.boot("r-0", "r-1")
    sign(stack, "r-0", GPU, reason=XID48)
    stack.until_event("r-0", "NodeUnhealthy", text=f"{GPU}=False {XID48}: rebooted, if it is still broken")
    for number in (1, 2):

        def rebooted(number: int = number) -> bool:
            machines.step()
            replicas(stack, 2)
            known = reboots_of(stack.get(NodeClaim, "r-0")).known
            return [reboot.phase for reboot in known] == ["Succeeded"] * number

        stack.until(rebooted, f"reboot {number}", step=STEP)
        stack.until(lambda: not tainted(stack, "r-0"), "it takes pods again", step=STEP)
    assert len(events(stack, "r-0", "RebootObserved")) >= 1
    assert stack.control.reboots(first) == 2
    replaced(stack, "r-0", 2)
    ready = [claim for claim in stack.all(NodeClaim) if claim.status.provider_id]
    assert sorted(stack.reservation_of(claim.name) for claim in ready) == [odcr, odcr]
    assert not stack.get(NodeClaim, rival).status.provider_id
    assert stack.aws.free(odcr) == 0 and len(ever(stack)) == 3, stack.aws.fleets()
    assert stack.control.reboots(first) == 2


@pytest.mark.covers("FUL-21")
def test_reboot_that_helps_ends_the_repair(stack: Stack) -> None:
    odcr = full(stack, "r-0", "r-1")
    machines, id_ = Machines(stack), stack.get(NodeClaim, "r-0").instance_id
    machines.boot("r-0", "r-1")
    sign(stack, "r-0", GPU, reason=XID48, age=400)
    stack.advance(1000)  # the nodes are older than the toleration

    def well() -> bool:
        machines.step()
        known = reboots_of(stack.get(NodeClaim, "r-0")).known
        return bool(known) and known[-1].phase == "Succeeded" and not tainted(stack, "r-0")

    stack.until(well, "it is well", step=STEP)
    assert stack.control.reboots(id_) == 1
    assert "app-r-0" not in {pod.name for pod in stack.all(Pod)}  # it was drained before
    later(stack, 60)
    assert stack.get(NodeClaim, "r-0").instance_id == id_ and stack.aws.free(odcr) == 0


@pytest.mark.covers("FUL-21")
def test_reboot_waits_for_budgets_of_pods_no_longer_than_its_bound(stack: Stack) -> None:
    full(stack, "r-0", "r-1")
    machines, id_ = Machines(stack), stack.get(NodeClaim, "r-0").instance_id
    machines.boot("r-0", "r-1")
    stack.budget("web", app="web", allowed=0)
    stack.advance(1000)
    sign(stack, "r-0", GPU, reason=XID48, age=700)
    stack.until(lambda: tainted(stack, "r-0"), "it is closed", step=STEP)
    later(stack, 60)
    assert stack.control.reboots(id_) == 0 and events(stack, "r-0", "EvictionBlocked")

    def rebooted() -> bool:
        machines.step()
        return stack.control.reboots(id_) == 1

    stack.until(rebooted, "the bound is over", step=STEP)
    assert not stack.get(Pod, "app-r-0", namespace="default").deleting


@pytest.mark.covers("FUL-21")
@pytest.mark.parametrize("code", ["UnauthorizedOperation", "InternalError"])
def test_node_is_replaced_if_ec2_refuses_to_reboot_it(stack: Stack, code: str) -> None:
    full(stack, "r-0", "r-1")
    Machines(stack).boot("r-0", "r-1")
    stack.control.fault(action="RebootInstances", code=code, times=-1)
    stack.advance(1000)
    sign(stack, "r-0", GPU, reason=XID48, age=700)
    stack.until(lambda: events(stack, "r-0", "RebootFailed"), "it is reported", step=STEP)
    replaced(stack, "r-0", 2)


@pytest.mark.covers("FUL-20", "FUL-21")
@pytest.mark.parametrize(
    ("type_", "status", "reason", "tolerated"),
    [
        ("Ready", "Unknown", "NodeStatusUnknown", 1800),
        (GPU, "False", XID79, 600),
        ("NetworkingReady", "False", "IPAMDNotReady", 1800),
    ],
)
def test_broken_node_is_replaced_after_its_toleration_and_not_before(
    stack: Stack, type_: str, status: str, reason: str, tolerated: float
) -> None:
    odcr = full(stack, "r-0", "r-1")
    stack.kubelets.stop()  # they would report the node as ready
    stack.advance(3600)
    sign(stack, "r-0", type_, status, reason, age=tolerated - 120)
    later(stack, 60)
    assert not stack.get(NodeClaim, "r-0").deleting and replacement(stack, "r-0") is None
    stack.until(lambda: replacement(stack, "r-0"), "a successor", step=STEP)
    stack.kubelets_again()
    replaced(stack, "r-0", 2)
    assert stack.aws.free(odcr) == 0 and launched(stack) == 3


@pytest.mark.covers("FUL-21")
def test_pods_that_may_not_be_disrupted_hold_a_broken_node_no_longer_than_its_bound(stack: Stack) -> None:
    odcr = full(stack, "r-0", "r-1")
    stack.budget("web", app="web", allowed=0)
    guarded = {"metadata": {"annotations": {names.DO_NOT_DISRUPT: "true"}}}
    stack.client.patch(Pod.KIND, "app-r-0", guarded, namespace="default")
    stack.advance(3600)
    sign(stack, "r-0", GPU, reason=XID79, age=3000)
    stack.until(lambda: replacement(stack, "r-0"), "a successor", step=STEP)
    reason = stack.until(lambda: stack.claim_condition("r-0", names.DISRUPTION_REASON), "its reason")
    assert reason is not None and reason.reason == "Unhealthy"
    assert f"{XID79}; it ends first, and its successor takes over its slot of {odcr}" in reason.message
    stack.until(lambda: stack.get(NodeClaim, "r-0").deleting, "it ends", step=STEP)
    later(stack, 120)
    assert stack.aws.instance(stack.get(NodeClaim, "r-0").instance_id)["State"]["Name"] == "running"
    stack.until(lambda: stack.find(NodeClaim, "r-0") is None, "the bound is over", step=STEP)


@pytest.mark.covers("FUL-20")
def test_call_that_fails_changes_nothing(stack: Stack) -> None:
    full(stack, "r-0", "r-1", annotations={names.REPAIR: "InstanceImpaired=30m"})
    stack.control.impair(stack.get(NodeClaim, "r-0").instance_id)
    stack.until(lambda: stack.claim_condition("r-0", names.INSTANCE_IMPAIRED), "it is reported", step=STEP)
    stack.control.fault(action="DescribeInstanceStatus", code="UnauthorizedOperation", times=-1)
    later(stack, 150)
    assert stack.claim_condition("r-0", names.INSTANCE_IMPAIRED) is not None


@pytest.mark.covers("FUL-20", "FUL-21")
@pytest.mark.parametrize("check", ["instance", "system"])
def test_impaired_instance_is_replaced_without_a_drain(stack: Stack, check: str) -> None:
    odcr = full(stack, "r-0", "r-1")
    stack.budget("web", app="web", allowed=0)  # holds up any drain
    stack.control.impair(stack.get(NodeClaim, "r-0").instance_id, check)
    stack.until(
        lambda: stack.claim_condition("r-0", f"{check.capitalize()}Impaired"),
        "it is on the claim",
        step=STEP,
    )
    replaced(stack, "r-0", 2)
    assert stack.aws.free(odcr) == 0


@pytest.mark.covers("FUL-20")
def test_impairment_that_passes_changes_nothing(stack: Stack) -> None:
    full(stack, "r-0", "r-1", annotations={names.REPAIR: "InstanceImpaired=30m"})
    id_ = stack.get(NodeClaim, "r-0").instance_id
    stack.control.impair(id_)
    stack.until(lambda: stack.claim_condition("r-0", names.INSTANCE_IMPAIRED), "it is reported", step=STEP)
    stack.control.impair(id_, over=True)
    stack.until(lambda: not stack.claim_condition("r-0", names.INSTANCE_IMPAIRED), "it passes", step=STEP)
    later(stack, 240)
    assert stack.get(NodeClaim, "r-0").instance_id == id_


@pytest.mark.covers("FUL-20", "FUL-21")
def test_node_with_a_scheduled_event_is_replaced(stack: Stack) -> None:
    odcr = full(stack, "r-0", "r-1")
    stack.control.schedule_event(stack.get(NodeClaim, "r-0").instance_id, "instance-retirement")
    replaced(stack, "r-0", 2)
    assert stack.aws.free(odcr) == 0 and launched(stack) == 3


@pytest.mark.covers("FUL-20", "FUL-21")
def test_scheduled_event_hides_no_failed_check(stack: Stack) -> None:
    odcr = full(stack, "r-0", "r-1", annotations={names.REPAIR: "EventScheduled=off, InstanceImpaired=off"})
    stack.budget("web", app="web", allowed=0)  # holds up any drain
    id_ = stack.get(NodeClaim, "r-0").instance_id
    stack.control.schedule_event(id_, "instance-retirement")
    for check in ("instance", "system"):
        stack.control.impair(id_, check)
    for sign_ in names.INSTANCE_SIGNS:
        stack.until(lambda s=sign_: stack.claim_condition("r-0", s), f"{sign_} is shown", step=STEP)  # type: ignore[misc]
    replaced(stack, "r-0", 2)
    assert stack.aws.free(odcr) == 0


@pytest.mark.covers("FUL-20", "FUL-21")
def test_check_that_fails_during_a_drain_ends_the_drain(stack: Stack) -> None:
    odcr = full(stack, "r-0", "r-1")
    stack.budget("web", app="web", allowed=0)  # holds up any drain
    id_ = stack.get(NodeClaim, "r-0").instance_id
    stack.control.schedule_event(id_, "instance-retirement", in_s=86400)
    stack.until(lambda: stack.get(NodeClaim, "r-0").deleting, "it drains", step=STEP)
    stack.advance(900)
    later(stack, 20)
    assert stack.aws.instance(id_)["State"]["Name"] == "running"  # this drain has no bound
    stack.control.impair(id_, "system")
    replaced(stack, "r-0", 2)
    assert stack.aws.free(odcr) == 0


@pytest.mark.covers("FUL-20")
def test_failed_check_after_another_problem_is_tolerated_from_its_own_time(stack: Stack) -> None:
    full(stack, "r-0", "r-1", annotations={names.REPAIR: "EventScheduled=off, SystemImpaired=1h"})
    id_ = stack.get(NodeClaim, "r-0").instance_id
    stack.control.schedule_event(id_, "instance-retirement")
    stack.until(lambda: stack.claim_condition("r-0", names.EVENT_SCHEDULED), "the event", step=STEP)
    later(stack, 600)
    stack.control.impair(id_, "system")
    failed = stack.clock.now()
    stack.until(lambda: stack.claim_condition("r-0", names.SYSTEM_IMPAIRED), "the check", step=STEP)
    impaired = stack.claim_condition("r-0", names.SYSTEM_IMPAIRED)
    assert impaired is not None and impaired.last_transition_time is not None
    assert abs((impaired.last_transition_time - failed).total_seconds()) < 30
    event = stack.claim_condition("r-0", names.EVENT_SCHEDULED)
    assert event is not None and event.last_transition_time is not None
    assert (failed - event.last_transition_time).total_seconds() > 500


@pytest.mark.covers("FUL-20")
def test_ec2_is_not_asked_without_instances(stack: Stack) -> None:
    stack.start()
    for _ in range(3):
        stack.advance(60)
        stack.passes(1)
    assert stack.calls("DescribeInstanceStatus") == 0


@pytest.mark.covers("FUL-21")
@pytest.mark.parametrize("on", ["node", "claim"])
def test_do_not_repair_keeps_a_broken_node(stack: Stack, on: str) -> None:
    full(stack, "r-0", "r-1")
    annotated = {"metadata": {"annotations": {names.DO_NOT_REPAIR: "true"}}}
    model, name = (Node, node_of(stack, "r-0")) if on == "node" else (NodeClaim, "r-0")
    stack.edit(model, name, annotated)
    stack.advance(3600)
    sign(stack, "r-0", GPU, reason=XID79, age=3000)
    stack.until_event("r-0", "DisruptionBlocked", text="Cannot repair it")
    later(stack, 60)
    assert not stack.get(NodeClaim, "r-0").deleting and replacement(stack, "r-0") is None


@pytest.mark.covers("FUL-20")
def test_pool_switches_repair_off(stack: Stack) -> None:
    full(stack, "r-0", "r-1", annotations={names.REPAIR: "off"})
    stack.advance(3600)
    sign(stack, "r-0", GPU, reason=XID79, age=3000)
    stack.until_event("r-0", "NodeUnhealthy", text="not repaired: its NodePool has")
    later(stack, 60)
    assert replacement(stack, "r-0") is None


@pytest.mark.covers("FUL-20")
def test_unreadable_rules_are_reported_and_the_table_holds(stack: Stack) -> None:
    full(stack, "r-0", "r-1", annotations={names.REPAIR: "Redy=1h", names.REPAIR_AT_MOST: "some"})
    stack.until_event("web", "InvalidRepairRules", kind="NodePool", text="'Redy' is no sign")
    stack.until_event("web", "InvalidRepairRules", kind="NodePool", text="'some': write a share")
    stack.advance(3600)
    sign(stack, "r-0", GPU, reason=XID79, age=3000)
    replaced(stack, "r-0", 2)


def both_broken(stack: Stack) -> None:
    """Both nodes break, and time moves on once it is known: else the first might be replaced before."""
    for name in ("r-0", "r-1"):
        sign(stack, name, GPU, reason=XID79)
    stack.until_event("web", "NodeRepairBlocked", kind="NodePool", text="2 of 2 nodes")
    stack.advance(3000)


@pytest.mark.covers("FUL-21")
def test_too_many_broken_nodes_stop_repair_until_the_limit_is_raised(stack: Stack) -> None:
    full(stack, "r-0", "r-1")
    stack.advance(3600)
    both_broken(stack)
    stopped = stack.condition(NodePool, "web", names.REPAIR_ALLOWED)
    assert stopped is not None and (stopped.status, stopped.reason) == ("False", "TooManyUnhealthy")
    later(stack, 60)
    assert not replacement(stack, "r-0") and not replacement(stack, "r-1")
    gauge = REGISTRY.get_sample_value("capacity_broker_repair_stopped", {"nodepool": "web"})
    assert gauge == 2
    stack.edit(NodePool, "web", {"metadata": {"annotations": {names.REPAIR_AT_MOST: "100%"}}})
    stack.until(lambda: replacement(stack, "r-0") or replacement(stack, "r-1"), "it goes on", step=STEP)
    allowed = condition(stack.get(NodePool, "web").status.conditions, names.REPAIR_ALLOWED)
    assert allowed is not None and allowed.status == "True"


@pytest.mark.covers("FUL-22")
def test_explain_and_the_page_have_the_same_values_from_the_first_minute(stack: Stack) -> None:
    odcr = full(stack, "r-0", "r-1")
    Machines(stack).boot("r-0")
    sign(stack, "r-0", GPU, reason=XID48, age=30)
    stack.passes()
    assert stack.broker is not None and stack.current is not None
    stack.until(lambda: read(stack.client, stack.clock.now()).broken, "the node counts as broken")
    now = stack.clock.now()
    situation = read(stack.client, now)
    (row,) = situation.broken
    assert (row.claim, row.reservation) == ("r-0", odcr)
    assert row.next_at is not None and row.next.startswith("rebooted")
    assert row.next_at > now
    broker = stack.broker
    stack.until(lambda: live_state(broker).broken == [row], "the page has the same")
    explanation = explain(situation)
    assert explanation.headline.startswith("1 node is broken; ")
    console = Console(width=160, file=io.StringIO(), highlight=False)
    console.print(rendered(explanation))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"{GPU}=False {XID48}" in shown and f"next: {row.next}" in " ".join(shown.split())
    assert "all is well" not in shown and "kubectl describe node" in shown
    assert row.usd_hour is not None and f"{row.usd_hour:.2f}" in shown


@pytest.mark.covers("FUL-21")
def test_budget_for_unhealthy_paces_repairs(stack: Stack) -> None:
    full(stack, "r-0", "r-1", annotations={names.REPAIR_AT_MOST: "100%"})
    block = {"budgets": [{"nodes": "0", "reasons": ["Unhealthy"]}]}
    stack.edit(NodePool, "web", {"spec": {"disruption": block}})
    stack.advance(3600)
    sign(stack, "r-0", GPU, reason=XID79, age=3000)
    stack.until_event("web", "DisruptionBlocked", kind="NodePool", text="disruption reason Unhealthy")
    later(stack, 60)
    assert replacement(stack, "r-0") is None


def gauges() -> list[float | None]:
    return [
        REGISTRY.get_sample_value("capacity_broker_repair_stopped", {"nodepool": "web"}),
        REGISTRY.get_sample_value("capacity_broker_nodes_broken", {"nodepool": "web", "sign": GPU}),
    ]


def test_metrics_of_broken_nodes_end_with_the_last_pool(stack: Stack) -> None:
    full(stack, "r-0", "r-1")
    stack.advance(3600)
    both_broken(stack)
    stack.until(lambda: gauges() == [2, 2], "the metrics show it", step=STEP)
    stack.delete(NodePool, "web")
    later(stack, 60)
    assert gauges() == [None, None]
