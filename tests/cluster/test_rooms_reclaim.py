"""The guarantee of an elastic quota comes back wherever borrowers run, and no pod is evicted in vain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.kueue import Namespace
from broker.kube.client import Request
from tests.cluster.rooms import Rooms, rooms


@pytest.fixture
def cluster() -> Iterator[Rooms]:
    with rooms() as rooms_:
        rooms_.start()
        yield rooms_


def pod(cluster: Rooms, name: str, namespace: str, cpu: str = "2", node: str = "", **more: Any) -> str:
    if node:
        more["nodeSelector"] = {"kubernetes.io/hostname": node}
    more.setdefault("scheduler", "nos-scheduler")
    return cluster.pod(name, namespace=namespace, cpu=cpu, **more)


def borrow(cluster: Rooms, *placed: tuple[str, str, str], owner: str = "2", **more: Any) -> None:
    """Pods of `a`, which has no minimum, with their CPU and node: started one after another."""
    cluster.quota("a", min={"cpu": 0})
    cluster.quota("b", min={"cpu": owner})
    for name, cpu, node in placed:
        pod(cluster, name, "a", cpu, node, **more)
        cluster.started(name, namespace="a")
        cluster.clock.advance(2)


def tried_again(cluster: Rooms, name: str, namespace: str) -> str:
    """The reason of a pod that waits, after more runs: older pods are tried before the probes."""
    for probe in ("probe-0", "probe-1"):
        cluster.until_rejected(name, namespace=namespace)
        cluster.clock.advance(20)
        cluster.pod(probe)
        cluster.until_bound(probe)
        cluster.delete_pod(probe)
    return cluster.until_rejected(name, namespace=namespace)


@pytest.mark.covers("FLT-20")
def test_no_pod_is_evicted_for_room_that_returns_to_a_reservation(cluster: Rooms) -> None:
    cluster.case("quota-1", "a")
    cluster.until_phase("Available", "r")
    cluster.case("quota-1", "b")
    cluster.started("lent", namespace="b")
    cluster.case("quota-1", "c")
    assert "total min" in tried_again(cluster, "wants", "a")
    assert cluster.evicted() == []
    # A node beside the reservation has room: the borrowed quota alone is missing.
    cluster.node("n1", room={"cpu": "4"})
    cluster.until(lambda: cluster.evicted() == ["lent"], "the borrower is evicted")
    cluster.end_evicted()
    assert cluster.until_bound("wants", namespace="a") == ["n1"]


@pytest.mark.covers("FLT-20")
def test_no_pod_is_evicted_for_room_that_a_godel_reservation_keeps(cluster: Rooms) -> None:
    cluster.node("n0", room={"cpu": "2"})
    borrow(cluster)
    granted = {"metadata": {"annotations": {names.KEPT_ROOM: "true"}}}
    cluster.client.patch(Namespace.KIND, "a", granted)
    keeps = {"godel.bytedance.com/reservation": "true"}
    pod(cluster, "kept", "a", scheduler="godel-scheduler", annotations=keeps)
    cluster.started("kept", namespace="a")
    pod(cluster, "owner", "b")
    tried_again(cluster, "owner", "b")
    assert cluster.evicted() == []


@pytest.mark.covers("FLT-20")
@pytest.mark.parametrize("closed", ["affinity", "restricted"])
def test_no_pod_is_evicted_for_a_pod_that_runs_in_its_reservation_only(cluster: Rooms, closed: str) -> None:
    cluster.node("n0", room={"cpu": "2"})
    borrow(cluster, ("lent", "2", "n0"))
    own: dict[str, Any] = {"labels": {"app": "demo"}}
    if closed == "affinity":
        selector = '{"reservationSelector": {"team": "b"}}'
        own = {"annotations": {"scheduling.koordinator.sh/reservation-affinity": selector}}
    else:
        cluster.node("n1", room={"cpu": "1"})
        at = {"nodeSelector": {"kubernetes.io/hostname": "n1"}}
        cluster.reservation(cpu="1", memory="0", template=at, allocatePolicy="Restricted", allocateOnce=False)
        cluster.until_phase("Available")
    pod(cluster, "owner", "b", **own)
    tried_again(cluster, "owner", "b")
    assert cluster.evicted() == []


@pytest.mark.covers("FLT-20")
def test_no_pod_is_evicted_that_comes_back_at_once(cluster: Rooms) -> None:
    """A DaemonSet's pod of another scheduler, and a static pod."""
    cluster.node("n0", room={"cpu": "2"})
    borrow(cluster)
    for name, kind in (("agent", "DaemonSet"), ("static", "Node")):
        owner = {"apiVersion": "v1" if kind == "Node" else "apps/v1", "kind": kind, "name": "n0", "uid": "u"}
        resources = {"requests": {"cpu": "1"}}
        container = {"name": "main", "image": "pause", "resources": resources}
        body = {
            "metadata": {"name": name, "namespace": "a", "ownerReferences": [owner]},
            "spec": {"nodeName": "n0", "schedulerName": "default-scheduler", "containers": [container]},
        }
        cluster.client.create(Pod.KIND, body)
    pod(cluster, "owner", "b")
    tried_again(cluster, "owner", "b")
    assert cluster.evicted() == []


@pytest.mark.covers("FLT-20")
def test_pods_that_end_already_are_waited_for_on_every_node(cluster: Rooms) -> None:
    for node in ("n0", "n1"):
        cluster.node(node, room={"cpu": "2"})
    borrow(cluster, ("ends", "2", "n0"), ("runs", "2", "n1"), owner="4")
    cluster.client.delete(Pod.KIND, "ends", namespace="a")
    pod(cluster, "owner", "b")
    tried_again(cluster, "owner", "b")
    assert cluster.evicted() == ["ends"]
    assert cluster.get(Pod, "owner", "b").status.nominated_node_name == "n0"
    cluster.end_evicted()
    assert cluster.until_bound("owner", namespace="b") == ["n0"]


@pytest.mark.covers("FLT-20", "FLT-21")
def test_another_pod_is_evicted_than_one_that_does_not_end(cluster: Rooms) -> None:
    """The newer one was deleted long ago: its node may be lost."""
    for node in ("n0", "n1"):
        cluster.node(node, room={"cpu": "2"})
    borrow(cluster, ("runs", "2", "n1"), ("lost", "2", "n0"), owner="4")
    cluster.client.delete(Pod.KIND, "lost", namespace="a")
    cluster.clock.advance(200)
    pod(cluster, "owner", "b")
    cluster.until(lambda: "runs" in cluster.evicted(), "an eviction")
    cluster.delete_pod("runs", "a")
    assert cluster.until_bound("owner", namespace="b") == ["n1"]


@pytest.mark.covers("FLT-21")
def test_borrowers_on_several_nodes_give_a_minimum_back(cluster: Rooms) -> None:
    cluster.case("quota-2", "a")
    cluster.started("lent-0", "lent-1", namespace="a")
    cluster.case("quota-2", "b")
    cluster.until(lambda: len(cluster.evicted()) == 2, "both evicted")
    cluster.end_evicted()
    cluster.until_bound("owner", namespace="b")


@pytest.mark.covers("FLT-21")
def test_a_borrower_that_never_starts_gives_a_minimum_back(cluster: Rooms) -> None:
    cluster.case("quota-12", "a")
    cluster.until_bound("never-starts", namespace="a")
    cluster.until(lambda: cluster.labels("never-starts", namespace="a") == ["over-quota"], "a label")
    cluster.case("quota-12", "b")
    cluster.until(cluster.evicted, "an eviction")
    cluster.end_evicted()
    cluster.until_bound("owner", namespace="b")


@pytest.mark.covers("FLT-21")
def test_a_borrower_on_a_cordoned_node_gives_its_quota_back(cluster: Rooms) -> None:
    for node in ("n0", "n1"):
        cluster.node(node, room={"cpu": "2"})
    borrow(cluster, ("lent", "2", "n0"))
    cluster.client.patch(Node.KIND, "n0", {"spec": {"unschedulable": True}})
    pod(cluster, "owner", "b")
    cluster.until(lambda: cluster.evicted() == ["lent"], "an eviction")
    # The pod may have been read before the change of the node, which comes on another watch.
    cluster.until(
        lambda: cluster.get(Pod, "owner", "b").status.nominated_node_name in ("", "n1"), "no cordoned node"
    )
    cluster.end_evicted()
    assert cluster.until_bound("owner", namespace="b") == ["n1"]


@pytest.mark.covers("FLT-21")
def test_a_borrower_on_a_node_that_is_deleted_gives_its_quota_back(cluster: Rooms) -> None:
    for node in ("n0", "n1"):
        cluster.node(node, room={"cpu": "2"})
    borrow(cluster, ("lent", "2", "n0"))
    finalizers = {"metadata": {"finalizers": ["karpenter.sh/termination"]}}
    cluster.client.patch(Node.KIND, "n0", finalizers)
    cluster.client.delete(Node.KIND, "n0")
    pod(cluster, "owner", "b")
    cluster.until(lambda: cluster.evicted() == ["lent"], "an eviction")
    cluster.end_evicted()
    assert cluster.until_bound("owner", namespace="b") == ["n1"]


@pytest.mark.covers("FLT-21")
def test_a_pod_whose_node_is_full_gets_room_and_quota_from_two_nodes(cluster: Rooms) -> None:
    """n1 must give room, and n0 the rest of the quota."""
    cluster.node("n0", room={"cpu": "2"})
    cluster.node("n1", room={"cpu": "4"})
    borrow(cluster, ("lent-0", "2", "n0"), ("lent-1", "1", "n1"), ("lent-2", "1", "n1"), owner="4")
    pod(cluster, "owner", "b", "4", "n1")
    cluster.until(lambda: len(cluster.evicted()) == 3, "evictions")
    cluster.end_evicted()
    assert cluster.until_bound("owner", namespace="b") == ["n1"]


@pytest.mark.covers("FLT-21")
@pytest.mark.parametrize(
    ("borrowers", "wanted", "expected"),
    [
        ([("small-0", "1"), ("small-1", "1"), ("big", "2")], "2", ["big"]),
        ([("big", "2"), ("small-0", "1"), ("small-1", "1")], "2", ["big"]),
        ([("big", "3"), ("small", "1")], "1", ["small"]),
        ([("first", "1"), ("second", "1")], "1", ["second"]),
    ],
)
def test_as_few_pods_are_evicted_as_free_enough(
    cluster: Rooms, borrowers: list[tuple[str, str]], wanted: str, expected: list[str]
) -> None:
    total = str(sum(int(cpu) for _, cpu in borrowers))
    for name, _ in borrowers:
        cluster.node(f"node-{name}", room={"cpu": "8"})
    borrow(cluster, *((name, cpu, f"node-{name}") for name, cpu in borrowers), owner=total)
    pod(cluster, "owner", "b", wanted)
    cluster.until(cluster.evicted, "an eviction")
    tried_again(cluster, "owner", "b")
    assert cluster.evicted() == expected


@pytest.mark.covers("FLT-21")
def test_a_pod_that_frees_none_of_the_missing_resource_stays(cluster: Rooms) -> None:
    cluster.node("n0", room={"nvidia.com/gpu": "2"})
    cluster.quota("a", min={"cpu": 0, "nvidia.com/gpu": 0})
    cluster.quota("b", min={"cpu": 4, "nvidia.com/gpu": 1})
    pod(cluster, "gpu", "a", "1", requests={"nvidia.com/gpu": "1"})
    cluster.started("gpu", namespace="a")
    cluster.clock.advance(2)
    pod(cluster, "cpu", "a", "1")
    cluster.started("cpu", namespace="a")
    pod(cluster, "owner", "b", "1", requests={"nvidia.com/gpu": "1"})
    cluster.until(cluster.evicted, "an eviction")
    assert cluster.evicted() == ["gpu"]


def test_pod_that_has_the_name_of_a_victim_meanwhile_is_not_evicted(cluster: Rooms) -> None:
    cluster.node("n0", room={"cpu": "2"})
    cluster.node("n1", room={"cpu": "2"})
    borrow(cluster, ("lent", "2", "n0"))

    def replace(_: Request) -> None:
        cluster.delete_pod("lent", "a")
        pod(cluster, "lent", "a", cpu="", node="n1")  # borrows nothing

    cluster.tap.on(lambda request: request.path.endswith("/lent/eviction"), replace)
    pod(cluster, "owner", "b", node="n0")
    assert cluster.until_bound("owner", namespace="b") == ["n0"]
    assert not cluster.get(Pod, "lent", "a").deleting
