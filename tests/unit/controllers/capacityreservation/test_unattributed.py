"""Unattributed usage of hardware: by pods, and by the owners of the instances' claims."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.controllers.capacityreservation.unattributed import UnattributedUsage, UnattributedUsageReader
from broker.controllers.claim_caches import BY_NODE
from broker.kube.cache import Cache
from broker.quota.hardware import Machine, UnattributedKey
from broker.quota.model import FlavorResource
from broker.quota.usage import ReservationHolder, ReservationKey

GPU = "nvidia.com/gpu"
OWNER, OTHER = ReservationKey("team", "gpus"), ReservationKey("elsewhere", "gpus")
KEY = FlavorResource("h100", GPU)
DRAWS, DEDICATED = {names.DRAWS_FROM: "team/gpus"}, {names.DEDICATED: "prod"}


class World:
    """One node of eight accelerators, `n`; a second, `m`, without pods."""

    def __init__(self, *, labels: dict[str, str] | None = None) -> None:
        self.nodes: Cache[Node] = Cache(Node)
        self.pods: Cache[Pod] = Cache(Pod, indexes={BY_NODE: lambda pod: [pod.spec.node_name]})
        for name in ("n", "m"):
            meta = {"name": name, "uid": name, "resourceVersion": "1", "labels": labels or {}}
            self.nodes.observe({"apiVersion": "v1", "kind": "Node", "metadata": meta})
        self.reader = UnattributedUsageReader(self.nodes, self.pods, steady_seconds=30.0)
        self.woken = 0
        self.reader.on_change(self.wake)
        self.version = 1

    def wake(self) -> None:
        self.woken += 1

    def pod(self, gpus: int, *, name: str = "p", phase: str = "Running", node: str = "n") -> None:
        self.version += 1
        meta = {"name": name, "namespace": "x", "uid": name, "resourceVersion": str(self.version)}
        resources = {"requests": {GPU: str(gpus)}} if gpus else {"requests": {"cpu": "1"}}
        spec = {"nodeName": node, "containers": [{"name": "c", "resources": resources}]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        self.pods.observe({**body, "status": {"phase": phase}})

    def read(
        self,
        *holders: ReservationHolder,
        owner: ReservationKey | None = None,
        claim: NodeClaim | None = None,
        kueue: bool = False,
        moment: float = 0.0,
    ) -> UnattributedUsage:
        machines = [
            Machine(name=name, flavor="h100", resources={GPU: 8}, owner=owner if name == "n" else None)
            for name in ("n", "m")
        ]
        usage, _ = self.reader.read(
            machines,
            [claim] if claim else [],
            holders,
            is_attributed=lambda given, where: (
                given.annotations[names.DRAWS_FROM] == "team/gpus" and where in (None, OWNER)
            ),
            kueue=kueue,
            moment=moment,
        )
        return usage


def claim(*, annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None) -> NodeClaim:
    meta: dict[str, Any] = {"name": "c", "annotations": annotations or {}, "labels": labels or {}}
    return NodeClaim.decode({"metadata": meta, "status": {"nodeName": "n", "providerID": "aws:///a/i-1"}})


@pytest.mark.covers("OME-033", "CAP-07")
@pytest.mark.parametrize(
    ("owner", "claim_", "gpus", "use"),
    [
        # In a slot the instance is the usage, with or without pods.
        (OWNER, claim(annotations=DRAWS), 8, 0),
        (OWNER, claim(), 0, 8),
        (OWNER, claim(annotations={names.DRAWS_FROM: "typo"}), 0, 8),
        (OTHER, claim(annotations=DRAWS), 0, 8),
        (OWNER, claim(annotations=DRAWS, labels=DEDICATED), 8, 0),
        (OWNER, None, 0, 8),
        # On any other node of the flavor the pods are the usage.
        (None, claim(), 0, 0),
        (None, claim(), 4, 4),
        (None, None, 12, 8),
        (None, claim(annotations=DRAWS), 8, 0),
        (None, claim(labels=DEDICATED), 8, 0),
    ],
)
def test_without_kueue_claims_attribute_an_instance(
    owner: ReservationKey | None, claim_: NodeClaim | None, gpus: int, use: int
) -> None:
    world = World()
    world.pod(gpus)
    usage = world.read(owner=owner, claim=claim_)
    assert dict(usage.use) == ({UnattributedKey(owner, KEY): use} if use else {})
    where = usage.where(owner or OWNER, ["h100"])
    assert where == (("n",) if use else ())


def workload(gpus: int, kind: Any = "Workload") -> ReservationHolder:
    return ReservationHolder(kind=kind, name="x/job", reserved=OWNER, usage={KEY: gpus})


@pytest.mark.covers("OME-033")
@pytest.mark.parametrize(
    ("running", "admitted", "use"), [(8, 8, 0), (8, 16, 0), (8, 6, 2), (8, 0, 8), (0, 8, 0)]
)
def test_with_kueue_usage_beyond_the_admitted_is_unattributed(running: int, admitted: int, use: int) -> None:
    world = World()
    world.pod(running)
    holders = [workload(admitted), workload(8, "DedicatedAICluster")]
    usage = world.read(*holders, owner=OWNER, claim=claim(), kueue=True)
    assert dict(usage.use) == ({UnattributedKey(None, KEY): use} if use else {})
    assert usage.anywhere


def test_nodes_of_dedicated_clusters_are_attributed() -> None:
    world = World(labels=DEDICATED)
    world.pod(8)
    assert not world.read(kueue=True).use and not world.read(owner=OWNER).use


def test_a_change_counts_only_after_it_lasted() -> None:
    world = World()
    assert not world.read(moment=0.0).use
    world.pod(8)
    assert not world.read(moment=10.0).use
    assert not world.read(moment=39.0).use
    assert world.read(moment=40.0).use == {UnattributedKey(None, KEY): 8}
    world.pod(8, phase="Succeeded")
    assert world.read(moment=50.0).use
    world.pod(8, name="next")
    assert world.read(moment=90.0).use == {UnattributedKey(None, KEY): 8}, (
        "another of the same took its place"
    )


def test_only_pods_with_accelerators_wake_the_reader() -> None:
    world = World()
    world.pod(0)
    assert world.woken == 0
    world.pod(4, name="gpu")
    world.pod(4, name="gpu")
    assert world.woken == 1
    world.pod(4, name="gpu", phase="Failed")
    assert world.woken == 2
