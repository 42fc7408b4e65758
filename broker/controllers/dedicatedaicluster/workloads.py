"""Reads, creates, shrinks and deletes the Workloads of dedicated clusters in Kueue.

Invariant: a Workload is deleted only when the cluster's instances are gone, or if it was never admitted.
Other Workloads are never touched. Labels and owner references prove nothing: any creator of a Workload
can write them. A Workload belongs to a cluster only in a queue of the cluster's reservation: the
ClusterQueue that admitted it, or the LocalQueue in which it waits. `kueue_quota` derives the decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.apis.kueue import LocalQueue, Workload
from broker.controllers.dedicatedaicluster import kueue_quota
from broker.controllers.dedicatedaicluster.demand import ClusterDemand
from broker.controllers.dedicatedaicluster.snapshot import ClusterSnapshot, ClusterState
from broker.controllers.dedicatedaicluster.status import ClusterEviction, ClusterStatus
from broker.controllers.reservation_reads import ReservationReads
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import AlreadyExists
from broker.quota.entitled import AdmissionDecision
from broker.quota.model import Amounts
from broker.quota.usage import ReservationKey
from broker.reservations.kueue_checks import is_parked
from broker.reservations.kueue_objects import BY_RESERVATION, owning_cluster, queue_name


class ClusterQueueing:
    """The order of calls: `refresh` before a pass, then `decision` and `update_workloads` for a cluster."""

    def __init__(self, client: Client, reads: ReservationReads, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        # A separate field manager: an apply by the broker's own would remove its check answers.
        self._pods = client.replace(field_manager=f"{client.field_manager}-pods")
        self._reads = reads
        self._workloads: dict[str, list[Workload]] = {}

    @property
    def known(self) -> bool:
        """Whether Workloads and LocalQueues are both read: Kueue's kinds may appear one after the other."""
        reads = self._reads
        return reads.workloads.served and reads.local_queues.served

    def refresh(self) -> None:
        """Reads the Workloads of all clusters from the cache."""
        self._workloads = {}
        for workload in self._reads.workloads.cache.list():
            cluster = owning_cluster(workload, self._reads.clusters.cache.get)
            if cluster is not None:
                self._workloads.setdefault(cluster.uid, []).append(workload)
        for workloads in self._workloads.values():
            workloads.sort(key=lambda workload: workload.name)

    def decision(
        self, state: ClusterState, snapshot: ClusterSnapshot
    ) -> tuple[AdmissionDecision | None, ClusterEviction | None]:
        """Kueue's decision about the cluster, or its eviction."""
        workloads = self._workloads_of(state)
        evicted = kueue_quota.eviction(workloads) if state.held is not None else None
        if evicted is not None or state.request is None or not isinstance(state.demand, ClusterDemand):
            return None, evicted
        held = None if state.held is None else state.held.usage
        return kueue_quota.decision(workloads, state.demand, held, snapshot.permanent_refusal(state)), None

    def counted_usage(self, state: ClusterState, held: Amounts) -> Amounts:
        """The quota that Kueue counts for a cluster that needs `held`."""
        return kueue_quota.counted_usage(self._workloads_of(state), held)

    def update_workloads(self, state: ClusterState, status: ClusterStatus, *, evicted: bool) -> None:
        """Updates the cluster's Workloads, after its status is written."""
        workloads = [
            self._report_pods_ready(workload) if kueue_quota.unready(workload) else workload
            for workload in self._workloads_of(state)
        ]
        known = isinstance(state.demand, ClusterDemand) and isinstance(state.reserved, ReservationKey)
        if state.terminating or not known or evicted:
            if status.held is None:
                for workload in workloads:
                    self._reads.workloads.delete(self._client, workload)
            return
        if state.barred or not isinstance(state.demand, ClusterDemand):
            return
        if state.full and status.held is None and not workloads:
            return
        for workload in workloads:
            if kueue_quota.sent_back(workload) and is_parked(workload):
                body = kueue_quota.unreserved(workload, self._clock.now())
                self._reads.workloads.patch_status(self._client, workload, body)
        # Without a job, only deletion makes Kueue free the quota: it waits until the instances are gone.
        gone = [
            workload
            for workload in workloads
            if workload.status.admission is not None
            and kueue_quota.evicted(workload)
            and not kueue_quota.sent_back(workload)
        ]
        stays = kueue_quota.usage(workload for workload in workloads if kueue_quota.admitted(workload))
        if status.held is not None and any(v > stays.get(key, 0) for key, v in status.held.usage.items()):
            gone = [workload for workload in gone if not kueue_quota.counted(workload)]
        if late := [*gone, *kueue_quota.outdated(workloads, state.demand)]:
            for workload in late:
                self._reads.workloads.delete(self._client, workload)
            return
        if amounts := kueue_quota.lacking(workloads, state.demand):
            self._create(state, workloads, amounts, state.demand)
        elif status.held is not None:
            for workload, back in kueue_quota.given_back(workloads, status.held.usage):
                self._give_back(workload, back)

    def _workloads_of(self, state: ClusterState) -> Sequence[Workload]:
        """The cluster's Workloads: those in a queue of its reservation."""
        named = (state.reserved, state.held.reserved if state.held else None)
        reservations = [reserved for reserved in named if isinstance(reserved, ReservationKey)]
        queues = {queue_name(reserved) for reserved in reservations}
        local_queues = {
            (queue.namespace, queue.name) for reserved in reservations for queue in self._queues(reserved)
        }

        def is_in(workload: Workload) -> bool:
            admission = workload.status.admission
            if admission is not None:
                return admission.cluster_queue in queues
            return (workload.namespace, workload.spec.queue_name) in local_queues

        candidates = self._workloads.get(state.cluster.uid, ())
        return [workload for workload in candidates if not workload.deleting and is_in(workload)]

    def _create(
        self,
        state: ClusterState,
        workloads: Sequence[Workload],
        amounts: Mapping[str, int],
        demand: ClusterDemand,
    ) -> None:
        queue = self._queue(state)
        if queue is None:
            return  # the reservation's status has the reason; a new queue triggers a reconcile
        whole = self._reads.cluster_queues.cache.get(queue.spec.cluster_queue)
        taken = {workload.name.rpartition("-")[2] for workload in workloads}
        number = next(n for n in range(len(taken) + 1) if str(n) not in taken)
        body = kueue_quota.body(
            state.cluster,
            number,
            amounts,
            namespace=queue.namespace,
            queue=queue.name,
            demand=demand,
            priority=state.priority,
            split=whole is not None and kueue_quota.can_split(whole.spec, amounts),
        )
        informer = self._reads.workloads
        try:
            informer.cache.observe(self._client.create(informer.kind, body))
        except AlreadyExists:
            return

    def _queue(self, state: ClusterState) -> LocalQueue | None:
        """The reservation's LocalQueue that comes first by namespace and name; None if there is none."""
        queues = self._queues(state.reserved) if isinstance(state.reserved, ReservationKey) else ()
        return min(
            (queue for queue in queues if not queue.deleting),
            key=lambda queue: queue.key,
            default=None,
        )

    def _queues(self, reserved: ReservationKey) -> Sequence[LocalQueue]:
        """The reservation's LocalQueues that lead to its ClusterQueue."""
        queues = self._reads.local_queues.cache.by(BY_RESERVATION, str(reserved))
        return [queue for queue in queues if queue.spec.cluster_queue == queue_name(reserved)]

    def _report_pods_ready(self, workload: Workload) -> Workload:
        informer = self._reads.workloads
        body = kueue_quota.pods_ready(workload, self._clock.now())
        answer = informer.write(lambda: self._pods.apply(informer.kind, body, subresource="status"))
        return workload if answer is None else Workload.decode(answer)

    def _give_back(self, workload: Workload, back: Mapping[str, int]) -> None:
        # Not by server-side apply, which would remove the check answers that the broker applied.
        body = {
            "metadata": {"resourceVersion": workload.metadata.resource_version},
            "status": {"reclaimablePods": [{"name": name, "count": count} for name, count in back.items()]},
        }
        self._reads.workloads.patch_status(self._client, workload, body)
