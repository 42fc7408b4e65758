"""Launches that serve no pod have a brake: the NodePool backs off, and reports the pods and the causes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.provisioning.unused import ENDED_UNUSED, NODES_USED
from broker.oncall.metrics import REGISTRY
from broker.oncall.pod_reports import FAILED
from broker.text import format_time
from tests.cluster.stack import Stack
from tests.cluster.test_interruption import QUEUE, Queue
from tests.cluster.test_provisioning import POOL, bound, claims, pods, start
from tests.cluster.test_provisioning import pool as team
from tests.support import events


def unused_round(stack: Stack, prefix: str, count: int = 1) -> list[str]:
    """Nodes are made for pods, which are deleted before they get there. Returns the claims."""
    waiting = pods(stack, count, prefix, cpu="1500m")
    launched = stack.until(lambda: len(claims(stack)) == count and claims(stack), "claims", step=1.0)
    assert launched
    stack.until_ready(*(claim.name for claim in launched))
    for name in waiting:
        stack.delete(Pod, name, namespace="default")
    for claim in launched:
        stack.until(lambda n=claim.name: stack.find(NodeClaim, n) is None, "the node ends", step=2.0)  # type: ignore[misc]
    return [claim.name for claim in launched]


def rounds(stack: Stack) -> str:
    shown = stack.condition(NodePool, POOL, NODES_USED)
    return shown.message.partition(" of nodes")[0] if shown is not None and shown.status == "False" else ""


@pytest.mark.covers("FLT-05")
def test_pool_backs_off_when_its_nodes_end_without_a_pod_again_and_again(stack: Stack) -> None:
    stack.node_class(preference="none")
    team(stack, disruption={"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]})
    start(stack)
    unused_round(stack, "first", count=3)
    stack.until(lambda: rounds(stack) == "1 round", "the first round", step=1.0)
    (second,) = unused_round(stack, "second")
    stack.until(lambda: rounds(stack) == "2 rounds", "the second round", step=1.0)
    cause = f"NodeClaim {second} was made for pod default/second-0, which is gone"
    stack.until_event(POOL, ENDED_UNUSED, kind="NodePool", text=cause)
    calls = stack.calls("CreateFleet")
    (waits,) = pods(stack, 1, "third", cpu="1500m")
    stack.until_event(waits, FAILED, kind="Pod", text=cause)
    shown = [s for m in REGISTRY.collect() for s in m.samples if "backing_off" in s.name]
    assert [(s.labels["made_for"], s.value) for s in shown] == [("default/second-0", 2.0)]
    stack.stop()  # the back-off is on the pool
    start(stack)
    stack.passes()
    assert not claims(stack) and stack.calls("CreateFleet") == calls
    stack.advance(60)
    stack.until(lambda: bound(stack, [waits]), "the pod gets its node after a minute", step=1.0)
    stack.until(lambda: not rounds(stack), "the pool backs off no more", step=2.0)


@pytest.mark.covers("FLT-05")
def test_pool_that_backs_off_is_not_ready_if_it_cannot_be_served(stack: Stack) -> None:
    team(stack)
    until = format_time(stack.clock.now() + timedelta(hours=1))
    condition = {
        "type": NODES_USED,
        "status": "False",
        "lastTransitionTime": format_time(stack.clock.now()),
        "reason": "PodGone",
        "message": f"9 rounds of nodes in a row; no new node before {until}: "
        "NodeClaim c was made for pod a/b, which is gone",
    }
    stack.edit(NodePool, POOL, {"status": {"conditions": [condition]}}, subresource="status")
    pods(stack, 1, cpu="1500m")
    start(stack)
    ready = stack.until(lambda: stack.condition(NodePool, POOL, names.READY), "the pool reports", step=0.2)
    assert ready is not None and (ready.status, ready.reason) == ("False", "NodeClassNotFound")


def lost(stack: Stack, count: int, *, joins: bool, seconds: int = 600) -> int:
    """Ends each instance soon after its launch, and lets time pass. Returns the launches of so many pods."""
    launches, ended = stack.calls("CreateFleet"), set[str]()
    for _ in range(seconds // 10):
        present = {instance["InstanceId"] for instance in stack.aws.instances()} - ended
        joined = not joins or any(claim.status.node_name for claim in claims(stack))
        if len(present) == count and joined:
            stack.aws.ec2.terminate_instances(InstanceIds=[*present])
            ended |= present
        stack.advance(10)
        stack.passes(1)
    return stack.calls("CreateFleet") - launches


@pytest.mark.covers("FLT-05")
@pytest.mark.parametrize(
    ("joins", "why"),
    [
        (False, "EC2 lists it as ended: Client.UserInitiatedShutdown: User initiated shutdown"),
        (True, "node ip-172-31-0-4.ec2.internal was deleted"),  # by the cloud controller
    ],
    ids=["no node joins", "the node is deleted"],
)
def test_pool_backs_off_when_its_instances_end_again_and_again(stack: Stack, joins: bool, why: str) -> None:
    stack.node_class(preference="none")
    team(stack)
    start(stack)
    if not joins:
        stack.kubelets.stop()
    pods(stack, 1, cpu="1500m")
    assert 2 <= lost(stack, 1, joins=joins) <= 7  # without a brake more than 10
    shown = stack.condition(NodePool, POOL, NODES_USED)
    assert shown is not None and (shown.status, shown.reason) == ("False", "NodeLost")
    assert "was made for pod default/p-0, which lost its node: " in shown.message
    stack.until_event(POOL, ENDED_UNUSED, kind="NodePool", text=why)
    stack.until_event("p-0", FAILED, kind="Pod", text=why)
    stack.stop()
    start(stack)
    stack.until(
        lambda: any(claim.status.provider_id for claim in claims(stack)),
        "the pod gets a machine later",
        step=10.0,
    )


@pytest.mark.covers("FLT-05")
def test_pool_does_not_back_off_for_a_node_that_had_a_pod(stack: Stack) -> None:
    stack.node_class(preference="none")
    team(stack)
    start(stack)
    for name in ("first", "second"):
        (pod,) = pods(stack, 1, name, cpu="1500m")
        stack.until(lambda p=pod: bound(stack, [p]), "the pod runs", step=0.2)  # type: ignore[misc]
        (claim,) = claims(stack)
        stack.aws.ec2.terminate_instances(InstanceIds=[claim.status.provider_id.rpartition("/")[2]])
        stack.until(lambda n=claim.name: stack.find(NodeClaim, n) is None, "the node ends", step=10.0)  # type: ignore[misc]
    assert stack.condition(NodePool, POOL, NODES_USED) is None


@pytest.mark.covers("FLT-05")
def test_pool_backs_off_when_notices_end_its_nodes_again_and_again(stack: Stack) -> None:
    queue = Queue(stack)
    stack.node_class(preference="none")
    team(stack)
    stack.start(interruption_queue=QUEUE, pod_batch_idle_seconds=0.2, pod_batch_max_seconds=1.0)
    pods(stack, 1, cpu="1500m")
    for number in (1, 2):
        (claim,) = stack.until(
            lambda: [c for c in claims(stack) if c.status.provider_id], "a claim", step=1.0
        )
        queue.put(events.state_change(claim.instance_id, "shutting-down"))
        stack.until(lambda n=number: rounds(stack).startswith(str(n)), "a round", step=1.0)  # type: ignore[misc]
        stack.until(lambda n=claim.name: stack.find(NodeClaim, n) is None, "it ends", step=1.0)  # type: ignore[misc]
    text = f"lost its node: instance {claim.instance_id} ends or has ended"
    stack.until_event(POOL, ENDED_UNUSED, kind="NodePool", text=text)
    stack.passes()
    assert claims(stack) == []
