"""The pods that a drain waits for and the order of their eviction, as in Karpenter's own tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.controllers.lifecycle import drain
from broker.placement.disruption_pods import protected

NOW = datetime(2030, 1, 1, tzinfo=UTC)
CRITICAL = "system-cluster-critical"


def pod(name: str = "p", **given: Any) -> Pod:
    """`owner` is a kind, `keep` the do-not-disrupt annotation, `age` seconds since the start, `ended` since
    the deletionTimestamp."""
    owner, keep, age, ended = (given.pop(key, None) for key in ("owner", "keep", "age", "ended"))
    annotations = given.pop("annotations", {}) | ({names.DO_NOT_DISRUPT: keep} if keep is not None else {})
    meta: dict[str, Any] = {"name": name, "namespace": "default", "annotations": annotations}
    if owner:
        meta["ownerReferences"] = [{"apiVersion": "v1", "kind": owner, "name": "o", "uid": "u"}]
    if ended is not None:
        meta["deletionTimestamp"] = at(ended)
    status = {"phase": given.pop("phase", "Running")} | ({} if age is None else {"startTime": at(age)})
    return Pod.decode({"metadata": meta, "spec": given, "status": status})


def at(ago: float) -> str:
    return (NOW - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


def toleration(**fields: str) -> dict[str, Any]:
    return {"tolerations": [fields]}


@pytest.mark.covers("KRP-23")
@pytest.mark.parametrize(
    ("given", "waited_for"),
    [
        (pod(), True),
        (pod(owner="ReplicaSet"), True),
        (pod(owner="DaemonSet"), True),
        (pod(owner="Node"), False),
        (pod(annotations={"kubernetes.io/config.mirror": "x"}), False),
        (pod(phase="Succeeded"), False),
        (pod(phase="Failed"), False),
        (pod(phase="Pending"), True),
        (pod(keep="true"), True),
        (pod(ended=-30), True),
        (pod(ended=60), True),
        (pod(ended=61), False),
        (pod(**toleration(operator="Exists")), False),
        (pod(**toleration(key=names.DISRUPTED_TAINT, operator="Exists")), False),
        (pod(**toleration(key=names.DISRUPTED_TAINT, operator="Exists", effect="NoSchedule")), False),
        (pod(**toleration(key=names.DISRUPTED_TAINT, operator="Exists", effect="NoExecute")), True),
        (pod(**toleration(key=names.DISRUPTED_TAINT, operator="Equal", effect="NoSchedule")), False),
        (pod(**toleration(key=names.DISRUPTED_TAINT)), False),
        (pod(**toleration(key=names.DISRUPTED_TAINT, operator="Equal", value="x")), True),
        (pod(**toleration(operator="Equal")), False),  # an empty key stands for all, as in Kubernetes
        (pod(**toleration(key="node.kubernetes.io/unschedulable", operator="Exists")), True),
        (pod(**toleration(operator="Exists", effect="NoExecute")), True),
    ],
)
def test_pods_that_block_a_drain(given: Pod, waited_for: bool) -> None:
    assert bool(drain.remaining([given], NOW)) is waited_for


@pytest.mark.covers("KRP-23")
def test_pods_are_evicted_in_groups_and_critical_pods_last() -> None:
    pods = [
        pod("d", priorityClassName="system-node-critical", owner="DaemonSet"),
        pod("c", priorityClassName=CRITICAL),
        pod("b", owner="DaemonSet"),
        pod("a"),
        pod("a2", owner="ReplicaSet", priorityClassName="high"),
    ]
    order = []
    while waiting := drain.remaining(pods, NOW):
        now_going = drain.evictable(waiting, NOW)
        order.append([pod_.name for pod_ in now_going])
        pods = [pod_ for pod_ in pods if pod_ not in now_going]
    assert order == [["a", "a2"], ["b"], ["c"], ["d"]]


@pytest.mark.covers("KRP-23")
def test_no_pod_is_evicted_while_an_earlier_group_terminates() -> None:
    waiting = drain.remaining([pod("ends", ended=-20), pod("critical", priorityClassName=CRITICAL)], NOW)
    assert [pod_.name for pod_ in waiting] == ["ends", "critical"]
    assert drain.evictable(waiting, NOW) == []
    assert drain.evictable([], NOW) == []


@pytest.mark.covers("KRP-23")
@pytest.mark.parametrize(
    ("given", "stays"),
    [
        (pod(), False),
        (pod(keep="true"), True),
        (pod(keep="false"), False),
        (pod(keep=""), False),
        (pod(keep="5m", age=299), True),
        (pod(keep="5m", age=300), False),
        (pod(keep="1h30m", age=5399), True),
        (pod(keep="1h30m", age=5400), False),
        (pod(keep="1.5h", age=5399), True),
        (pod(keep="90000ms", age=89), True),
        (pod(keep="5m"), True),
        (pod(keep="0s", age=0), False),
        (pod(keep="-5m", age=1), False),
        (pod(keep="5 minutes", age=1), False),
        (pod(keep="5", age=1), False),
        (pod(keep=".5h", age=1799), True),
        (pod(keep="500000000µs", age=499), True),
        (pod(keep="2562047h", age=1), True),
        (pod(keep="2562048h", age=1), False),  # more than a Go duration holds
        (pod(keep=f"{'9' * 400}h", age=1), False),
    ],
)
def test_a_do_not_disrupt_pod_is_waited_for_and_not_evicted(given: Pod, stays: bool) -> None:
    waiting = drain.remaining([given], NOW)
    assert waiting == [given]
    assert drain.evictable(waiting, NOW) == ([] if stays else [given])
    assert protected(given, NOW) is stays
