"""The back-off of NodePools with nodes that serve no pod, from the pool's condition alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.provisioning.unused import (
    LONGEST,
    NODES_USED,
    back_off,
    cause_of,
    ended_unused,
    held_back,
    recorded,
    used_again,
)
from broker.kube.conditions import condition_body, set_conditions
from broker.text import format_time

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


def claim(launched: datetime = NOW, **more: Any) -> NodeClaim:
    meta = {
        "name": "web-1",
        "uid": "uid-1",
        "annotations": {names.PODS: "default/p", **more.pop("annotations", {})},
        "ownerReferences": [{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": "web", "uid": "1"}],
    }
    done = {"type": "Launched", "status": "True", "lastTransitionTime": format_time(launched)}
    status = {"nodeName": "node-1", "conditions": [done], **more.pop("status", {})}
    return NodeClaim.decode({"metadata": {**meta, **more}, "spec": {}, "status": status})


def pool(*updates: Any) -> NodePool:
    """The pool as it is read from the API server after these conditions were written."""
    conditions = [condition_body(item) for item in set_conditions((), *updates, now=NOW)]
    return NodePool.decode({"metadata": {"name": "web"}, "spec": {}, "status": {"conditions": conditions}})


@pytest.mark.covers("FLT-05")
@pytest.mark.parametrize(
    ("node", "after", "unused"),
    [
        (claim(), 1, True),
        (claim(), 11, False),  # it was there long enough for a pod to come
        (claim(status={"lastPodEventTime": format_time(NOW)}), 1, False),  # a pod was there
        (claim(annotations={names.REPLACES: "old/uid"}), 1, False),
        (claim(annotations={names.PODS: ""}), 1, False),  # made by hand
        (claim(ownerReferences=[]), 1, False),
    ],
)
def test_node_is_unused_if_it_ends_soon_without_ever_having_a_pod(
    node: NodeClaim, after: int, unused: bool
) -> None:
    assert ended_unused(node, NOW + timedelta(minutes=after)) is unused


@pytest.mark.covers("FLT-05")
def test_wait_doubles_with_each_round_from_the_second_on_and_ends_with_a_used_node() -> None:
    known, now, waits = pool(), NOW, []
    for _ in range(10):
        update = recorded(known, claim(launched=now), "cause", now + timedelta(seconds=30))
        assert update is not None
        known, now = pool(update), now + timedelta(seconds=30)
        assert recorded(known, claim(launched=now), "cause", now + timedelta(seconds=9)) is None  # same round
        state = back_off(known)
        assert state is not None and state.cause == "cause"
        waits.append(state.until - now)
        assert bool(held_back(known, now)) is (state.until > now)
        assert held_back(known, state.until) == ""
        now = state.until + timedelta(seconds=1)
    assert [int(wait.total_seconds()) for wait in waits] == [0, 60, 120, 240, 480, 960, 1920] + [3600] * 3
    assert used_again(known, [claim(launched=now)], now) is None
    used = used_again(known, [claim(launched=now, status={"lastPodEventTime": format_time(now)})], now)
    assert used is not None and back_off(pool(used)) is None
    assert used_again(known, [], now + LONGEST) is not None  # no pod came for long
    assert used_again(pool(), [], now) is None


@pytest.mark.covers("FLT-05")
def test_condition_that_was_edited_by_hand_holds_nothing_back() -> None:
    update = recorded(pool(recorded(pool(), claim(), "x", NOW)), claim(NOW + timedelta(hours=1)), "x", NOW)
    assert update is not None
    edited = pool(update).model_copy(deep=True).wire()
    edited["status"]["conditions"][0] |= {
        "type": NODES_USED,
        "message": "2 rounds of nodes, no new node before soon",
    }
    assert held_back(NodePool.decode(edited), NOW) == ""


@pytest.mark.covers("FLT-05")
@pytest.mark.parametrize(
    ("pod", "text"),
    [
        (None, "pod default/p, which is gone"),
        ({"spec": {"nodeName": "other"}}, "pod default/p, which runs on other"),
        (
            {
                "spec": {"schedulerName": "volcano"},
                "status": {
                    "conditions": [
                        {
                            "type": "PodScheduled",
                            "status": "False",
                            "reason": "Unschedulable",
                            "message": "0/3 nodes are available",
                        }
                    ]
                },
            },
            "pod default/p, which waits for scheduler volcano: 0/3 nodes are available",
        ),
        ({"metadata": {"deletionTimestamp": format_time(NOW)}}, "pod default/p, which is being deleted"),
    ],
)
def test_cause_names_the_pod_and_why_it_is_not_on_the_node(pod: dict[str, Any] | None, text: str) -> None:
    known: Pod | None = None
    if pod is not None:
        meta = {"name": "p", "namespace": "default", **pod.pop("metadata", {})}
        known = Pod.decode({"metadata": meta, **pod})
    assert cause_of(claim(), lambda _: known) == f"NodeClaim web-1 was made for {text}"
    several = claim(annotations={names.PODS: ",".join(f"default/p{n}" for n in range(9))})
    assert cause_of(several, lambda _: known).endswith("; and 6 more")
