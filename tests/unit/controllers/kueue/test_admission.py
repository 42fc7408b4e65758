"""The check states of workloads for reserved instances: pass after pass over an API server, without
threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.crds import KIND as CRD
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import (
    REPLACES,
    VERSIONS,
    AdmissionCheckState,
    ClusterQueue,
    Cohort,
    Namespace,
    ResourceFlavor,
    Workload,
)
from broker.apis.meta import Kind
from broker.controllers.kueue import answers, supply
from broker.controllers.kueue.admission import AdmissionCheckController
from broker.controllers.reservation_reads import ReservationReads, SnapshotBuilder
from broker.controllers.snapshot import Ec2Reads
from broker.kube.cache import Cache
from broker.kube.client import Client, Request, Stream
from broker.kube.errors import NotFound
from broker.quota.usage import ReservationKey
from broker.reservations.kueue_checks import CHECK
from broker.reservations.kueue_objects import mark
from broker.reservations.odcr_status import OdcrSnapshot
from broker.reservations.ownership import Ownership
from broker.reservations.spec import JudgedSpecs
from broker.settings import Settings
from broker.text import format_time
from local.in_process import InProcessTransport
from local.kube import Cluster
from providers.model import Gpu, InstanceType, Odcr
from providers.names import MANAGED_BY, MANAGER
from providers.odcr_states import OdcrState
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
A, B = ReservationKey("team", "a"), ReservationKey("team", "b")


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
        self.owned_odcrs: dict[ReservationKey, Mapping[str, tuple[Odcr, ...]]] = {}
        self.nodes: Cache[Node] = Cache(Node)
        self.claims: Cache[NodeClaim] = Cache(NodeClaim)
        self.pods: Cache[Pod] = Cache(Pod)
        self.reads = ReservationReads(Client(self.transport), clock=self.clock)
        self.leads()
        for reserved, cohort in zip((A, B), cohorts, strict=True):
            self._reservation(reserved, cohort, borrows.get(reserved.name, False))
        self.flavor("h100", **{names.INSTANCE_TYPE: TYPE})

    def leads(self, settings: Settings | None = None) -> None:
        """Starts a broker that has only the API server's state."""
        self.reads.snapshots = SnapshotBuilder(
            self.reads,
            JudgedSpecs(strict=settings is not None and settings.strict),
            Ec2Reads(types=lambda: {TYPE: P5}),
        )
        self.controller = AdmissionCheckController(
            dependencies(
                Client(self.transport),
                self.clock,
                reads=self.reads,
                caches=claim_caches(self.claims, self.nodes, self.pods),
            )
        )

    def kind(self, model: type[Any]) -> Kind:
        return self.kueue.kind(model)

    def _reservation(self, reserved: ReservationKey, cohort: str, borrows: bool) -> None:
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

    def holds(
        self, reserved: ReservationKey, *counts: int, state: OdcrState = "active", used: int = 0
    ) -> None:
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
        reserved: ReservationKey = A,
        *,
        gpus: int = 8,
        flavor: str = "h100",
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        pods: int = 1,
        replaces: str = "",
        owner: Json | None = None,
    ) -> None:
        """A workload of pods with so many GPUs each, for which Kueue has reserved quota."""
        try:
            self.kueue.workload(name, "team")
        except NotFound:
            pod_sets = [{"name": "main", "count": pods, "template": {"spec": {}}}]
            meta: Json = {"name": name, "namespace": "team", "labels": dict(labels or {})}
            if replaces:
                meta["annotations"] = {REPLACES: replaces}
            if owner:
                meta["ownerReferences"] = [owner]
            spec = {"queueName": reserved.name, "priority": priority, "podSets": pod_sets}
            self.client.create(self.kind(Workload), {"metadata": meta, "spec": spec})
        usage = {flavor: {GPU: str(gpus * pods)}}
        self.kueue.reserves(name, reserved.queue, usage, namespace="team", pods=pods)

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


@pytest.mark.covers("SAF-50")
def test_workload_with_unreadable_demands_is_left_out_and_the_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    demands = answers.demands

    def fails(workload: Workload, **more: bool) -> object:
        if workload.name == "bad":
            raise ZeroDivisionError
        return demands(workload, **more)

    monkeypatch.setattr(supply, "demands", fails)
    world = World()
    world.holds(A, 1)
    world.submit("bad", priority=10)
    world.submit("good")
    assert world.check_states("bad", "good") == ["Pending", "Ready"]
    assert [*world.reads.workloads.cache.broken] == ["team/bad"]


@pytest.mark.covers("SAF-50")
def test_workload_whose_answer_fails_is_left_out_and_the_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = AdmissionCheckController._answer

    def fails(self: AdmissionCheckController, workload: Workload, *args: Any) -> Any:
        if workload.name == "bad":
            raise ZeroDivisionError
        return answer(self, workload, *args)

    monkeypatch.setattr(AdmissionCheckController, "_answer", fails)
    world = World()
    world.holds(A, 1)
    world.submit("bad", priority=10)
    world.submit("good")
    assert world.check_states("bad", "good") == ["Pending", "Ready"]
    assert [*world.reads.workloads.cache.broken] == ["team/bad"]


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
        ("node of a claim that EC2 does not show", 60.0, "Ready"),
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
    if attributed_by == "node of a claim that EC2 does not show":
        undescribed = {**meta, "labels": {}, "annotations": {names.LAUNCHED_INTO: "cr-a0"}}
        status = {"providerID": "aws:///us-east-1a/i-1", "nodeName": "n"}
        spec = {"providerID": status["providerID"]}
        world.nodes.observe({"metadata": {**meta, "labels": {}}, "spec": spec})
        world.claims.observe({"metadata": undescribed, "status": status})
    assert world.check_states() == []  # observed before any workload is submitted
    world.clock.advance(seconds)
    world.submit("one")
    assert world.check_states("one") == [expected]
    message = "instances that are no nodes of this cluster have 1 more"
    assert (message in world.check_of("one").message) == (expected == "Retry")


@pytest.mark.parametrize("state", ["pending", "expired", "cancelled", "payment-pending"])
def test_only_an_active_reservation_counts(state: OdcrState) -> None:
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
    # Kueue evicts nobody for B, since A is within its quota: B's instance is promised.
    world.submit("b", B)
    assert world.check_states("b") == ["Retry"]
    assert "with no room beside the workloads of its cohort" in world.check_of("b").message
    is_parked(world, "b")
    world.kueue.finishes("second", namespace="team")
    world.check_states()
    assert not parked(world, "b")


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
    assert "0 reserved instances are active, with no room for" in world.check_of("a").message


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
    world.submit("one", ReservationKey("", "theirs"))
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
        "lastTransitionTime": format_time(world.clock.now()),
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
    is_parked(world, name)


def is_parked(world: World, name: str) -> None:
    """After its Retry."""
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
        "status": {"requeueState": {"requeueAt": format_time(world.clock.now() + timedelta(hours=1))}}
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
    world.submit(name, labels={MANAGED_BY: MANAGER, names.DEDICATED: "one"})
    sent_back(world, name)  # by the broker, which acts as the job of its own Workloads
    assert world.kueue.counts(A.queue) == {}
    world.holds(A, 1)
    world.check_states()
    assert world.kueue.decides(name, namespace="team") == "requeued"


def _put_right(world: World, reserved: ReservationKey, *, borrows: bool) -> None:
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
    wrong: ReservationKey, strict: bool, expected: str
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


# ---- promises


def pod_of(world: World, name: str, *, node: str = "n", phase: str = "Running", **meta: Any) -> None:
    world.pods.observe(
        {
            "metadata": {
                "name": name,
                "namespace": "team",
                "uid": f"u-{name}",
                "resourceVersion": str(len(world.pods) + 1),
                **meta,
            },
            "spec": {"nodeName": node},
            "status": {"phase": phase},
        }
    )


def cancelled(world: World) -> None:
    world.holds(A, 2, state="cancelled")


def shrunk(world: World) -> None:
    world.holds(A, 1)


def ended(world: World) -> None:
    world.holds(A, 2, state="expired")


def not_described(world: World) -> None:
    world.owned_odcrs[A] = {}


@pytest.mark.covers("FLT-06", "FLT-70")
@pytest.mark.parametrize(("gone", "kept"), [(cancelled, 0), (shrunk, 1), (ended, 0), (not_described, 0)])
@pytest.mark.parametrize("restarted", [False, True], ids=["same broker", "next leader"])
def test_promise_whose_instances_are_gone_is_taken_back(
    gone: Callable[[World], None], kept: int, restarted: bool
) -> None:
    world = World()
    world.holds(A, 2)
    world.submit("behind")  # the first by name and by time
    world.submit("high", priority=5)
    assert world.check_states("behind", "high") == ["Ready", "Ready"]
    for name in ("behind", "high"):
        world.kueue.decides(name, namespace="team")
    gone(world)
    if restarted:
        world.leads()
    states = world.check_states("high", "behind")
    assert states == ["Ready"] * kept + ["Retry"] * (2 - kept)
    message = world.check_of("behind").message
    assert "the reserved instances that it was promised are gone: flavor h100" in message
    assert world.kueue.decides("behind", namespace="team") == "evicted"
    world.check_states()
    world.kueue.stops("behind", namespace="team")
    assert parked(world, "behind")
    # Its place is free, and it comes back with the instances.
    world.holds(A, 2)
    world.check_states()
    assert not parked(world, "behind")


RUNS: list[dict[str, Any]] = [
    {"annotations": {"kueue.x-k8s.io/workload": "one"}},
    {"labels": {"kueue.x-k8s.io/pod-group-name": "one"}},
    {"ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "u-job"}]},
    {"labels": {"jobset.sigs.k8s.io/jobset-name": "job"}},
    {"labels": {"kueue.x-k8s.io/podset": "main"}},
]
IDLE: list[dict[str, Any]] = [
    {"annotations": {"kueue.x-k8s.io/workload": "other"}, "labels": {"app": "x"}, "namespace": "others"},
    {"labels": {"app": "x"}},
    {"annotations": {"kueue.x-k8s.io/workload": "one"}, "node": ""},
    {"annotations": {"kueue.x-k8s.io/workload": "one"}, "phase": "Failed"},
]


@pytest.mark.covers("FLT-06")
@pytest.mark.parametrize(
    ("pod", "expected"), [*((pod, "Ready") for pod in RUNS), *((pod, "Retry") for pod in IDLE)]
)
def test_workload_with_a_pod_on_a_node_is_left_alone(pod: dict[str, Any], expected: str) -> None:
    world = World()
    world.holds(A, 1)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "u-job"}
    world.submit("one", owner=owner)
    assert world.check_states("one") == ["Ready"]
    pod_of(world, "p", **pod)
    cancelled(world)
    assert world.check_states("one") == [expected]
    before = world.kueue.raw(Workload, "one", "team")
    world.clock.advance(300)
    world.check_states()
    if expected == "Ready":
        assert world.kueue.raw(Workload, "one", "team") == before
        # Once its pods have ended without the workload, it is looked at again.
        world.pods.replace([], 9)
        assert world.check_states("one") == ["Retry"]


@pytest.mark.covers("FLT-06", "FLT-45")
def test_pods_that_run_on_demand_hold_no_reserved_instance() -> None:
    """Instances of a cancelled reservation go on outside of it."""
    world = World(a=True)
    world.holds(A, 1)
    world.holds(B, 1)
    world.submit("one")
    assert world.check_states("one") == ["Ready"]
    pod_of(world, "p", annotations={"kueue.x-k8s.io/workload": "one"})
    labels = {names.CAPACITY_TYPE: "reserved"}
    node: Json = {"metadata": {"name": "n", "uid": "n", "resourceVersion": "1", "labels": labels}}
    world.nodes.observe(node)
    world.holds(A, 1, state="cancelled")
    world.submit("b", B)
    assert world.check_states("one", "b") == ["Ready", "Retry"]
    is_parked(world, "b")
    node["metadata"] |= {"resourceVersion": "2", "labels": {names.CAPACITY_TYPE: "on-demand"}}
    world.nodes.observe(node)
    world.check_states()
    assert not parked(world, "b")


@pytest.mark.covers("FLT-06")
def test_instances_whose_pods_fit_in_another_order_keep_their_promises() -> None:
    world = World()
    world.holds(A, 2)
    for name, gpus in (("five", 5), ("three", 3), ("five-too", 5), ("three-too", 3)):
        world.submit(name, gpus=gpus, priority=-gpus)
        assert world.check_states(name) == ["Ready"], name
    world.leads()
    assert world.check_states("five", "three", "five-too", "three-too") == ["Ready"] * 4


@pytest.mark.covers("FLT-07")
@pytest.mark.parametrize("finished", [False, True], ids=["both have quota", "Kueue has finished the first"])
def test_elastic_workload_needs_only_the_increase(finished: bool) -> None:
    world = World()
    world.holds(A, 2)
    world.submit("one")
    assert world.check_states("one") == ["Ready"]
    world.submit("two", pods=2, replaces="team/one")
    if finished:
        world.kueue.finishes("one", namespace="team")
    assert world.check_states("two") == ["Ready"]
    # Both instances are used: neither counts twice, nor is one lost.
    world.kueue.finishes("one", namespace="team")
    world.submit("third")
    assert world.check_states("third") == ["Retry"]
    is_parked(world, "third")
    world.kueue.finishes("two", namespace="team")
    world.check_states()
    assert not parked(world, "third")


@pytest.mark.covers("FLT-07", "FLT-45")
@pytest.mark.parametrize("finished", [False, True], ids=["both have quota", "Kueue has finished the first"])
def test_running_pods_keep_their_room_while_their_replacement_waits(finished: bool) -> None:
    world = World()
    world.holds(A, 1)
    world.submit("one")
    assert world.check_states("one") == ["Ready"]
    world.submit("two", pods=2, replaces="team/one")
    if finished:
        world.kueue.finishes("one", namespace="team")
    world.submit("rival", priority=10)  # is answered first
    assert world.check_states("rival", "two") == ["Retry", "Retry"]
    assert world.check_of("two").message.endswith("no room for 1 pod of 8 nvidia.com/gpu")


@pytest.mark.covers("FLT-07")
def test_chain_of_replacements_needs_the_increase_over_the_running_one() -> None:
    world = World()
    world.holds(A, 3)
    world.submit("one")
    assert world.check_states("one") == ["Ready"]
    world.submit("two", pods=2, replaces="team/one")
    world.submit("three", pods=3, replaces="team/two")
    world.kueue.finishes("two", namespace="team")
    assert world.check_states("three") == ["Ready"]


@pytest.mark.covers("FLT-07")
@pytest.mark.parametrize("replaces", ["team/none", "other/one", "team/two", "team/stranger"])
def test_workload_that_replaces_none_of_its_job_needs_all_of_its_pods(replaces: str) -> None:
    world = World()
    world.holds(A, 2)
    world.submit("stranger", owner={"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "x"})
    assert world.check_states("stranger") == ["Ready"]
    world.submit("two", pods=2, replaces=replaces)
    assert world.check_states("two") == ["Retry"]


@pytest.mark.covers("FLT-45")
@pytest.mark.parametrize("first", [A, B], ids=["the owner first", "the member without instances first"])
@pytest.mark.parametrize("owner_borrows", [False, True])
def test_no_more_workloads_are_ready_than_instances_can_hold(
    first: ReservationKey, owner_borrows: bool
) -> None:
    """B has quota and no instances: Kueue lends it nothing, and reclaims nothing of it."""
    world = World(a=owner_borrows, b=True)
    world.holds(A, 4)
    order = [*([A] * 3), B, B, A] if first == A else [B, B, *([A] * 4)]
    for number, reserved in enumerate(order):
        world.submit(f"w-{number}", reserved)
        world.check_states()
    states = world.check_states(*(f"w-{number}" for number in range(6)))
    assert states == ["Ready"] * 4 + ["Retry"] * 2
    # The same for a broker that starts now: each answer stands.
    world.leads()
    assert world.check_states(*(f"w-{number}" for number in range(4))) == ["Ready"] * 4


@pytest.mark.covers("FLT-45")
def test_workloads_of_a_member_that_lost_its_instances_take_none_of_the_others() -> None:
    world = World(b=True)
    world.holds(A, 1)
    world.holds(B, 1)
    world.submit("a")
    assert world.check_states("a") == ["Ready"]
    pod_of(world, "p", annotations={"kueue.x-k8s.io/workload": "a"})
    world.holds(A, 1, state="cancelled")
    world.submit("b", B)
    assert world.check_states("a", "b") == ["Ready", "Ready"]


@pytest.mark.covers("FLT-45")
def test_pods_of_a_replaced_flavor_hold_the_instances_that_they_are_on() -> None:
    """The reservation's flavor was renamed under a running job: its instances are of the new one now."""
    world = World()
    world.holds(A, 2)
    world.submit("one")
    assert world.check_states("one") == ["Ready"]
    pod_of(world, "p", annotations={"kueue.x-k8s.io/workload": "one"})
    raw = world.reads.reservations.cache.get(A.name, A.namespace)
    assert raw is not None
    changed = raw.wire()
    changed["metadata"]["resourceVersion"] = "2"
    changed["spec"]["resourceGroups"][0]["flavors"][0]["name"] = "renamed"
    world.reads.reservations.cache.apply("MODIFIED", changed)
    world.flavor("renamed", **{names.INSTANCE_TYPE: TYPE})
    world.owned_odcrs[A] = {"renamed": world.owned_odcrs[A]["h100"]}
    world.submit("two", flavor="renamed")
    world.submit("three", flavor="renamed")
    assert world.check_states("two") == ["Retry"] or world.check_states("three") == ["Retry"]
    assert sorted(world.check_states("one", "two", "three")) == ["Ready", "Ready", "Retry"]
