"""Each verb on each transport to an API server: in the process, over HTTP, and on the real server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.apis.coordination import Lease
from broker.apis.core import Event, Node, Pod
from broker.kube import client as client_module
from broker.kube.client import Client
from broker.kube.errors import AlreadyExists, ApiError, Conflict, Expired, Invalid, NotFound
from broker.kube.events import Recorder
from broker.kube.informer import Informer
from broker.kube.lease import Elector
from broker.kube.transports import HttpTransport
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.controlplane.client import Api
from tests.support.clock import FakeClock
from tests.support.servers import REAL


class Reach(NamedTuple):
    """A client, and an operator's actions on its server."""

    client: Client
    compact: Callable[[], None]


@pytest.fixture(params=["in-process", "embedded", pytest.param("real", marks=REAL)])
def reach(request: pytest.FixtureRequest, tmp_path: Path) -> Reach:
    if request.param == "in-process":
        cluster = Cluster()
        return Reach(Client(InProcessTransport(cluster)), cluster.compact)
    api: Api = request.getfixturevalue(request.param)
    config = tmp_path / "kubeconfig"
    config.write_text(api.kubeconfig())
    return Reach(Client(HttpTransport.from_kubeconfig(config)), api.compact)


@pytest.fixture
def client(reach: Reach) -> Client:
    return reach.client


def node(name: str = "n", **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **meta}}


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "pause"}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [container], **spec}}


def test_a_created_object_can_be_read(client: Client) -> None:
    created = client.create(Node.KIND, node(labels={"a": "b"}))
    assert created["metadata"]["labels"]["a"] == "b"
    read = client.get(Node.KIND, "n")
    assert read["metadata"]["uid"] == created["metadata"]["uid"]
    assert Node.decode(read).name == "n"


def test_refusals_have_their_classes(client: Client) -> None:
    with pytest.raises(NotFound, match='nodes "absent" not found') as missing:
        client.get(Node.KIND, "absent")
    assert (missing.value.status, missing.value.reason, missing.value.details["name"]) == (
        404,
        "NotFound",
        "absent",
    )
    client.create(Node.KIND, node())
    with pytest.raises(AlreadyExists):
        client.create(Node.KIND, node())
    with pytest.raises(Invalid) as invalid:
        client.create(
            Pod.KIND, {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": []}}
        )
    assert "spec.containers" in [cause["field"] for cause in invalid.value.details["causes"]]


def test_a_write_from_an_old_version_is_a_conflict(client: Client) -> None:
    old = client.create(Node.KIND, node())
    version = old["metadata"]["resourceVersion"]
    client.patch(Node.KIND, "n", {"metadata": {"labels": {"a": "1"}}})
    with pytest.raises(Conflict):
        client.patch(Node.KIND, "n", {"metadata": {"resourceVersion": version, "labels": {"a": "2"}}})
    with pytest.raises(Conflict):
        client.update(Node.KIND, {**old, "spec": {"unschedulable": True}})
    with pytest.raises(Conflict):
        client.delete(Node.KIND, "n", resource_version=version)
    with pytest.raises(Conflict):
        client.delete(Node.KIND, "n", uid="another")
    assert client.get(Node.KIND, "n")["metadata"]["labels"]["a"] == "1"


def test_the_patch_types(client: Client) -> None:
    client.create(Node.KIND, node(labels={"a": "1"}))
    client.patch(Node.KIND, "n", [{"op": "add", "path": "/metadata/labels/b", "value": "2"}], type="json")
    client.patch(Node.KIND, "n", {"metadata": {"labels": {"a": None}}})
    body = {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}
    client.patch(Node.KIND, "n", body, type="strategic")
    patched = client.get(Node.KIND, "n")
    assert patched["metadata"]["labels"] == {"b": "2"}
    assert patched["spec"]["taints"][0]["key"] == "k"


def test_applying_owns_fields_and_force_takes_them(client: Client) -> None:
    client.create(Node.KIND, node())
    applied = client.apply(Node.KIND, node(labels={"who": "broker"}))
    managers = {(m["manager"], m["operation"]) for m in applied["metadata"]["managedFields"]}
    assert ("capacity-broker", "Apply") in managers
    other = Client(client.transport, field_manager="other")
    with pytest.raises(Conflict) as conflict:
        other.apply(Node.KIND, node(labels={"who": "other"}), force=False)
    assert "metadata.labels.who" in str(conflict.value.details)
    other.apply(Node.KIND, node(labels={"who": "other"}))
    assert client.get(Node.KIND, "n")["metadata"]["labels"]["who"] == "other"
    client.apply(Node.KIND, {**node(), "status": {"capacity": {"cpu": "4"}}}, subresource="status")
    assert client.get(Node.KIND, "n")["status"]["capacity"] == {"cpu": "4"}


def test_a_list_is_read_in_pages_and_its_items_have_their_kind(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PAGE", 2)
    for n in range(5):
        client.create(Node.KIND, node(f"n{n}", labels={"even": str(n % 2 == 0)}))
    items, version = client.list(Node.KIND)
    assert [item["metadata"]["name"] for item in items] == ["n0", "n1", "n2", "n3", "n4"]
    assert {(item["apiVersion"], item["kind"]) for item in items} == {("v1", "Node")}
    assert version.isdigit()
    assert len(client.list(Node.KIND, label_selector="even=True")[0]) == 3
    assert len(client.list(Node.KIND, field_selector="metadata.name=n1")[0]) == 1
    assert client.list(Pod.KIND, namespace="default")[0] == []


def test_deleting_waits_for_finalizers_and_eviction_removes_a_pod(client: Client) -> None:
    client.create(Node.KIND, node(finalizers=["test.io/wait"]))
    client.delete(Node.KIND, "n")
    assert client.get(Node.KIND, "n")["metadata"]["deletionTimestamp"]
    client.patch(Node.KIND, "n", {"metadata": {"finalizers": None}})
    with pytest.raises(NotFound):
        client.get(Node.KIND, "n")
    uid = client.create(Pod.KIND, pod())["metadata"]["uid"]
    with pytest.raises(Conflict):
        client.evict("p", "default", uid="of-another")
    client.evict("p", "default", uid=uid)
    with pytest.raises(NotFound):
        client.get(Pod.KIND, "p", namespace="default")


def test_a_watch_delivers_every_change_until_it_is_closed(client: Client) -> None:
    _, version = client.list(Node.KIND)
    client.create(Node.KIND, node())
    with client.watch(Node.KIND, resource_version=version) as watch:
        assert (kind_and_name(next(watch))) == ("ADDED", "n")
        client.patch(Node.KIND, "n", {"metadata": {"labels": {"a": "1"}}})
        assert (kind_and_name(next(watch))) == ("MODIFIED", "n")
        client.delete(Node.KIND, "n")
        assert (kind_and_name(next(watch))) == ("DELETED", "n")
        reader = threading.Thread(target=lambda: [*watch])
        reader.start()
        watch.close()
        reader.join(60)
        assert not reader.is_alive()


def kind_and_name(event: tuple[str, dict[str, Any]]) -> tuple[str, str]:
    return event[0], event[1]["metadata"]["name"]


@pytest.mark.parametrize("reach", ["in-process", "embedded"], indirect=True)
def test_a_watch_from_before_the_history_is_expired(reach: Reach) -> None:
    for n in range(3):
        reach.client.create(Lease.KIND, {"metadata": {"name": f"l{n}", "namespace": "default"}, "spec": {}})
    reach.compact()
    with pytest.raises(Expired), reach.client.watch(Lease.KIND, resource_version="1") as watch:
        list(watch)


def test_any_path_with_a_json_response_can_be_read(client: Client) -> None:
    assert "gitVersion" in client.raw("GET", "/version")
    with pytest.raises(ApiError, match="GET /healthz was answered with 'ok', not with a JSON object"):
        client.raw("GET", "/healthz")
    with pytest.raises(ValueError, match=r"metadata\.name is missing"):
        client.apply(Node.KIND, {"metadata": {}})


@pytest.fixture
def nodes(client: Client) -> Iterator[Informer[Node]]:
    clock = FakeClock()
    informer = Informer(client, Node, clock=clock)
    informer.start()
    clock.until(lambda: informer.synced)
    yield informer
    informer.stop()


def test_an_informer_follows_changes(client: Client, nodes: Informer[Node]) -> None:
    changed = threading.Event()
    nodes.on_change(lambda old, new: changed.set() if new is None else None)
    client.create(Node.KIND, node("a"))
    client.create(Node.KIND, node("b"))
    client.apply(Node.KIND, node("a", labels={"x": "y"}))
    client.delete(Node.KIND, "b")
    assert changed.wait(60)
    assert [(n.name, n.labels["x"]) for n in nodes.cache.list()] == [("a", "y")]
    nodes.cache.observe(client.patch(Node.KIND, "a", {"metadata": {"labels": {"x": "z"}}}))
    assert nodes.cache.get("a").labels["x"] == "z"  # type: ignore[union-attr]
    assert nodes.error == ""


def test_only_one_elector_leads_and_hands_over(client: Client) -> None:
    clock = FakeClock()
    led: list[str] = []
    first = Elector(client, "broker", "default", "one", clock, ids=lambda: "a")
    second = Elector(client, "broker", "default", "two", clock, ids=lambda: "b")

    def lead(lost: threading.Event) -> None:
        led.append(client.get(Lease.KIND, "broker", namespace="default")["spec"]["holderIdentity"])
        assert not lost.is_set()

    first.run(lead)
    second.run(lead)
    assert led == ["one_a", "two_b"]
    lease = Lease.decode(client.get(Lease.KIND, "broker", namespace="default"))
    assert (lease.spec.lease_transitions, lease.spec.holder_identity) == (1, "")


def test_events_are_accepted_and_counted(client: Client) -> None:
    clock = FakeClock()
    recorder = Recorder(client, "capacity-broker", clock)
    about = Node.decode(client.create(Node.KIND, node()))
    scoped = Pod.decode(client.create(Pod.KIND, pod()))
    for _ in range(3):
        recorder.event(about, "Warning", "CapacityShort", "no slot is free", annotations={"pool": "cr-1"})
        assert recorder.flush()
        clock.advance(200)
    recorder.event(scoped, "Normal", "Nominated", "a claim was made")
    assert recorder.flush()
    (item,), _ = client.list(Event.KIND, field_selector="involvedObject.name=n")
    assert (item["metadata"]["namespace"], item["involvedObject"]["uid"]) == ("default", about.uid)
    assert (item["count"], item["metadata"]["annotations"]) == (3, {"pool": "cr-1"})
    assert (item["firstTimestamp"], item["lastTimestamp"]) == ("2026-01-01T00:00:00Z", "2026-01-01T00:06:40Z")
    assert len(client.list(Event.KIND, namespace="default", field_selector="involvedObject.kind=Pod")[0]) == 1
