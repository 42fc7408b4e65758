"""Snapshots of disruption: the pods that volumes keep in the zone of their node."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from broker.apis.policy import PodDisruptionBudget
from broker.apis.storage import PersistentVolume, PersistentVolumeClaim
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.disruption.snapshot import DisruptionSnapshotBuilder
from broker.controllers.nodereservation.occupancy import NodeOccupancy
from broker.informers import Informers
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.placement.storage import Storage
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.support.clock import FakeClock

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
ID = "aws:///us-east-1a/i-0123456789abcdef0"


def test_volume_that_is_seen_late_frees_its_pod_though_nothing_else_changes() -> None:
    read = Informers(Client(InProcessTransport(Cluster())), clock=FakeClock())
    caches = ClaimCaches(
        claims=read.claims.cache,
        nodes=read.nodes.cache,
        pods=read.pods.cache,
        pools=read.pools.cache,
        owns=lambda _: True,
    )
    labels = {"karpenter.sh/nodepool": "web"}
    data = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    given: list[tuple[Cache[Any], dict[str, Any]]] = [
        (caches.pools, {"metadata": {"name": "web"}}),
        (
            caches.claims,
            {"metadata": {"name": "web-0", "labels": labels}, "status": {"providerID": ID}},
        ),
        (caches.nodes, {"metadata": {"name": "node"}, "spec": {"providerID": ID}}),
        (
            caches.pods,
            {
                "metadata": {"name": "app", "namespace": "default"},
                "spec": {"nodeName": "node", "volumes": [data]},
            },
        ),
    ]
    for cache, body in given:
        cache.observe({**body, "metadata": {**body["metadata"], "uid": "1", "resourceVersion": "1"}})
    seen: list[PersistentVolume] = []
    meta = {"name": "data", "namespace": "default"}
    claim = PersistentVolumeClaim.decode({"metadata": meta, "spec": {"volumeName": "pv"}})
    builder = DisruptionSnapshotBuilder(
        caches,
        Cache(PodDisruptionBudget),
        storage=lambda: Storage.of(claims=[claim], volumes=seen),
        disrupts=lambda _: True,
    )

    def tied() -> set[str]:
        (node,) = builder.read(NOW, NodeOccupancy()).nodes
        return {*node.tied}

    assert tied() == {"default/app"}
    csi = {"driver": "efs.csi.aws.com", "volumeHandle": "fs-1"}
    seen.append(PersistentVolume.decode({"metadata": {"name": "pv"}, "spec": {"csi": csi}}))
    assert tied() == set()
