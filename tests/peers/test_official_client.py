"""Kubernetes' own Python client works against the server: typed objects, errors, watches, leader locks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client
from kubernetes import watch as untyped
from kubernetes.client.exceptions import ApiException

from local.kube import ApiServer, Cluster
from tests.unit.apiserver.objects import Clock, definition, widget

Watch: Any = untyped.Watch


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(clock=Clock(), seed=1)


@pytest.fixture
def api(cluster: Cluster) -> Iterator[client.ApiClient]:
    with ApiServer(cluster) as server:
        configuration = client.Configuration(host=server.url)
        with client.ApiClient(configuration) as connection:
            yield connection


def pod(name: str) -> client.V1Pod:
    spec = client.V1PodSpec(containers=[client.V1Container(name="c", image="i")])
    return client.V1Pod(metadata=client.V1ObjectMeta(name=name, labels={"app": "x"}), spec=spec)


def test_typed_objects_are_written_and_listed(api: client.ApiClient) -> None:
    core: Any = client.CoreV1Api(api)
    created = core.create_namespaced_pod("default", pod("a"))
    assert created.metadata.uid
    assert created.status.phase == "Pending"
    assert [
        listed.metadata.name for listed in core.list_pod_for_all_namespaces(label_selector="app=x").items
    ] == ["a"]
    with pytest.raises(ApiException) as refused:
        core.create_namespaced_pod("default", pod("a"))
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")


def test_list_then_watch_gives_every_event(api: client.ApiClient) -> None:
    core: Any = client.CoreV1Api(api)
    core.create_namespaced_pod("default", pod("a"))
    listed = core.list_namespaced_pod("default")
    core.create_namespaced_pod("default", pod("b"))
    core.patch_namespaced_pod("a", "default", {"metadata": {"labels": {"app": "y"}}})
    core.delete_namespaced_pod("b", "default")
    watching = Watch()
    seen = []
    version = listed.metadata.resource_version
    for event in watching.stream(core.list_namespaced_pod, "default", resource_version=version):
        seen.append((event["type"], event["object"].metadata.name))
        if event["type"] == "DELETED":
            watching.stop()
    assert seen == [("ADDED", "b"), ("MODIFIED", "a"), ("MODIFIED", "b"), ("DELETED", "b")]


def test_pages_are_followed(api: client.ApiClient) -> None:
    core: Any = client.CoreV1Api(api)
    for i in range(5):
        core.create_namespaced_pod("default", pod(f"p{i}"))
    first = core.list_namespaced_pod("default", limit=2)
    assert first.metadata.remaining_item_count == 3
    rest = core.list_namespaced_pod("default", limit=9, _continue=first.metadata._continue)
    assert [listed.metadata.name for listed in (*first.items, *rest.items)] == [f"p{i}" for i in range(5)]


def test_a_watch_from_a_compacted_revision_raises_410(api: client.ApiClient, cluster: Cluster) -> None:
    core: Any = client.CoreV1Api(api)
    core.create_namespaced_pod("default", pod("a"))
    cluster.compact()
    with pytest.raises(ApiException) as gone:
        list(Watch().stream(core.list_namespaced_pod, "default", resource_version="1"))
    assert gone.value.status == 410


def test_custom_objects_by_group(api: client.ApiClient) -> None:
    definitions: Any = client.ApiextensionsV1Api(api)
    definitions.create_custom_resource_definition(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            **definition({"type": "object", "properties": {"size": {"type": "integer"}}}),
        }
    )
    custom: Any = client.CustomObjectsApi(api)
    where = ("example.com", "v1", "default", "widgets")
    custom.create_namespaced_custom_object(*where, widget("a", size=1))
    with pytest.raises(ApiException) as refused:
        custom.create_namespaced_custom_object(*where, widget("b", size="large"))
    assert refused.value.status == 422
    listed = custom.list_namespaced_custom_object(*where)
    assert [item["spec"] for item in listed["items"]] == [{"size": 1}]


def test_only_one_of_two_candidates_takes_a_lease(api: client.ApiClient) -> None:
    leases: Any = client.CoordinationV1Api(api)
    spec = client.V1LeaseSpec(holder_identity="a", lease_duration_seconds=15)
    lease = leases.create_namespaced_lease(
        "default", client.V1Lease(metadata=client.V1ObjectMeta(name="l"), spec=spec)
    )
    lease.spec.holder_identity = "b"
    leases.replace_namespaced_lease("l", "default", lease)
    lease.spec.holder_identity = "c"
    with pytest.raises(ApiException) as refused:
        leases.replace_namespaced_lease("l", "default", lease)
    assert refused.value.status == 409
    assert "the object has been modified" in str(refused.value.body)
