"""Why pods wait, as the commands read it: by published reports, by events and by full reservations."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Event
from broker.apis.karpenter import NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.commands.explain.situation import Situation
from broker.oncall.pod_reports import PodReport
from providers.names import MANAGER

from .test_idle_matches import NOW, mirror, pod, pool


def event(reason: str, message: str, at: str) -> Event:
    about = {"kind": "Pod", "namespace": "team", "name": "train", "uid": "train"}
    return Event.decode(
        {
            "metadata": {"name": reason.lower(), "namespace": "team"},
            "involvedObject": about,
            "reason": reason,
            "message": message,
            "reportingComponent": MANAGER,
            "lastTimestamp": f"2026-11-26T02:{at}:00Z",
        }
    )


FAILED = event("FailedScheduling", "Failed to schedule pod, cr-1 is full", "10")
NOMINATED = event("Nominated", "Pod should schedule on: node/n-1", "20")


@pytest.mark.covers("ONC-02")
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"events": [FAILED]}, "cr-1 is full"),
        ({"events": [FAILED, NOMINATED]}, "no node"),
        ({"karpenter_events": [FAILED, NOMINATED]}, "no node"),
        ({"events": [FAILED], "reports": {"train": PodReport("cr-2 is full")}}, "cr-2 is full"),
    ],
)
def test_reason_that_a_launcher_took_back_is_shown_no_more(more: dict[str, Any], message: str) -> None:
    """By its later events, and by the broker's published reports before its events."""
    (row,) = Situation(now=NOW, pods=[pod()], pools=[pool()], **more).waiting_pods
    assert row.message == message


@pytest.mark.covers("ONC-02", "ONC-03")
def test_gated_pod_waits_for_no_full_reservation_of_karpenters_class() -> None:
    advised = {"type": names.RESERVATIONS_ADVISED, "status": "True", "reason": "Advised"}
    node_class = EC2NodeClass.decode({"metadata": {"name": "gpu"}, "status": {"conditions": [advised]}})
    document = pool().wire()
    document["spec"]["template"]["spec"]["nodeClassRef"]["group"] = names.KARPENTER_AWS
    pods = [pod("gated", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]), pod("ready")]
    rows = Situation(
        now=NOW, pods=pods, pools=[NodePool.decode(document)], classes=[node_class], mirrors=[mirror(free=0)]
    ).waiting_pods
    assert {row.name: (row.reason, row.full) for row in rows} == {
        "gated": ("SchedulingGated", ()),
        "ready": ("ReservationsFull", ("cr-1",)),
    }
