"""Rooms of other schedulers: the broker writes no room that it does not place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker.apis.core import Pod
from broker.apis.crds import KIND as CRD
from broker.apis.crds import load
from broker.apis.godel import GodelReservation
from broker.apis.koordinator import KoordinatorReservation
from broker.apis.kueue import Namespace
from broker.apis.nos import CAPACITY, ElasticQuota
from broker.kube.errors import NotFound
from broker.text import format_time
from tests.cluster.rooms import GODEL, KOORDINATOR, Rooms, rooms

ALLOCATED = {"phase": "Available", "nodeName": "node-0", "allocatable": {"cpu": "2"}}


@pytest.fixture
def cluster() -> Iterator[Rooms]:
    with rooms() as rooms_:
        rooms_.node("node-0", room={"cpu": "4"})
        yield rooms_


def own(cluster: Rooms) -> str:
    """A reservation of the broker's own scheduler, which is reconciled last, and ends."""
    return cluster.reservation("own", cpu="1", ttl="60s", template={"schedulerName": "capacity-broker"})


def foreign(cluster: Rooms, now: str) -> None:
    """The objects that Koordinator, Gödel and nos wrote."""
    cluster.reservation("foreign", cpu="2", allocateOnce=False, ttl="30s")
    status: dict[str, Any] = {**ALLOCATED, "allocated": {"cpu": "300m"}}
    patch(cluster, KoordinatorReservation, "foreign", status)
    ended = {
        "type": "Ready",
        "status": "False",
        "reason": "Succeeded",
        "lastTransitionTime": now,
    }
    cluster.reservation("ended", cpu="1")
    patch(cluster, KoordinatorReservation, "ended", {"phase": "Succeeded", "conditions": [ended]})
    template: dict[str, Any] = {"spec": {"containers": []}}
    body = {
        "metadata": {"name": "kept", "namespace": "default"},
        "spec": {"nodename": "node-0", "ttl": 30, "template": template},
    }
    cluster.client.create(GodelReservation.KIND, body)
    cluster.quota("default", min={"cpu": 9})
    patch(cluster, ElasticQuota, "quota", {"used": {"cpu": "7"}}, "default")
    cluster.pod("running", cpu="1", nodeName="node-0", scheduler="nos-scheduler")
    cluster.ran("running")


def patch(
    cluster: Rooms, model: type[Any], name: str, status: dict[str, Any], namespace: str | None = None
) -> None:
    cluster.client.patch(model.KIND, name, {"status": status}, namespace=namespace, subresource="status")


def written(cluster: Rooms) -> list[Any]:
    raw = [
        cluster.client.get(KoordinatorReservation.KIND, "foreign"),
        cluster.client.get(KoordinatorReservation.KIND, "ended"),
        cluster.client.get(GodelReservation.KIND, "kept", namespace="default"),
        cluster.client.get(ElasticQuota.KIND, "quota", namespace="default"),
        cluster.client.get(Pod.KIND, "running", namespace="default"),
    ]
    return [(item["metadata"].get("labels"), item.get("status")) for item in raw]


def test_objects_of_other_schedulers_are_not_written(cluster: Rooms) -> None:
    foreign(cluster, format_time(cluster.clock.now()))
    before = written(cluster)
    cluster.start(scheduler_names="capacity-broker")
    own(cluster)
    cluster.until_phase("Available", "own")
    assert written(cluster) == before
    cluster.clock.advance(61)
    cluster.until_phase("Failed", "own")
    cluster.clock.advance(3600 * 25)
    cluster.until(lambda: cluster.gone(KoordinatorReservation, "own"), "own collected")
    assert written(cluster) == before


def test_they_are_written_once_their_names_are_served(cluster: Rooms) -> None:
    foreign(cluster, format_time(cluster.clock.now()))
    cluster.start()
    cluster.until(lambda: not cluster.status("foreign").allocated, "allocated")
    cluster.until_used("default", {"cpu": "1"})
    cluster.until(lambda: cluster.get(Pod, "running", "default").labels.get(CAPACITY), "label")
    cluster.clock.advance(31)
    cluster.until_phase("Failed", "foreign")
    cluster.until_kept()
    with pytest.raises(NotFound):
        cluster.client.get(GodelReservation.KIND, "kept", namespace="default")


SCHEDULERS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("koord-scheduler-7f4b", "koordinator-system", {}),
    ("scheduler-5d9c", "godel-system", {"app": "godel-scheduler"}),
    ("nos-scheduler-8c6f", "nebuly-nos", {}),
)


def test_a_name_is_left_to_its_own_scheduler_while_that_runs(cluster: Rooms) -> None:
    foreign(cluster, format_time(cluster.clock.now()))
    for name, namespace, labels in SCHEDULERS:
        cluster.client.create(Namespace.KIND, {"metadata": {"name": namespace}})
        more: Any = {"namespace": namespace, "labels": labels, "scheduler": "default-scheduler"}
        cluster.pod(name, nodeName="node-0", **more)
        cluster.ran(name, namespace=namespace)
    # A user's pod of this name decides nothing.
    cluster.pod("koord-scheduler-0", nodeName="node-0", scheduler="default-scheduler")
    before = written(cluster)
    cluster.start()
    cluster.pod("theirs")
    own(cluster)
    cluster.until_phase("Available", "own")
    cluster.pod("ours", scheduler="capacity-broker")
    cluster.until_bound("ours")
    assert written(cluster) == before
    assert not cluster.node_of("theirs")
    cluster.delete_pod("koord-scheduler-7f4b", "koordinator-system")
    cluster.until_bound("theirs")
    cluster.until(lambda: not cluster.status("foreign").allocated, "allocated")
    assert written(cluster)[2:] == before[2:]


def test_deployments_are_read_for_godel_only() -> None:
    with rooms(crds=(KOORDINATOR,)) as cluster:
        paths: list[str] = []
        cluster.tap.on(lambda r: "/apis/apps/" in r.path, lambda r: paths.append(r.path), times=-1)
        cluster.node("node-0")
        cluster.start()
        cluster.reservation()
        cluster.until_phase("Available")
        assert not paths
        for definition in load(GODEL):
            cluster.client.create(CRD, definition)
        cluster.clock.advance(120)
        cluster.until(lambda: len(set(paths)) == 2, "Deployments and ReplicaSets")


def test_scheduler_of_the_project_counts_until_its_grace_period_is_over(cluster: Rooms) -> None:
    cluster.client.create(Namespace.KIND, {"metadata": {"name": "koordinator-system"}})
    fields = {"namespace": "koordinator-system", "scheduler": "default-scheduler", "nodeName": "node-0"}
    cluster.pod("koord-scheduler-0", terminationGracePeriodSeconds=30, **fields)  # type: ignore[arg-type]
    cluster.client.delete(Pod.KIND, "koord-scheduler-0", namespace="koordinator-system")
    cluster.start()
    cluster.pod("waits", cpu="1")
    cluster.pod("ours", cpu="1", scheduler="capacity-broker")
    cluster.until_bound("ours")
    assert not cluster.node_of("waits")
    cluster.clock.advance(31)
    assert cluster.until_bound("waits") == ["node-0"]
