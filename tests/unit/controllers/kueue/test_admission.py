"""The check states of workloads for reserved instances: pass after pass over an API server, without
threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

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
from broker.kube.clock import FakeClock
from broker.kube.conditions import timestamp
from broker.kube.errors import NotFound
from broker.kube.transports import InProcessTransport
from broker.quota.model import FlavorResource
from broker.quota.usage import ReservationHolder, Reserved
from broker.reservations.kueue_objects import BROKER, mark
from broker.reservations.odcr_status import OdcrSnapshot
from broker.reservations.ownership import Ownership
from broker.reservations.sizing import FlavorProblem
from broker.reservations.slots import reservation_slots
from broker.reservations.spec import JudgedSpecs
from broker.settings import Settings
from providers.base import CapacityProvider
from providers.model import Gpu, InstanceType, Odcr
from tests.kueue.definitions import definitions, install
from tests.kueue.played import Kueue

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
        self.holdings: dict[Reserved, Mapping[str, tuple[Odcr, ...]]] = {}
        self.others: dict[Reserved, tuple[ReservationHolder, ...]] = {}
        self.nodes: Cache[Node] = Cache(Node)
        self.claims: Cache[NodeClaim] = Cache(NodeClaim)
        self.reads = ReservationReads(Client(self.transport), clock=self.clock)
        self.leads()
        for reserved, cohort in zip((A, B), cohorts, strict=True):
            self._reservation(reserved, cohort, borrows.get(reserved.name, False))
        self.flavor("h100", **{names.INSTANCE_TYPE: TYPE})

    def leads(self, settings: Settings | None = None) -> None:
        """Starts a broker that knows only the API server's state."""
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
        self.answerer = AdmissionCheckController(
            Client(self.transport),
            self.reads,
            cast(CapacityProvider, Types()),
            others=lambda: self.others,
            settings=settings or Settings(),
            clock=self.clock,
            nodes=self.nodes,
            claims=self.claims,
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
        self.holdings[reserved] = {
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

    def asks(
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

    def told(self, *workloads: str) -> list[str]:
        """Runs one pass. Returns the states of these workloads' checks."""
        self.look()
        self.answerer.run()
        return [self.said(name).state for name in workloads]

    def look(self) -> None:
        reads = self.reads
        reads.snapshots.publish(OdcrSnapshot(ownership=Ownership(odcrs=dict(self.holdings))))
        for informer in (reads.workloads, reads.cluster_queues, reads.flavors, reads.cohorts):
            informer.read()

    def said(self, name: str) -> AdmissionCheckState:
        checks = self.kueue.workload(name, "team").status.admission_checks
        return next(each for each in checks if each.name == CHECK)


def test_the_more_important_first_and_then_the_earlier() -> None:
    world = World()
    world.holds(A, 1)
    world.asks("low")
    world.asks("high", priority=10)
    assert world.told("low", "high") == ["Retry", "Ready"]


def test_what_is_told_so_is_taken_also_for_the_next_pass_and_a_new_broker() -> None:
    world = World()
    world.holds(A, 2)
    world.asks("one")
    assert world.told("one") == ["Ready"]
    world.asks("two")
    world.asks("three")
    assert sorted(world.told("two", "three")) == ["Ready", "Retry"]
    world.kueue.finishes("one", namespace="team")
    world.asks("four")
    assert world.told("four") == ["Ready"]


@pytest.mark.covers("CAP-07")
@pytest.mark.parametrize(
    ("whose", "seconds", "told"),
    [("nobody", 60.0, "Retry"), ("nobody", 30.0, "Ready"), ("node", 60.0, "Ready"), ("claim", 60.0, "Ready")],
)
def test_what_a_stranger_runs_in_an_open_reservation_is_no_room(
    whose: str, seconds: float, told: str
) -> None:
    world = World()
    world.holds(A, 1, used=1)
    meta = {"name": "n", "uid": "u", "resourceVersion": "1", "labels": {names.RESERVATION_ID: "cr-a0"}}
    if whose == "node":
        world.nodes.observe({"metadata": meta})
    if whose == "claim":
        world.claims.observe({"metadata": meta, "status": {"providerID": "aws:///us-east-1a/i-1"}})
    assert world.told() == []  # seen before any workload asks
    world.clock.advance(seconds)
    world.asks("one")
    assert world.told("one") == [told]
    said = "instances that are no nodes of this cluster have 1 more"
    assert (said in world.said("one").message) == (told == "Retry")


@pytest.mark.parametrize("state", ["pending", "expired", "cancelled", "payment-pending"])
def test_only_what_is_active_counts(state: str) -> None:
    world = World()
    world.holds(A, 4, state=state)
    world.asks("one")
    assert world.told("one") == ["Retry"]


@pytest.mark.covers("CAP-09")
def test_idle_instances_of_the_cohort_are_for_who_may_borrow() -> None:
    world = World(a=True)
    world.holds(A, 1)
    world.holds(B, 1)
    world.asks("first")
    world.asks("second")
    assert world.told("first", "second") == ["Ready", "Ready"]
    # Karpenter and EC2 choose the reservation of the borrowed instance.
    selectors = [each.node_selector for each in world.said("second").pod_set_updates]
    assert selectors == [{names.CAPACITY_TYPE: "reserved"}]
    world.asks("third")
    assert world.told("third") == ["Retry"]
    # B's own instance is for B first, whichever workload holds it: B's is Ready, and the borrower is drained.
    world.asks("b", B)
    assert world.told("b") == ["Ready"]
    world.asks("b-too", B)
    assert world.told("b-too") == ["Retry"]


@pytest.mark.covers("SAF-73")
@pytest.mark.parametrize(
    ("parents", "told"),
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
def test_idle_instances_of_the_whole_cohort_tree_count(parents: Mapping[str, str], told: str) -> None:
    world = World(cohorts=("ai", "ml"), a=True)
    for name, parent in parents.items():
        world.client.create(world.kind(Cohort), {"metadata": {"name": name}, "spec": {"parentName": parent}})
    world.holds(B, 1)
    world.asks("one")
    assert world.told("one") == [told]
    world.asks("two")
    assert world.told("two") == ["Retry"]  # each instance once, in a tree too


@pytest.mark.covers("CAP-09")
@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"spec": {"cohort": "ai", "resourceGroups": []}},
    ],
    ids=["deleted", "invalid"],
)
def test_who_lends_nothing_any_more_is_counted_for_nobody_else(change: dict[str, dict[str, Any]]) -> None:
    world = World(a=True)
    world.holds(B, 2)
    raw = world.reads.reservations.cache.get(B.name, B.namespace)
    assert raw is not None
    wire = raw.wire()
    changed = {key: {**wire[key], **change.get(key, {})} for key in ("metadata", "spec")}
    changed["metadata"]["resourceVersion"] = "2"
    world.reads.reservations.cache.apply("MODIFIED", changed)
    world.asks("a")
    world.asks("b", B)
    assert world.told("a", "b") == ["Retry", "Ready"]


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
    world.asks("a")
    world.asks("b", B)
    assert world.told("a", "b") == ["Retry", "Ready"]


@pytest.mark.covers("CAP-07", "CAP-08")
@pytest.mark.parametrize(("minutes", "told"), [(120, "Ready"), (20, "Retry")])
def test_a_block_that_is_about_to_end_is_no_room(minutes: int, told: str) -> None:
    world = World()
    world.holds(A, 1)
    (odcr,) = world.holdings[A]["h100"]
    end = world.clock.now() + timedelta(minutes=minutes)
    world.holdings[A] = {"h100": (replace(odcr, reservation_type="capacity-block", end=end),)}
    world.asks("one")
    assert world.told("one") == [told]


def test_who_may_not_borrow_keeps_to_what_is_its_own() -> None:
    world = World()
    world.holds(B, 3)
    world.asks("a")
    world.asks("b", B)
    assert world.told("a", "b") == ["Retry", "Ready"]
    assert "0 reserved instances are active, and they have no room" in world.said("a").message


def test_dedicated_clusters_have_their_instances() -> None:
    world = World()
    world.holds(A, 2)
    usage = {FlavorResource("h100", GPU): 8}
    world.others[A] = (ReservationHolder(kind="DedicatedAICluster", name="chat", reserved=A, usage=usage),)
    world.asks("one")
    world.asks("two")
    assert sorted(world.told("one", "two")) == ["Ready", "Retry"]


def test_a_flavor_that_is_nobodys_in_ec2_is_not_waited_for() -> None:
    world = World()
    world.flavor("on-demand", **{names.INSTANCE_TYPE: TYPE, names.CAPACITY_TYPE: "on-demand"})
    world.flavor("rack", rack="7")
    world.asks("one", flavor="on-demand")
    world.asks("two", flavor="rack")
    assert world.told("one", "two") == ["Ready", "Ready"]
    assert world.said("one").pod_set_updates == ()


def test_a_question_is_answered_once() -> None:
    world = World()
    world.holds(A, 1)
    world.asks("one")
    world.asks("two")
    world.told()
    before = [world.kueue.raw(Workload, name, "team") for name in ("one", "two")]
    for _ in range(3):
        world.clock.advance(1000)
        world.told()
    assert [world.kueue.raw(Workload, name, "team") for name in ("one", "two")] == before


def test_a_queue_of_nobodys_reservation_is_told_once_what_to_do() -> None:
    world = World()
    world.client.create(
        world.kind(ClusterQueue),
        {
            "metadata": {"name": "theirs"},
            "spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]}},
        },
    )
    world.asks("one", Reserved("", "theirs"))
    assert world.told("one") == ["Pending"]
    assert "ClusterQueue theirs is of no reservation" in world.said("one").message
    before = world.kueue.raw(Workload, "one", "team")
    world.told()
    assert world.kueue.raw(Workload, "one", "team") == before


def test_an_answer_to_a_workload_that_has_changed_is_not_given() -> None:
    world = World()
    world.holds(A, 1)
    world.asks("one")
    world.look()
    world.client.patch(world.kind(Workload), "one", {"metadata": {"labels": {"x": "y"}}}, namespace="team")
    world.answerer.run()
    assert world.said("one").state == "Pending"
    assert world.told("one") == ["Ready"]


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
    assert [each.name for each in informer.cache.list()] == ["q"]
    assert lists == ["v1beta1", "v1beta2"]
    for body in definitions(VERSIONS):
        client.delete(CRD, body["metadata"]["name"])
    informer.follow()
    assert informer.missing


@pytest.mark.covers("SAF-70")
def test_retry_with_a_time_would_keep_the_quota_until_then() -> None:
    """Kueue's handling of another controller's `requeueAfterSeconds`: the reason why the broker writes
    none."""
    world = World()
    world.asks("one")
    entry = {
        "name": CHECK,
        "state": "Retry",
        "message": "",
        "lastTransitionTime": timestamp(world.clock.now()),
        "requeueAfterSeconds": 60,
    }
    said: Json = {"metadata": {"name": "one", "namespace": "team"}, "status": {"admissionChecks": [entry]}}
    world.client.apply(Workload.KIND, said, subresource="status")
    for _ in range(2):
        assert world.kueue.settles("one", namespace="team") == "waits"
    assert world.kueue.counts(A.queue) == {("h100", GPU): 8}
    world.clock.advance(60)
    assert world.kueue.settles("one", namespace="team") == "evicted"


def parked(world: World, name: str) -> bool:
    state = world.kueue.workload(name, "team").status.requeue_state
    return state is not None and state.requeue_at is not None


def sent_back(world: World, name: str) -> None:
    """Refused, evicted, parked, and stopped by the reconciler of its job."""
    assert world.told(name) == ["Retry"]
    assert world.kueue.settles(name, namespace="team") == "evicted"
    assert world.told(name) == ["Pending"]
    world.kueue.stops(name, namespace="team")
    assert world.kueue.settles(name, namespace="team") == "waits"


@pytest.mark.covers("SAF-70")
@pytest.mark.parametrize("served", [("v1beta2",), ("v1beta1",)], ids="+".join)
def test_a_refused_workload_is_parked_without_quota_and_released_as_soon_as_there_is_room(
    served: tuple[str, ...],
) -> None:
    world = World(served=served)
    world.asks("one")
    sent_back(world, "one")
    assert world.kueue.counts(A.queue) == {}
    assert "flavor h100" in world.said("one").message and parked(world, "one")
    before = world.kueue.raw(Workload, "one", "team")
    world.told()
    assert world.kueue.raw(Workload, "one", "team") == before
    world.holds(A, 1)
    world.told()
    assert not parked(world, "one")
    assert world.kueue.settles("one", namespace="team") == "requeued"
    world.told()  # it waits for quota now, and is not rejected again
    world.asks("one")
    assert world.told("one") == ["Ready"]


@pytest.mark.covers("SAF-70")
def test_kueue_that_is_faster_than_the_broker_does_not_queue_a_refused_workload_again() -> None:
    world = World()
    world.asks("one")
    assert world.told("one") == ["Retry"]
    assert world.kueue.settles("one", namespace="team") == "evicted"
    world.kueue.stops("one", namespace="team")
    assert world.kueue.settles("one", namespace="team") == "waits"
    world.clock.advance(30)
    assert world.told("one") == ["Pending"]
    world.clock.advance(59)
    assert world.kueue.settles("one", namespace="team") == "waits"
    world.clock.advance(1)
    world.told()
    assert world.kueue.settles("one", namespace="team") == "requeued"


@pytest.mark.covers("SAF-70")
def test_room_for_one_is_offered_to_one() -> None:
    world = World()
    for name in ("low", "high"):
        world.asks(name, priority=10 if name == "high" else 0)
        sent_back(world, name)
    world.holds(A, 1)
    world.told()
    assert [parked(world, name) for name in ("low", "high")] == [True, False]


@pytest.mark.covers("SAF-70")
def test_a_parked_workload_asks_again_after_a_time_that_doubles() -> None:
    world = World()
    world.asks("one")
    for seconds in (60, 120, 240, 480, 600, 600):
        sent_back(world, "one")
        world.clock.advance(seconds - 1)
        world.told()
        assert parked(world, "one"), seconds
        world.clock.advance(1)
        world.told()
        assert not parked(world, "one"), seconds
        assert world.kueue.settles("one", namespace="team") == "requeued"
        world.asks("one")


@pytest.mark.covers("SAF-70")
def test_a_new_leader_asks_about_what_the_last_one_parked() -> None:
    world = World()
    world.asks("one")
    sent_back(world, "one")
    world.leads()
    world.told()
    assert world.kueue.settles("one", namespace="team") == "requeued"
    world.asks("one")
    sent_back(world, "one")
    world.told()
    assert parked(world, "one")


def test_a_time_that_another_check_set_is_left_to_it() -> None:
    world = World()
    world.asks("one")
    assert world.told("one") == ["Retry"]
    assert world.kueue.settles("one", namespace="team") == "evicted"
    theirs: Json = {
        "status": {"requeueState": {"requeueAt": timestamp(world.clock.now() + timedelta(hours=1))}}
    }
    world.kueue.client.patch(Workload.KIND, "one", theirs, namespace="team", subresource="status")
    before = world.kueue.raw(Workload, "one", "team")
    world.told()
    world.holds(A, 1)
    world.told()
    assert world.kueue.raw(Workload, "one", "team") == before


@pytest.mark.covers("SAF-70")
def test_a_dedicated_cluster_keeps_no_quota_while_it_waits() -> None:
    world = World()
    name = "one-12345678-0"
    world.asks(name, labels={names.MANAGED_BY: BROKER, names.DEDICATED: "one"})
    sent_back(world, name)  # by the broker, which acts as the job of its own Workloads
    assert world.kueue.counts(A.queue) == {}
    world.holds(A, 1)
    world.told()
    assert world.kueue.settles(name, namespace="team") == "requeued"


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
@pytest.mark.parametrize(("strict", "told"), [(False, "Ready"), (True, "Retry")])
def test_a_reservation_that_strictness_refuses_lends_and_borrows_nothing(
    wrong: Reserved, strict: bool, told: str
) -> None:
    """In the check, in launches and in quota: all use the same judgement."""
    world = World(a=True)
    world.holds(B, 1)
    _put_right(world, wrong, borrows=wrong == A)
    settings = Settings(strict=strict)
    world.leads(settings)
    world.asks("job", A)
    assert world.told("job") == [told]

    def unknown(name: str) -> FlavorProblem:
        return FlavorProblem(flavor=name, reason="", message="")

    one = world.reads.reservations.cache.get(wrong.name, wrong.namespace)
    assert one is not None
    snapshot = world.reads.snapshot()
    terms = reservation_slots(one, snapshot.judged(one), unknown, {})
    specs, barred = snapshot.specs, snapshot.barred
    assert (bool(terms.barred), wrong in barred, wrong not in specs) == (strict, strict, strict)
