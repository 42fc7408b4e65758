"""Slots kept for dedicated clusters: from their admission on, and once their victims have left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.apis import names
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.controllers.dedicatedaicluster.demand import cluster_demand
from broker.controllers.slots.cluster_slots import cluster_holdings, nominated_slots, pending_slots
from broker.quota.model import FlavorResource
from broker.quota.resolve import ReservationNames
from broker.quota.slot_model import PendingSlots
from broker.quota.usage import ReservationKey
from broker.reservations.cluster_admission import ClusterAdmission
from broker.reservations.sizing import SizedQuota

GPU = "nvidia.com/gpu"
MINE = ReservationKey("team", "gpu")
UNIT = {"count": 1, "resources": {"requests": {GPU: 8}}}
ON_DEMAND = {names.CAPACITY_TYPE: "on-demand"}


def cluster(*, holds: int = 0, preempted: bool = False, deleting: bool = False) -> DedicatedAICluster:
    meta: dict[str, Any] = {"name": "prod", "uid": "u"}
    if deleting:
        meta |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [names.RESERVED_FINALIZER]}
    status: dict[str, Any] = {}
    if holds:
        flavors = [{"name": "h100", "resources": [{"name": GPU, "total": 8 * holds}]}]
        status["admission"] = {"reservation": str(MINE), "flavors": flavors}
    if preempted:
        preempted_ = {"type": names.PREEMPTED, "status": "True", "reason": "InClusterQueue"}
        status["conditions"] = [preempted_ | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]
    spec = {"capacityReservationId": str(MINE), "profile": "eight"}
    return DedicatedAICluster.decode({"metadata": meta, "spec": spec, "status": status})


def gives(count: int) -> Mapping[str, ClusterAdmission]:
    usage = {FlavorResource("h100", GPU): 8 * count}
    held = ClusterAdmission(reserved=MINE, since=datetime(2026, 1, 1, tzinfo=UTC), usage=usage, priority=5)
    return {"u": held} if count else {}


def pending_counts(
    cluster_: DedicatedAICluster,
    *,
    admitted: int = 0,
    later: int = 0,
    non_preemptible: bool = False,
    profile: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
) -> set[Any]:
    """`profile`: the spec of the cluster's profile; `labels`: those of the flavor."""
    unit = DedicatedAIClusterProfile.decode(
        {"metadata": {"name": "eight"}, "spec": {**UNIT, **(profile or {})}}
    )
    flavor = ResourceFlavor.decode({"metadata": {"name": "h100"}, "spec": {"nodeLabels": labels or {}}})

    def size(_: str, amounts: Mapping[str, int]) -> SizedQuota:
        return SizedQuota(count=amounts[GPU] // 8, instance_type="p5.48xlarge")

    holdings = cluster_holdings(
        [cluster_],
        (),
        by_name=ReservationNames([MINE]),
        demand=lambda cluster: cluster_demand(cluster, unit),
        flavors=[flavor],
        sizes=lambda _: size,
        counted_claims=(),
        admitted=gives(admitted),
        nominated_quota=gives(later),
    )
    pending: Sequence[PendingSlots] = pending_slots(
        holdings, usage={}, evicted=(), non_preemptible=non_preemptible
    )
    pending = [*pending, *nominated_slots(holdings, usage={}, evicted=())]
    return {(slots.count, slots.nominated) for slots in pending}


@pytest.mark.parametrize("preempted", [False, True])
def test_newly_admitted_quota_is_pending_even_after_a_preemption(
    preempted: bool,
) -> None:
    assert pending_counts(cluster(preempted=preempted), admitted=2) == {(2, False)}
    assert pending_counts(cluster(preempted=preempted), later=2) == {(2, True)}
    assert pending_counts(cluster(preempted=preempted)) == set()


def test_a_terminating_cluster_has_no_pending_slots() -> None:
    assert pending_counts(cluster(holds=2)) == {(2, False)}
    assert pending_counts(cluster(holds=2, preempted=True)) == set()
    assert pending_counts(cluster(holds=2, deleting=True)) == set()
    assert pending_counts(cluster(deleting=True), admitted=2) == set()


def test_nominated_growth_is_pending_beside_the_held_quota() -> None:
    assert pending_counts(cluster(holds=1), later=3) == {(1, False), (2, True)}


def required(operator: str, *values: str) -> dict[str, Any]:
    """A profile that requires this of the capacity type."""
    expression = {"key": names.CAPACITY_TYPE, "operator": operator, "values": [*values]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


@pytest.mark.parametrize(
    ("profile", "labels", "kept"),
    [
        ({"nodeSelector": ON_DEMAND}, {}, False),
        ({"nodeSelector": {names.CAPACITY_TYPE: "reserved"}}, {}, True),
        ({"nodeSelector": ON_DEMAND}, {names.CAPACITY_TYPE: "reserved"}, True),  # as its claims launch
        ({}, ON_DEMAND, False),
        (required("In", "on-demand"), {}, False),
        (required("In", "on-demand", "reserved"), {}, True),
        (required("NotIn", "reserved"), {}, False),
        (required("NotIn", "spot"), {}, True),
    ],
)
def test_slots_are_kept_only_for_claims_that_take_reserved_instances(
    profile: dict[str, Any], labels: dict[str, str], kept: bool
) -> None:
    assert bool(pending_counts(cluster(holds=2), profile=profile, labels=labels)) is kept
