"""One snapshot for decisions about dedicated clusters: specs, priorities, and the holders of quota."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.controllers.claim_caches import BY_INSTANCE, BY_NODE
from broker.controllers.dedicatedaicluster.controller import ClusterPass
from broker.controllers.dedicatedaicluster.demand import DemandError
from broker.controllers.dedicatedaicluster.snapshot import ClusterSnapshot, build_snapshot
from broker.controllers.reservation_reads import ReservationReads
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.quota.entitled import AdmissionPhase
from broker.quota.joint import JointDecision, decide
from broker.quota.model import FlavorResource
from broker.quota.usage import ReservationKey
from broker.reservations.odcr_status import OdcrSnapshot
from broker.reservations.ownership import Ownership
from broker.reservations.sizing import SizedQuota
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.support.caches import claim_caches
from tests.support.clock import FakeClock

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
KEY = FlavorResource("h100", GPU)
PRIORITIES = {"low": 10, "high": 20}


def reservation(name: str, gpus: int, namespace: str = "team", **spec: Any) -> Json:
    resources = [
        {"name": GPU, "nominalQuota": gpus},
        {"name": "cpu", "nominalQuota": gpus * 16},
    ]
    groups = [{"coveredResources": [GPU, "cpu"], "flavors": [{"name": "h100", "resources": resources}]}]
    return {
        "metadata": {"name": name, "namespace": namespace, "resourceVersion": "1", "uid": name},
        "spec": {"resourceGroups": groups, **spec},
    }


def cluster(name: str, gpus: int, *, of: str = "team/gpu", holds: int = 0, **spec: Any) -> Json:
    status: Json = {}
    if holds:
        flavors = [{"name": "h100", "resources": [{"name": GPU, "total": holds}]}]
        status["admission"] = {"reservation": of, "reservedAt": "2026-01-01T00:00:00Z", "flavors": flavors}
    fields = {"capacityReservationId": of, "resources": {"requests": {GPU: gpus}}, **spec}
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": fields,
        "status": status,
    }


def claim(
    name: str,
    *,
    draws: str = "team/gpu",
    launched: bool = True,
    labels: Json | None = None,
    do_not_disrupt: bool = False,
) -> NodeClaim:
    """A claim in a slot of the reservation team/gpu."""
    kept = {names.DO_NOT_DISRUPT: "true"} if do_not_disrupt else {}
    return NodeClaim.decode(
        {
            "metadata": {
                "name": name,
                "labels": {
                    names.INSTANCE_TYPE: "p5.48xlarge",
                    names.RESERVATION_ID: "cr-1",
                    **(labels or {}),
                },
                "annotations": {names.DRAWS_FROM: draws, names.PRIORITY: "5", **kept},
            },
            "status": {
                "providerID": "aws:///a/i" if launched else "",
                "capacity": {GPU: "8", "cpu": "192", "memory": "2Ti"},
            },
        }
    )


def cluster_snapshot(
    *,
    reservations: list[Json],
    clusters: list[Json],
    claims: list[NodeClaim] | None = None,
    cluster_wide: list[Json] | None = None,
) -> ClusterSnapshot:
    reads = ReservationReads(Client(InProcessTransport(Cluster())), clock=FakeClock())
    flavor = {
        "metadata": {"name": "h100", "resourceVersion": "1"},
        "spec": {"nodeLabels": {names.INSTANCE_TYPE: "p5.48xlarge"}},
    }
    reads.reservations.cache.replace(reservations, 1)
    reads.cluster_reservations.cache.replace(cluster_wide or [], 1)
    reads.clusters.cache.replace(clusters, 1)
    reads.flavors.cache.replace([flavor], 1)
    ownership = Ownership(owner={"cr-1": ReservationKey("team", "gpu")}, flavor={"cr-1": "h100"})
    reads.snapshots.publish(OdcrSnapshot(ownership=ownership))
    return build_snapshot(
        reads.snapshot(),
        reads.profiles.cache,
        claims or [],
        claim_caches(
            nodes=Cache(Node, indexes={BY_INSTANCE: lambda _: ()}),
            pods=Cache(Pod, indexes={BY_NODE: lambda _: ()}),
        ),
        priority=PRIORITIES.get,
        now=FakeClock().now(),
    )


def joint_decision(snapshot: ClusterSnapshot) -> JointDecision:
    return decide(snapshot.quota(), None, ())


def phase_of(snapshot: ClusterSnapshot, name: str) -> AdmissionPhase:
    return joint_decision(snapshot).decisions[name].phase


@pytest.mark.covers("OME-051", "OME-052")
def test_priority_is_the_clusters_class_or_its_reservations() -> None:
    snapshot = cluster_snapshot(
        reservations=[reservation("gpu", 8, priorityClassName="low")],
        clusters=[
            cluster("plain", 8),
            cluster("urgent", 8, priorityClassName="high"),
            cluster("unknown", 8, priorityClassName="none"),
        ],
    )
    assert {entry.cluster.name: entry.priority for entry in snapshot.clusters if entry.request} == {
        "plain": 10,
        "urgent": 20,
    }
    unknown = next(entry.demand for entry in snapshot.clusters if entry.cluster.name == "unknown")
    assert isinstance(unknown, DemandError)
    assert unknown.reason == "PriorityClassNotFound"
    assert "no PriorityClass none: create it" in unknown.message
    assert phase_of(snapshot, "urgent") is AdmissionPhase.ADMITTED
    assert phase_of(snapshot, "plain") is AdmissionPhase.WAITING


@pytest.mark.parametrize(
    ("named", "remembered", "counts"),
    [("gone", 20, 20), ("gone", None, 0), ("low", 20, 10), ("", 20, 0)],
)
def test_a_holder_keeps_its_priority_when_its_class_is_deleted(
    named: str, remembered: int | None, counts: int
) -> None:
    holder = cluster("one", 8, holds=8, priorityClassName=named)
    holder["status"]["admission"]["priority"] = remembered
    snapshot = cluster_snapshot(reservations=[reservation("gpu", 8)], clusters=[holder])
    (entry,) = snapshot.clusters
    assert entry.priority == counts
    assert not isinstance(entry.demand, DemandError)


def test_a_holder_is_not_preempted_when_its_class_is_deleted() -> None:
    holder = cluster("one", 8, holds=8, priorityClassName="gone")
    holder["status"]["admission"]["priority"] = 20
    rule = {"withinClusterQueue": "LowerPriority"}
    lower = cluster("two", 8, priorityClassName="low")
    snapshot = cluster_snapshot(
        reservations=[reservation("gpu", 8, preemptionRule=rule)], clusters=[holder, lower]
    )
    assert not joint_decision(snapshot).evictions
    # Nor if a missing profile or reservation leaves no priority.
    for changed in ({"profile": "gone", "resources": None}, {"capacityReservationId": "team/gone"}):
        holder["spec"] |= {"priorityClassName": ""} | changed
        snapshot = cluster_snapshot(
            reservations=[reservation("gpu", 8, preemptionRule=rule)], clusters=[holder]
        )
        assert snapshot.clusters[0].priority == 20


@pytest.mark.covers("OME-060", "OME-072")
def test_quota_held_by_clusters_and_claims_is_not_granted_again() -> None:
    own = claim("own", labels={names.DEDICATED: "holds"})
    snapshot = cluster_snapshot(
        reservations=[reservation("gpu", 32)],
        clusters=[cluster("holds", 8, holds=8), cluster("fits", 16), cluster("more", 8)],
        claims=[own, claim("other"), claim("not-launched", launched=False), claim("lost", draws="unknown")],
    )
    # Of 32: 8 held, 8 by another's claim, and its part of the cpu quota follows from its GPUs.
    assert [holder.usage for holder in snapshot.other_holders] == [
        {KEY: 8, FlavorResource("h100", "cpu"): 128000}
    ]
    assert phase_of(snapshot, "fits") is AdmissionPhase.ADMITTED
    assert phase_of(snapshot, "more") is AdmissionPhase.WAITING


def test_growth_without_instances_is_a_separate_holder() -> None:
    grown = cluster("grown", 16, holds=16)
    grown["status"]["dacLifecycleState"] = "UPDATING"
    snapshot = cluster_snapshot(reservations=[reservation("gpu", 16)], clusters=[grown])
    (entry,) = snapshot.clusters

    def pass_with(launched: int) -> ClusterPass:
        label = {names.DEDICATED: "grown"}
        claims = [claim(f"grown-{n}", launched=n < launched, labels=label) for n in range(2)]
        for claim_ in claims:
            claim_.metadata.annotations[names.TAG_FLAVOR] = "h100"
        return ClusterPass(
            snapshot=snapshot,
            claims={"grown": claims},
            unready_nodes=frozenset(),
            types={},
            size=lambda _: (
                lambda _, amounts: SizedQuota(count=amounts[GPU] // 8, instance_type="p5.48xlarge")
            ),
            owners={},
        )

    assert pass_with(2).backed_quota(entry) is None
    assert pass_with(0).backed_quota(entry) is None  # it leaves as a whole without draining any instance
    assert pass_with(1).backed_quota(entry) == {KEY: 8}
    parts = snapshot.quota(backed_quota=pass_with(1).backed_quota).holders
    assert [(part.name, part.usage) for part in parts] == [
        ("grown", {KEY: 8}),
        ("grown (growth)", {KEY: 8}),
    ]
    grown["status"]["dacLifecycleState"] = "CREATING"
    (entry,) = cluster_snapshot(reservations=[reservation("gpu", 16)], clusters=[grown]).clusters
    assert pass_with(1).backed_quota(entry) is None  # never whole, so it goes as a whole


@pytest.mark.covers("OME-032", "OME-046")
def test_a_borrowing_claim_is_preempted_for_the_owner() -> None:
    sharing: Json = {"cohort": "c", "allowBorrowing": True}
    snapshot = cluster_snapshot(
        reservations=[
            reservation("gpu", 8, preemptionRule={"reclaimWithinCohort": "Any"}, **sharing),
            reservation("guest", 0, **sharing),
        ],
        clusters=[cluster("mine", 8)],
        claims=[claim("theirs", draws="team/guest")],
    )
    decision = joint_decision(snapshot)
    assert [*decision.evictions] == ["NodeClaim theirs"]
    assert decision.decisions["mine"].phase is AdmissionPhase.PREEMPTING


def test_a_non_preemptible_claim_keeps_its_quota_and_another_is_evicted() -> None:
    sharing: Json = {"cohort": "c", "allowBorrowing": True}
    snapshot = cluster_snapshot(
        reservations=[
            reservation("gpu", 16, preemptionRule={"reclaimWithinCohort": "Any"}, **sharing),
            reservation("guest", 0, **sharing),
        ],
        clusters=[cluster("mine", 8), cluster("second", 8)],
        claims=[claim("kept", draws="team/guest", do_not_disrupt=True), claim("leaves", draws="team/guest")],
    )
    decision = joint_decision(snapshot)
    assert [*decision.evictions] == ["NodeClaim leaves"]
    assert decision.decisions["mine"].phase is AdmissionPhase.PREEMPTING
    assert decision.decisions["second"].phase is AdmissionPhase.WAITING


@pytest.mark.covers("OME-049", "OME-054")
@pytest.mark.parametrize(
    ("rule", "priority", "leaves"),
    [("LowerPriority", "high", ["NodeClaim plain"]), ("LowerPriority", "", []), ("Never", "high", [])],
)
def test_a_claim_on_its_own_slot_is_preempted_only_by_its_own_reservation(
    rule: str, priority: str, leaves: list[str]
) -> None:
    sharing: Json = {
        "cohort": "c",
        "preemptionRule": {"withinClusterQueue": rule, "reclaimWithinCohort": "Any"},
    }
    snapshot = cluster_snapshot(
        reservations=[reservation("gpu", 8, **sharing), reservation("theirs", 8, **sharing)],
        clusters=[
            cluster("urgent", 8, priorityClassName=priority),
            cluster("outside", 16, of="team/theirs", priorityClassName="high"),
        ],
        claims=[claim("plain")],
    )
    assert [*joint_decision(snapshot).evictions] == leaves


def test_a_claim_that_fell_back_to_on_demand_holds_no_quota() -> None:
    labels = {names.CAPACITY_TYPE: "on-demand"}
    snapshot = cluster_snapshot(
        reservations=[reservation("gpu", 8)],
        clusters=[cluster("one", 8)],
        claims=[claim("fell-back", labels=labels)],
    )
    assert not snapshot.other_holders
    assert phase_of(snapshot, "one") is AdmissionPhase.ADMITTED


def test_a_cluster_without_a_reservation_is_ignored_unless_it_holds_quota_or_a_finalizer() -> None:
    kept = cluster("kept", 8, of="")
    kept["metadata"]["finalizers"] = [names.RESERVED_FINALIZER]
    holds = cluster("holds", 8, of="", holds=8)
    holds["status"]["admission"]["reservation"] = "team/gpu"
    snapshot = cluster_snapshot(
        reservations=[reservation("gpu", 8)],
        clusters=[cluster("alone", 8, of=""), cluster("lost", 8, of="team/none"), holds, kept],
    )
    assert [entry.cluster.name for entry in snapshot.clusters] == ["holds", "kept", "lost"]


def test_an_invalid_or_deleted_reservation_grants_no_new_quota() -> None:
    gone = reservation("gpu", 8)
    gone["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x"]}
    broken = reservation("broken", 8, allowBorrowing=True)
    snapshot = cluster_snapshot(
        reservations=[gone, broken], clusters=[cluster("one", 8), cluster("two", 8, of="team/broken")]
    )
    barred = {entry.cluster.name: entry.barred for entry in snapshot.clusters}
    assert barred["one"] == "it is being deleted"
    assert "spec.cohort is empty" in barred["two"]
    assert not joint_decision(snapshot).decisions


def test_a_claim_of_an_invalid_reservation_counts_in_no_other_one() -> None:
    """A name alone means the cluster-wide reservation also while that one is invalid."""
    invalid = reservation("gpu", 8, namespace="", allowBorrowing=True)
    snapshot = cluster_snapshot(
        reservations=[reservation("gpu", 8)],
        cluster_wide=[invalid],
        clusters=[],
        claims=[claim("a", draws="gpu"), claim("b", draws="team/gpu")],
    )
    assert [(holder.name, holder.queue) for holder in snapshot.other_holders] == [
        ("NodeClaim b", "team--gpu")
    ]


def renamed(body: Json, flavor: str) -> Json:
    body["spec"]["resourceGroups"][0]["flavors"][0]["name"] = flavor
    return body


@pytest.mark.covers("FLT-44")
@pytest.mark.parametrize(("flavor", "admitted"), [("h100", True), ("h200", False)])
def test_flavor_renamed_under_a_cluster_admits_nothing_more(flavor: str, admitted: bool) -> None:
    snapshot = cluster_snapshot(
        reservations=[renamed(reservation("gpu", 32), flavor), reservation("other", 32)],
        clusters=[
            cluster("holder", 8, holds=8),
            cluster("grows", 16, holds=8),
            cluster("new", 8),
            cluster("elsewhere", 8, of="team/other"),
        ],
    )
    states = {entry.cluster.name: entry for entry in snapshot.clusters}
    assert {name for name, entry in states.items() if entry.request} == (
        {"grows", "new", "elsewhere"} if admitted else {"elsewhere"}
    )
    message = (
        "16 of nvidia.com/gpu in h100 used (quota that its users hold; its machines are counted in h200), "
        "16 more than it may; nothing more is admitted until it fits"
    )
    assert states["new"].full == ("" if admitted else message)
    assert phase_of(snapshot, "elsewhere") is AdmissionPhase.ADMITTED


@pytest.mark.covers("FLT-44")
def test_renamed_flavor_admits_again_once_its_users_have_left() -> None:
    snapshot = cluster_snapshot(
        reservations=[renamed(reservation("gpu", 32), "h200")], clusters=[cluster("new", 8)]
    )
    assert snapshot.clusters[0].request is not None


@pytest.mark.covers("FLT-44")
def test_resource_that_a_flavor_counts_no_more_bars_nothing() -> None:
    holder = cluster("holder", 8, holds=8)
    holder["status"]["admission"]["flavors"] = [
        {"name": "h100", "resources": [{"name": GPU, "total": 8}, {"name": "memory", "total": "1Gi"}]}
    ]
    snapshot = cluster_snapshot(reservations=[reservation("gpu", 32)], clusters=[holder, cluster("new", 8)])
    assert phase_of(snapshot, "new") is AdmissionPhase.ADMITTED
