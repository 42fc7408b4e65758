"""/openapi/v2, as both servers answer it: the schemas of custom kinds, and the media types."""

import time

from tests.conformance.definitions import GROUP
from tests.controlplane.client import Api, Json

PATH = "/openapi/v2"


def definitions(api: Api) -> Json:
    """The definitions once the custom kinds are among them: a real server adds them with a delay."""

    deadline = time.monotonic() + 30
    while True:
        schemas: Json = api.request("GET", PATH).body["definitions"]
        if "io.capacity-broker.conformance.v1beta1.Widget" in schemas or time.monotonic() > deadline:
            return schemas
        time.sleep(0.2)


def test_each_version_of_a_custom_kind_has_one_definition(api: Api) -> None:
    kinds = [
        (gvk["version"], gvk["kind"])
        for schema in definitions(api).values()
        for gvk in schema.get("x-kubernetes-group-version-kind", [])
        if gvk["group"] == GROUP and not gvk["kind"].endswith("List")
    ]
    assert sorted(kinds) == [("v1", "Gizmo"), ("v1", "Widget"), ("v1beta1", "Widget")]


def test_custom_schemas_lose_the_fields_unknown_to_v2(api: Api) -> None:
    schemas = definitions(api)
    for name in ("v1.Widget", "v1beta1.Widget", "v1.Gizmo"):
        assert not UNKNOWN & keys(schemas[f"io.capacity-broker.conformance.{name}"])
    widget = schemas["io.capacity-broker.conformance.v1.Widget"]["properties"]
    assert widget["metadata"]["$ref"] == "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    spec = widget["spec"]
    assert spec["required"] == ["size"]
    assert spec["properties"]["color"] == {"type": "string", "enum": ["red", "green", "blue"]}
    assert spec["properties"]["note"] == {}  # nullable
    assert spec["properties"]["port"] == {"x-kubernetes-int-or-string": True}
    assert spec["properties"]["nested"]["properties"]["free"] == {
        "x-kubernetes-preserve-unknown-fields": True
    }


def test_builtin_fields_refer_to_their_definitions(api: Api) -> None:
    schemas = definitions(api)
    pod = schemas["io.k8s.api.core.v1.Pod"]["properties"]
    assert pod["spec"]["$ref"] == "#/definitions/io.k8s.api.core.v1.PodSpec"
    assert schemas["io.k8s.apimachinery.pkg.util.intstr.IntOrString"]["format"] == "int-or-string"


def test_every_reference_leads_to_a_definition(api: Api) -> None:
    document = api.request("GET", PATH).body
    named = {f"#/definitions/{name}" for name in document["definitions"]}
    named |= {f"#/parameters/{name}" for name in document.get("parameters", {})}
    assert references(document) <= named


def test_json_is_served_and_an_unknown_media_type_is_not_acceptable(api: Api) -> None:
    for accept in ("application/json", "*/*", "text/csv, application/json;q=0.5"):
        answer = api.request("GET", PATH, headers={"Accept": accept})
        assert (answer.status, answer.body["swagger"]) == (200, "2.0")
    assert api.request("GET", PATH, headers={"Accept": "text/csv"}).status == 406


UNKNOWN = {"allOf", "anyOf", "default", "not", "nullable", "oneOf"}


def keys(schema: Json) -> set[str]:
    """The keywords of a schema and of all below it."""
    inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return set(schema).union(*(keys(child) for child in inner if isinstance(child, dict)))


def references(value: object) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set[str]()
        return own.union(*(references(inner) for inner in value.values()))
    return set[str]().union(*(references(inner) for inner in value)) if isinstance(value, list) else set()
