"""The quota of each reservation that dedicated clusters hold, for readers that show or count it."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.ome_clusters import DedicatedAICluster
from broker.quota.model import FlavorResource
from broker.quota.usage import ReservationKey
from broker.reservations.cluster_holders import Holders, cluster_holders, unqueued

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
A, B, POOL = ReservationKey("a", "gpu"), ReservationKey("b", "gpu"), ReservationKey("", "pool")


def cluster(name: str, of: str, *, holds: str = "", state: str = "ACTIVE", detail: str = "") -> Json:
    status: Json = {"dacLifecycleState": state, "lifecycleDetail": detail}
    if holds:
        flavors = [{"name": "h100", "resources": [{"name": GPU, "total": 8}, {"name": "cpu", "total": "2"}]}]
        status["admission"] = {"reservation": holds, "flavors": flavors}
    metadata = {"name": name, "uid": name, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"capacityReservationId": of}, "status": status}


def holders(*clusters: Json) -> Holders:
    return cluster_holders(map(DedicatedAICluster.decode, clusters), (A, B, POOL))


@pytest.mark.covers("OME-058", "OME-075")
def test_holding_and_waiting_clusters_are_listed_by_reservation() -> None:
    by_reservation = holders(
        cluster("holds", "a/gpu", holds="a/gpu"),
        cluster("waits", "a/gpu", state="CREATING"),
        cluster("failed", "pool", state="FAILED", detail="too large"),
        cluster("ambiguous", "gpu", state="FAILED", detail="a/gpu or b/gpu"),
        cluster("lost", "nowhere", state="FAILED", detail="no such"),
        cluster("moves", "b/gpu", holds="a/gpu", state="UPDATING"),
    )
    shown = {
        reserved: [(holder.name, holder.healthy, holder.why) for holder in listed]
        for reserved, listed in by_reservation.items()
    }
    assert shown == {
        A: [("holds", True, ""), ("moves", True, ""), ("waits", True, "")],
        POOL: [("failed", False, "too large")],
    }
    usage = {holder.name: dict(holder.usage) for holder in by_reservation[A]}
    amounts = {FlavorResource("h100", GPU): 8, FlavorResource("h100", "cpu"): 2000}
    assert usage == {"holds": amounts, "moves": amounts, "waits": {}}
    assert B not in by_reservation


def test_clusters_that_kueue_counts_are_excluded() -> None:
    by_reservation = holders(
        cluster("queued", "a/gpu", holds="a/gpu"), cluster("old", "a/gpu", holds="a/gpu")
    )
    queued = ((A.queue, "queued"), (B.queue, "old"), ("anyones", "old"))
    assert [holder.name for holder in unqueued(by_reservation, queued)[A]] == ["old"]
    assert [holder.name for holder in by_reservation[A]] == ["old", "queued"]
