"""Reads, creates, shrinks and deletes the Workloads of dedicated clusters in Kueue.

Invariant: a Workload is deleted only when the cluster's instances are gone, or if it was never admitted.
Other Workloads are never touched. Labels and owner references prove nothing: any creator of a Workload
can write them. A Workload belongs to a cluster only in a queue of the cluster's reservation: the
ClusterQueue that admitted it, or the LocalQueue in which it waits. `kueue_quota` derives the decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.apis.kueue import LocalQueue, Workload
from broker.controllers.dedicatedaicluster import kueue_quota
from broker.controllers.dedicatedaicluster.demand import ClusterDemand
from broker.controllers.dedicatedaicluster.snapshot import ClusterSnapshot, ClusterState
from broker.controllers.dedicatedaicluster.status import ClusterEviction, ClusterStatus
from broker.controllers.kueue.answers import is_parked
from broker.controllers.kueue.render import CHECK
from broker.controllers.reservation_reads import ReservationReads
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import AlreadyExists, Conflict, NotFound
from broker.quota.entitled import AdmissionDecision
from broker.quota.model import Amounts
from broker.quota.usage import Reserved
from broker.reservations.kueue_objects import BY_RESERVATION, owning_cluster, queue_name

Json = dict[str, Any]


class ClusterQueueing:
    """The order of calls: `look` before a pass, then `said` and `act` for each cluster."""

    def __init__(self, client: Client, reads: ReservationReads, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        # A separate field manager: an apply by the broker's own would remove its check answers.
        self._pods = client.replace(field_manager=f"{client.field_manager}-pods")
        self._reads = reads
        self._mine: dict[str, list[Workload]] = {}

    @property
    def known(self) -> bool:
        """Whether Workloads and LocalQueues are both read: Kueue's kinds may appear one after the other."""
        reads = self._reads
        return reads.workloads.served and reads.local_queues.served

    def look(self) -> None:
        """Reads the Workloads of all clusters from the cache."""
        self._mine = {}
        for workload in self._reads.workloads.cache.list():
            cluster = owning_cluster(workload, self._reads.clusters.cache.get)
            if cluster is not None:
                self._mine.setdefault(cluster.uid, []).append(workload)
        for some in self._mine.values():
            some.sort(key=lambda workload: workload.name)

    def said(
        self, one: ClusterState, world: ClusterSnapshot
    ) -> tuple[AdmissionDecision | None, ClusterEviction | None]:
        """Kueue's decision about the cluster, or its eviction."""
        mine = self._of(one)
        evicted = kueue_quota.eviction(mine) if one.held is not None else None
        if evicted is not None or one.want is None or not isinstance(one.wanted, ClusterDemand):
            return None, evicted
        held = None if one.held is None else one.held.usage
        return kueue_quota.verdict(mine, one.wanted, held, world.never(one)), None

    def kept(self, one: ClusterState, held: Amounts) -> Amounts:
        """The quota that Kueue counts for a cluster that needs `held`."""
        return kueue_quota.kept(self._of(one), held)

    def act(self, one: ClusterState, settled: ClusterStatus, *, evicted: bool) -> None:
        """Updates the cluster's Workloads, after its status is written."""
        mine = [
            self._readied(workload) if kueue_quota.unready(workload) else workload
            for workload in self._of(one)
        ]
        known = isinstance(one.wanted, ClusterDemand) and isinstance(one.reserved, Reserved)
        if one.cluster.deleting or not known or evicted or (one.held is not None and one.leaves):
            if settled.held is None:
                for workload in mine:
                    self._delete(workload)
            return
        if one.barred or not isinstance(one.wanted, ClusterDemand):
            return
        for workload in mine:
            if kueue_quota.sent_back(workload) and is_parked(workload, CHECK):
                self._unreserve(workload)
        # Without a job, only deletion makes Kueue free the quota: it waits until the instances are gone.
        gone = [
            workload
            for workload in mine
            if workload.status.admission is not None
            and kueue_quota.evicted(workload)
            and not kueue_quota.sent_back(workload)
        ]
        stays = kueue_quota.usage(workload for workload in mine if kueue_quota.admitted(workload))
        if settled.held is not None and any(v > stays.get(key, 0) for key, v in settled.held.usage.items()):
            gone = [workload for workload in gone if not kueue_quota.counted(workload)]
        if late := [*gone, *kueue_quota.outdated(mine, one.wanted)]:
            for workload in late:
                self._delete(workload)
            return
        if amounts := kueue_quota.lacking(mine, one.wanted):
            self._create(one, mine, amounts, one.wanted)
        elif settled.held is not None:
            for workload, back in kueue_quota.given_back(mine, settled.held.usage):
                self._give_back(workload, back)

    def _of(self, one: ClusterState) -> Sequence[Workload]:
        """The cluster's Workloads: those in a queue of its reservation."""
        named = (one.reserved, one.held.reserved if one.held else None)
        reservations = [workload for workload in named if isinstance(workload, Reserved)]
        queues = {queue_name(workload) for workload in reservations}
        doors = {
            (queue.namespace, queue.name) for workload in reservations for queue in self._queues(workload)
        }

        def is_in(workload: Workload) -> bool:
            admission = workload.status.admission
            if admission is not None:
                return admission.cluster_queue in queues
            return (workload.namespace, workload.spec.queue_name) in doors

        mine = self._mine.get(one.cluster.uid, ())
        return [workload for workload in mine if not workload.deleting and is_in(workload)]

    def _create(
        self, one: ClusterState, mine: Sequence[Workload], amounts: Mapping[str, int], wanted: ClusterDemand
    ) -> None:
        queue = self._queue(one)
        if queue is None:
            return  # the reservation's status has the reason; a new queue triggers a reconcile
        whole = self._reads.cluster_queues.cache.get(queue.spec.cluster_queue)
        taken = {workload.name.rpartition("-")[2] for workload in mine}
        at = next(n for n in range(len(taken) + 1) if str(n) not in taken)
        body = kueue_quota.body(
            one.cluster,
            at,
            amounts,
            namespace=queue.namespace,
            queue=queue.name,
            wanted=wanted,
            priority=one.priority,
            apart=whole is not None and kueue_quota.can_be_apart(whole.spec, amounts),
        )
        informer = self._reads.workloads
        try:
            informer.cache.observe(self._client.create(informer.kind, body))
        except AlreadyExists:
            return

    def _queue(self, one: ClusterState) -> LocalQueue | None:
        """The reservation's LocalQueue that comes first by namespace and name; None if there is none."""
        found = self._queues(one.reserved) if isinstance(one.reserved, Reserved) else ()
        return min(
            (workload for workload in found if not workload.deleting),
            key=lambda workload: workload.key,
            default=None,
        )

    def _queues(self, reserved: Reserved) -> Sequence[LocalQueue]:
        """The reservation's LocalQueues that lead to its ClusterQueue."""
        found = self._reads.local_queues.cache.by(BY_RESERVATION, str(reserved))
        return [workload for workload in found if workload.spec.cluster_queue == queue_name(reserved)]

    def _readied(self, workload: Workload) -> Workload:
        informer = self._reads.workloads
        said = kueue_quota.pods_ready(workload, self._clock.now())
        try:
            answer = self._pods.apply(informer.kind, said, subresource="status")
        except (Conflict, NotFound):
            return workload  # it changed meanwhile, which triggers a reconcile
        informer.cache.observe(answer)
        return Workload.decode(answer)

    def _unreserve(self, workload: Workload) -> None:
        """Frees the quota of a workload that waits for instances."""
        self._patch(workload, kueue_quota.unreserved(workload, self._clock.now()))

    def _give_back(self, workload: Workload, back: Mapping[str, int]) -> None:
        # Not by server-side apply, which would remove the check answers that the broker applied.
        body = {
            "metadata": {"resourceVersion": workload.metadata.resource_version},
            "status": {"reclaimablePods": [{"name": name, "count": count} for name, count in back.items()]},
        }
        self._patch(workload, body)

    def _patch(self, workload: Workload, body: Json) -> None:
        """Patches the status. If the Workload has changed meanwhile, that change triggers a reconcile."""
        informer = self._reads.workloads
        try:
            answer = self._client.patch(
                informer.kind, workload.name, body, namespace=workload.namespace, subresource="status"
            )
        except (Conflict, NotFound):
            return
        informer.cache.observe(answer)

    def _delete(self, workload: Workload) -> None:
        informer = self._reads.workloads
        try:
            answer = self._client.delete(
                informer.kind, workload.name, namespace=workload.namespace, uid=workload.uid
            )
        except (Conflict, NotFound):
            return
        if answer.get("kind") == Workload.KIND.kind:
            informer.cache.observe(answer)
