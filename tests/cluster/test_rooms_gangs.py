"""The scheduler binds a gang whole or not at all, whatever marks it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.kueue import Namespace, PriorityClass
from broker.apis.workloads import NativePodGroup
from broker.kube.client import Request
from broker.kube.errors import AlreadyExists, ApiError, Forbidden
from tests.cluster.rooms import Rooms, rooms

X, Y = ("x-0", "x-1"), ("y-0", "y-1")


@pytest.fixture
def cluster() -> Iterator[Rooms]:
    with rooms() as rooms_:
        rooms_.start()
        yield rooms_


def member(cluster: Rooms, name: str, of: int = 2, **more: Any) -> str:
    """A pod of the gang before the dash."""
    annotations = {names.GANG: name.partition("-")[0]} | {names.GANG_SIZE: str(of)}
    more = {"namespace": "a", "cpu": "1", "scheduler": "nos-scheduler", "annotations": annotations, **more}
    with suppress(AlreadyExists):
        cluster.client.create(Namespace.KIND, {"metadata": {"name": more["namespace"]}})
    return cluster.pod(name, **more)


def bound(cluster: Rooms) -> set[str]:
    pods = (Pod.decode(raw) for raw in cluster.client.list(Pod.KIND)[0])
    return {pod.name for pod in pods if pod.spec.node_name and not pod.name.startswith("probe")}


def ran_again(cluster: Rooms) -> None:
    """Waits for a run of the scheduler that has seen all that was written before."""
    cluster.client.create(Pod.KIND, probe := probe_body())
    cluster.until_bound(probe["metadata"]["name"])
    cluster.delete_pod(probe["metadata"]["name"])


def probe_body() -> dict[str, Any]:
    container = {"name": "main", "image": "pause"}
    return {
        "metadata": {"name": "probe", "namespace": "default"},
        "spec": {"schedulerName": "nos-scheduler", "containers": [container]},
    }


@pytest.mark.covers("FLT-42")
def test_two_gangs_in_one_quota_never_hold_half_each(cluster: Rooms) -> None:
    cluster.case("quota-8", "a", "b")
    for name in ("x-0", "y-0"):
        text = cluster.until_rejected(name, namespace="a")
        assert text == f"gang a/{name[0]} has 1 of 2 pods: it gets room once all of them exist"
        assert cluster.waiting_for(name, "a") == "GangIncomplete"
    cluster.case("quota-8", "c")
    cluster.until_bound(*X, namespace="a")
    cluster.until_rejected("y-1", "exceed its max", namespace="a")
    cluster.until_rejected("y-0", "exceed its max", namespace="a")
    assert [cluster.waiting_for(name, "a") for name in Y] == ["QuotaExceeded"] * 2
    assert bound(cluster) == {*X}
    for name in X:
        cluster.delete_pod(name, "a")
    cluster.until_bound(*Y, namespace="a")


@pytest.mark.covers("FLT-42")
def test_a_gang_without_room_for_all_gets_none(cluster: Rooms) -> None:
    cluster.node("n0", room={"cpu": "3"})
    for name in X:
        member(cluster, name, cpu="2")
    reasons = [cluster.until_rejected(name, namespace="a") for name in X]
    assert any("whole or not at all: 1 pod of it" in reason for reason in reasons)
    member(cluster, "single-0", 1, cpu="2")
    cluster.until_bound("single-0", namespace="a")
    assert bound(cluster) == {"single-0"}
    # A machine would be made for both.
    assert [cluster.waiting_for(name, "a") for name in X] == ["", ""]
    cluster.node("n1", room={"cpu": "4"})
    assert cluster.until_bound(*X, namespace="a") == ["n1", "n1"]


@pytest.mark.covers("FLT-42")
def test_a_gang_of_which_the_last_pod_has_an_unreadable_size_gets_nothing(cluster: Rooms) -> None:
    cluster.node("n", room={"cpu": "8"})
    member(cluster, "x-0")
    member(cluster, "x-1", annotations={names.GANG: "x", names.GANG_SIZE: "two"})
    for name in X:
        cluster.until_rejected(name, f"metadata.annotations[{names.GANG_SIZE}] is 'two'", namespace="a")
    assert bound(cluster) == set()


@pytest.mark.covers("FLT-42")
def test_a_gang_is_packed_so_that_it_fits(cluster: Rooms) -> None:
    for node in ("n0", "n1"):
        cluster.node(node, room={"cpu": "6"})
    sizes = {"x-0": "2", "x-1": "2", "x-2": "3", "x-3": "2", "x-4": "3"}
    for name, cpu in sizes.items():
        member(cluster, name, 5, cpu=cpu)
    cluster.until_bound(*sizes, namespace="a")


@pytest.mark.covers("FLT-42")
def test_a_gang_begins_with_as_many_pods_as_it_needs(cluster: Rooms) -> None:
    """The large pod would leave no room for a second one."""
    cluster.node("n0", room={"cpu": "2"})
    for name, cpu in {"x-0": "2", "x-1": "1", "x-2": "1"}.items():
        member(cluster, name, cpu=cpu)
    cluster.until_bound("x-1", "x-2", namespace="a")
    assert "Insufficient cpu" in cluster.until_rejected("x-0", "Insufficient", namespace="a")
    assert bound(cluster) == {"x-1", "x-2"}


@pytest.mark.covers("FLT-42", "FLT-20")
def test_a_gang_gets_the_quota_that_was_freed_for_its_first_pods(cluster: Rooms) -> None:
    """Two pods of higher priority, which a borrower is evicted for, and a large one beyond the minimum."""
    cluster.node("n0", room={"cpu": "4"})
    cluster.quota("b", min={"cpu": 0})
    cluster.quota("a", min={"cpu": 2})
    cluster.pod("lent", namespace="b", cpu="2", scheduler="nos-scheduler")
    cluster.started("lent", namespace="b")
    cluster.client.create(PriorityClass.KIND, {"metadata": {"name": "high"}, "value": 10})
    member(cluster, "x-0", cpu="2")
    for name in ("x-1", "x-2"):
        member(cluster, name, priorityClassName="high")
    cluster.until(lambda: cluster.evicted() == ["lent"], "the borrower is evicted")
    cluster.end_evicted()
    cluster.until_bound("x-1", "x-2", namespace="a")
    assert bound(cluster) == {"x-1", "x-2"}


@pytest.mark.covers("FLT-42")
def test_a_pod_of_a_gang_that_comes_again_joins_the_others(cluster: Rooms) -> None:
    cluster.node("n0", room={"cpu": "2"})
    for name in X:
        member(cluster, name)
    cluster.started(*X, namespace="a")
    cluster.ran("x-1", namespace="a", phase="Succeeded")
    cluster.delete_pod("x-0", "a")
    member(cluster, "x-2")
    cluster.until_bound("x-2", namespace="a")


def binds_second(request: Request, *, dry_run: bool = False) -> bool:
    return request.path.endswith("/pods/x-1/binding") and dry_run == bool(request.query)


def refuse(_: Request) -> None:
    raise Forbidden(403, "Forbidden", "a webhook is not ready")


def no_dry_run(_: Request) -> None:
    raise ApiError(400, "BadRequest", "admission webhook w does not support dry run")


@pytest.mark.covers("FLT-42")
def test_a_gang_of_which_one_bind_would_be_refused_is_not_bound_in_part(cluster: Rooms) -> None:
    cluster.node("n0", room={"cpu": "2"})
    cluster.tap.on(partial(binds_second, dry_run=True), refuse, times=1)
    for name in X:
        member(cluster, name)
    tried = ("POST", "/api/v1/namespaces/a/pods/x-1/binding")
    cluster.until(lambda: tried in cluster.tap.writes(), "a dry run was refused")
    assert bound(cluster) == set()
    # Its room is free while it waits.
    member(cluster, "single-0", 1)
    cluster.until_bound("single-0", namespace="a")
    cluster.delete_pod("single-0", "a")
    cluster.clock.advance(2)
    cluster.until_bound(*X, namespace="a")


@pytest.mark.covers("FLT-42")
def test_a_webhook_without_dry_run_keeps_no_gang_from_its_nodes(cluster: Rooms) -> None:
    cluster.node("n0", room={"cpu": "2"})
    cluster.tap.on(partial(binds_second, dry_run=True), no_dry_run, times=-1)
    for name in X:
        member(cluster, name)
    cluster.until_bound(*X, namespace="a")


@pytest.mark.covers("FLT-42")
@pytest.mark.parametrize("restart", [False, True])
def test_a_gang_that_a_failed_write_left_in_part_comes_before_others(cluster: Rooms, restart: bool) -> None:
    cluster.node("n0", room={"cpu": "2"})

    cluster.tap.on(binds_second, refuse, times=1)
    cluster.client.create(PriorityClass.KIND, {"metadata": {"name": "high"}, "value": 1000})
    for name in X:
        member(cluster, name)
    cluster.until_bound("x-0", namespace="a")
    if restart:
        cluster.stop()
    for name in Y:
        member(cluster, name, priorityClassName="high")
    if restart:
        cluster.start()
    cluster.until_rejected("y-0", namespace="a")
    cluster.clock.advance(2)
    cluster.until_bound("x-1", namespace="a")
    assert bound(cluster) == {*X}


@pytest.mark.covers("FLT-42", "FLT-20")
def test_no_pod_is_evicted_for_a_part_of_a_gang(cluster: Rooms) -> None:
    for node in ("n0", "n1"):
        cluster.node(node, room={"cpu": "2"})
    cluster.quota("b", min={"cpu": 0})
    cluster.quota("a", min={"cpu": 6})
    borrower: dict[str, Any] = {"namespace": "b", "cpu": "2", "scheduler": "nos-scheduler"}
    cluster.pod("lent", **borrower)
    cluster.started("lent", namespace="b")
    big = [member(cluster, f"big-{number}", 3, cpu="2") for number in range(3)]
    cluster.until_rejected("big-2", namespace="a")
    ran_again(cluster)
    assert cluster.evicted() == []
    for name in big:
        cluster.delete_pod(name, "a")
    for name in X:
        member(cluster, name, cpu="2")
    cluster.until(lambda: cluster.evicted() == ["lent"], "one eviction makes room for both")
    assert bound(cluster) == {"lent"}
    cluster.end_evicted()
    cluster.until_bound(*X, namespace="a")


def native(cluster: Rooms, version: str, name: str, policy: dict[str, Any]) -> None:
    with suppress(AlreadyExists):
        cluster.client.create(Namespace.KIND, {"metadata": {"name": "a"}})
    body = {"metadata": {"name": name, "namespace": "a"}, "spec": {"schedulingPolicy": policy}}
    cluster.client.create(replace(NativePodGroup.KIND, version=version), body)


@pytest.mark.covers("FLT-42")
@pytest.mark.parametrize("version", ["v1beta1", "v1alpha3", "v1alpha2"])
def test_a_native_pod_group_is_a_gang_in_each_version(version: str) -> None:
    with rooms() as cluster:
        cluster.define(NativePodGroup.KIND, version)
        native(cluster, version, "x", {"gang": {"minCount": 2}})
        native(cluster, version, "each", {"basic": {}})
        cluster.start()
        cluster.node("n0", room={"cpu": "3"})
        group: dict[str, Any] = {"annotations": {}, "schedulingGroup": {"podGroupName": "x"}}
        member(cluster, "x-0", **group)
        cluster.until_rejected("x-0", "has 1 of 2 pods", namespace="a")
        member(cluster, "alone", **group | {"schedulingGroup": {"podGroupName": "each"}})
        cluster.until_bound("alone", namespace="a")
        member(cluster, "early", **group | {"schedulingGroup": {"podGroupName": "late"}})
        cluster.until_rejected("early", "once the group exists", namespace="a")
        member(cluster, "x-1", **group)
        cluster.until_bound(*X, namespace="a")
        # The minimum is bound: a pod more is placed by itself.
        cluster.node("n1", room={"cpu": "1"})
        member(cluster, "x-2", **group)
        cluster.until_bound("x-2", namespace="a")
        native(cluster, version, "late", {"gang": {"minCount": 1}})
        cluster.node("n2", room={"cpu": "1"})
        cluster.until_bound("early", namespace="a")


@pytest.mark.covers("FLT-42")
@pytest.mark.parametrize(
    "mark",
    [
        {
            "annotations": {
                "gang.scheduling.koordinator.sh/name": "x",
                "gang.scheduling.koordinator.sh/min-available": "2",
            }
        },
        {
            "labels": {"kueue.x-k8s.io/pod-group-name": "x"},
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
        },
    ],
)
def test_a_gang_of_another_project_is_placed_whole(cluster: Rooms, mark: dict[str, Any]) -> None:
    cluster.node("n0", room={"cpu": "2"})
    member(cluster, "x-0", **{"annotations": {}, **mark})
    cluster.until_rejected("x-0", "has 1 of 2 pods", namespace="a")
    member(cluster, "x-1", **{"annotations": {}, **mark})
    cluster.until_bound(*X, namespace="a")
