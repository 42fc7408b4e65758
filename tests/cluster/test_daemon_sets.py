"""The room and the taints that agents bring to new nodes."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.core import Node
from broker.apis.limits import LimitRange
from broker.apis.workloads import DaemonSet
from broker.oncall.pod_reports import FAILED
from tests.cluster.objects import RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_provisioning import bound, capacity, claims, pods, pool, start

AGENT = {"key": "agent.example.com/not-ready", "effect": "NoSchedule"}


def limit_range(stack: Stack, **item: Any) -> None:
    body = {"limits": [{"type": "Container", **item}]}
    stack.client.create(LimitRange.KIND, {"metadata": {"name": "l", "namespace": "default"}, "spec": body})


def daemon_set(stack: Stack, **container: Any) -> None:
    template = {
        "metadata": {"labels": {"app": "d"}},
        "spec": {"containers": [{"name": "main", "image": "pause", **container}]},
    }
    spec = {"selector": {"matchLabels": {"app": "d"}}, "template": template}
    stack.client.create(DaemonSet.KIND, {"metadata": {"name": "d", "namespace": "default"}, "spec": spec})


@pytest.mark.covers("FLT-36")
def test_daemon_set_takes_the_room_that_its_limit_range_gives_it(stack: Stack) -> None:
    small, large = stack.aws.odcr("m5.large"), stack.aws.odcr("m5.xlarge")
    stack.node_class(group=stack.aws.group(small, large))
    pool(stack, template={"requirements": [capacity(RESERVED)]})
    limit_range(stack, defaultRequest={"cpu": "1"})
    daemon_set(stack)
    waiting = pods(stack, 1, cpu="1500m")
    start(stack)
    stack.until(lambda: bound(stack, waiting), "pod bound", step=0.2)
    assert [stack.reservation_of(claim.name) for claim in claims(stack)] == [large]


@pytest.mark.covers("FLT-36")
def test_undeclared_startup_taint_is_named_in_the_event_of_the_pod(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr("m5.large"))
    pool(stack, template={"requirements": [capacity(RESERVED)]})
    waiting = pods(stack, 1)
    stack.start(kubelets=False, pod_batch_idle_seconds=0.2, pod_batch_max_seconds=1.0)
    claim = stack.until(lambda: claims(stack), "a claim", step=0.2)[0]
    stack.until_launched(claim.name)

    def joined() -> list[Node]:
        stack.kubelets.step()
        return stack.all(Node)

    (node,) = stack.until(joined, "a node", step=0.5)
    taints = [*(taint.wire() for taint in node.spec.taints), AGENT]
    stack.edit(Node, node.name, {"spec": {"taints": taints}})
    event = stack.until_event(waiting[0], FAILED, kind="Pod", text=AGENT["key"])
    assert (
        node.name in event.message and "startupTaints" in event.message and "NodePool team" in event.message
    )
