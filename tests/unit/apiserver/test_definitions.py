"""A definition's life: served at once, changed under its objects, gone with them."""

from __future__ import annotations

from typing import Any

import pytest

from local.kube import Cluster, StatusError

from .objects import DEFINITIONS, WIDGETS, definition, send, widget, with_widgets

Obj = dict[str, Any]
SIZED: Obj = {"type": "object", "properties": {"size": {"type": "integer"}}}


def test_a_path_without_a_definition_is_not_found(cluster: Cluster) -> None:
    for _ in range(2):
        with pytest.raises(StatusError, match="404 page not found"):
            cluster.get(WIDGETS)
        with_widgets(cluster)
        cluster.get(WIDGETS)
        cluster.delete(f"{DEFINITIONS}/widgets.example.com")


def test_an_object_with_a_finalizer_delays_the_deletion(cluster: Cluster) -> None:
    with_widgets(cluster, SIZED)
    held = widget(size=1)
    held["metadata"]["finalizers"] = ["example.com/hold"]
    cluster.create(WIDGETS, held)
    cluster.delete(f"{DEFINITIONS}/widgets.example.com")
    assert cluster.get(f"{DEFINITIONS}/widgets.example.com")["metadata"]["deletionTimestamp"]
    cluster.patch(f"{WIDGETS}/w", {"metadata": {"finalizers": None}})
    with pytest.raises(StatusError, match="not found"):
        cluster.get(f"{WIDGETS}/w")


def test_a_new_default_shows_in_old_objects_without_a_new_version(cluster: Cluster) -> None:
    with_widgets(cluster, SIZED)
    before = cluster.create(WIDGETS, widget(size=1))
    with_default = {
        "type": "object",
        "properties": {"size": {"type": "integer"}, "zone": {"type": "string", "default": "a"}},
    }
    cluster.patch(f"{DEFINITIONS}/widgets.example.com", {"spec": definition(with_default)["spec"]})
    after = cluster.get(f"{WIDGETS}/w")
    assert after["spec"] == {"size": 1, "zone": "a"}
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_a_removed_field_is_not_shown(cluster: Cluster) -> None:
    with_widgets(cluster, SIZED)
    cluster.create(WIDGETS, widget(size=1))
    cluster.patch(f"{DEFINITIONS}/widgets.example.com", {"spec": definition()["spec"]})
    assert cluster.get(f"{WIDGETS}/w")["spec"] == {}
    assert cluster.get(WIDGETS)["items"][0]["spec"] == {}


def test_subresources_are_served_as_defined(cluster: Cluster) -> None:
    with_widgets(cluster, SIZED)
    cluster.create(WIDGETS, widget(size=1))
    with pytest.raises(StatusError) as missing:
        cluster.patch(f"{WIDGETS}/w/status", {"status": {}})
    assert missing.value.code == 404


def test_column_shows_the_value_at_its_path(cluster: Cluster) -> None:
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
        {"name": "Zone", "type": "string", "jsonPath": ".spec.zone", "priority": 1},
    ]
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    crd = definition(SIZED, additionalPrinterColumns=columns)
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"] = free
    cluster.create(DEFINITIONS, crd)
    obj = {
        **widget(size=3),
        "status": {"conditions": [{"type": "Other", "status": "a"}, {"type": "Ready", "status": "b"}]},
    }
    cluster.create(WIDGETS, obj)
    table = send(cluster, "GET", WIDGETS, Accept="application/json;as=Table;v=v1;g=meta.k8s.io").json()
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Size", "Ready", "Zone"]
    assert table["rows"][0]["cells"] == ["w", 3, "b", None]
    assert table["columnDefinitions"][3]["priority"] == 1


def test_explain_gets_the_schema_of_a_definition(cluster: Cluster) -> None:
    with_widgets(cluster, {**SIZED, "description": "The desired state."})
    paths = send(cluster, "GET", "/openapi/v3").json()["paths"]
    document = send(
        cluster, "GET", paths["apis/example.com/v1"]["serverRelativeURL"].partition("?")[0]
    ).json()
    schema = document["components"]["schemas"]["com.example.v1.Widget"]
    assert schema["properties"]["spec"]["description"] == "The desired state."
    assert schema["x-kubernetes-group-version-kind"] == [
        {"group": "example.com", "kind": "Widget", "version": "v1"}
    ]


def test_openapi_v2_follows_the_definitions_that_are_served(cluster: Cluster) -> None:
    assert "com.example.v1.Widget" not in send(cluster, "GET", "/openapi/v2").json()["definitions"]
    with_widgets(cluster, {**SIZED, "description": "The size."})
    schema = send(cluster, "GET", "/openapi/v2").json()["definitions"]["com.example.v1.Widget"]
    assert schema["properties"]["spec"]["description"] == "The size."


def test_openapi_v2_has_no_schemas_as_protobuf(cluster: Cluster) -> None:
    protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    reply = send(cluster, "GET", "/openapi/v2", Accept=protobuf)
    assert (reply.status, reply.body) == (200, b"\n\x032.0")
    assert (
        send(cluster, "GET", "/openapi/v2", Accept=f"{protobuf}, application/json").json()["swagger"] == "2.0"
    )


def test_an_array_of_item_schemas_is_refused(cluster: Cluster) -> None:
    listed = {"type": "object", "properties": {"l": {"type": "array", "items": [{"type": "string"}]}}}
    with pytest.raises(StatusError, match="items must be a schema object and not an array"):
        cluster.create(DEFINITIONS, definition(listed))
