"""The events that `explain` shows, equal ones merged: of a pod, those of every scheduler."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from broker.apis.core import Event, Pod
from broker.apis.karpenter import NodeClaim
from broker.text import format_time
from providers.names import MANAGER

from .town import SINCE, Town

FULL = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."


def micro(minutes: int) -> str:
    return (SINCE + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def failed(town: Town, name: str, message: str = FULL, *, pod: str = "train", **more: Any) -> None:
    uid = town.client.get(Pod.KIND, "train", namespace="ml")["metadata"]["uid"]
    about = {"kind": "Pod", "name": pod, "namespace": "ml", "uid": uid}
    body = {
        "metadata": {"name": name, "namespace": "ml"},
        "involvedObject": about,
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": message,
        "reportingComponent": "default-scheduler",
        "reportingInstance": "default-scheduler-0",
        "action": "Scheduling",
        "eventTime": micro(0),
        **more,
    }
    town.client.create(Event.KIND, body)


@pytest.mark.covers("ONC-01")
def test_failures_of_kube_scheduler_are_in_the_timeline_and_equal_ones_are_one_row(town: Town) -> None:
    town.pool("gpu")
    town.pod("train")
    last = format_time(SINCE + timedelta(minutes=40))
    failed(town, "a", series={"count": 3, "lastObservedTime": micro(20)})
    failed(town, "b", count=2, lastTimestamp=last, eventTime=None, reportingComponent="gang-scheduler")
    failed(town, "c", "0/4 nodes are available: 4 node(s) had untolerated taint(s).")
    failed(town, "d", "of another pod", pod="other")
    failed(town, "e", "not about scheduling", reason="Pulled", reportingComponent="kubelet")
    rows = town.explain("pod", "train", "-n", "ml")["events"]
    assert [(row["reason"], row["count"], row["at"]) for row in rows] == [
        ("FailedScheduling", 5, last),
        ("FailedScheduling", 1, format_time(SINCE)),
    ]
    assert rows[0]["message"] == FULL and "untolerated" in rows[1]["message"]
    shown = town.text("pod", "train", "-n", "ml")
    assert "5 times" in shown and "Insufficient nvidia.com/gpu" in shown
    assert "of another pod" not in shown and "not about scheduling" not in shown


@pytest.mark.covers("ONC-01")
def test_cluster_counts_equal_events_as_the_page_of_their_pod_does(town: Town) -> None:
    town.pool("gpu")
    town.pod("train")
    failed(town, "a", series={"count": 3, "lastObservedTime": micro(20)}, reportingComponent=MANAGER)
    failed(town, "b", count=2, eventTime=micro(10), reportingComponent=MANAGER)
    (row,) = town.explain("pod", "train", "-n", "ml")["events"]
    assert (row["count"], row["times"]) == (5, "5 times")
    assert town.explain("cluster")["events"] == [row]
    assert "5 times" in town.text("cluster")


@pytest.mark.covers("ONC-01")
def test_claim_has_its_equal_events_counted_as_a_pod_has(town: Town) -> None:
    town.holder()
    about = {"kind": NodeClaim.KIND.kind, "name": "holder-0"}
    for name, at in (("a", 10), ("b", 20)):
        meta = {"name": name, "namespace": "default"}
        body = {"metadata": meta, "involvedObject": about, "type": "Warning", "reason": "EvictionBlocked"}
        more = {"message": "ml/old: no", "reportingComponent": MANAGER, "count": 2}
        more |= {"eventTime": micro(at), "reportingInstance": "broker-0", "action": "Evict"}
        town.client.create(Event.KIND, body | more)
    (row,) = town.explain("claim", "holder-0")["events"]
    assert (row["count"], row["reason"]) == (4, "EvictionBlocked")
    assert "4 times" in town.text("claim", "holder-0")
