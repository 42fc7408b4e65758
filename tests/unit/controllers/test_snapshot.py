"""The usage of a reservation by Kueue's workloads: the reserved quota, less the returned part."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.apis import names
from broker.apis.kueue import ClusterQueue, Workload
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.capacityreservation.related_objects import (
    queue_state,
)
from broker.controllers.snapshot import Snapshot
from broker.quota.model import FlavorResource
from broker.quota.usage import ReservationKey
from broker.reservations.kueue_objects import mark
from providers.names import MANAGED_BY

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
MINE = ReservationKey("team", "gpu")
RESERVED = {"type": "QuotaReserved", "status": "True", "reason": "Reserved", "message": ""}


BROKERS = {MANAGED_BY: "capacity-broker", names.DEDICATED: "dac"}


def owned(name: str, uid: str) -> list[Json]:
    return [{"apiVersion": "ome.io/v1", "kind": "DedicatedAICluster", "name": name, "uid": uid}]


def condition(type_: str, status: str = "True", **more: Any) -> Json:
    return {"type": type_, "status": status, "reason": "Played", "message": "so", **more}


def workload(*conditions: Json, back: int = 0, queue: str = MINE.queue, **metadata: Any) -> Json:
    """Four pods of two GPUs each."""
    assigned = {"name": "main", "count": 4, "flavors": {GPU: "h100"}, "resourceUsage": {GPU: "8"}}
    status: Json = {
        "admission": {"clusterQueue": queue, "podSetAssignments": [assigned]},
        "conditions": [*conditions],
    }
    if back:
        status["reclaimablePods"] = [{"name": "main", "count": back}]
    metadata |= {"name": "job", "namespace": "team", "uid": "u", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"podSets": [{"name": "main", "count": 4}]}, "status": status}


def snapshot(*workloads: Json, owner: ReservationKey = MINE, conditions: tuple[Json, ...] = ()) -> Snapshot:
    queue = {
        "metadata": {"name": MINE.queue, **mark(owner)},
        "spec": {},
        "status": {"conditions": [*conditions]},
    }
    return Snapshot(
        version=1,
        reservations={},
        clusters=[DedicatedAICluster.decode({"metadata": {"name": "dac", "uid": "dac-1"}, "spec": {}})],
        queues={MINE.queue: ClusterQueue.decode(queue)},
        workloads=[Workload.decode(raw) for raw in workloads],
    )


@pytest.mark.covers("OME-056", "OME-057", "OME-060")
@pytest.mark.parametrize(
    ("raw", "holds"),
    [
        (workload(RESERVED), 8),
        (workload(RESERVED, back=1), 6),
        (workload(RESERVED, back=3), 2),
        # Admitted or not: reserved quota is not available to others.
        (workload(RESERVED, condition("Admitted", "False")), 8),
        (workload(RESERVED, condition("Evicted")), 8),
        (workload(RESERVED, condition("Finished", "False")), 8),
    ],
)
def test_a_workload_holds_its_reserved_quota(raw: Json, holds: int) -> None:
    ((reserved, (holder,)),) = snapshot(raw).workload_holders.items()
    assert (reserved, holder.name, holder.kind) == (MINE, "team/job", "Workload")
    assert dict(holder.usage) == {FlavorResource("h100", GPU): holds}


@pytest.mark.covers("OME-060", "OME-061")
@pytest.mark.parametrize(
    "raw",
    [
        workload(),
        workload({**RESERVED, "status": "False"}),
        workload(RESERVED, condition("Finished")),
        workload(RESERVED, queue="other"),
        # It stands for a dedicated cluster, which is reported under its own name.
        workload(RESERVED, labels=BROKERS, ownerReferences=owned("dac", "dac-1")),
    ],
    ids=["no quota", "no quota any more", "finished", "of another queue", "the broker's own"],
)
def test_a_workload_without_quota_of_the_queue_holds_nothing(raw: Json) -> None:
    assert snapshot(raw).workload_holders == {}


@pytest.mark.covers("OME-056")
@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {MANAGED_BY: "capacity-broker"}},
        {"labels": BROKERS},
        {"labels": BROKERS, "ownerReferences": owned("dac", "dac-0")},
        {"labels": BROKERS, "ownerReferences": owned("no-such", "dac-1")},
        {"ownerReferences": owned("dac", "dac-1")},
    ],
    ids=["a label", "both labels", "an earlier cluster", "no cluster", "an owner alone"],
)
def test_a_workload_with_forged_labels_of_a_cluster_holds_its_quota(metadata: Json) -> None:
    """Any creator of a Workload can write its labels: they hide no use of a reservation."""
    (holder,) = snapshot(workload(RESERVED, **metadata)).workload_holders[MINE]
    assert dict(holder.usage) == {FlavorResource("h100", GPU): 8}


def test_a_workload_with_all_pods_reclaimable_holds_nothing() -> None:
    (holder,) = snapshot(workload(RESERVED, back=4)).workload_holders[MINE]
    assert dict(holder.usage) == {}


def test_a_queue_of_another_reservation_is_ignored() -> None:
    assert snapshot(workload(RESERVED), owner=ReservationKey("team", "other")).workload_holders == {}


@pytest.mark.covers("OME-066")
@pytest.mark.parametrize(
    ("conditions", "why"),
    [
        ((), ""),
        ((condition("PodsReady", "False", reason="WaitForStart"),), ""),
        (
            (condition("PodsReady", "False", reason="WaitForRecovery"),),
            "its pods were ready and are no longer: so",
        ),
        ((condition("Evicted", "False"),), ""),
        ((condition("Evicted", reason="Preempted"),), "evicted (Preempted): so"),
    ],
)
def test_an_unhealthy_workload_has_a_reason(conditions: tuple[Json, ...], why: str) -> None:
    (holder,) = snapshot(workload(RESERVED, *conditions)).workload_holders[MINE]
    assert (holder.why, holder.healthy) == (why, not why)


@pytest.mark.covers("OME-018", "OME-083")
@pytest.mark.parametrize(
    ("condition_", "active", "reason"),
    [
        (condition("Active", reason="Ready"), True, "Ready"),
        (condition("Active", "False", reason="FlavorNotFound"), False, "FlavorNotFound"),
        (condition("Active", "Unknown"), False, "ClusterQueuePending"),
        (condition("Other"), False, "ClusterQueuePending"),
    ],
)
def test_the_queue_state_follows_its_active_condition(condition_: Json, active: bool, reason: str) -> None:
    reads: Any = SimpleNamespace(kueue=True)
    state = queue_state(reads, MINE, snapshot(conditions=(condition_,)))
    assert state is not None and (state.active, state.reason) == (active, reason)
    foreign = queue_state(
        reads, MINE, snapshot(conditions=(condition_,), owner=ReservationKey("team", "other"))
    )
    assert foreign is not None and (foreign.active, foreign.reason) == (False, "ClusterQueueNotCreated")
