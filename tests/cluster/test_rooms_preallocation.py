"""Koordinator reservations that take the room of running pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from broker.apis.core import Pod
from broker.apis.koordinator import ALLOCATED, PREALLOCATABLE, PREALLOCATABLE_PRIORITY, PREALLOCATION_REQUIRED
from broker.kube.client import Request
from broker.kube.errors import Unavailable
from tests.cluster.rooms import Rooms, rooms

DEMO = {"app": "demo"}
TAKES: Any = {"preAllocation": True, "allocatePolicy": "Restricted", "allocateOnce": False, "memory": "1Gi"}


@pytest.fixture
def cluster() -> Iterator[Rooms]:
    """The scheduler is started once the pods run, so that it knows them before the reservations."""
    with rooms() as rooms_:
        yield rooms_


def running(cluster: Rooms, name: str, cpu: str, node: str = "node-0", **more: Any) -> None:
    """A pod that another scheduler placed."""
    cluster.pod(name, cpu=cpu, scheduler="default-scheduler", nodeName=node, **more)
    cluster.ran(name)


def owners(cluster: Rooms, name: str = "reservation-demo") -> list[str]:
    return sorted(owner.name for owner in cluster.status(name).current_owners)


def holder(cluster: Rooms, pod: str) -> str:
    text = cluster.annotations(pod).get(ALLOCATED)
    return str(orjson.loads(text)["name"]) if text else ""


@pytest.mark.covers("KOO-11")
def test_room_of_a_running_pod_is_kept_when_it_ends(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "4"})
    running(cluster, "a", "2", labels=DEMO)
    running(cluster, "other", "2")
    cluster.start()
    # No room is free, so without pre-allocation no node can hold it.
    cluster.reservation("plain", cpu="2")
    cluster.until(lambda: cluster.status("plain").conditions, "plain rejected")
    cluster.reservation(cpu="2", **TAKES)
    assert cluster.until_phase("Available").node_name == "node-0"
    cluster.until(lambda: cluster.status().allocated.get("cpu") == "2", "allocated")
    assert owners(cluster) == ["a"]
    assert holder(cluster, "a") == "reservation-demo"
    # All of it is in use, and its end does not open it to others.
    cluster.pod("next", cpu="2", labels=DEMO)
    cluster.until_rejected("next", "Reservation(s) Insufficient cpu")
    cluster.stop()
    cluster.start()
    cluster.pod("stranger", cpu="1")
    cluster.until_rejected("stranger", "Insufficient cpu")
    cluster.delete_pod("a")
    assert cluster.until_bound("next") == ["node-0"]
    cluster.until(lambda: owners(cluster) == ["next"], "the next owner")
    assert cluster.status().phase == "Available"
    # A pod that completes ends as well as one that is deleted.
    cluster.ran("next", phase="Succeeded")
    cluster.until(lambda: not cluster.status().allocated, "freed")
    assert not owners(cluster)
    assert not cluster.node_of("stranger")
    assert cluster.status("plain").phase == "Pending"
    cluster.pod("last", cpu="2", labels=DEMO)
    cluster.until_bound("last")
    cluster.until(lambda: owners(cluster) == ["last"], "the last owner")


@pytest.mark.covers("KOO-11")
def test_pods_are_chosen_by_the_policy(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "4"})
    cluster.node("node-1", room={"cpu": "4"})
    running(cluster, "large", "3", labels={"app": "large"})
    running(cluster, "s-1", "1", "node-1", labels={"app": "small"})
    running(cluster, "s-2", "1", "node-1", labels={"app": "small"})
    running(cluster, "rest", "2", "node-1")
    low = {PREALLOCATABLE: "true"}
    running(cluster, "low", "500m", labels=low, annotations={PREALLOCATABLE_PRIORITY: "-1"})
    running(cluster, "high", "500m", labels=low, annotations={PREALLOCATABLE_PRIORITY: "5"})

    def of(app: str) -> Any:
        return ({"labelSelector": {"matchLabels": {"app": app}}},)

    cluster.start()
    # A pod that exceeds the reservation is not taken.
    cluster.reservation(
        "too-small", cpu="2", owners=of("large"), labels={PREALLOCATION_REQUIRED: "true"}, **TAKES
    )
    # One of two pods is not enough.
    cluster.reservation("single", cpu="2", owners=of("small"), **TAKES)
    for name, reason in (("too-small", "no pods to pre-allocate from"), ("single", "Insufficient cpu")):
        conditions = cluster.until(lambda n=name: cluster.status(n).conditions, f"{name} rejected")  # type: ignore[misc]
        assert reason in conditions[0].message
    several: Any = {"preAllocationPolicy": {"enableMultiple": True}}
    cluster.reservation("several", cpu="2", owners=of("small"), **TAKES, **several)
    assert cluster.until_phase("Available", "several").node_name == "node-1"
    cluster.until(lambda: owners(cluster, "several") == ["s-1", "s-2"], "two owners")
    # The mode Cluster takes labelled pods, those of the highest priority first.
    any_pod: Any = {"preAllocationPolicy": {"mode": "Cluster"}, "owners": of("later")}
    cluster.reservation("labelled", cpu="500m", **TAKES, **any_pod)
    cluster.until_phase("Available", "labelled")
    cluster.until(lambda: owners(cluster, "labelled") == ["high"], "the owner of highest priority")
    # Without pods to take, it is placed as any other.
    cluster.node("node-2", room={"cpu": "4"})
    cluster.reservation("free", cpu="1", owners=of("nothing"), **TAKES)
    assert cluster.until_phase("Available", "free").node_name == "node-2"
    assert [holder(cluster, name) for name in ("large", "low", "rest")] == ["", "", ""]


@pytest.mark.covers("KOO-11")
def test_a_reservation_that_ends_with_its_first_owner_cannot_take_room(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "4"})
    running(cluster, "a", "2", labels=DEMO)
    cluster.start()
    for name, spec in (("once", {"allocateOnce": True}), ("aligned", {"allocatePolicy": "Aligned"})):
        cluster.reservation(name, cpu="2", **{**TAKES, **spec})
        conditions = cluster.until(lambda n=name: cluster.status(n).conditions, f"{name} rejected")  # type: ignore[misc]
        assert "needs allocatePolicy: Restricted and allocateOnce: false" in conditions[0].message
    assert holder(cluster, "a") == ""


@pytest.mark.covers("KOO-11")
def test_pods_are_released_if_the_reservation_does_not_get_its_node(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "4"})
    running(cluster, "a", "2", labels=DEMO)
    cluster.start()
    seen: list[str] = []

    def refused(_: Request) -> None:
        seen.append(holder(cluster, "a"))
        raise Unavailable(503, "ServiceUnavailable", "the API server is overloaded")

    def status(request: Request) -> bool:
        return request.method == "PATCH" and request.path.endswith("/reservation-demo/status")

    cluster.tap.on(status, refused, times=1)
    cluster.reservation(cpu="2", **TAKES)
    cluster.until(lambda: seen == ["reservation-demo"], "annotated before the reservation has its node")
    cluster.until(lambda: holder(cluster, "a") == "", "released")
    cluster.clock.advance(2)
    cluster.until_phase("Available")
    cluster.until(lambda: owners(cluster) == ["a"], "bound in the end")
    assert cluster.get(Pod, "a", "default").spec.node_name == "node-0"
