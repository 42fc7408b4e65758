"""The back-off of NodePools with nodes that serve no pod, from the pool's condition alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.provisioning.unused import (
    LONGEST_WAIT,
    back_off,
    ended_unused,
    held_back,
    recorded,
    show,
    used_again,
)
from broker.kube.conditions import condition_body, set_conditions
from broker.oncall.metrics import REGISTRY, clear_tables
from broker.text import format_time

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
MESSAGE = "2 rounds of nodes in a row; no new node before {}: NodeClaim c was made for pod a/b, which is gone"


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


def gone(_: str) -> None:
    """The cache without the pod."""


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
        update = recorded(known, claim(launched=now), gone, now + timedelta(seconds=30))
        assert update is not None
        known, now = pool(update), now + timedelta(seconds=30)
        assert recorded(known, claim(launched=now), gone, now + timedelta(seconds=9)) is None  # same round
        state = back_off(known)
        assert state is not None and (state.pod, state.cause) == ("default/p", "PodGone")
        waits.append(state.until - now)
        assert bool(held_back(known, now)) is (state.until > now)
        assert held_back(known, state.until) == ""
        now = state.until + timedelta(seconds=1)
    assert [int(wait.total_seconds()) for wait in waits] == [0, 60, 120, 240, 480, 960, 1920] + [3600] * 3
    assert used_again(known, [claim(launched=now)], now) is None
    used = used_again(known, [claim(launched=now, status={"lastPodEventTime": format_time(now)})], now)
    assert used is not None and back_off(pool(used)) is None
    assert used_again(known, [], now + LONGEST_WAIT) is not None  # no pod came for long
    assert used_again(pool(), [], now) is None


@pytest.mark.covers("FLT-05", "FLT-70")
@pytest.mark.parametrize(("seconds", "ends"), [(-60, False), (0, False), (60, True)])
def test_only_a_node_launched_after_the_last_round_ends_the_back_off(seconds: int, ends: bool) -> None:
    """A pool with older nodes in use would never back off otherwise."""
    known = pool(recorded(pool(), claim(), gone, NOW))
    launched = NOW + timedelta(seconds=seconds)
    now = NOW + timedelta(minutes=5)
    used = claim(launched=launched, status={"lastPodEventTime": format_time(now)})
    assert (used_again(known, [used], now) is not None) is ends


@pytest.mark.covers("FLT-05")
@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("PodGone", "2 rounds of nodes, no new node before soon"),
        ("Other", MESSAGE.format("2026-11-01T12:01:00Z")),
        ("PodGone", MESSAGE.format("0001-01-01T00:00:00Z")),
        ("PodGone", MESSAGE.format("2026-13-01T00:00:00Z")),
    ],
)
def test_condition_that_was_edited_by_hand_holds_nothing_back(reason: str, message: str) -> None:
    first = recorded(pool(), claim(), gone, NOW)
    update = recorded(pool(first), claim(NOW + timedelta(hours=1)), gone, NOW)
    assert update is not None and held_back(pool(update), NOW)
    body = pool(update).wire()
    body["status"]["conditions"][0]["message"] = MESSAGE.format("2026-11-01T12:01:00Z")
    assert held_back(NodePool.decode(body), NOW)  # in this form it would
    body["status"]["conditions"][0] |= {"reason": reason, "message": message}
    assert held_back(NodePool.decode(body), NOW) == ""


@pytest.mark.covers("FLT-05")
@pytest.mark.parametrize(
    ("pod", "cause", "text"),
    [
        (None, "PodGone", "is gone"),
        ({"spec": {"nodeName": "other"}}, "PodOnOtherNode", "runs on other"),
        ({"spec": {"nodeName": "node-1"}}, "PodCameLate", "came late"),
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
            "PodUnschedulable",
            "waits for scheduler volcano: 0/3 nodes are available",
        ),
        (
            {"metadata": {"deletionTimestamp": format_time(NOW)}},
            "PodTerminating",
            "is being deleted",
        ),
    ],
)
def test_condition_has_the_cause_as_its_reason_and_names_the_pods(
    pod: dict[str, Any] | None, cause: str, text: str
) -> None:
    known: Pod | None = None
    if pod is not None:
        meta = {"name": "p", "namespace": "default", **pod.pop("metadata", {})}
        known = Pod.decode({"metadata": meta, **pod})
    update = recorded(pool(), claim(), lambda _: known, NOW)
    assert update is not None and update.reason == cause
    assert update.message.endswith(f": NodeClaim web-1 was made for pod default/p, which {text}")
    state = back_off(pool(update))
    assert state is not None and (state.pod, state.cause) == ("default/p", cause)
    several = claim(annotations={names.PODS: ",".join(f"default/p{n}" for n in range(9))})
    update = recorded(pool(), several, lambda _: known, NOW)
    assert update is not None and update.message.endswith("; and 6 more")


@pytest.mark.covers("FLT-05")
def test_metric_shows_a_pool_while_it_backs_off_with_a_word_for_the_cause() -> None:
    def shown(now: datetime) -> list[tuple[dict[str, str], float]]:
        show([known], now)
        metrics = [metric for metric in REGISTRY.collect() if "backing_off" in metric.name]
        return [(sample.labels, sample.value) for metric in metrics for sample in metric.samples]

    known = pool(recorded(pool(), claim(), gone, NOW))
    assert shown(NOW) == []  # one round is no reason to wait
    known = pool(recorded(known, claim(NOW + timedelta(hours=1)), gone, NOW))
    labels = {"nodepool": "web", "made_for": "default/p", "cause": "PodGone"}
    assert shown(NOW) == [(labels, 2.0)]
    clear_tables()  # this process leads no more
    assert not [s for metric in REGISTRY.collect() if "backing_off" in metric.name for s in metric.samples]
    assert shown(NOW + timedelta(minutes=1)) == []
