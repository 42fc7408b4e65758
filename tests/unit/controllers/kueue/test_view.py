"""The usage of a reservation by Kueue's workloads: the reserved quota, less the returned part."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.apis import names
from broker.apis.kueue import ClusterQueue, Workload
from broker.controllers.kueue.ownership import BY_QUEUE, by_admission, mark
from broker.controllers.kueue.view import KueueView
from broker.kube.cache import Cache
from broker.quota.model import FlavorResource
from broker.quota.usage import Reserved

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
MINE = Reserved("team", "gpu")
RESERVED = {"type": "QuotaReserved", "status": "True", "reason": "Reserved", "message": ""}


def said(type_: str, status: str = "True", **more: Any) -> Json:
    return {"type": type_, "status": status, "reason": "Played", "message": "so", **more}


def workload(*conditions: Json, back: int = 0, queue: str = MINE.queue, labels: Json | None = None) -> Json:
    """Four pods of two GPUs each."""
    assigned = {"name": "main", "count": 4, "flavors": {GPU: "h100"}, "resourceUsage": {GPU: "8"}}
    status: Json = {
        "admission": {"clusterQueue": queue, "podSetAssignments": [assigned]},
        "conditions": [*conditions],
    }
    if back:
        status["reclaimablePods"] = [{"name": "main", "count": back}]
    metadata = {
        "name": "job",
        "namespace": "team",
        "uid": "u",
        "resourceVersion": "1",
        "labels": labels or {},
    }
    return {"metadata": metadata, "spec": {"podSets": [{"name": "main", "count": 4}]}, "status": status}


def view(*workloads: Json, owner: Reserved = MINE, says: tuple[Json, ...] = ()) -> KueueView:
    queues, some = Cache(ClusterQueue), Cache(Workload, indexes={BY_QUEUE: by_admission})
    status = {"conditions": [*says]}
    queues.replace([{"metadata": {"name": MINE.queue, **mark(owner)}, "spec": {}, "status": status}], 1)
    some.replace(workloads, 1)
    reads: Any = SimpleNamespace(
        cluster_queues=SimpleNamespace(cache=queues), workloads=SimpleNamespace(cache=some)
    )
    return KueueView(reads)


@pytest.mark.covers("OME-056", "OME-057", "OME-060")
@pytest.mark.parametrize(
    ("one", "holds"),
    [
        (workload(RESERVED), 8),
        (workload(RESERVED, back=1), 6),
        (workload(RESERVED, back=3), 2),
        # Admitted or not: reserved quota is not available to others.
        (workload(RESERVED, said("Admitted", "False")), 8),
        (workload(RESERVED, said("Evicted")), 8),
        (workload(RESERVED, said("Finished", "False")), 8),
    ],
)
def test_what_a_workload_holds(one: Json, holds: int) -> None:
    ((reserved, (holder,)),) = view(one).all().items()
    assert (reserved, holder.name, holder.kind) == (MINE, "team/job", "Workload")
    assert dict(holder.usage) == {FlavorResource("h100", GPU): holds}


@pytest.mark.covers("OME-060", "OME-061")
@pytest.mark.parametrize(
    "one",
    [
        workload(),
        workload({**RESERVED, "status": "False"}),
        workload(RESERVED, said("Finished")),
        workload(RESERVED, queue="other"),
        # It stands for a dedicated cluster, which is reported under its own name.
        workload(RESERVED, labels={names.MANAGED_BY: "capacity-broker"}),
    ],
    ids=["no quota", "no quota any more", "finished", "of another queue", "the broker's own"],
)
def test_who_holds_nothing(one: Json) -> None:
    assert view(one).all() == {}


def test_what_was_given_back_whole_holds_nothing() -> None:
    (holder,) = view(workload(RESERVED, back=4)).holders(MINE)
    assert dict(holder.usage) == {}


def test_a_queue_that_was_made_for_another_is_not_its() -> None:
    other = view(workload(RESERVED), owner=Reserved("team", "other"))
    assert other.holders(MINE) == () and [*other.all()] == []


@pytest.mark.covers("OME-066")
@pytest.mark.parametrize(
    ("conditions", "why"),
    [
        ((), ""),
        ((said("PodsReady", "False", reason="WaitForStart"),), ""),
        (
            (said("PodsReady", "False", reason="WaitForRecovery"),),
            "its pods were ready and are no longer: so",
        ),
        ((said("Evicted", "False"),), ""),
        ((said("Evicted", reason="Preempted"),), "evicted (Preempted): so"),
    ],
)
def test_what_is_wrong_with_it(conditions: tuple[Json, ...], why: str) -> None:
    (holder,) = view(workload(RESERVED, *conditions)).holders(MINE)
    assert (holder.why, holder.healthy) == (why, not why)


@pytest.mark.covers("OME-018", "OME-083")
@pytest.mark.parametrize(
    ("says", "active", "reason"),
    [
        (said("Active", reason="Ready"), True, "Ready"),
        (said("Active", "False", reason="FlavorNotFound"), False, "FlavorNotFound"),
        (said("Active", "Unknown"), False, "ClusterQueuePending"),
        (said("Other"), False, "ClusterQueuePending"),
    ],
)
def test_whether_its_queue_admits_anybody(says: Json, active: bool, reason: str) -> None:
    assert view(says=(says,)).active(MINE)[:2] == (active, reason)
    theirs = view(says=(says,), owner=Reserved("team", "other"))
    assert theirs.active(MINE)[:2] == (False, "ClusterQueueNotCreated")
