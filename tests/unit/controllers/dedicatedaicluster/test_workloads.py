"""The Workloads of a dedicated cluster, pass after pass over an API server, without threads."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from broker.apis.kueue import PODS_READY, CheckState, ClusterQueue, LocalQueue, Namespace, Workload
from broker.apis.ome_clusters import DedicatedAICluster
from broker.apiserver import Cluster
from broker.controllers.dedicatedaicluster.demand import ClusterDemand
from broker.controllers.dedicatedaicluster.snapshot import ClusterSnapshot, ClusterState
from broker.controllers.dedicatedaicluster.status import ClusterEviction, ClusterStatus
from broker.controllers.dedicatedaicluster.workloads import ClusterQueueing
from broker.controllers.kueue.answers import CheckAnswer, body, parked_body
from broker.controllers.kueue.render import CHECK
from broker.controllers.reservation_reads import ReservationReads
from broker.kube.client import Client
from broker.kube.clock import FakeClock
from broker.kube.transports import InProcessTransport
from broker.quota.entitled import AdmissionPhase
from broker.quota.model import FlavorResource
from broker.quota.usage import Reserved
from broker.reservations.cluster_admission import held
from broker.reservations.kueue_objects import mark
from tests.kueue.definitions import install
from tests.kueue.played import Kueue

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
MINE = Reserved("team", "gpu")
EMPTY = ClusterSnapshot(reservations={}, specs={}, flavors={}, asking=(), others=())


class Stage:
    """A cluster that wants GPUs of a reservation, and its queue in namespace team with the broker's check."""

    def __init__(self, reserved: Reserved = MINE) -> None:
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

    def passes(self, *, wants: int, holds: int = 0) -> ClusterEviction | None:
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
        wanted = ClusterDemand(requests={GPU: wants})
        one = ClusterState(
            cluster=cluster, profile=None, wanted=wanted, reserved=self.reserved, held=held(cluster)
        )
        self.queueing.look()
        self.verdict, evicted = self.queueing.said(one, EMPTY)
        settled = ClusterStatus(state="ACTIVE", detail="", said=(), held=one.held)
        self.queueing.act(one, settled, evicted=evicted is not None and evicted.keeps is None)
        return evicted

    def workloads(self) -> list[Workload]:
        found = [Workload.decode(each) for each in self.client.list(Workload.KIND)[0]]
        return sorted(found, key=lambda each: each.name)

    def reserves(self, at: int, gpus: int) -> Workload:
        (found,) = (each for each in self.workloads() if each.name.endswith(f"-{at}"))
        self.kueue.reserves(
            found.name, self.reserved.queue, {"h100": {GPU: str(gpus)}}, namespace="team", pods=gpus
        )
        return found

    def checked(self, workload: Workload, state: CheckState) -> None:
        """Applies the check's state as the broker does, then Kueue's reaction."""
        now = self.clock.now()
        found = self.kueue.workload(workload.name, "team")
        said = body(found, CHECK, CheckAnswer(state=state, message=""), now)
        self.client.apply(Workload.KIND, said, subresource="status")
        self.kueue.settles(workload.name, namespace="team")

    def parks(self, workload: Workload) -> None:
        """The check parks a workload that Kueue has evicted for it."""
        now, found = self.clock.now(), self.kueue.workload(workload.name, "team")
        said = parked_body(found, CHECK, "no room", now, now + timedelta(minutes=1))
        self.client.apply(Workload.KIND, said, subresource="status")


@pytest.mark.covers("SAF-53")
@pytest.mark.parametrize("namespace", ["team", "a-tenant"])
@pytest.mark.parametrize("reserved", [MINE, Reserved("", "pool")], ids=str)
def test_workload_outside_the_reservations_queues_is_no_clusters(reserved: Reserved, namespace: str) -> None:
    """A tenant creates a Workload with the cluster as its owner, in a queue of its own that admits it.
    Otherwise the cluster would get instances for it, without quota of its reservation."""
    stage = Stage(reserved)
    if namespace != "team":
        stage.client.create(Namespace.KIND, {"metadata": {"name": namespace}})
    stage.client.create(ClusterQueue.KIND, {"metadata": {"name": "tenants"}, "spec": {}})
    # Marked like the broker's own queues, and first by name.
    local: Json = {"metadata": {"name": "anyones", "namespace": namespace, **mark(reserved)}}
    stage.client.create(LocalQueue.KIND, {**local, "spec": {"clusterQueue": "tenants"}})
    stage.passes(wants=8)
    (own,) = stage.workloads()
    assert (own.namespace, own.spec.queue_name) == ("team", "gpu")
    forged = stage.client.get(Workload.KIND, own.name, namespace=own.namespace)
    forged["metadata"] = {key: forged["metadata"][key] for key in ("labels", "ownerReferences")}
    forged["metadata"] |= {"name": "forged", "namespace": namespace}
    forged["spec"]["queueName"] = "anyones"
    forged.pop("status", None)
    stage.client.create(Workload.KIND, forged)
    stage.kueue.reserves("forged", "tenants", {"h100": {GPU: "8"}}, namespace=namespace, pods=8)
    stage.kueue.settles("forged", namespace=namespace)
    assert stage.kueue.workload("forged", namespace).status.admission is not None
    stage.passes(wants=8)
    assert stage.verdict is not None and stage.verdict.phase is not AdmissionPhase.ADMITTED
    stage.passes(wants=0)
    assert "forged" in {each.name for each in stage.workloads()}  # and it is not ended


@pytest.mark.covers("SAF-70")
def test_what_the_check_evicts_before_it_is_admitted_frees_its_quota_and_queues_again() -> None:
    stage = Stage()
    stage.passes(wants=8)
    stage.checked(first := stage.reserves(0, 8), "Ready")
    stage.passes(wants=16, holds=8)
    stage.checked(growth := stage.reserves(1, 8), "Retry")
    stage.passes(wants=16, holds=8)
    assert stage.kueue.counts(MINE.queue) == {
        ("h100", GPU): 16
    }  # until it is parked; otherwise it would return at once
    stage.parks(growth)
    stage.passes(wants=16, holds=8)
    assert stage.kueue.counts(MINE.queue) == {("h100", GPU): 8}
    assert [each.uid for each in stage.workloads()] == [first.uid, growth.uid]
    assert stage.kueue.settles(growth.name, namespace="team") == "waits"
    stage.passes(wants=16, holds=8)
    released: Json = {"status": {"requeueState": {"requeueAt": None}}}
    stage.client.patch(Workload.KIND, growth.name, released, namespace="team", subresource="status")
    assert stage.kueue.settles(growth.name, namespace="team") == "requeued"
    stage.checked(stage.reserves(1, 8), "Ready")
    stage.passes(wants=16, holds=16)
    assert [each.status.admission is not None for each in stage.workloads()] == [True, True]


def test_a_growth_that_was_never_admitted_goes_alone() -> None:
    stage = Stage()
    stage.passes(wants=8)
    stage.checked(first := stage.reserves(0, 8), "Ready")
    stage.passes(wants=16, holds=8)
    growth = stage.reserves(1, 8)
    stage.kueue.evicts(growth.name, "InCohortReclamation", "for another", namespace="team")
    assert stage.passes(wants=16, holds=8) is None
    assert [each.uid for each in stage.workloads()] == [first.uid]
    stage.passes(wants=16, holds=8)
    assert [each.status.admission is not None for each in stage.workloads()] == [True, False]
    # The same for its held quota.
    stage.kueue.evicts(first.name, "InCohortReclamation", "for another", namespace="team")
    evicted = stage.passes(wants=16, holds=8)
    assert evicted is not None
    assert evicted.reason == "InCohortReclamation"
    assert first.uid in {each.uid for each in stage.workloads()}  # until its instances are gone


def test_a_growth_that_kueue_evicts_gives_back_its_own_share_once_its_instances_are_gone() -> None:
    stage = Stage()
    stage.passes(wants=8)
    stage.checked(first := stage.reserves(0, 8), "Ready")
    stage.passes(wants=16, holds=8)
    stage.checked(growth := stage.reserves(1, 8), "Ready")
    stage.kueue.evicts(growth.name, "InCohortReclamation", "for another", namespace="team")
    evicted = stage.passes(wants=16, holds=16)
    assert evicted is not None and evicted.keeps == {FlavorResource("h100", GPU): 8}
    assert {each.uid for each in stage.workloads()} == {first.uid, growth.uid}
    stage.passes(wants=16, holds=8)
    assert [each.uid for each in stage.workloads()] == [first.uid]
    assert stage.passes(wants=16, holds=8) is None
    assert [each.status.admission is not None for each in stage.workloads()] == [True, False]


def test_what_waits_for_its_check_is_made_otherwise_once_less_is_wanted() -> None:
    stage = Stage()
    stage.passes(wants=8)
    stage.checked(first := stage.reserves(0, 8), "Ready")
    stage.passes(wants=24, holds=8)
    stage.reserves(1, 16)
    stage.passes(wants=16, holds=8)
    stage.passes(wants=16, holds=8)
    assert [(each.uid == first.uid, each.spec.pod_sets[0].count) for each in stage.workloads()] == [
        (True, 8),
        (False, 8),
    ]


def test_kueue_need_not_wait_for_the_pods_of_who_has_none_once_it_is_admitted() -> None:
    stage = Stage()

    def ready() -> list[str]:
        (one,) = stage.workloads()
        return [each.status for each in one.status.conditions if each.type == PODS_READY]

    stage.passes(wants=8)
    first = stage.reserves(0, 8)
    stage.passes(wants=8)
    assert ready() == []
    stage.checked(first, "Ready")
    stage.passes(wants=8)
    assert ready() == ["True"]
    (told,) = stage.workloads()
    assert [(each.name, each.state) for each in told.status.admission_checks] == [(CHECK, "Ready")]
    stage.passes(wants=8, holds=8)
    assert stage.workloads() == [told]  # once
    # A return in the same pass as the report is written all the same.
    stage.passes(wants=16, holds=8)
    stage.checked(stage.reserves(1, 8), "Ready")
    stage.passes(wants=8, holds=8)
    assert [[each.count for each in one.status.reclaimable_pods] for one in stage.workloads()] == [[], [8]]
