"""Pods that wait beside a Koordinator reservation: which of them need no machine of their own."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from broker.apis.core import Pod
from broker.apis.koordinator import KoordinatorReservation
from broker.controllers.nodereservation.occupancy import NodeOccupancy
from broker.controllers.provisioning.awaited import awaited
from broker.placement.holds_bounds import RoomBounds
from broker.placement.packing_model import PendingPod
from broker.placement.reading import pod_info

NOW = datetime(2026, 11, 23, tzinfo=UTC)
TOLERATION = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}


def container(**requests: str) -> dict[str, Any]:
    return {"name": "main", "image": "pause", "resources": {"requests": requests}}


def waiting(name: str, cpu: str = "1", **spec: Any) -> Pod:
    meta = {
        "name": name,
        "namespace": "default",
        "uid": name,
        "labels": {"app": "later", **spec.pop("labels", {})},
    }
    full = {"schedulerName": "koord-scheduler", "containers": [container(cpu=cpu)], **spec}
    return Pod.model_validate({"metadata": meta, "spec": full})


def reservation(cpu: str = "2", *, template: Any = None, **spec: Any) -> KoordinatorReservation:
    owners = [{"labelSelector": {"matchLabels": {"app": "later"}}}]
    pod = {"schedulerName": "koord-scheduler", "containers": [container(cpu=cpu)], **(template or {})}
    meta = {"name": "kept", "uid": "kept", "creationTimestamp": NOW.isoformat()}
    return KoordinatorReservation.model_validate(
        {"metadata": meta, "spec": {"template": {"spec": pod}, "owners": owners, **spec}}
    )


def served(pods: Iterable[Pod], kept: KoordinatorReservation, gang: str = "") -> set[str]:
    """The names of the pods that the reservation is for."""
    by_key = {pod.key: pod for pod in pods}
    pending = [PendingPod(info=pod_info(pod), gang=gang) for pod in by_key.values()]
    room = NodeOccupancy(unplaced={"default/reservation/kept": kept})
    reads: Any = SimpleNamespace(
        guard=nullcontext, bounds=RoomBounds(), schedulers=lambda: frozenset({"koord-scheduler"})
    )
    rooms = awaited(pending, by_key, room, reads, NOW)
    assert {item.reservation for item in rooms.values()} <= {"default/reservation/kept"}
    return {key.partition("/")[2] for key in rooms}


def test_one_pod_for_a_reservation_that_ends_with_its_first_owner() -> None:
    assert served([waiting("a"), waiting("b")], reservation()) == {"a"}


def test_as_many_pods_as_fit_in_a_shared_reservation() -> None:
    kept = reservation("2", allocateOnce=False)
    assert served([waiting("a"), waiting("b"), waiting("c")], kept) == {"a", "b"}


@pytest.mark.parametrize(
    ("pod", "kept"),
    [
        pytest.param(waiting("a", labels={"app": "other"}), reservation(), id="not its owner"),
        pytest.param(waiting("a", schedulerName="default-scheduler"), reservation(), id="another scheduler"),
        pytest.param(waiting("a", "3"), reservation(), id="larger"),
        pytest.param(
            waiting("a", containers=[container(cpu="1", memory="1Gi")]), reservation(), id="another resource"
        ),
        pytest.param(waiting("a", nodeSelector={"zone": "a"}), reservation(), id="its own selector"),
        pytest.param(
            waiting("a"), reservation(template={"tolerations": [TOLERATION]}), id="lacks a toleration"
        ),
        pytest.param(
            waiting("a", labels={"scheduling.koordinator.sh/reservation-ignored": "true"}),
            reservation(),
            id="ignores reservations",
        ),
        pytest.param(waiting("a"), reservation(unschedulable=True), id="closed"),
        pytest.param(waiting("a"), reservation(expires=NOW.isoformat()), id="ended"),
    ],
)
def test_pod_needs_a_machine_of_its_own(pod: Pod, kept: KoordinatorReservation) -> None:
    assert served([pod], kept) == set()


def test_pod_of_a_gang_needs_its_machine_together_with_the_others() -> None:
    assert served([waiting("a")], reservation(), gang="team") == set()


@pytest.mark.parametrize(
    ("pod", "kept"),
    [
        pytest.param(
            waiting("a", nodeSelector={"zone": "a"}),
            reservation(template={"nodeSelector": {"zone": "a", "arch": "arm64"}}),
            id="the reservation selects more",
        ),
        pytest.param(waiting("a", tolerations=[TOLERATION]), reservation(), id="the pod tolerates more"),
        pytest.param(
            waiting("a", tolerations=[{"operator": "Exists"}]),
            reservation(template={"tolerations": [TOLERATION]}),
            id="the pod tolerates all",
        ),
        pytest.param(
            waiting("a", tolerations=[{"key": "gpu", "operator": "Exists"}]),
            reservation(template={"tolerations": [TOLERATION, {**TOLERATION, "effect": "NoExecute"}]}),
            id="the pod tolerates each effect",
        ),
        pytest.param(waiting("a"), reservation(allocatePolicy="Restricted"), id="restricted"),
    ],
)
def test_pod_may_run_wherever_the_reservation_may(pod: Pod, kept: KoordinatorReservation) -> None:
    assert served([pod], kept) == {"a"}
