"""Launches that serve no pod have a brake: the NodePool backs off, and reports the pods and the causes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.provisioning.report import FAILED
from broker.controllers.provisioning.unused import ENDED_UNUSED, NODES_USED
from broker.oncall.metrics import REGISTRY
from broker.text import format_time
from tests.cluster.stack import Stack
from tests.cluster.test_provisioning import POOL, bound, claims, pods, start
from tests.cluster.test_provisioning import pool as team


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
