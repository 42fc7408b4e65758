"""The Workloads of a dedicated cluster, pass after pass over an API server, without threads."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from broker.apis.kueue import PODS_READY, CheckState, ClusterQueue, LocalQueue, Namespace, Workload
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.dedicatedaicluster.demand import ClusterDemand
from broker.controllers.dedicatedaicluster.snapshot import ClusterSnapshot, ClusterState
from broker.controllers.dedicatedaicluster.status import ClusterEviction, ClusterStatus
from broker.controllers.dedicatedaicluster.workloads import ClusterQueueing
from broker.controllers.kueue.answers import CheckAnswer, body, parked_body
from broker.controllers.reservation_reads import ReservationReads
from broker.kube.client import Client
from broker.quota.entitled import AdmissionPhase
from broker.quota.model import FlavorResource
from broker.quota.usage import ReservationKey
from broker.reservations.cluster_admission import held
from broker.reservations.kueue_checks import CHECK
from broker.reservations.kueue_objects import mark
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.kueue.definitions import install
from tests.kueue.played import Kueue
from tests.support.clock import FakeClock

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
MINE = ReservationKey("team", "gpu")
EMPTY = ClusterSnapshot(reservations={}, specs={}, flavors={}, clusters=(), other_holders=())


class Stage:
    """A cluster that requests GPUs, and its reservation's queue in namespace team with the broker's check."""

    def __init__(self, reserved: ReservationKey = MINE) -> None:
        self.reserved = reserved
        transport = InProcessTransport(Cluster())
        self.client = Client(transport)
        install(self.client)
        self.client.create(Namespace.KIND, {"metadata": {"name": "team"}})
        queue: Json = {"metadata": {"name": reserved.queue, **mark(reserved)}}
        queue["spec"] = {"admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]}}
        self.client.create(ClusterQueue.KIND, queue)
        local: Json = {"metadata": {"name": "gpu", "namespace": "team", **mark(reserved)}}
        self.client.create(LocalQueue.KIND, {**local, "spec": {"clusterQueue": reserved.queue}})
        self.clock = FakeClock()
        self.kueue = Kueue(transport, now=self.clock.now)
        self.reads = ReservationReads(self.client, clock=self.clock)
        known: Json = {"metadata": {"name": "c", "uid": "12345678-a", "resourceVersion": "1"}, "spec": {}}
        self.reads.clusters.cache.replace([known], 1)
        self.queueing = ClusterQueueing(self.client, self.reads, self.clock)

    def run_pass(self, *, gpus: int, holds: int = 0) -> ClusterEviction | None:
        """One pass over a cluster with this request and these held GPUs. Returns the eviction, if it must
        leave."""
        self.reads.workloads.read()
        self.reads.local_queues.read()
        status: Json = {}
        if holds:
            flavors = [{"name": "h100", "resources": [{"name": GPU, "total": holds}]}]
            status = {"admission": {"reservation": str(self.reserved), "flavors": flavors}}
        cluster = DedicatedAICluster.decode(
            {"metadata": {"name": "c", "uid": "12345678-a"}, "spec": {}, "status": status}
        )
        demand = ClusterDemand(requests={GPU: gpus})
        state = ClusterState(
            cluster=cluster, profile=None, demand=demand, reserved=self.reserved, held=held(cluster)
        )
        self.queueing.refresh()
        self.admission, evicted = self.queueing.decision(state, EMPTY)
        status_ = ClusterStatus(state="ACTIVE", detail="", conditions=(), held=state.held)
        self.queueing.update_workloads(state, status_, evicted=evicted is not None and evicted.keeps is None)
        return evicted

    def workloads(self) -> list[Workload]:
        listed = [Workload.decode(workload) for workload in self.client.list(Workload.KIND)[0]]
        return sorted(listed, key=lambda workload: workload.name)

    def reserves(self, at: int, gpus: int) -> Workload:
        (workload,) = (workload for workload in self.workloads() if workload.name.endswith(f"-{at}"))
        self.kueue.reserves(
            workload.name, self.reserved.queue, {"h100": {GPU: str(gpus)}}, namespace="team", pods=gpus
        )
        return workload

    def checked(self, workload: Workload, state: CheckState) -> None:
        """Applies the check's state as the broker does, then Kueue's reaction."""
        now = self.clock.now()
        current = self.kueue.workload(workload.name, "team")
        body_ = body(current, CHECK, CheckAnswer(state=state, message=""), now)
        self.client.apply(Workload.KIND, body_, subresource="status")
        self.kueue.decides(workload.name, namespace="team")

    def parks(self, workload: Workload) -> None:
        """The check parks a workload that Kueue has evicted for it."""
        now, current = self.clock.now(), self.kueue.workload(workload.name, "team")
        body_ = parked_body(current, CHECK, "no room", now, now + timedelta(minutes=1))
        self.client.apply(Workload.KIND, body_, subresource="status")


@pytest.mark.covers("SAF-53")
@pytest.mark.parametrize("namespace", ["team", "a-tenant"])
@pytest.mark.parametrize("reserved", [MINE, ReservationKey("", "pool")], ids=str)
def test_a_workload_outside_of_the_reservations_queues_is_ignored(
    reserved: ReservationKey, namespace: str
) -> None:
    """A tenant creates a Workload with the cluster as its owner, in a queue of its own that admits it.
    Otherwise the cluster would get instances for it, without quota of its reservation."""
    stage = Stage(reserved)
    if namespace != "team":
        stage.client.create(Namespace.KIND, {"metadata": {"name": namespace}})
    stage.client.create(ClusterQueue.KIND, {"metadata": {"name": "tenants"}, "spec": {}})
    # Marked like the broker's own queues, and first by name.
    local: Json = {"metadata": {"name": "anyones", "namespace": namespace, **mark(reserved)}}
    stage.client.create(LocalQueue.KIND, {**local, "spec": {"clusterQueue": "tenants"}})
    stage.run_pass(gpus=8)
    (own,) = stage.workloads()
    assert (own.namespace, own.spec.queue_name) == ("team", "gpu")
    forged = stage.client.get(Workload.KIND, own.name, namespace=own.namespace)
    forged["metadata"] = {key: forged["metadata"][key] for key in ("labels", "ownerReferences")}
    forged["metadata"] |= {"name": "forged", "namespace": namespace}
    forged["spec"]["queueName"] = "anyones"
    forged.pop("status", None)
    stage.client.create(Workload.KIND, forged)
    stage.kueue.reserves("forged", "tenants", {"h100": {GPU: "8"}}, namespace=namespace, pods=8)
    stage.kueue.decides("forged", namespace=namespace)
    assert stage.kueue.workload("forged", namespace).status.admission is not None
    stage.run_pass(gpus=8)
    assert stage.admission is not None and stage.admission.phase is not AdmissionPhase.ADMITTED
    stage.run_pass(gpus=0)
    assert "forged" in {workload.name for workload in stage.workloads()}  # and it is not ended


@pytest.mark.covers("SAF-70")
def test_a_workload_that_the_check_evicts_frees_its_quota_and_is_requeued() -> None:
    stage = Stage()
    stage.run_pass(gpus=8)
    stage.checked(first := stage.reserves(0, 8), "Ready")
    stage.run_pass(gpus=16, holds=8)
    stage.checked(growth := stage.reserves(1, 8), "Retry")
    stage.run_pass(gpus=16, holds=8)
    assert stage.kueue.counts(MINE.queue) == {
        ("h100", GPU): 16
    }  # until it is parked; otherwise it would return at once
    stage.parks(growth)
    stage.run_pass(gpus=16, holds=8)
    assert stage.kueue.counts(MINE.queue) == {("h100", GPU): 8}
    assert [workload.uid for workload in stage.workloads()] == [first.uid, growth.uid]
    assert stage.kueue.decides(growth.name, namespace="team") == "waits"
    stage.run_pass(gpus=16, holds=8)
    released: Json = {"status": {"requeueState": {"requeueAt": None}}}
    stage.client.patch(Workload.KIND, growth.name, released, namespace="team", subresource="status")
    assert stage.kueue.decides(growth.name, namespace="team") == "requeued"
    stage.checked(stage.reserves(1, 8), "Ready")
    stage.run_pass(gpus=16, holds=16)
    assert [workload.status.admission is not None for workload in stage.workloads()] == [True, True]


def test_only_an_unadmitted_growth_is_evicted() -> None:
    stage = Stage()
    stage.run_pass(gpus=8)
    stage.checked(first := stage.reserves(0, 8), "Ready")
    stage.run_pass(gpus=16, holds=8)
    growth = stage.reserves(1, 8)
    stage.kueue.evicts(growth.name, "InCohortReclamation", "for another", namespace="team")
    assert stage.run_pass(gpus=16, holds=8) is None
    assert [workload.uid for workload in stage.workloads()] == [first.uid]
    stage.run_pass(gpus=16, holds=8)
    assert [workload.status.admission is not None for workload in stage.workloads()] == [True, False]
    # The same for its held quota.
    stage.kueue.evicts(first.name, "InCohortReclamation", "for another", namespace="team")
    evicted = stage.run_pass(gpus=16, holds=8)
    assert evicted is not None
    assert evicted.reason == "InCohortReclamation"
    assert first.uid in {workload.uid for workload in stage.workloads()}  # until its instances are gone


def test_an_evicted_growth_is_returned_after_its_instances_are_gone() -> None:
    stage = Stage()
    stage.run_pass(gpus=8)
    stage.checked(first := stage.reserves(0, 8), "Ready")
    stage.run_pass(gpus=16, holds=8)
    stage.checked(growth := stage.reserves(1, 8), "Ready")
    stage.kueue.evicts(growth.name, "InCohortReclamation", "for another", namespace="team")
    evicted = stage.run_pass(gpus=16, holds=16)
    assert evicted is not None and evicted.keeps == {FlavorResource("h100", GPU): 8}
    assert {workload.uid for workload in stage.workloads()} == {first.uid, growth.uid}
    stage.run_pass(gpus=16, holds=8)
    assert [workload.uid for workload in stage.workloads()] == [first.uid]
    assert stage.run_pass(gpus=16, holds=8) is None
    assert [workload.status.admission is not None for workload in stage.workloads()] == [True, False]


def test_a_waiting_workload_is_recreated_after_the_demand_falls() -> None:
    stage = Stage()
    stage.run_pass(gpus=8)
    stage.checked(first := stage.reserves(0, 8), "Ready")
    stage.run_pass(gpus=24, holds=8)
    stage.reserves(1, 16)
    stage.run_pass(gpus=16, holds=8)
    stage.run_pass(gpus=16, holds=8)
    assert [
        (workload.uid == first.uid, workload.spec.pod_sets[0].count) for workload in stage.workloads()
    ] == [
        (True, 8),
        (False, 8),
    ]


def test_an_admitted_workload_is_reported_as_pods_ready() -> None:
    stage = Stage()

    def ready() -> list[str]:
        (workload,) = stage.workloads()
        return [condition.status for condition in workload.status.conditions if condition.type == PODS_READY]

    stage.run_pass(gpus=8)
    first = stage.reserves(0, 8)
    stage.run_pass(gpus=8)
    assert ready() == []
    stage.checked(first, "Ready")
    stage.run_pass(gpus=8)
    assert ready() == ["True"]
    (admitted,) = stage.workloads()
    assert [(check.name, check.state) for check in admitted.status.admission_checks] == [(CHECK, "Ready")]
    stage.run_pass(gpus=8, holds=8)
    assert stage.workloads() == [admitted]  # once
    # A return in the same pass as the report is written all the same.
    stage.run_pass(gpus=16, holds=8)
    stage.checked(stage.reserves(1, 8), "Ready")
    stage.run_pass(gpus=8, holds=8)
    assert [[pods.count for pods in workload.status.reclaimable_pods] for workload in stage.workloads()] == [
        [],
        [8],
    ]
