"""How often changes of workloads trigger a pass over the reservations."""

from __future__ import annotations

import pytest

from broker.apis.kueue import ClusterQueue, Workload
from broker.controllers.capacityreservation.controller import UsageThrottle
from broker.controllers.capacityreservation.related_objects import status_inputs
from broker.kube.controller import Result
from broker.reservations.workloads import counts_as

Json = dict[str, object]


class Runs:
    """A counter in place of a loop's run."""

    def __init__(self, again: Result | None = None) -> None:
        self.count = 0
        self.again = again

    def __call__(self) -> Result | None:
        self.count += 1
        return self.again


@pytest.mark.covers("SAF-76")
def test_the_first_change_runs_at_once_and_later_ones_together() -> None:
    runs = Runs()
    use = UsageThrottle(runs)
    assert use.changed()
    assert not use.changed()  # the requested pass sees it too
    assert use.run() == Result(requeue_after=UsageThrottle.EVERY)
    assert [use.changed() for _ in range(5)] == [False] * 5
    assert use.run() == Result(requeue_after=UsageThrottle.EVERY)
    assert use.run() is None  # nothing has changed since
    assert use.changed()
    assert runs.count == 3


@pytest.mark.parametrize(
    ("again", "after"), [(None, 0.5), (Result(requeue_after=0.0), 0.0), (Result(requeue_after=60.0), 0.5)]
)
def test_an_earlier_requeue_is_kept(again: Result | None, after: float) -> None:
    use = UsageThrottle(Runs(again))
    assert use.run() == again
    use.changed()
    assert use.run() == Result(requeue_after=after)


def workload(
    *conditions: tuple[str, str, str], pods: int = 0, admission: bool = True, **spec: object
) -> Workload:
    status: Json = {
        "conditions": [{"type": type_, "status": status, "reason": why} for type_, status, why in conditions],
        "reclaimablePods": [{"name": "main", "count": pods}] if pods else [],
    }
    if admission:
        status["admission"] = {"clusterQueue": "q", "podSetAssignments": [{"name": "main"}]}
    return Workload.decode({"metadata": {"name": "w"}, "spec": spec, "status": status})


HOLDS = ("QuotaReserved", "True", "QuotaReserved")


@pytest.mark.covers("SAF-76")
@pytest.mark.parametrize(
    ("new", "changes"),
    [
        (workload(HOLDS), False),
        (workload(HOLDS, ("Admitted", "True", "Admitted")), False),
        (workload(HOLDS, ("PodsReady", "True", "Started")), False),
        (workload(HOLDS, pods=1), True),
        (workload(HOLDS, priority=3), True),
        (workload(HOLDS, ("Evicted", "True", "Preempted")), True),
        (workload(HOLDS, ("Finished", "True", "Succeeded")), True),
        (workload(admission=False), True),
        (None, True),
    ],
)
def test_only_relevant_changes_of_a_workload_trigger_a_pass(new: Workload | None, changes: bool) -> None:
    assert (counts_as(workload(HOLDS)) != counts_as(new)) is changes


def queue(
    *, pending: int = 0, holds: int = 0, active: str = "True", deleted: bool = False, **spec: object
) -> ClusterQueue:
    meta: Json = {"name": "q", "uid": "u"}
    if deleted:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    condition = {"type": "Active", "status": active, "reason": "Ready"}
    status: Json = {"pendingWorkloads": pending, "reservingWorkloads": holds, "conditions": [condition]}
    return ClusterQueue.decode({"metadata": meta, "spec": spec, "status": status})


@pytest.mark.covers("SAF-76")
@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        (queue(), queue(pending=5, holds=3), False),
        (queue(), queue(active="False"), True),
        (queue(), queue(stopPolicy="Hold"), True),
        (queue(), None, True),
        (queue(deleted=True, holds=3), queue(deleted=True, holds=2), True),
    ],
)
def test_counts_of_kueue_in_a_queue_trigger_no_pass(
    old: ClusterQueue, new: ClusterQueue | None, changes: bool
) -> None:
    assert (status_inputs(old) != status_inputs(new)) is changes
