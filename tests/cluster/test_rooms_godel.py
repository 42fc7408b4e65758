"""Gödel reservations on a cluster: the room of a deleted pod waits for the pod that replaces it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from broker.apis.core import Node, Pod
from broker.apis.godel import (
    FINALIZER,
    INDEX,
    MATCHED_PLACEHOLDER,
    RESERVATION,
    TTL,
    GodelDeployment,
    GodelReservation,
)
from broker.kube.client import Request
from broker.kube.errors import Invalid, Unavailable
from tests.cluster.rooms import Rooms, rooms

WANTED = {RESERVATION: "true"}
NODE = "kubernetes.io/hostname"


@pytest.fixture
def cluster() -> Iterator[Rooms]:
    with rooms() as rooms_:
        rooms_.start()
        for name in ("node-0", "node-1"):
            rooms_.node(name, room={"cpu": "4"})
        yield rooms_


def pod(cluster: Rooms, name: str, cpu: str = "1", **more: Any) -> str:
    return cluster.pod(name, cpu=cpu, scheduler="godel-scheduler", **more)


def running(cluster: Rooms, name: str, cpu: str = "1", *, held: bool = True, **more: Any) -> str:
    """A pod that is bound, and followed if its room is to be kept. Returns its node."""
    pod(cluster, name, cpu, **more)
    (node,) = cluster.until_bound(name)
    namespace = more.get("namespace", "default")
    if held:
        cluster.until(
            lambda: FINALIZER in cluster.get(Pod, name, namespace).metadata.finalizers, f"{name} followed"
        )
    return node


def delete(cluster: Rooms, *names: str) -> None:
    for name in names:
        cluster.delete_pod(name)
    cluster.until(lambda: all(cluster.gone(Pod, name, "default") for name in names), "pods gone")


def matched(cluster: Rooms, name: str) -> str:
    return cluster.annotations(name).get(MATCHED_PLACEHOLDER, "")


@pytest.mark.covers("GOD-01")
def test_the_room_of_a_deleted_pod_is_kept(cluster: Rooms) -> None:
    node = running(cluster, "res-pod", "3", annotations={**WANTED, INDEX: "res-pod"})
    delete(cluster, "res-pod")
    (kept,) = cluster.until_kept("res-pod")
    assert kept.spec.node_name == node
    cluster.until(lambda: cluster.kept()[0].status.phase == "Reserved", "phase")
    pod(cluster, "stranger", "2", nodeSelector={NODE: node})
    assert "Insufficient cpu" in cluster.until_rejected("stranger")
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    path = GodelReservation.KIND.path(namespace="default", name="res-pod")
    table = orjson.loads(
        cluster.tap.request(Request(method="GET", path=path, headers=accept), timeout=9).body
    )
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "NodeName", "Status", "Age"]
    assert table["rows"][0]["cells"][:3] == ["res-pod", node, "Reserved"]


@pytest.mark.covers("GOD-01")
def test_kept_room_is_not_given_away_while_the_watch_of_reservations_is_behind() -> None:
    with rooms() as cluster:
        flows = cluster.tap.slow(GodelReservation.KIND.path())
        cluster.start()
        cluster.node("node-0", room={"cpu": "4"})
        running(cluster, "web", "3", annotations=WANTED)
        flows.clear()
        delete(cluster, "web")
        pod(cluster, "stranger", "2")
        assert "Insufficient cpu" in cluster.until_rejected("stranger")
        pod(cluster, "back", "3", annotations={INDEX: "web"})
        cluster.until_bound("back")
        flows.set()
        cluster.until_kept()
        delete(cluster, "back")
        cluster.until_bound("stranger")


@pytest.mark.covers("GOD-02")
def test_pods_without_annotation_or_node_keep_nothing(cluster: Rooms) -> None:
    cluster.deployment("web", **WANTED)
    cluster.deployment("plain")
    running(cluster, "by-owner", controller="web")
    running(cluster, "by-label", labels={"name": "web"})
    running(cluster, "without", held=False)
    running(cluster, "of-plain", held=False, controller="plain")
    pod(cluster, "unbound", "99", annotations=WANTED)
    cluster.until_rejected("unbound")
    delete(cluster, "without", "of-plain", "unbound")
    delete(cluster, "by-owner", "by-label")
    cluster.until_kept("by-owner", "by-label")


@pytest.mark.covers("GOD-01")
def test_a_pod_that_completed_leaves_no_room(cluster: Rooms) -> None:
    """Its room was given to another pod before it was deleted."""
    node = running(cluster, "batch", "3", annotations={**WANTED, INDEX: "batch"})
    cluster.ran("batch", phase="Succeeded")
    cluster.until(lambda: FINALIZER not in cluster.get(Pod, "batch", "default").metadata.finalizers, "freed")
    pod(cluster, "next", "3", nodeSelector={NODE: node})
    cluster.until_bound("next")
    delete(cluster, "batch")
    pod(cluster, "last", "1", nodeSelector={NODE: node})
    cluster.until_bound("last")
    assert cluster.kept() == []


@pytest.mark.covers("GOD-03")
def test_the_index_matches_in_its_namespace_and_is_a_preference(cluster: Rooms) -> None:
    cluster.quota("other", min={"cpu": 99})
    node = running(cluster, "old", "3", annotations={**WANTED, INDEX: "web"})
    delete(cluster, "old")
    cluster.until_kept("old")
    pod(cluster, "elsewhere", namespace="other", annotations={INDEX: "web"})
    cluster.until_bound("elsewhere", namespace="other")
    pod(cluster, "no-index")
    cluster.until_bound("no-index")
    assert not cluster.annotations("elsewhere", "other").get(MATCHED_PLACEHOLDER)
    assert not matched(cluster, "no-index")
    # Larger than the node: it goes elsewhere.
    far = {NODE: "node-1" if node == "node-0" else "node-0"}
    pod(cluster, "far", "1", annotations={INDEX: "web"}, nodeSelector=far)
    assert cluster.until_bound("far") == [far[NODE]]
    assert not matched(cluster, "far")
    pod(cluster, "back", "1", annotations={INDEX: "web"})
    assert cluster.until_bound("back") == [node]
    assert matched(cluster, "back") == "default/old-placeholder"


@pytest.mark.covers("GOD-04")
def test_a_match_takes_the_whole_placeholder_and_a_failed_bind_returns_it(cluster: Rooms) -> None:
    node = running(cluster, "old", "4", annotations={**WANTED, INDEX: "web"})
    delete(cluster, "old")
    cluster.until_kept("old")

    def refused(_: Request) -> None:
        raise Unavailable(503, "ServiceUnavailable", "the API server is overloaded")

    def back_pod(request: Request) -> bool:
        return request.path.endswith("/back/binding")

    cluster.tap.on(back_pod, refused, times=1)
    pod(cluster, "back", "1", annotations={INDEX: "web"})
    cluster.until(
        lambda: cluster.tap.log.count(("POST", "/api/v1/namespaces/default/pods/back/binding")), "a bind"
    )
    cluster.until(lambda: not matched(cluster, "back"), "the annotation is removed")
    pod(cluster, "stranger", "1", nodeSelector={NODE: node})
    assert "Insufficient cpu" in cluster.until_rejected("stranger")
    cluster.clock.advance(2)
    assert cluster.until_bound("back") == [node]
    assert matched(cluster, "back") == "default/old-placeholder"
    # The surplus of the placeholder is free.
    assert cluster.until_bound("stranger") == [node]
    cluster.until_kept()


@pytest.mark.covers("GOD-05")
def test_the_annotation_of_the_pod_precedes_those_of_deployment_and_option(cluster: Rooms) -> None:
    cluster.deployment("web", **WANTED, **{TTL: "300"})
    running(cluster, "by-pod", controller="web", annotations={**WANTED, TTL: "7200"})
    running(cluster, "by-deployment", controller="web", annotations=WANTED)
    running(cluster, "by-option", annotations={**WANTED, INDEX: "x"})
    delete(cluster, "by-pod", "by-deployment", "by-option")
    kept = {item.name: item.spec.ttl for item in cluster.until_kept("by-pod", "by-deployment", "by-option")}
    assert kept == {"by-pod": 7200, "by-deployment": 300, "by-option": 60}
    cluster.clock.advance(62)
    cluster.until_kept("by-pod", "by-deployment")
    cluster.clock.advance(240)
    cluster.until_kept("by-pod")
    cluster.clock.advance(7200 - 320)
    assert len(cluster.kept()) == 1
    cluster.clock.advance(30)
    cluster.until_kept()


@pytest.mark.covers("GOD-06")
def test_removing_the_annotation_cancels_future_holds_only(cluster: Rooms) -> None:
    cluster.deployment("web", **WANTED)
    running(cluster, "first", "3", controller="web")
    node = running(cluster, "second", "3", controller="web")
    delete(cluster, "first")
    cluster.until_kept("first")
    body = {"metadata": {"annotations": {RESERVATION: None}}}
    cluster.client.patch(GodelDeployment.KIND, "web", body, namespace="default")
    cluster.until(
        lambda: FINALIZER not in cluster.get(Pod, "second", "default").metadata.finalizers, "not followed"
    )
    delete(cluster, "second")
    pod(cluster, "after", "3", nodeSelector={NODE: node})
    cluster.until_bound("after")
    (kept,) = cluster.until_kept("first")
    pod(cluster, "waits", "3", nodeSelector={NODE: kept.spec.node_name})
    cluster.until_rejected("waits")
    cluster.client.delete(GodelReservation.KIND, "first", namespace="default")
    assert cluster.until_bound("waits") == [kept.spec.node_name]


@pytest.mark.covers("GOD-07")
def test_a_deployment_scaled_to_zero_and_up_takes_each_placeholder_once(cluster: Rooms) -> None:
    cluster.deployment("res-dp", **WANTED)
    names = [f"res-dp-{number}" for number in range(3)]
    old = {running(cluster, name, "1", controller="res-dp"): name for name in names}
    assert old
    delete(cluster, *names)
    cluster.until_kept(*names)
    assert all(item.spec.ttl == 60 for item in cluster.kept())
    cluster.stop()
    new = [pod(cluster, f"new-{number}", "1", controller="res-dp") for number in range(5)]
    cluster.start()
    cluster.until_bound(*new)
    taken = sorted(filter(None, (matched(cluster, name) for name in new)))
    assert taken == [f"default/{name}-placeholder" for name in names]
    cluster.until_kept()


@pytest.mark.covers("GOD-08")
def test_a_pod_deleted_twice_rearms_its_hold_and_missed_deletes_are_noticed(cluster: Rooms) -> None:
    running(cluster, "web-0", annotations=WANTED)
    delete(cluster, "web-0")
    (first,) = cluster.until_kept("web-0")
    cluster.clock.advance(40)
    # It goes elsewhere, so that the first reservation is still there.
    far = {NODE: "node-1" if first.spec.node_name == "node-0" else "node-0"}
    running(cluster, "web-0", annotations=WANTED, nodeSelector=far)
    cluster.delete_pod("web-0")
    cluster.until(lambda: [item.uid for item in cluster.kept()] not in ([], [first.uid]), "re-armed")
    (second,) = cluster.kept()
    assert second.spec.node_name == far[NODE]
    cluster.clock.advance(40)
    assert [item.uid for item in cluster.kept()] == [second.uid]
    running(cluster, "missed", annotations={**WANTED, INDEX: "missed", TTL: "900"})
    cluster.stop()
    cluster.delete_pod("missed")
    cluster.clock.advance(100)
    cluster.start()
    cluster.until_kept("missed")


@pytest.mark.covers("GOD-09")
def test_held_room_is_for_the_back_pod_and_taints_still_count(cluster: Rooms) -> None:
    node = running(cluster, "old", "4", annotations={**WANTED, INDEX: "web", TTL: "300"})
    delete(cluster, "old")
    cluster.until_kept("old")
    cluster.pod("stranger", cpu="1", nodeSelector={NODE: node}, priority=0)
    assert "Insufficient cpu" in cluster.until_rejected("stranger")
    taints = [{"key": "team", "value": "a", "effect": "NoSchedule"}]
    cluster.client.patch(Node.KIND, node, {"spec": {"taints": taints}})
    cluster.until_rejected("stranger", "untolerated taint")
    pod(cluster, "back", "1", annotations={INDEX: "web"})
    (other,) = cluster.until_bound("back")
    assert other != node
    assert not matched(cluster, "back")
    cluster.client.patch(Node.KIND, node, {"spec": {"taints": None}})
    cluster.clock.advance(200)
    cluster.until_rejected("stranger", "Insufficient cpu")
    cluster.clock.advance(101)
    assert cluster.until_bound("stranger") == [node]


def test_a_time_beyond_all_bounds_is_refused(cluster: Rooms) -> None:
    spec = {"nodename": "node-0", "ttl": 10**15, "template": {"spec": {"containers": []}}}
    body = {"metadata": {"name": "endless", "namespace": "default"}, "spec": spec}
    with pytest.raises(Invalid, match="ttl"):
        cluster.client.create(GodelReservation.KIND, body)
