"""Discovery by clients: versions, groups, resources, OpenAPI, health."""

import time

import pytest

from tests.conformance.calls import PODS, WIDGETS, refused
from tests.conformance.definitions import GROUP
from tests.controlplane.client import Api, Json

AS_JSON = {"Accept": "application/json"}
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_health_is_text(api: Api, path: str) -> None:
    assert api.request("GET", path) == (200, "ok")


def test_version(api: Api) -> None:
    version = api.request("GET", "/version").body
    assert version["gitVersion"].startswith(f"v{version['major']}.{version['minor']}.")


def test_groups_and_versions(api: Api) -> None:
    assert api.request("GET", "/api").body["versions"] == ["v1"]
    groups = {g["name"]: g for g in api.request("GET", "/apis").body["groups"]}
    assert {"coordination.k8s.io", "policy", "apiextensions.k8s.io", GROUP} <= groups.keys()
    custom = groups[GROUP]
    assert [v["version"] for v in custom["versions"]] == ["v1", "v1beta1"]
    assert custom["preferredVersion"] == {"groupVersion": f"{GROUP}/v1", "version": "v1"}
    group = api.request("GET", f"/apis/{GROUP}").body
    assert (group["kind"], group["name"], group["versions"]) == ("APIGroup", GROUP, custom["versions"])


def by_name(listed: Json) -> dict[str, Json]:
    assert listed["kind"] == "APIResourceList"
    return {resource["name"]: resource for resource in listed["resources"]}


def test_resources_of_a_custom_group(api: Api) -> None:
    resources = by_name(api.request("GET", f"/apis/{GROUP}/v1").body)
    widgets = resources["widgets"]
    assert (widgets["kind"], widgets["namespaced"], widgets["singularName"]) == ("Widget", True, "widget")
    assert (widgets["shortNames"], widgets["categories"]) == (["wd"], ["conformance"])
    assert set(widgets["verbs"]) == {
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    }
    assert resources["widgets/status"]["verbs"] == ["get", "patch", "update"]
    assert (resources["widgets/scale"]["kind"], resources["widgets/scale"]["group"]) == (
        "Scale",
        "autoscaling",
    )
    assert "gizmos/status" not in resources and not resources["gizmos"]["namespaced"]


def test_core_resources(api: Api) -> None:
    resources = by_name(api.request("GET", "/api/v1").body)
    assert resources["pods"]["shortNames"] == ["po"] and resources["pods"]["categories"] == ["all"]
    assert resources["pods/binding"]["verbs"] == ["create"]
    assert (resources["pods/eviction"]["kind"], resources["pods/eviction"]["group"]) == ("Eviction", "policy")
    assert not resources["nodes"]["namespaced"] and resources["configmaps"]["shortNames"] == ["cm"]


def test_aggregated_discovery(api: Api) -> None:
    listed = api.request("GET", "/apis", headers={"Accept": AGGREGATED}).body
    assert (listed["kind"], listed["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")
    custom = next(item for item in listed["items"] if item["metadata"].get("name") == GROUP)
    assert [v["version"] for v in custom["versions"]] == ["v1", "v1beta1"]
    widgets = next(r for r in custom["versions"][0]["resources"] if r["resource"] == "widgets")
    assert widgets["responseKind"] == {"group": GROUP, "version": "v1", "kind": "Widget"}
    assert (widgets["scope"], widgets["singularResource"], widgets["shortNames"]) == (
        "Namespaced",
        "widget",
        ["wd"],
    )
    assert {s["subresource"] for s in widgets["subresources"]} == {"status", "scale"}
    core = api.request("GET", "/api", headers={"Accept": AGGREGATED}).body["items"][0]
    assert "pods" in {resource["resource"] for resource in core["versions"][0]["resources"]}


def test_openapi_knows_the_kinds_and_their_fields(api: Api) -> None:
    expected = {"api/v1", f"apis/{GROUP}/v1", "apis/apiextensions.k8s.io/v1"}
    paths, late = api.request("GET", "/openapi/v3").body["paths"], time.monotonic() + 60
    while not expected <= paths.keys() and time.monotonic() < late:  # a new definition shows a moment later
        paths = api.request("GET", "/openapi/v3").body["paths"]
    assert expected <= paths.keys()
    document = api.request("GET", paths[f"apis/{GROUP}/v1"]["serverRelativeURL"], headers=AS_JSON).body
    kinds = {
        (gvk["group"], gvk["version"], gvk["kind"]): schema
        for schema in document["components"]["schemas"].values()
        for gvk in schema.get("x-kubernetes-group-version-kind", [])
    }
    spec = kinds[GROUP, "v1", "Widget"]["properties"]["spec"]
    assert spec["properties"]["color"]["enum"] == ["red", "green", "blue"] and spec["required"] == ["size"]
    patch = document["paths"][f"/apis/{GROUP}/v1/namespaces/{{namespace}}/widgets/{{name}}"]["patch"]
    assert {"fieldManager", "fieldValidation", "force", "dryRun"} <= {
        p.get("name") for p in patch["parameters"]
    }


def test_unknown_paths_are_not_found(api: Api) -> None:
    for path in (
        "/apis/nothing.io/v1/things",
        PODS + "x",
        WIDGETS.replace("/v1/", "/v9/"),
        f"{PODS}/a/nothing",
    ):
        assert api.request("GET", path).status == 404


def test_verbs_that_do_not_fit_are_refused(api: Api) -> None:
    for method, path in (("POST", f"{PODS}/a"), ("PUT", PODS)):
        body = refused(api.request(method, path, body={}), 405, "MethodNotAllowed")
        assert body["message"] == "the server does not allow this method on the requested resource"


def test_an_answer_that_cannot_be_given_is_not_acceptable(api: Api) -> None:
    refused(api.request("GET", WIDGETS, headers={"Accept": "text/csv"}), 406, "NotAcceptable")


def test_a_body_that_cannot_be_read_is_refused(api: Api) -> None:
    refused(api.request("POST", PODS, body=b"{not json"), 400, "BadRequest")
    plain = {"Content-Type": "text/csv"}
    refused(api.request("POST", PODS, body=b"a,b", headers=plain), 415, "UnsupportedMediaType")


def test_yaml_is_read(api: Api) -> None:
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: v\n"
    path = "/api/v1/namespaces/default/configmaps"
    reply = api.request("POST", path, body=text, headers={"Content-Type": "application/yaml"})
    assert reply.status == 201 and reply.body["data"] == {"k": "v"}
