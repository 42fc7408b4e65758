"""Why pods wait, as the commands read it: by published reports, by events and by full reservations."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Event, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.ome import CapacityReservation
from broker.capacity.inventory import Inventory
from broker.commands.explain.event_facts import KARPENTER
from broker.commands.explain.explanation import explain
from broker.commands.explain.parts import of_reservation
from broker.commands.explain.reading import with_events
from broker.commands.explain.slot_rows import slot_rows
from broker.oncall.pod_reports import PodReport
from broker.oncall.situation import Situation
from broker.text import format_time
from providers.model import Gpu, InstanceType
from providers.names import MANAGER

from .test_idle_matches import NOW, P5, A, launched, mirror, owner, pod, pool, requesting


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


def of_karpenter(event: Event) -> Event:
    return Event.decode(event.wire() | {"reportingComponent": KARPENTER})


FAILED = event("FailedScheduling", "Failed to schedule pod, cr-1 is full", "10")
NOMINATED = event("Nominated", "Pod should schedule on: node/n-1", "20")


@pytest.mark.covers("ONC-02")
@pytest.mark.parametrize(
    ("events", "reports", "message"),
    [
        ([FAILED], {}, "cr-1 is full"),
        ([FAILED, NOMINATED], {}, "no node"),
        ([of_karpenter(FAILED), of_karpenter(NOMINATED)], {}, "no node"),
        ([FAILED], {"train": PodReport("cr-2 is full")}, "cr-2 is full"),
    ],
)
def test_reason_that_a_launcher_took_back_is_shown_no_more(
    events: list[Event], reports: dict[str, PodReport], message: str
) -> None:
    """By its later events, and by the broker's published reports before its events."""
    known = Situation(now=NOW, pods=[pod()], pools=[pool()], reports=reports)
    (row,) = with_events(known, events).waiting_pods
    assert row.message == message


@pytest.mark.covers("ONC-02")
def test_report_on_a_node_pool_that_is_gone_holds_no_more() -> None:
    (row,) = with_events(Situation(now=NOW, pods=[pod()]), [FAILED]).waiting_pods
    assert (row.reason, row.message) == ("NoNodePool", "the cluster has no NodePool; no node")


@pytest.mark.covers("ONC-02", "ONC-03")
def test_gated_pod_waits_for_no_full_reservation_of_karpenters_class() -> None:
    advised = {"type": names.RESERVATIONS_ADVISED, "status": "True", "reason": "Advised"}
    node_class = EC2NodeClass.decode({"metadata": {"name": "gpu"}, "status": {"conditions": [advised]}})
    document = pool(capacity="reserved").wire()
    document["spec"]["template"]["spec"]["nodeClassRef"]["group"] = names.KARPENTER_AWS
    pods = [pod("gated", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]), pod("ready")]
    rows = Situation(
        now=NOW, pods=pods, pools=[NodePool.decode(document)], classes=[node_class], mirrors=[mirror(free=0)]
    ).waiting_pods
    assert {row.name: (row.reason, row.full) for row in rows} == {
        "gated": ("SchedulingGated", ()),
        "ready": ("ReservationsFull", ("cr-1",)),
    }


SHORT = "0/3 nodes are available: 3 Insufficient cpu."
PREEMPTION = "0/3 nodes are available: 3 Preemption is not helpful for scheduling."


@pytest.mark.covers("ONC-03")
@pytest.mark.parametrize(
    ("allows", "message", "reason", "full"),
    [
        (
            {"capacity": "reserved"},
            SHORT,
            "ReservationsFull",
            ("cr-1",),
        ),
        ({}, SHORT, "OtherController", ()),
        (
            {"capacity": "reserved"},
            f'0/3 nodes are available: persistentvolumeclaim "data" not found. preemption: {PREEMPTION}',
            "Unschedulable",
            (),
        ),
    ],
    ids=["reserved alone", "also on demand", "no volume"],
)
def test_pod_of_karpenter_waits_for_full_reservations_only_if_nothing_else_serves_it(
    allows: dict[str, str], message: str, reason: str, full: tuple[str, ...]
) -> None:
    advised = {"type": names.RESERVATIONS_ADVISED, "status": "True", "reason": "Advised"}
    node_class = EC2NodeClass.decode({"metadata": {"name": "gpu"}, "status": {"conditions": [advised]}})
    document = pool(**allows).wire()
    document["spec"]["template"]["spec"]["nodeClassRef"]["group"] = names.KARPENTER_AWS
    waits = pod().wire()
    waits["status"]["conditions"][0]["message"] = message
    (row,) = Situation(
        now=NOW,
        pods=[Pod.decode(waits)],
        pools=[NodePool.decode(document)],
        classes=[node_class],
        mirrors=[mirror(free=0)],
    ).waiting_pods
    assert (row.reason, row.full) == (reason, full) and message.partition(". pre")[0] in row.message


@pytest.mark.covers("ONC-03", "CAP-08")
def test_reservation_that_begins_later_is_not_full_for_a_pod_of_karpenter() -> None:
    """EC2 shows none of it as free, and no instance is in it."""
    advised = {"type": names.RESERVATIONS_ADVISED, "status": "True", "reason": "Advised"}
    node_class = EC2NodeClass.decode({"metadata": {"name": "gpu"}, "status": {"conditions": [advised]}})
    document = pool(capacity="reserved").wire()
    document["spec"]["template"]["spec"]["nodeClassRef"]["group"] = names.KARPENTER_AWS
    later = mirror(free=0).wire()
    later["status"] |= {"state": "scheduled", "start": "2026-11-29T08:00:00Z"}
    (row,) = Situation(
        now=NOW,
        pods=[pod()],
        pools=[NodePool.decode(document)],
        classes=[node_class],
        mirrors=[OnDemandCapacityReservation.decode(later)],
    ).waiting_pods
    assert (row.reason, row.full) == ("OtherController", ())
    assert f"cr-1 ({P5}, {A}): scheduled, starts at 2026-11-29T08:00:00Z;" in row.message


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("spec", "held", "full"),
    [
        ({"containers": requesting(gpu="8")}, False, ("cr-1",)),
        ({"containers": requesting(gpu="8")}, True, ()),
        ({"containers": requesting(gpu="8", **{"example.com/fpga": "1"})}, False, ()),
        ({"nodeSelector": {names.ARCH: "arm64"}}, False, ()),
    ],
    ids=["fits", "held", "resource", "architecture"],
)
def test_only_a_pod_that_the_slot_would_serve_waits_for_the_full_reservation(
    spec: dict[str, Any], held: bool, full: tuple[str, ...]
) -> None:
    """Its reason may name the reservation all the same: it is that of a NodePool."""
    report = PodReport("NodePool gpus: no free slot: cr-1 0 of 4", held)
    gpus = Gpu(name="H100", manufacturer="NVIDIA", count=8, memory_mib=81920)
    arm = InstanceType(name="m7g.large", vcpus=2, memory_mib=8192, architecture="arm64", zones=frozenset({A}))
    p5 = InstanceType(name=P5, vcpus=192, memory_mib=2097152, gpus=(gpus,), zones=frozenset({A}))
    (row,) = Situation(
        now=NOW,
        pods=[pod(**spec)],
        pools=[pool(capacity="reserved")],
        mirrors=[mirror(free=0)],
        types={p5.name: p5, arm.name: arm},
        reports={"train": report},
    ).waiting_pods
    assert row.full == full, row


@pytest.mark.covers("FLT-54")
def test_slot_that_a_claim_took_since_the_last_count_is_not_offered() -> None:
    def taken(number: int) -> list[NodeClaim]:
        bodies = [launched().wire() for _ in range(number)]
        for place, body in enumerate(bodies):
            body["metadata"] |= {"name": f"c-{place}"}
            body["metadata"]["labels"][names.RESERVATION_ID] = "cr-1"
        return [NodeClaim.decode(body) for body in bodies]

    def offered(number: int) -> list[int]:
        around = Situation(
            now=NOW, pods=[pod()], pools=[pool()], mirrors=[mirror(free=1)], claims=taken(number)
        )
        assert around.slot_uses["cr-1"].free == 4 - max(3, number)
        idle = [row for row in explain(around).parts["do"] if row["command"] == "capacity-broker idle"]
        assert bool(idle) == bool(around.matches), "both count the same free slots"
        return [match.slots.free for match in around.matches]

    assert offered(3) == [1] and offered(4) == []


@pytest.mark.covers("FUL-04")
def test_slot_that_is_kept_for_a_successor_is_not_called_free() -> None:
    promises = Inventory(kept={"uid-next": "cr-1"})
    around = Situation(now=NOW, pods=[pod()], pools=[pool()], mirrors=[mirror(free=1)], inventory=promises)
    use = around.slot_uses["cr-1"]
    assert "): 0 of 4 free, 1 kept for certain claims, held by 3 instances of no claim" in use.summary
    assert [row["holder"] for row in slot_rows(use, NOW)] == [
        "1 unused slot kept for certain claims",
        "3 instances of no claim of this cluster",
    ]
    assert not [row for row in explain(around).parts["do"] if row["command"] == "capacity-broker idle"]


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("reason", "advised"),
    [("InsufficientCapacity", True), ("HardwareUnavailable", True), ("CloudReservationPending", False)],
)
def test_reservation_without_its_capacity_is_not_said_to_need_nothing(reason: str, advised: bool) -> None:
    document = owner("cr-1").wire()
    state = {
        "type": "ResourcesSufficient",
        "status": "False",
        "reason": reason,
        "message": "set it to Manage",
    }
    document["status"]["conditions"] = [state]
    (subject, part) = of_reservation(
        Situation(now=NOW, reservations=[CapacityReservation.decode(document)]), "team/gpus"
    )
    commands = {row["command"]: row["why"] for row in explain(part, subject).parts["do"]}
    why = commands.get("kubectl describe capacityreservation -n team gpus", "")
    assert (f"ResourcesSufficient=False {reason}" in why) is advised


@pytest.mark.covers("ONC-01")
def test_slot_of_a_deleted_claim_is_free_by_the_end_of_its_grace_period() -> None:
    body = launched().wire()
    body["metadata"] |= {"deletionTimestamp": format_time(NOW)}
    body["metadata"]["labels"][names.RESERVATION_ID] = "cr-1"
    body["spec"] = {**body.get("spec", {}), "terminationGracePeriod": "1h"}
    (user,) = (
        Situation(now=NOW, claims=[NodeClaim.decode(body)], mirrors=[mirror()]).slot_uses["cr-1"].holders
    )
    assert (user.until, user.why) == (NOW + timedelta(hours=1), "its claim ends")
