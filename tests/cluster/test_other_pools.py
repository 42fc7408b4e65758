"""NodePools of EKS Auto Mode and of other controllers stand beside the broker's."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.provisioning.other_pools import KARPENTER_NOT_RUNNING
from broker.controllers.provisioning.published import read_reports
from broker.oncall.pod_reports import FAILED
from broker.placement.pool_choice import SERVED
from tests.cluster import cases
from tests.cluster.objects import Json
from tests.cluster.stack import Stack
from tests.cluster.test_provisioning import bound, claims, pods, pool, start

AUTO = "general-purpose"


def state(status: str) -> Json:
    return {
        "type": names.READY,
        "status": status,
        "reason": names.READY,
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def set_ready(stack: Stack, name: str, status: str, *more: Json) -> None:
    stack.edit(NodePool, name, {"status": {"conditions": [state(status), *more]}}, subresource="status")


@pytest.mark.covers("FLT-04")
def test_pod_that_auto_mode_accepts_gets_no_machine_until_its_pool_is_not_ready(stack: Stack) -> None:
    ids = cases.reservations(stack, "ec2-05-auto-mode")
    *others, waiting = cases.objects_of(stack, "ec2-05-auto-mode", ids)
    cases.create(stack, others)
    set_ready(stack, AUTO, "True")
    cases.create(stack, [waiting])
    start(stack)
    pods(stack, 1, "ours", cpu="1500m", spec={"nodeSelector": {names.NODEPOOL: "team"}})
    stack.until(lambda: bound(stack, ["ours-0"]), "the broker's pod is bound", step=0.2)
    assert [claim.annotations[names.PODS] for claim in claims(stack)] == ["default/ours-0"]
    before = stack.get(NodePool, AUTO).metadata.resource_version
    stack.advance(120)
    stack.passes()
    assert stack.get(NodePool, AUTO).metadata.resource_version == before
    assert [item.type for item in stack.get(NodePool, AUTO).status.conditions] == [names.READY]
    stack.delete(Pod, "ours-0", namespace="default")  # otherwise the slot is kept for it
    stack.delete(NodeClaim, claims(stack)[0].name)  # its slot is the only one
    set_ready(stack, AUTO, "False")
    stack.until(
        lambda: any(c.annotations.get(names.PODS) == "default/p" for c in claims(stack)), "a claim", step=2.0
    )


@pytest.mark.covers("FLT-04")
def test_pool_of_another_group_without_conditions_gets_none_and_loses_an_old_one(stack: Stack) -> None:
    cases.apply(stack, "ec2-05-auto-mode")
    old = {**state("False"), "type": SERVED, "reason": "NodeClassGroupUnknown"}
    set_ready(stack, AUTO, "False", old)
    start(stack)
    stack.until(lambda: stack.condition(NodePool, AUTO, SERVED) is None, "the old condition goes", step=1.0)
    stack.until(lambda: bound(stack, ["p"]), "pod bound", step=0.2)
    assert [item.type for item in stack.get(NodePool, AUTO).status.conditions] == [names.READY]


@pytest.mark.covers("FLT-04")
def test_pod_of_a_pool_whose_controller_is_absent_is_told_so(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr())
    pool(stack)
    pool(stack, "karpenters", group=names.KARPENTER_AWS)
    set_ready(stack, "karpenters", "True")
    start(stack)
    pods(stack, 1)
    stack.until(
        lambda: (c := stack.condition(NodePool, "karpenters", SERVED)) and c.reason == KARPENTER_NOT_RUNNING,
        "Karpenter is missed",
        step=2.0,
    )
    stack.until(
        lambda: any(
            "NodePool karpenters" in event.message and "Lease" in event.message
            for event in stack.events("p-0", kind="Pod")
            if event.reason == FAILED
        ),
        "the pod's event",
        step=2.0,
    )
    assert claims(stack) == []


@pytest.mark.covers("USR-20")
def test_pod_that_selects_a_pool_with_a_misspelt_group_has_the_message_of_the_pool(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr())
    pool(stack)
    pool(stack, "wrong", group="capacitybroker.io")
    start(stack)
    pods(stack, 1, spec={"nodeSelector": {names.NODEPOOL: "wrong"}})
    absent = stack.until(lambda: stack.condition(NodePool, "wrong", SERVED), "the condition", step=1.0)
    assert absent is not None and "the nearest known one is capacity-broker.io" in absent.message
    text = f"NodePool wrong: {absent.message}"
    stack.until(
        lambda: any(
            event.reason == FAILED and text in event.message for event in stack.events("p-0", kind="Pod")
        ),
        "the pod's event",
        step=2.0,
    )


@pytest.mark.covers("FLT-35")
@pytest.mark.parametrize("status", ["", "False"])
def test_pod_that_selects_a_pool_of_another_controller_that_is_not_ready_is_told_so(
    stack: Stack, status: str
) -> None:
    ids = cases.reservations(stack, "ec2-05-auto-mode")
    *others, waiting = cases.objects_of(stack, "ec2-05-auto-mode", ids)
    cases.create(stack, others)
    if status:
        set_ready(stack, AUTO, status)
    waiting["spec"]["nodeSelector"] = {names.NODEPOOL: AUTO}
    cases.create(stack, [waiting])
    start(stack)
    text = "it is not Ready" if status else "no controller has reported that it is Ready"
    event = stack.until_event("p", FAILED, kind="Pod", text=f"NodePool {AUTO}: {text}")
    assert "no NodePool accepts it" not in event.message


@pytest.mark.covers("FLT-04", "ONC-02")
def test_broker_publishes_no_old_reason_for_a_pod_that_another_controller_serves_now(stack: Stack) -> None:
    """Karpenter's newer event is the reason then."""
    stack.node_class(id_=stack.aws.odcr())
    pool(stack)
    start(stack)
    pods(stack, 1, spec={"nodeSelector": {"team": "red"}})
    stack.until(lambda: read_reports(stack.client), "the broker's reason", step=1.0)
    labels = {"labels": {"team": "red"}}
    pool(stack, "theirs", group="eks.amazonaws.com", metadata=labels)
    set_ready(stack, "theirs", "True")
    stack.until(lambda: not read_reports(stack.client), "no reason of the broker's", step=2.0)
