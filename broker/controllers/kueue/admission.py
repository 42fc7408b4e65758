"""Answers the admission check of all workloads that wait for reserved capacity, in one pass.

Invariant: Ready requires room that no earlier answer has promised, and is taken back (Retry) if the promised
instances are gone before any pod runs. Workloads are answered in the order of
priority, then of the time of their quota reservation. Each request is answered once. A write applies only to
the version of the workload that was decided about. It is forced, since Kueue's own managers (kueue,
kueue-admission) own the entry too.

A workload without room gets Retry, and Kueue evicts it, so that its quota is free for other workloads. Kueue
would queue it again at once, so the broker parks it. `status.requeueState.requeueAt` comes with the Retry and
then holds the time of the next try. The broker removes it as soon as there is room, or when the time is over.
Kueue then queues the workload again, reserves quota, and requests the check anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from broker.apis.kueue import EVICTED, AdmissionCheckState, Workload
from broker.apis.meta import Json, is_true
from broker.controllers.assumed import UnattributedSlots
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.kueue.answers import (
    CheckAnswer,
    backoff,
    body,
    increase,
    parked_body,
    pending,
    ready,
    retry,
)
from broker.controllers.kueue.promises import Demand, Promise, broken, promises, replaced_demand, turn
from broker.controllers.kueue.running import running_now, running_workloads
from broker.controllers.kueue.supply import DemandCache, SupplySnapshot, launchable_instances
from broker.controllers.snapshot import Snapshot
from broker.kube.controller import Result
from broker.quota.usage import ReservationKey
from broker.reservations.claims import claims_of_nodes, node_odcr, occupied_odcr
from broker.reservations.kueue_checks import CHECK, PARKED, WAITS, is_parked, refused
from broker.reservations.kueue_objects import WAITING, owner_of
from broker.reservations.slots import unnamed
from broker.reservations.workloads import reserves

RECHECK_SECONDS: Final = 60.0  # seconds until Pending workloads are reconciled again


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRejection:
    """A refused request: the reservation, and the pods of each flavor."""

    reserved: ReservationKey
    demand: Demand


class AdmissionCheckController:
    """`run` is one pass over all waiting workloads."""

    def __init__(self, shared: ReservationDependencies) -> None:
        self._client, self._clock = shared.client, shared.clock
        self._caches = shared.caches
        self._reads = shared.reads
        self._unattributed = UnattributedSlots()
        # Refused requests by workload uid: after the eviction Kueue no longer shows them.
        self._refused: dict[str, CheckRejection] = {}
        self._demands = DemandCache(shared.reads.clusters.cache)
        self._settled: object = None  # the instances that all promises fitted
        self._outside: set[str] = set()  # workloads whose pods are outside of reservations

    def run(self, _items: Sequence[str] = ()) -> Result | None:
        snapshot = self._reads.snapshot()
        ownership = snapshot.odcrs.owned
        unattributed = self._unattributed.count(  # also without requests: only lasting uses count
            unnamed(ownership, self._instances() if ownership.odcrs else {}), self._clock.now()
        )
        workloads = self._reads.workloads.cache
        requesting = workloads.readable(
            self._demands.demands,
            [
                workload
                for workload in workloads.by(WAITING, CHECK)
                if reserves(workload) and not is_true(workload, EVICTED)
            ],
        )
        parked = workloads.by(PARKED, CHECK)
        instances = launchable_instances(ownership, self._clock.now())
        held = self._keep_promises(snapshot, instances, again=bool(parked) or instances != self._settled)
        due = RECHECK_SECONDS if self._settled is None else float("inf")
        if requesting or parked:
            supply = self._supply(snapshot, unattributed)
            for promise in held:
                supply.hold(promise.reserved, promise.demand)
            due = min(due, self._answer_all([*requesting, *parked], supply))
        self._forget()
        return Result(requeue_after=due) if due < float("inf") else None

    def _supply(self, snapshot: Snapshot, unattributed: Mapping[str, int]) -> SupplySnapshot:
        return SupplySnapshot(snapshot, unattributed=unattributed, now=self._clock.now())

    def _keep_promises(self, snapshot: Snapshot, instances: object, *, again: bool) -> list[Promise]:
        """Takes back promises whose instances are gone; returns the others.

        Instances that are used by others are not gone: they may be this workload's own, and unknown yet.
        """
        held = promises(self._reads, snapshot, self._demands)
        gone: set[str] = set()
        if again:
            runs = running_workloads((promise.workload for promise in held), self._caches)
            self._outside = runs.outside
            held = [promise for promise in held if promise.workload.key not in self._outside]
            lost, fits = broken(held, self._supply(snapshot, {}), runs)
            self._settled = instances if fits and not lost else None
            started = self._started([promise for promise, _ in lost], held)
            for promise, short in lost:
                if promise.workload.key in started:
                    continue  # the caches will show it
                self._refuse(promise.workload, promise.reserved, promise.demand)
                answer = retry(short, was_ready=True)
                self._apply(body(promise.workload, CHECK, answer, self._clock.now()))
                gone.add(promise.workload.key)
        return [promise for promise in held if promise.workload.key not in self._outside | gone]

    def _started(self, lost: Sequence[Promise], held: Sequence[Promise]) -> Collection[str]:
        """The workloads that lose their promise, and that run. Raises ApiError."""
        if not lost:
            return ()
        chosen = [promise.workload for promise in lost]
        return running_now(chosen, (promise.workload for promise in held), self._caches, self._client)

    def _answer_all(self, waiting: Sequence[Workload], supply: SupplySnapshot) -> float:
        """Answers requests, and releases parked workloads that have room; returns the seconds to the next
        time.
        """
        due = float("inf")
        for workload in sorted(waiting, key=turn):
            with self._reads.workloads.cache.guard(workload):
                if refused(workload, CHECK):
                    due = min(due, self._park(workload, supply))
                    continue
                answer = self._answer(workload, supply)
                if answer.state == "Pending":
                    due = min(due, RECHECK_SECONDS)
                if answer.state != "Pending" or not _entry(workload).message.startswith(WAITS):
                    self._apply(body(workload, CHECK, answer, self._clock.now()))
        return due

    def _instances(self) -> Mapping[str, int]:
        """The instances of this cluster by ODCR: Nodes, and claims without one."""
        nodes = self._caches.nodes.list()
        claim_of, before_nodes = claims_of_nodes(nodes, self._caches.claims.list())
        known = Counter(node_odcr(node, claim_of.get(node.name)) for node in nodes)
        known.update(map(occupied_odcr, before_nodes))
        return known

    def _answer(self, workload: Workload, supply: SupplySnapshot) -> CheckAnswer:
        admission = workload.status.admission
        name = admission.cluster_queue if admission else ""
        queue = self._reads.cluster_queues.cache.get(name)
        reserved = owner_of(queue) if queue is not None else None
        if reserved is None:
            return pending(
                f"ClusterQueue {name} is of no reservation; take the check {CHECK} out of its "
                "admissionChecksStrategy"
            )
        demand = self._demands.demands(workload)
        short, used = supply.place(reserved, self._beyond_replaced(workload, demand))
        if not short:
            return ready(workload, reserved, used, supply.labels(used))
        self._refuse(workload, reserved, demand)
        return retry(short)

    def _refuse(self, workload: Workload, reserved: ReservationKey, demand: Demand) -> None:
        self._refused[workload.uid] = CheckRejection(reserved=reserved, demand=demand)

    def _beyond_replaced(self, workload: Workload, demand: Demand) -> Demand:
        """The pods that need room: those of a workload that it replaces have theirs."""
        return increase(demand, replaced_demand(workload, self._reads, self._demands))

    def _park(self, workload: Workload, supply: SupplySnapshot) -> float:
        """Keeps an evicted workload out of Kueue's queue while there is no room; returns the seconds.

        A workload that was refused before this broker led is released: its next refusal is remembered.
        """
        now, state = self._clock.now(), workload.status.requeue_state
        until = state.requeue_at if state is not None else None
        is_new = not is_parked(workload)
        if is_new and until is not None and until > now:
            return float("inf")  # another check set the time
        if not is_new and until is None:
            return float("inf")  # released: Kueue has it in its queue
        known = self._refused.get(workload.uid)
        short: list[str] = []
        if known is not None:
            short, _ = supply.place(known.reserved, self._beyond_replaced(workload, known.demand))
        if is_new:
            seconds = backoff(_entry(workload).retry_count) if short else 0
            why = "; ".join([*short, f"checked again as soon as there is room, and in {seconds} s"])
            self._apply(parked_body(workload, CHECK, why, now, now + timedelta(seconds=seconds)))
            return seconds
        assert until is not None
        if short and until > now:
            return (until - now).total_seconds()
        self._release(workload)
        return float("inf")

    def _release(self, workload: Workload) -> None:
        """Removes `requeueAt`, so that Kueue queues the workload again."""
        meta = {"resourceVersion": workload.metadata.resource_version}
        body = {"metadata": meta, "status": {"requeueState": {"requeueAt": None}}}
        self._reads.workloads.patch_status(self._client, workload, body)

    def _apply(self, body: Json) -> None:
        informer = self._reads.workloads
        informer.write(lambda: self._client.apply(informer.kind, body, subresource="status"))

    def _forget(self) -> None:
        """Drops the refusals and cached demands of workloads that are gone."""
        workloads = self._reads.workloads.cache
        self._demands.forget(workloads)
        if len(self._refused) > 2 * len(workloads) + 100:
            alive = {workload.uid for workload in workloads.list()}
            self._refused = {uid: known for uid, known in self._refused.items() if uid in alive}


def _entry(workload: Workload) -> AdmissionCheckState:
    return next(check for check in workload.status.admission_checks if check.name == CHECK)
