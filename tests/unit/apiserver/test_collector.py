"""The controllers that clean up: objects without an owner go, and a namespace goes with its content."""

from __future__ import annotations

import threading
from itertools import islice
from typing import Any

import pytest

from local.kube import Cluster, Collector, StatusError

from .objects import CONFIGMAPS, PODS, configmap, events, names, pod, send

Obj = dict[str, Any]


@pytest.fixture
def collector(cluster: Cluster) -> Collector:
    return Collector(cluster)


def owned(name: str, *owners: Obj, block: bool = False) -> Obj:
    obj = configmap(name)
    obj["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            **({"blockOwnerDeletion": True} if block else {}),
        }
        for owner in owners
    ]
    return obj


def left(cluster: Cluster) -> list[str]:
    return names(cluster.get(CONFIGMAPS))


def test_server_alone_leaves_objects_without_an_owner(cluster: Cluster) -> None:
    owner = cluster.create(CONFIGMAPS, configmap("owner"))
    cluster.create(CONFIGMAPS, owned("child", owner))
    cluster.delete(f"{CONFIGMAPS}/owner")
    assert left(cluster) == ["child"]


def test_descendants_are_deleted_after_their_owner(cluster: Cluster, collector: Collector) -> None:
    owner = cluster.create(CONFIGMAPS, configmap("owner"))
    child = cluster.create(CONFIGMAPS, owned("child", owner))
    cluster.create(CONFIGMAPS, owned("grandchild", child))
    cluster.create(CONFIGMAPS, configmap("stranger"))
    cluster.delete(f"{CONFIGMAPS}/owner")
    collector.collect()
    assert left(cluster) == ["stranger"]


def test_an_object_with_one_existing_owner_stays(cluster: Cluster, collector: Collector) -> None:
    first, second = (cluster.create(CONFIGMAPS, configmap(name)) for name in ("a", "b"))
    cluster.create(CONFIGMAPS, owned("child", first, second))
    cluster.delete(f"{CONFIGMAPS}/a")
    collector.collect()
    assert left(cluster) == ["b", "child"]


def test_an_object_of_a_nonexistent_owner_is_deleted(cluster: Cluster, collector: Collector) -> None:
    cluster.create(CONFIGMAPS, owned("child", {"metadata": {"name": "x", "uid": "unknown"}}))
    collector.collect()
    assert left(cluster) == []


def test_orphans_stay_without_their_owner_reference(cluster: Cluster, collector: Collector) -> None:
    owner = cluster.create(CONFIGMAPS, configmap("owner"))
    cluster.create(CONFIGMAPS, owned("child", owner))
    cluster.delete(f"{CONFIGMAPS}/owner", propagationPolicy="Orphan")
    collector.collect()
    assert left(cluster) == ["child"]
    assert "ownerReferences" not in cluster.get(f"{CONFIGMAPS}/child")["metadata"]


def test_foreground_deletion_deletes_the_owner_last(cluster: Cluster, collector: Collector) -> None:
    owner = cluster.create(CONFIGMAPS, configmap("owner"))
    child = owned("child", owner, block=True)
    child["metadata"]["finalizers"] = ["example.com/hold"]
    cluster.create(CONFIGMAPS, child)
    cluster.delete(f"{CONFIGMAPS}/owner", propagationPolicy="Foreground")
    collector.collect()
    assert left(cluster) == ["child", "owner"]
    cluster.patch(f"{CONFIGMAPS}/child", {"metadata": {"finalizers": None}})
    collector.collect()
    assert left(cluster) == []


def namespace(cluster: Cluster, name: str = "n") -> str:
    cluster.create("/api/v1/namespaces", {"metadata": {"name": name}})
    return f"/api/v1/namespaces/{name}"


def test_a_namespace_ends_with_everything_in_it(cluster: Cluster, collector: Collector) -> None:
    path = namespace(cluster)
    cluster.create(f"{path}/configmaps", configmap())
    cluster.create(f"{path}/pods", pod(node="somewhere"))
    assert cluster.delete(path)["status"]["phase"] == "Terminating"
    collector.collect()
    with pytest.raises(StatusError, match='namespaces "n" not found'):
        cluster.get(path)
    again = namespace(cluster)
    assert names(cluster.get(f"{again}/configmaps")) == []


def test_a_namespace_waits_for_a_finalizer_in_it(cluster: Cluster, collector: Collector) -> None:
    path = namespace(cluster)
    held = configmap()
    held["metadata"]["finalizers"] = ["example.com/hold"]
    cluster.create(f"{path}/configmaps", held)
    cluster.delete(path)
    collector.collect()
    assert cluster.get(path)["status"]["phase"] == "Terminating"
    cluster.patch(f"{path}/configmaps/c", {"metadata": {"finalizers": None}})
    collector.collect()
    with pytest.raises(StatusError, match="not found"):
        cluster.get(path)


def test_the_server_alone_keeps_an_ending_namespace(cluster: Cluster) -> None:
    path = namespace(cluster)
    cluster.delete(path)
    assert cluster.get(path)["status"]["phase"] == "Terminating"


def test_collector_sees_earlier_objects(cluster: Cluster) -> None:
    owner = cluster.create(CONFIGMAPS, configmap("owner"))
    cluster.create(CONFIGMAPS, owned("child", owner))
    cluster.delete(f"{CONFIGMAPS}/owner")
    Collector(cluster).collect()
    assert left(cluster) == []


def test_the_collector_runs_in_the_background_until_it_is_stopped(cluster: Cluster) -> None:
    watching = send(cluster, "GET", CONFIGMAPS, query={"watch": "true", "resourceVersion": "0"})
    with Collector(cluster):
        owner = cluster.create(CONFIGMAPS, configmap("owner"))
        cluster.create(CONFIGMAPS, owned("child", owner))
        cluster.delete(f"{CONFIGMAPS}/owner")
        seen = [(event["type"], event["object"]["metadata"]["name"]) for event in islice(events(watching), 4)]
    expected = [("ADDED", "child"), ("ADDED", "owner"), ("DELETED", "child"), ("DELETED", "owner")]
    assert sorted(seen) == expected
    assert not any(thread.name == "collector" for thread in threading.enumerate())


def test_pods_that_run_end_with_their_owner_after_their_grace(cluster: Cluster, collector: Collector) -> None:
    owner = cluster.create(CONFIGMAPS, configmap("owner"))
    child = pod("child", node="n")
    child["metadata"]["ownerReferences"] = owned("x", owner)["metadata"]["ownerReferences"]
    cluster.create(PODS, child)
    cluster.delete(f"{CONFIGMAPS}/owner")
    collector.collect()
    assert cluster.get(f"{PODS}/child")["metadata"]["deletionGracePeriodSeconds"] == 30
