"""Slots kept for dedicated clusters: from their admission on, and once their victims have left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.apis import names
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.preemption.promises import cluster_holdings, nominations, promises
from broker.quota.model import FlavorResource
from broker.quota.resolve import ReservationNames
from broker.quota.slot_model import Promise
from broker.quota.usage import Reserved
from broker.reservations.cluster_admission import ClusterAdmission
from broker.reservations.sizing import SizedQuota

GPU = "nvidia.com/gpu"
MINE = Reserved("team", "gpu")
FLAVOR = ResourceFlavor.decode({"metadata": {"name": "h100"}})


def cluster(*, holds: int = 0, preempted: bool = False, deleting: bool = False) -> DedicatedAICluster:
    meta: dict[str, Any] = {"name": "prod", "uid": "u"}
    if deleting:
        meta |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [names.RESERVED_FINALIZER]}
    status: dict[str, Any] = {}
    if holds:
        flavors = [{"name": "h100", "resources": [{"name": GPU, "total": 8 * holds}]}]
        status["admission"] = {"reservation": str(MINE), "flavors": flavors}
    if preempted:
        said = {"type": names.PREEMPTED, "status": "True", "reason": "InClusterQueue"}
        status["conditions"] = [said | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]
    spec = {"capacityReservationId": str(MINE)}
    return DedicatedAICluster.decode({"metadata": meta, "spec": spec, "status": status})


def gives(count: int) -> Mapping[str, ClusterAdmission]:
    usage = {FlavorResource("h100", GPU): 8 * count}
    held = ClusterAdmission(reserved=MINE, since=datetime(2026, 1, 1, tzinfo=UTC), usage=usage, priority=5)
    return {"u": held} if count else {}


def promised(one: DedicatedAICluster, *, admitted: int = 0, later: int = 0, spared: bool = False) -> set[Any]:
    def size(_: str, amounts: Mapping[str, int]) -> SizedQuota:
        return SizedQuota(count=amounts[GPU] // 8, instance_type="p5.48xlarge")

    those = cluster_holdings(
        [one],
        (),
        by_name=ReservationNames([MINE]),
        flavors=[FLAVOR],
        sizes=lambda _: size,
        settled=(),
        admitted=gives(admitted),
        later=gives(later),
    )
    found: Sequence[Promise] = promises(those, usage={}, gone=(), spared=spared)
    found = [*found, *nominations(those, usage={}, gone=())]
    return {(each.count, each.later) for each in found}


@pytest.mark.parametrize("preempted", [False, True])
def test_what_a_cluster_was_admitted_to_a_moment_ago_is_promised_also_where_it_was_preempted_before(
    preempted: bool,
) -> None:
    assert promised(cluster(preempted=preempted), admitted=2) == {(2, False)}
    assert promised(cluster(preempted=preempted), later=2) == {(2, True)}
    assert promised(cluster(preempted=preempted)) == set()


def test_who_leaves_is_promised_nothing() -> None:
    assert promised(cluster(holds=2)) == {(2, False)}
    assert promised(cluster(holds=2, preempted=True)) == set()
    assert promised(cluster(holds=2, deleting=True)) == set()
    assert promised(cluster(deleting=True), admitted=2) == set()


def test_a_growth_that_others_leave_for_is_promised_beside_what_is_held() -> None:
    assert promised(cluster(holds=1), later=3) == {(1, False), (2, True)}
