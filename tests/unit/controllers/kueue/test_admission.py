"""The check states of workloads for reserved instances: pass after pass over an API server, without
threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.crds import KIND as CRD
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import (
    VERSIONS,
    AdmissionCheckState,
    ClusterQueue,
    Cohort,
    Namespace,
    ResourceFlavor,
    Workload,
)
from broker.apis.meta import Kind
from broker.apiserver import Cluster
from broker.controllers.kueue.admission import AdmissionCheckController
from broker.controllers.kueue.render import CHECK
from broker.controllers.reservation_reads import ReservationReads
from broker.controllers.snapshot import SnapshotBuilder
from broker.kube.cache import Cache
from broker.kube.client import Client, Request, Stream
from broker.kube.conditions import timestamp
from broker.kube.errors import NotFound
from broker.kube.transports import InProcessTransport
from broker.quota.usage import Reserved
from broker.reservations.kueue_objects import mark
from broker.reservations.odcr_status import OdcrSnapshot
from broker.reservations.ownership import Ownership
from broker.reservations.spec import JudgedSpecs
from broker.settings import Settings
from providers.model import Gpu, InstanceType, Odcr
from tests.kueue.definitions import definitions, install
from tests.kueue.played import Kueue
from tests.support.caches import claim_caches
from tests.support.clock import FakeClock
from tests.support.dependencies import dependencies

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
TYPE = "p5.48xlarge"
P5 = InstanceType(
    name=TYPE,
    vcpus=192,
    memory_mib=2048 * 1024,
    zones=frozenset({"us-east-1a"}),
    gpus=(Gpu(name="h100", manufacturer="nvidia", count=8, memory_mib=81920),),
)
A, B = Reserved("team", "a"), Reserved("team", "b")


class Types:
    """The only EC2 call that the controller makes."""

    def instance_types(self) -> Mapping[str, InstanceType]:
        return {TYPE: P5}


class World:
    """Reservations a and b of one cohort, with queues, on the embedded API server."""

    def __init__(
        self, *, served: Sequence[str] = VERSIONS, cohorts: Sequence[str] = ("ai", "ai"), **borrows: bool
    ) -> None:
        """`cohorts`: of a and of b; `borrows`: the reservations that may borrow."""
        self.transport = InProcessTransport(Cluster())
        self.client = Client(self.transport, field_manager="test")
        install(self.client, served=served)
        self.clock = FakeClock()
        self.kueue = Kueue(self.transport, version=served[0], now=self.clock.now)
        self.client.create(Namespace.KIND, {"metadata": {"name": "team"}})
        self.owned_odcrs: dict[Reserved, Mapping[str, tuple[Odcr, ...]]] = {}
        self.nodes: Cache[Node] = Cache(Node)
        self.claims: Cache[NodeClaim] = Cache(NodeClaim)
        self.reads = ReservationReads(Client(self.transport), clock=self.clock)
        self.leads()
        for reserved, cohort in zip((A, B), cohorts, strict=True):
            self._reservation(reserved, cohort, borrows.get(reserved.name, False))
        self.flavor("h100", **{names.INSTANCE_TYPE: TYPE})

    def leads(self, settings: Settings | None = None) -> None:
        """Starts a broker that has only the API server's state."""
        self.reads.snapshots = SnapshotBuilder(
            self.reads.reservations,
            self.reads.cluster_reservations,
            self.reads.flavors,
            self.reads.quotas,
            self.reads.clusters,
            self.reads.cluster_queues,
            self.reads.workloads,
            JudgedSpecs(strict=settings is not None and settings.strict),
        )
        self.controller = AdmissionCheckController(
            dependencies(
                Client(self.transport),
                self.clock,
                reads=self.reads,
                provider=Types(),
                caches=claim_caches(self.claims, self.nodes),
            )
        )

    def kind(self, model: type[Any]) -> Kind:
        return self.kueue.kind(model)

    def _reservation(self, reserved: Reserved, cohort: str, borrows: bool) -> None:
        quota = [{"name": "h100", "resources": [{"name": GPU, "nominalQuota": "16"}]}]
        raw = {
            "metadata": {"name": reserved.name, "namespace": reserved.namespace, "resourceVersion": "1"},
            "spec": {
                "cohort": cohort,
                "allowBorrowing": borrows,
                "resourceGroups": [{"coveredResources": [GPU], "flavors": quota}],
            },
        }
        self.reads.reservations.cache.apply("ADDED", raw)
        strategy = {"admissionChecks": [{"name": CHECK}]}
        queue = {"metadata": {"name": reserved.queue, **mark(reserved)}}
        queue["spec"] = {"admissionChecksStrategy": strategy}
        self.client.create(self.kind(ClusterQueue), queue)

    def flavor(self, name: str, **labels: str) -> None:
        body = {"metadata": {"name": name}, "spec": {"nodeLabels": labels}}
        self.client.create(self.kind(ResourceFlavor), body)

    def holds(self, reserved: Reserved, *counts: int, state: str = "active", used: int = 0) -> None:
        self.owned_odcrs[reserved] = {
            "h100": tuple(
                Odcr(
                    id=f"cr-{reserved.name}{n}",
                    instance_type=TYPE,
                    zone="us-east-1a",
                    total=count,
                    available=count - used,
                    state=state,
                )
                for n, count in enumerate(counts)
            )
        }

    def submit(
        self,
        name: str,
        reserved: Reserved = A,
        *,
        gpus: int = 8,
        flavor: str = "h100",
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """A workload of one pod, for which Kueue has reserved quota."""
        try:
            self.kueue.workload(name, "team")
        except NotFound:
            pod_sets = [{"name": "main", "count": 1, "template": {"spec": {}}}]
            meta = {"name": name, "namespace": "team", "labels": dict(labels or {})}
            spec = {"queueName": reserved.name, "priority": priority, "podSets": pod_sets}
            self.client.create(self.kind(Workload), {"metadata": meta, "spec": spec})
        self.kueue.reserves(name, reserved.queue, {flavor: {GPU: str(gpus)}}, namespace="team")

    def check_states(self, *workloads: str) -> list[str]:
        """Runs one pass. Returns the states of these workloads' checks."""
        self.read_all()
        self.controller.run()
        return [self.check_of(name).state for name in workloads]

    def read_all(self) -> None:
        reads = self.reads
        reads.snapshots.publish(OdcrSnapshot(ownership=Ownership(odcrs=dict(self.owned_odcrs))))
        for informer in (reads.workloads, reads.cluster_queues, reads.flavors, reads.cohorts):
            informer.read()

    def check_of(self, name: str) -> AdmissionCheckState:
        checks = self.kueue.workload(name, "team").status.admission_checks
        return next(check for check in checks if check.name == CHECK)


def test_higher_priority_first_then_the_earlier_workload() -> None:
    world = World()
    world.holds(A, 1)
    world.submit("low")
    world.submit("high", priority=10)
    assert world.check_states("low", "high") == ["Retry", "Ready"]


def test_a_ready_workload_keeps_its_instances_in_the_next_pass() -> None:
    world = World()
    world.holds(A, 2)
    world.submit("one")
    assert world.check_states("one") == ["Ready"]
    world.submit("two")
    world.submit("three")
    assert sorted(world.check_states("two", "three")) == ["Ready", "Retry"]
    world.kueue.finishes("one", namespace="team")
    world.submit("four")
    assert world.check_states("four") == ["Ready"]


@pytest.mark.covers("CAP-07")
@pytest.mark.parametrize(
    ("attributed_by", "seconds", "expected"),
    [
        ("nothing", 60.0, "Retry"),
        ("nothing", 30.0, "Ready"),
        ("node", 60.0, "Ready"),
        ("claim", 60.0, "Ready"),
    ],
)
def test_unattributed_instances_in_an_open_reservation_are_no_room(
    attributed_by: str, seconds: float, expected: str
) -> None:
    world = World()
    world.holds(A, 1, used=1)
    meta = {"name": "n", "uid": "u", "resourceVersion": "1", "labels": {names.RESERVATION_ID: "cr-a0"}}
    if attributed_by == "node":
        world.nodes.observe({"metadata": meta})
    if attributed_by == "claim":
        world.claims.observe({"metadata": meta, "status": {"providerID": "aws:///us-east-1a/i-1"}})
    assert world.check_states() == []  # observed before any workload is submitted
    world.clock.advance(seconds)
    world.submit("one")
    assert world.check_states("one") == [expected]
    message = "instances that are no nodes of this cluster have 1 more"
    assert (message in world.check_of("one").message) == (expected == "Retry")


@pytest.mark.parametrize("state", ["pending", "expired", "cancelled", "payment-pending"])
def test_only_an_active_reservation_counts(state: str) -> None:
    world = World()
    world.holds(A, 4, state=state)
    world.submit("one")
    assert world.check_states("one") == ["Retry"]


@pytest.mark.covers("CAP-09")
def test_idle_instances_of_the_cohort_are_for_borrowers() -> None:
    world = World(a=True)
    world.holds(A, 1)
    world.holds(B, 1)
    world.submit("first")
    world.submit("second")
    assert world.check_states("first", "second") == ["Ready", "Ready"]
    # Karpenter and EC2 choose the reservation of the borrowed instance.
    selectors = [update.node_selector for update in world.check_of("second").pod_set_updates]
    assert selectors == [{names.CAPACITY_TYPE: "reserved"}]
    world.submit("third")
    assert world.check_states("third") == ["Retry"]
    # B's own instance is for B first, whichever workload holds it: B's is Ready, and the borrower is drained.
    world.submit("b", B)
    assert world.check_states("b") == ["Ready"]
    world.submit("b-too", B)
    assert world.check_states("b-too") == ["Retry"]


@pytest.mark.covers("SAF-73")
@pytest.mark.parametrize(
    ("parents", "expected"),
    [
        ({"ai": "org", "ml": "org"}, "Ready"),
        ({"ai": "org", "org": "all", "ml": "all"}, "Ready"),
        ({"ml": "ai"}, "Ready"),
        ({"ai": "ml"}, "Ready"),
        ({"ai": "org", "ml": "other"}, "Retry"),
        ({}, "Retry"),
        ({"ai": "org", "org": "ai", "ml": "org"}, "Retry"),  # a ring: Kueue admits nothing in it
    ],
)
def test_idle_instances_of_the_whole_cohort_tree_count(parents: Mapping[str, str], expected: str) -> None:
    world = World(cohorts=("ai", "ml"), a=True)
    for name, parent in parents.items():
        world.client.create(world.kind(Cohort), {"metadata": {"name": name}, "spec": {"parentName": parent}})
    world.holds(B, 1)
    world.submit("one")
    assert world.check_states("one") == [expected]
    world.submit("two")
    assert world.check_states("two") == ["Retry"]  # each instance once, in a tree too


@pytest.mark.covers("CAP-09")
@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"spec": {"cohort": "ai", "resourceGroups": []}},
    ],
    ids=["deleted", "invalid"],
)
def test_a_deleted_or_invalid_lender_lends_nothing(change: dict[str, dict[str, Any]]) -> None:
    world = World(a=True)
    world.holds(B, 2)
    raw = world.reads.reservations.cache.get(B.name, B.namespace)
    assert raw is not None
    wire = raw.wire()
    changed = {key: {**wire[key], **change.get(key, {})} for key in ("metadata", "spec")}
    changed["metadata"]["resourceVersion"] = "2"
    world.reads.reservations.cache.apply("MODIFIED", changed)
    world.submit("a")
    world.submit("b", B)
    assert world.check_states("a", "b") == ["Retry", "Ready"]


@pytest.mark.covers("SAF-71")
def test_a_reservation_that_a_resource_quota_refuses_lends_nothing() -> None:
    world = World(a=True)
    world.holds(B, 2)
    world.reads.quotas.cache.observe(
        {
            "metadata": {"name": "one", "namespace": "team", "uid": "q", "resourceVersion": "2"},
            "spec": {"hard": {"ome.io/capacity-reservations": "1"}},
        }
    )
    world.submit("a")
    world.submit("b", B)
    assert world.check_states("a", "b") == ["Retry", "Ready"]


@pytest.mark.covers("CAP-07", "CAP-08")
@pytest.mark.parametrize(("minutes", "expected"), [(120, "Ready"), (20, "Retry")])
def test_a_block_that_ends_soon_is_no_room(minutes: int, expected: str) -> None:
    world = World()
    world.holds(A, 1)
    (odcr,) = world.owned_odcrs[A]["h100"]
    end = world.clock.now() + timedelta(minutes=minutes)
    world.owned_odcrs[A] = {"h100": (replace(odcr, reservation_type="capacity-block", end=end),)}
    world.submit("one")
    assert world.check_states("one") == [expected]


def test_without_allow_borrowing_only_own_instances_count() -> None:
    world = World()
    world.holds(B, 3)
    world.submit("a")
    world.submit("b", B)
    assert world.check_states("a", "b") == ["Retry", "Ready"]
    assert "0 reserved instances are active, and they have no room" in world.check_of("a").message


def test_dedicated_clusters_keep_their_instances() -> None:
    world = World()
    world.holds(A, 2)
    held = {"reservation": str(A), "flavors": [{"name": "h100", "resources": [{"name": GPU, "total": "8"}]}]}
    cluster = {"metadata": {"name": "chat", "resourceVersion": "1"}, "status": {"admission": held}}
    world.reads.clusters.cache.replace([cluster], 1)
    world.submit("one")
    world.submit("two")
    assert sorted(world.check_states("one", "two")) == ["Ready", "Retry"]


def test_a_flavor_without_ec2_reservations_is_ready_at_once() -> None:
    world = World()
    world.flavor("on-demand", **{names.INSTANCE_TYPE: TYPE, names.CAPACITY_TYPE: "on-demand"})
    world.flavor("rack", rack="7")
    world.submit("one", flavor="on-demand")
    world.submit("two", flavor="rack")
    assert world.check_states("one", "two") == ["Ready", "Ready"]
    assert world.check_of("one").pod_set_updates == ()


def test_a_check_is_written_once() -> None:
    world = World()
    world.holds(A, 1)
    world.submit("one")
    world.submit("two")
    world.check_states()
    before = [world.kueue.raw(Workload, name, "team") for name in ("one", "two")]
    for _ in range(3):
        world.clock.advance(1000)
        world.check_states()
    assert [world.kueue.raw(Workload, name, "team") for name in ("one", "two")] == before


def test_a_queue_without_a_reservation_stays_pending_with_a_remedy() -> None:
    world = World()
    world.client.create(
        world.kind(ClusterQueue),
        {
            "metadata": {"name": "theirs"},
            "spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]}},
        },
    )
    world.submit("one", Reserved("", "theirs"))
    assert world.check_states("one") == ["Pending"]
    assert "ClusterQueue theirs is of no reservation" in world.check_of("one").message
    before = world.kueue.raw(Workload, "one", "team")
    world.check_states()
    assert world.kueue.raw(Workload, "one", "team") == before


def test_a_decision_about_a_changed_workload_is_not_written() -> None:
    world = World()
    world.holds(A, 1)
    world.submit("one")
    world.read_all()
    world.client.patch(world.kind(Workload), "one", {"metadata": {"labels": {"x": "y"}}}, namespace="team")
    world.controller.run()
    assert world.check_of("one").state == "Pending"
    assert world.check_states("one") == ["Ready"]


class Interrupted(InProcessTransport):
    """Each watch is refused, as if its version were no longer served."""

    def stream(self, request: Request, *, timeout: float) -> Stream:
        raise NotFound(404, "NotFound", f"no {request.path}")


def test_kueue_may_be_upgraded_and_removed_while_the_broker_runs() -> None:
    transport = Interrupted(Cluster())
    client = Client(transport, field_manager="test")
    reads = ReservationReads(client, clock=FakeClock())
    informer = reads.cluster_queues
    informer.follow()
    assert informer.missing and not informer.synced
    lists: list[str] = []
    informer.on_listed(lambda: lists.append(informer.kind.version))
    install(client, served=["v1beta1"])
    informer.follow()
    assert (informer.kind.version, informer.missing) == ("v1beta1", False)
    for body in definitions(VERSIONS):
        client.delete(CRD, body["metadata"]["name"])
    install(client, served=["v1beta2"])
    client.create(ClusterQueue.KIND, {"metadata": {"name": "q"}, "spec": {}})
    informer.follow()
    assert informer.kind.version == "v1beta2"
    assert [queue.name for queue in informer.cache.list()] == ["q"]
    assert lists == ["v1beta1", "v1beta2"]
    for body in definitions(VERSIONS):
        client.delete(CRD, body["metadata"]["name"])
    informer.follow()
    assert informer.missing


@pytest.mark.covers("SAF-70")
def test_kueue_keeps_the_quota_until_the_time_of_a_retry() -> None:
    """Kueue's handling of another controller's `requeueAfterSeconds`: the reason why the broker writes
    none."""
    world = World()
    world.submit("one")
    entry = {
        "name": CHECK,
        "state": "Retry",
        "message": "",
        "lastTransitionTime": timestamp(world.clock.now()),
        "requeueAfterSeconds": 60,
    }
    body: Json = {"metadata": {"name": "one", "namespace": "team"}, "status": {"admissionChecks": [entry]}}
    world.client.apply(Workload.KIND, body, subresource="status")
    for _ in range(2):
        assert world.kueue.decides("one", namespace="team") == "waits"
    assert world.kueue.counts(A.queue) == {("h100", GPU): 8}
    world.clock.advance(60)
    assert world.kueue.decides("one", namespace="team") == "evicted"


def parked(world: World, name: str) -> bool:
    state = world.kueue.workload(name, "team").status.requeue_state
    return state is not None and state.requeue_at is not None


def sent_back(world: World, name: str) -> None:
    """Refused, evicted, parked, and stopped by the reconciler of its job."""
    assert world.check_states(name) == ["Retry"]
    assert world.kueue.decides(name, namespace="team") == "evicted"
    assert world.check_states(name) == ["Pending"]
    world.kueue.stops(name, namespace="team")
    assert world.kueue.decides(name, namespace="team") == "waits"


@pytest.mark.covers("SAF-70")
@pytest.mark.parametrize("served", [("v1beta2",), ("v1beta1",)], ids="+".join)
def test_a_refused_workload_is_parked_without_quota_and_released_as_soon_as_there_is_room(
    served: tuple[str, ...],
) -> None:
    world = World(served=served)
    world.submit("one")
    sent_back(world, "one")
    assert world.kueue.counts(A.queue) == {}
    assert "flavor h100" in world.check_of("one").message and parked(world, "one")
    before = world.kueue.raw(Workload, "one", "team")
    world.check_states()
    assert world.kueue.raw(Workload, "one", "team") == before
    world.holds(A, 1)
    world.check_states()
    assert not parked(world, "one")
    assert world.kueue.decides("one", namespace="team") == "requeued"
    world.check_states()  # it waits for quota now, and is not rejected again
    world.submit("one")
    assert world.check_states("one") == ["Ready"]


@pytest.mark.covers("SAF-70")
def test_a_refused_workload_is_parked_even_if_kueue_reacts_first() -> None:
    world = World()
    world.submit("one")
    assert world.check_states("one") == ["Retry"]
    assert world.kueue.decides("one", namespace="team") == "evicted"
    world.kueue.stops("one", namespace="team")
    assert world.kueue.decides("one", namespace="team") == "waits"
    world.clock.advance(30)
    assert world.check_states("one") == ["Pending"]
    world.clock.advance(59)
    assert world.kueue.decides("one", namespace="team") == "waits"
    world.clock.advance(1)
    world.check_states()
    assert world.kueue.decides("one", namespace="team") == "requeued"


@pytest.mark.covers("SAF-70")
def test_room_for_one_workload_releases_only_one() -> None:
    world = World()
    for name in ("low", "high"):
        world.submit(name, priority=10 if name == "high" else 0)
        sent_back(world, name)
    world.holds(A, 1)
    world.check_states()
    assert [parked(world, name) for name in ("low", "high")] == [True, False]


@pytest.mark.covers("SAF-70")
def test_a_parked_workload_is_retried_after_a_doubling_delay() -> None:
    world = World()
    world.submit("one")
    for seconds in (60, 120, 240, 480, 600, 600):
        sent_back(world, "one")
        world.clock.advance(seconds - 1)
        world.check_states()
        assert parked(world, "one"), seconds
        world.clock.advance(1)
        world.check_states()
        assert not parked(world, "one"), seconds
        assert world.kueue.decides("one", namespace="team") == "requeued"
        world.submit("one")


@pytest.mark.covers("SAF-70")
def test_a_new_leader_releases_workloads_that_the_last_leader_parked() -> None:
    world = World()
    world.submit("one")
    sent_back(world, "one")
    world.leads()
    world.check_states()
    assert world.kueue.decides("one", namespace="team") == "requeued"
    world.submit("one")
    sent_back(world, "one")
    world.check_states()
    assert parked(world, "one")


def test_a_requeue_time_of_another_check_is_kept() -> None:
    world = World()
    world.submit("one")
    assert world.check_states("one") == ["Retry"]
    assert world.kueue.decides("one", namespace="team") == "evicted"
    foreign: Json = {
        "status": {"requeueState": {"requeueAt": timestamp(world.clock.now() + timedelta(hours=1))}}
    }
    world.kueue.client.patch(Workload.KIND, "one", foreign, namespace="team", subresource="status")
    before = world.kueue.raw(Workload, "one", "team")
    world.check_states()
    world.holds(A, 1)
    world.check_states()
    assert world.kueue.raw(Workload, "one", "team") == before


@pytest.mark.covers("SAF-70")
def test_a_dedicated_cluster_keeps_no_quota_while_it_waits() -> None:
    world = World()
    name = "one-12345678-0"
    world.submit(name, labels={names.MANAGED_BY: names.MANAGER, names.DEDICATED: "one"})
    sent_back(world, name)  # by the broker, which acts as the job of its own Workloads
    assert world.kueue.counts(A.queue) == {}
    world.holds(A, 1)
    world.check_states()
    assert world.kueue.decides(name, namespace="team") == "requeued"


def _put_right(world: World, reserved: Reserved, *, borrows: bool) -> None:
    """Gives the reservation an invalid limit, which is corrected unless the broker is strict."""
    wrong = {"borrowingLimit": "8"} if not borrows else {}
    quotas = [{"name": "h100", "resources": [{"name": GPU, "nominalQuota": "16", **wrong}]}]
    covered = [GPU] if not borrows else [GPU, "cpu"]
    raw = {
        "metadata": {"name": reserved.name, "namespace": reserved.namespace, "resourceVersion": "2"},
        "spec": {
            "cohort": "ai",
            "allowBorrowing": borrows,
            "resourceGroups": [{"coveredResources": covered, "flavors": quotas}],
        },
    }
    world.reads.reservations.cache.apply("MODIFIED", raw)


@pytest.mark.covers("SAF-39")
@pytest.mark.parametrize("wrong", [A, B], ids=["borrower", "lender"])
@pytest.mark.parametrize(("strict", "expected"), [(False, "Ready"), (True, "Retry")])
def test_a_reservation_that_is_invalid_under_strict_lends_and_borrows_nothing(
    wrong: Reserved, strict: bool, expected: str
) -> None:
    """In the check, in launches and in quota: all use the same judgement."""
    world = World(a=True)
    world.holds(B, 1)
    _put_right(world, wrong, borrows=wrong == A)
    settings = Settings(strict=strict)
    world.leads(settings)
    world.submit("job", A)
    assert world.check_states("job") == [expected]

    snapshot = world.reads.snapshot()
    assert (wrong in snapshot.barred, wrong not in snapshot.specs) == (strict, strict)
