"""One snapshot for decisions about dedicated clusters: specs, priorities, and the holders of quota."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apiserver import Cluster
from broker.controllers.dedicatedaicluster.controller import ClusterPass
from broker.controllers.dedicatedaicluster.demand import DemandError
from broker.controllers.dedicatedaicluster.snapshot import ClusterSnapshot, look
from broker.controllers.reservation_reads import ReservationReads
from broker.kube.client import Client
from broker.kube.clock import FakeClock
from broker.kube.transports import InProcessTransport
from broker.quota.entitled import AdmissionPhase
from broker.quota.joint import JointDecision, decide
from broker.quota.model import FlavorResource
from broker.reservations.sizing import SizedQuota

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
    asked = {"capacityReservationId": of, "resources": {"requests": {GPU: gpus}}, **spec}
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": asked,
        "status": status,
    }


def claim(
    name: str, *, draws: str = "team/gpu", launched: bool = True, labels: Json | None = None
) -> NodeClaim:
    return NodeClaim.decode(
        {
            "metadata": {
                "name": name,
                "labels": {names.INSTANCE_TYPE: "p5.48xlarge", **(labels or {})},
                "annotations": {names.DRAWS_FROM: draws, names.PRIORITY: "5"},
            },
            "status": {
                "providerID": "aws:///a/i" if launched else "",
                "capacity": {GPU: "8", "cpu": "192", "memory": "2Ti"},
            },
        }
    )


def world(
    *,
    reservations: list[Json],
    clusters: list[Json],
    claims: list[NodeClaim] | None = None,
    firm: tuple[str, ...] = (),
    home: tuple[str, ...] = (),
) -> ClusterSnapshot:
    reads = ReservationReads(Client(InProcessTransport(Cluster())), clock=FakeClock())
    flavor = {
        "metadata": {"name": "h100", "resourceVersion": "1"},
        "spec": {"nodeLabels": {names.INSTANCE_TYPE: "p5.48xlarge"}},
    }
    reads.reservations.cache.replace(reservations, 1)
    reads.clusters.cache.replace(clusters, 1)
    reads.flavors.cache.replace([flavor], 1)
    return look(
        reads.snapshot(),
        reads.profiles.cache,
        claims or [],
        priority=PRIORITIES.get,
        firm=lambda claim: claim.name in firm,
        home=lambda claim, _: claim.name in home,
    )


def decided(found: ClusterSnapshot) -> JointDecision:
    return decide(found.quota(), None, ())


def standing(found: ClusterSnapshot, name: str) -> AdmissionPhase:
    return decided(found).decisions[name].phase


@pytest.mark.covers("OME-051", "OME-052")
def test_priority_is_the_clusters_class_or_its_reservations() -> None:
    found = world(
        reservations=[reservation("gpu", 8, priorityClassName="low")],
        clusters=[
            cluster("plain", 8),
            cluster("urgent", 8, priorityClassName="high"),
            cluster("unknown", 8, priorityClassName="none"),
        ],
    )
    assert {each.cluster.name: each.priority for each in found.asking if each.want} == {
        "plain": 10,
        "urgent": 20,
    }
    unknown = next(each.wanted for each in found.asking if each.cluster.name == "unknown")
    assert isinstance(unknown, DemandError)
    assert unknown.reason == "PriorityClassNotFound"
    assert "no PriorityClass none: create it" in unknown.message
    assert standing(found, "urgent") is AdmissionPhase.ADMITTED
    assert standing(found, "plain") is AdmissionPhase.WAITING


@pytest.mark.parametrize(
    ("named", "remembered", "counts"),
    [("gone", 20, 20), ("gone", None, 0), ("low", 20, 10), ("", 20, 0)],
)
def test_who_holds_quota_keeps_its_priority_when_the_class_is_gone(
    named: str, remembered: int | None, counts: int
) -> None:
    holder = cluster("one", 8, holds=8, priorityClassName=named)
    holder["status"]["admission"]["priority"] = remembered
    found = world(reservations=[reservation("gpu", 8)], clusters=[holder])
    (one,) = found.asking
    assert one.priority == counts
    assert not isinstance(one.wanted, DemandError)


def test_nor_is_it_preempted_for_that() -> None:
    holder = cluster("one", 8, holds=8, priorityClassName="gone")
    holder["status"]["admission"]["priority"] = 20
    rule = {"withinClusterQueue": "LowerPriority"}
    lower = cluster("two", 8, priorityClassName="low")
    found = world(reservations=[reservation("gpu", 8, preemptionRule=rule)], clusters=[holder, lower])
    assert not decided(found).evictions
    # Nor if a missing profile or reservation leaves no priority.
    for changed in ({"profile": "gone", "resources": None}, {"capacityReservationId": "team/gone"}):
        holder["spec"] |= {"priorityClassName": ""} | changed
        found = world(reservations=[reservation("gpu", 8, preemptionRule=rule)], clusters=[holder])
        assert found.asking[0].priority == 20


@pytest.mark.covers("OME-060", "OME-072")
def test_what_clusters_and_claims_of_others_hold_is_not_given_again() -> None:
    own = claim("own", labels={names.DEDICATED: "holds"})
    found = world(
        reservations=[reservation("gpu", 32)],
        clusters=[cluster("holds", 8, holds=8), cluster("fits", 16), cluster("more", 8)],
        claims=[own, claim("other"), claim("not-launched", launched=False), claim("lost", draws="nobody")],
    )
    # Of 32: 8 held, 8 by another's claim, and its part of the cpu quota follows from its GPUs.
    assert [each.usage for each in found.others] == [{KEY: 8, FlavorResource("h100", "cpu"): 128000}]
    assert standing(found, "fits") is AdmissionPhase.ADMITTED
    assert standing(found, "more") is AdmissionPhase.WAITING


def test_a_growth_without_instances_holds_its_quota_apart() -> None:
    grown = cluster("grown", 16, holds=16)
    grown["status"]["dacLifecycleState"] = "UPDATING"
    found = world(reservations=[reservation("gpu", 16)], clusters=[grown])
    (one,) = found.asking

    def seen(launched: int) -> ClusterPass:
        label = {names.DEDICATED: "grown"}
        claims = [claim(f"grown-{n}", launched=n < launched, labels=label) for n in range(2)]
        for each in claims:
            each.metadata.annotations[names.TAG_FLAVOR] = "h100"
        return ClusterPass(
            world=found,
            claims={"grown": claims},
            down=frozenset(),
            types={},
            size=lambda _: (
                lambda _, amounts: SizedQuota(count=amounts[GPU] // 8, instance_type="p5.48xlarge")
            ),
            owners={},
        )

    assert seen(2).settled(one) is None
    assert seen(0).settled(one) is None  # it leaves as a whole without draining any instance
    assert seen(1).settled(one) == {KEY: 8}
    parts = found.quota(settled=seen(1).settled).holders
    assert [(each.name, each.usage) for each in parts] == [
        ("grown", {KEY: 8}),
        ("grown (growth)", {KEY: 8}),
    ]
    grown["status"]["dacLifecycleState"] = "CREATING"
    (one,) = world(reservations=[reservation("gpu", 16)], clusters=[grown]).asking
    assert seen(1).settled(one) is None  # never whole, so it goes as a whole


@pytest.mark.covers("OME-032", "OME-046")
def test_a_claim_that_borrows_gives_way_to_who_is_entitled() -> None:
    sharing: Json = {"cohort": "c", "allowBorrowing": True}
    found = world(
        reservations=[
            reservation("gpu", 8, preemptionRule={"reclaimWithinCohort": "Any"}, **sharing),
            reservation("guest", 0, **sharing),
        ],
        clusters=[cluster("mine", 8)],
        claims=[claim("theirs", draws="team/guest")],
    )
    made = decided(found)
    assert [*made.evictions] == ["NodeClaim theirs"]
    assert made.decisions["mine"].phase is AdmissionPhase.PREEMPTING


def test_claims_that_are_not_to_be_asked_keep_their_quota_and_others_leave_instead() -> None:
    sharing: Json = {"cohort": "c", "allowBorrowing": True}
    found = world(
        reservations=[
            reservation("gpu", 16, preemptionRule={"reclaimWithinCohort": "Any"}, **sharing),
            reservation("guest", 0, **sharing),
        ],
        clusters=[cluster("mine", 8), cluster("second", 8)],
        claims=[claim("kept", draws="team/guest"), claim("leaves", draws="team/guest")],
        firm=("kept",),
    )
    made = decided(found)
    assert [*made.evictions] == ["NodeClaim leaves"]
    assert made.decisions["mine"].phase is AdmissionPhase.PREEMPTING
    assert made.decisions["second"].phase is AdmissionPhase.WAITING


@pytest.mark.covers("OME-049", "OME-054")
@pytest.mark.parametrize(
    ("rule", "priority", "leaves"),
    [("LowerPriority", "high", ["NodeClaim plain"]), ("LowerPriority", "", []), ("Never", "high", [])],
)
def test_a_claim_in_a_slot_of_its_own_leaves_for_more_priority_of_its_own_reservation_alone(
    rule: str, priority: str, leaves: list[str]
) -> None:
    sharing: Json = {
        "cohort": "c",
        "preemptionRule": {"withinClusterQueue": rule, "reclaimWithinCohort": "Any"},
    }
    found = world(
        reservations=[reservation("gpu", 8, **sharing), reservation("theirs", 8, **sharing)],
        clusters=[
            cluster("urgent", 8, priorityClassName=priority),
            cluster("outside", 16, of="team/theirs", priorityClassName="high"),
        ],
        claims=[claim("plain")],
        home=("plain",),
    )
    assert [*decided(found).evictions] == leaves


def test_a_claim_that_fell_back_to_on_demand_holds_no_quota() -> None:
    labels = {names.CAPACITY_TYPE: "on-demand"}
    found = world(
        reservations=[reservation("gpu", 8)],
        clusters=[cluster("one", 8)],
        claims=[claim("fell-back", labels=labels)],
    )
    assert not found.others
    assert standing(found, "one") is AdmissionPhase.ADMITTED


def test_a_cluster_that_names_no_reservation_is_left_alone_unless_it_has_something_of_ours() -> None:
    kept = cluster("kept", 8, of="")
    kept["metadata"]["finalizers"] = [names.RESERVED_FINALIZER]
    holds = cluster("holds", 8, of="", holds=8)
    holds["status"]["admission"]["reservation"] = "team/gpu"
    found = world(
        reservations=[reservation("gpu", 8)],
        clusters=[cluster("alone", 8, of=""), cluster("lost", 8, of="team/none"), holds, kept],
    )
    assert [each.cluster.name for each in found.asking] == ["holds", "kept", "lost"]


def test_a_reservation_that_means_nothing_or_goes_gives_nothing_new() -> None:
    gone = reservation("gpu", 8)
    gone["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x"]}
    broken = reservation("broken", 8, allowBorrowing=True)
    found = world(
        reservations=[gone, broken], clusters=[cluster("one", 8), cluster("two", 8, of="team/broken")]
    )
    barred = {each.cluster.name: each.barred for each in found.asking}
    assert barred["one"] == "it is deleted"
    assert "spec.cohort is empty" in barred["two"]
    assert not decided(found).decisions
