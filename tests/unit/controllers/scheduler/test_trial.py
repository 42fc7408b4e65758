"""Where several pods go together, and the reason if one of them finds no place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.apis import koordinator as koord
from broker.apis import names
from broker.apis.core import UNSCHEDULABLE, Node, Pod
from broker.controllers.scheduler.binder import QUOTA_EXCEEDED
from broker.controllers.scheduler.state import SchedulerState
from broker.controllers.scheduler.trial import PlacementTrial, QueuedPod, TrialRules, try_places
from broker.placement.holds_ledger import HoldLedger
from broker.placement.holds_reading import hold_request
from broker.placement.reading import node_info
from broker.placement.snapshot import PlacementSnapshot
from broker.quota.elastic import ElasticShare, ElasticTotals
from broker.quota.elastic_gpu import GPU, GPU_MEMORY
from broker.quota.elastic_labels import ElasticPod

pytestmark = pytest.mark.covers("FLT-70")
Json = dict[str, Any]
NOW = datetime(2026, 11, 1, tzinfo=UTC)


def node(name: str, cpu: int, *, gpus: int = 0, gigabytes: int = 0, **spec: Any) -> Node:
    labels = {names.INSTANCE_GPU_MEMORY: str(1024 * gigabytes)} if gigabytes else {}
    room = {"cpu": str(cpu), "pods": "10", **({GPU: str(gpus)} if gpus else {})}
    meta = {"name": name, "labels": labels}
    return Node.decode({"metadata": meta, "spec": spec, "status": {"allocatable": room}})


def queued(name: str, cpu: int, *, gpus: int = 0, labels: Json | None = None, **more: Any) -> QueuedPod:
    requests = {"cpu": str(cpu), **({GPU: str(gpus)} if gpus else {})}
    meta = {"name": name, "namespace": "a", "uid": name, "labels": labels or {}}
    meta["annotations"] = more.pop("annotations", {})
    container = {"name": "main", "image": "x", "resources": {"requests": requests}}
    pod = Pod.decode({"metadata": meta, "spec": {"containers": [container], **more}})
    used = {"cpu": 1000 * cpu, **({GPU: gpus} if gpus else {})}
    elastic = ElasticPod(uid=name, namespace="a", name=name, created=NOW, requests=used)
    return QueuedPod(pod, hold_request(pod), elastic)


def tried(nodes: Sequence[Node], *pods: QueuedPod, most: Mapping[str, int] | None = None) -> PlacementTrial:
    """`most`: what the quota of the pods allows."""
    snapshot = PlacementSnapshot.of(map(node_info, nodes), ())
    shares = [] if most is None else [ElasticShare(id="q", namespaces=frozenset("a"), min=most, max=most)]
    state = SchedulerState.of(snapshot, HoldLedger(), ElasticTotals.of(shares), ())
    return try_places(pods, state, TrialRules(node_fallback=False, gpu_gb=32))


@pytest.mark.parametrize(
    ("rooms", "sizes"),
    [
        ((5, 4), (1, 1, 3, 4)),  # in the order of the pods, neither the roomiest nor the fullest nodes do
        ((4, 3), (2, 2, 3)),  # on the roomiest nodes, the small pods leave no room for the last
        ((4, 4), (1, 1, 3, 3)),
    ],
)
def test_pods_that_fit_together_all_get_a_place(rooms: Sequence[int], sizes: Sequence[int]) -> None:
    nodes = [node(f"n-{number}", cpu) for number, cpu in enumerate(rooms)]
    trial = tried(nodes, *(queued(f"p-{number}", cpu) for number, cpu in enumerate(sizes)))
    assert len(trial.placed) == len(sizes) and not trial.rejected


def test_pod_that_needs_another_pod_of_the_gang_is_placed_after_it() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "leader"}}, "topologyKey": "kubernetes.io/hostname"}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    nodes = [node(name, 8) for name in ("n-0", "n-1")]
    for member in nodes:
        member.metadata.labels["kubernetes.io/hostname"] = member.name
    trial = tried(nodes, queued("worker", 3, affinity=near), queued("leader", 1, labels={"app": "leader"}))
    assert {place.queued.pod.name for place in trial.placed} == {"leader", "worker"}
    assert len({place.node for place in trial.placed}) == 1


def test_pod_that_lends_its_room_serves_an_owner_of_the_same_gang() -> None:
    owners = '[{"labelSelector": {"matchLabels": {"app": "trainer"}}}]'
    lends = queued(
        "lends",
        3,
        labels={koord.OPERATING_MODE: koord.RESERVATION_MODE},
        annotations={koord.POD_OWNERS: owners},
    )
    trial = tried([node("n-0", 4)], lends, queued("trainer", 2, labels={"app": "trainer"}))
    assert [place.queued.pod.name for place in trial.placed] == ["lends", "trainer"]
    assert trial.placed[1].hold is not None and trial.placed[1].hold.id == "lends"


KEPT = {"key": "example.com/team", "effect": "NoSchedule"}
SMALL, LARGE = node("small", 4, gpus=1, gigabytes=16), node("large", 4, gpus=1, gigabytes=80)


@pytest.mark.parametrize(
    ("nodes", "cpu", "most", "place", "reason"),
    [
        ([SMALL, LARGE], 1, 100, "", ""),
        ([SMALL, LARGE], 1, 40, "small", ""),  # its quota has no room for the large GPU
        ([LARGE, node("no-gpu", 4)], 1, 40, "", QUOTA_EXCEEDED),
        # A node without GPUs, or one that keeps the pod off, says nothing about GPUs of other sizes.
        ([node("no-gpu", 4)], 1, 20, "", UNSCHEDULABLE),
        ([node("kept", 4, gpus=1, gigabytes=80, taints=[KEPT])], 1, 40, "", UNSCHEDULABLE),
        # The node that the quota allows is too small. The other would do, so another node like it helps not.
        ([SMALL, node("large", 8, gpus=1, gigabytes=80)], 6, 40, "", QUOTA_EXCEEDED),
        # It is too large for both: a larger node with a small GPU would help.
        ([SMALL, LARGE], 6, 40, "", UNSCHEDULABLE),
    ],
)
def test_quota_counts_the_gpu_memory_of_each_node(
    nodes: Sequence[Node], cpu: int, most: int, place: str, reason: str
) -> None:
    trial = tried(nodes, queued("p", cpu, gpus=1), most={GPU_MEMORY: most, "cpu": 100_000})
    assert [item.reason for item in trial.rejected] == ([reason] if reason else [])
    assert not place or trial.placed[0].node == place
