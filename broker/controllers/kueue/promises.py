"""The room that answered workloads were promised, and the promises that can no longer be kept.

Invariant: a promise that does not fit any more is taken back only from a workload without a running pod. A
running one keeps its room as far as it exists, unless its pods are known to be outside of reservations. A
workload that replaces another (an elastic job's) has the promise of that one until it is Ready itself. So
the workload that it replaces counts once, also after Kueue has finished it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from broker.apis.kueue import REPLACES, Workload
from broker.controllers.kueue.room import PodGroup
from broker.controllers.kueue.running import RunningWorkloads
from broker.controllers.kueue.supply import DemandCache, SupplySnapshot
from broker.controllers.reservation_reads import ReservationReads
from broker.controllers.snapshot import Snapshot
from broker.quota.usage import ReservationKey
from broker.reservations.kueue_checks import CHECK, entry
from broker.reservations.kueue_objects import BY_QUEUE, queue_name
from broker.reservations.workloads import reserved_since, reserves

Demand = Mapping[str, Sequence[PodGroup]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The pods of a workload that have room on the instances of the reservation, by flavor."""

    workload: Workload
    reserved: ReservationKey
    demand: Demand

    @property
    def size(self) -> float:
        groups = [group for pods in self.demand.values() for group in pods if not group.optional]
        return max((max(group.deciding.values(), default=0.0) for group in groups), default=0.0)

    @property
    def answered(self) -> bool:
        """Whether the broker has answered the workload Ready."""
        state = entry(self.workload, CHECK)
        return state is not None and state.state == "Ready"  # Kueue resets it when it evicts


def promises(reads: ReservationReads, snapshot: Snapshot, demands: DemandCache) -> list[Promise]:
    """All promises, of workloads with quota."""
    held: list[Promise] = []
    for reserved, workloads in _by_reservation(reads, snapshot):
        for workload in _last_ones(workloads, reads):
            if (promised := _promised(workload, reads)) is not None:
                with reads.workloads.cache.guard(promised):
                    demand = demands.demands(promised)
                    held.append(Promise(workload=workload, reserved=reserved, demand=demand))
    return held


def replaced_demand(workload: Workload, reads: ReservationReads, demands: DemandCache) -> Demand:
    """The promised pods that go on if the workload starts: those of the workload that it replaces."""
    older = next(iter(_line(workload, reads)), None)
    promised = _promised(older, reads) if older is not None else None
    if promised is None or not (reserves(workload) or reserves(promised)):
        return {}
    return demands.demands(promised)


def turn(workload: Workload) -> tuple[int, float, str]:
    """Sort key: priority, then the time of the quota reservation."""
    return -workload.spec.priority, reserved_since(workload), workload.key


def broken(
    all_promises: Sequence[Promise], supply: SupplySnapshot, runs: RunningWorkloads
) -> tuple[list[tuple[Promise, list[str]]], bool]:
    """The promises that are to be taken back, with the shortages; and whether all others fit.

    Fills the rooms of `supply`.
    """
    by_size = sorted(all_promises, key=lambda promise: (-promise.size, promise.workload.key))
    if _hold(by_size, supply):
        return [], True
    supply.clear()
    lost = []
    idle = [
        promise for promise in all_promises if promise.answered and promise.workload.key not in runs.running
    ]
    idle_keys = {promise.workload.key for promise in idle}
    firm = [promise for promise in by_size if promise.workload.key not in idle_keys]
    fits = _hold(firm, supply)
    for promise in sorted(idle, key=lambda promise: turn(promise.workload)):
        short, _ = supply.place(promise.reserved, promise.demand)
        if short:
            lost.append((promise, short))
    return lost, fits


def _hold(held: Sequence[Promise], supply: SupplySnapshot) -> bool:
    """Holds the room of all; returns whether there is enough."""
    enough = [supply.hold(promise.reserved, promise.demand) for promise in held]
    return all(enough)


def _by_reservation(
    reads: ReservationReads, snapshot: Snapshot
) -> Iterator[tuple[ReservationKey, list[Workload]]]:
    for reserved in snapshot.reservations:
        yield (
            reserved,
            [
                workload
                for workload in reads.workloads.cache.by(BY_QUEUE, queue_name(reserved))
                if reserves(workload)
            ],
        )


def _last_ones(workloads: Sequence[Workload], reads: ReservationReads) -> Iterable[Workload]:
    """Those that no other one replaces."""
    replaced = {older.key for workload in workloads for older in _line(workload, reads)}
    return [workload for workload in workloads if workload.key not in replaced]


def _promised(workload: Workload, reads: ReservationReads) -> Workload | None:
    """The newest workload in its line of replacements that is past the check."""
    past = (item for item in (workload, *_line(workload, reads)) if not _is_open(item))
    promised = next(past, None)
    return promised if promised is not None and promised.status.admission is not None else None


def _line(workload: Workload, reads: ReservationReads) -> list[Workload]:
    """The workloads that it replaces, one after another, the newest first."""
    line: list[Workload] = []
    newer = workload
    while (older := _replaced(newer, reads)) is not None and older.key not in {item.key for item in line}:
        if older.key == workload.key:
            return []  # a ring
        line.append(older)
        newer = older
    return line


def _replaced(workload: Workload, reads: ReservationReads) -> Workload | None:
    key = workload.annotations.get(REPLACES, "")
    older = reads.workloads.cache.find(key) if key else None
    return older if older is not None and _is_slice(older, workload) else None


def _is_slice(older: Workload, newer: Workload) -> bool:
    """Whether both are of one job."""
    owners = [{owner.uid for owner in item.metadata.owner_references} for item in (older, newer)]
    return older.namespace == newer.namespace and owners[0] == owners[1] and older.key != newer.key


def _is_open(workload: Workload) -> bool:
    """Whether the broker's check is open. Retry counts as open: the workload is about to lose its quota."""
    state = entry(workload, CHECK)
    return state is not None and state.state in ("Pending", "Retry")
