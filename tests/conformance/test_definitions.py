"""CustomResourceDefinitions: pruning, defaults, schema errors, CEL, list types, versions, own checks."""

import copy
from typing import Any

import pytest

from tests.conformance.calls import (
    DEFINITIONS,
    WIDGETS,
    causes,
    create,
    get,
    patch,
    refused,
    widget,
)
from tests.conformance.definitions import GROUP
from tests.conformance.definitions import WIDGETS as DEFINITION
from tests.controlplane.client import Api, Json


def test_unknown_fields_are_pruned_free_ones_kept(api: Api) -> None:
    body = widget(
        unknown=1, nested={"free": {"any": [{"thing": 1}]}, "lost": 2}, parts=[{"name": "p", "lost": 3}]
    )
    spec = create(api, WIDGETS, body | {"lost": 4})["spec"]
    assert "unknown" not in spec and spec["nested"] == {"depth": 3, "free": {"any": [{"thing": 1}]}}
    assert spec["parts"] == [{"name": "p", "count": 1}]


def test_defaults(api: Api) -> None:
    spec = create(api, WIDGETS, widget(nested={"inner": {}}))["spec"]
    assert spec == {
        "size": 1,
        "replicas": 1,
        "color": "red",
        "note": "none",
        "nested": {"depth": 3, "inner": {"on": True}},
    }


def test_null_is_kept_where_it_may_be_and_is_a_default_elsewhere(api: Api) -> None:
    spec = create(api, WIDGETS, widget(note=None, color=None))["spec"]
    assert spec["note"] is None and spec["color"] == "red"


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        (
            {"size": -1},
            "spec.size",
            "Invalid value: -1: spec.size in body should be greater than or equal to 0",
        ),
        (
            {"size": 11},
            "spec.size",
            "Invalid value: 11: spec.size in body should be less than or equal to 10",
        ),
        (
            {"size": "big"},
            "spec.size",
            'Invalid value: "string": spec.size in body must be of type integer: "string"',
        ),
        ({"size": None}, "spec.size", "Required value"),
        (
            {"color": "mauve"},
            "spec.color",
            'Unsupported value: "mauve": supported values: "red", "green", "blue"',
        ),
        (
            {"code": "ABC"},
            "spec.code",
            "Invalid value: \"ABC\": spec.code in body should match '^[a-z]{2,4}$'",
        ),
        ({"since": "yesterday"}, "spec.since", 'spec.since in body must be of type date-time: "yesterday"'),
        ({"tags": ["a", "a"]}, "spec.tags[1]", 'Duplicate value: "a"'),
        ({"tags": ["a", "b", "c", "d", "e"]}, "spec.tags", "Too many: 5: must have at most 4 items"),
        ({"parts": [{"name": "p"}, {"name": "p"}]}, "spec.parts[1]", 'Duplicate value: {"name":"p"}'),
        ({"parts": [{"count": 1}]}, "spec.parts[0].name", "Required value"),
        ({"limits": {"cpu": 2}}, "spec.limits.cpu", "must be of type string"),
        ({"port": True}, "spec.port", "must be of type"),
        ({"low": 3, "high": 2}, "spec", "Invalid value: low must not be above high"),
        ({"code": "abc", "color": "blue"}, "spec.code", "code abc is not for blue"),
    ],
)
def test_schema_errors_name_the_field(api: Api, spec: dict[str, Any], field: str, message: str) -> None:
    reply = api.request("POST", WIDGETS, body=widget(**spec))
    body = refused(reply, 422, "Invalid")
    assert body["message"].startswith(f'Widget.{GROUP} "a" is invalid: ')
    assert (body["details"]["kind"], body["details"]["group"]) == ("Widget", GROUP)
    problems = causes(reply)
    assert field in problems and message in problems[field], problems


def test_a_transition_rule_compares_with_the_old_object(api: Api) -> None:
    create(api, WIDGETS, widget(fixed="one"))
    reply = patch(api, f"{WIDGETS}/a", {"spec": {"fixed": "two"}})
    refused(reply, 422, "Invalid")
    assert "fixed cannot change" in causes(reply)["spec.fixed"]
    assert patch(api, f"{WIDGETS}/a", {"spec": {"fixed": None}}).status == 200
    assert patch(api, f"{WIDGETS}/a", {"spec": {"fixed": "two"}}).status == 200


def test_field_validation(api: Api) -> None:
    body = widget(unknown=1)
    message = refused(api.request("POST", WIDGETS, {"fieldValidation": "Strict"}, body), 400, "BadRequest")[
        "message"
    ]
    assert message.endswith('strict decoding error: unknown field "spec.unknown"')
    warned = api.send("POST", WIDGETS, {"fieldValidation": "Warn"}, body)
    assert warned.status == 201 and warned.warnings == ('299 - "unknown field \\"spec.unknown\\""',)
    assert api.send("POST", WIDGETS, {"fieldValidation": "Ignore"}, widget("b", unknown=1)).warnings == ()
    refused(api.request("POST", WIDGETS, {"fieldValidation": "Maybe"}, widget("c")), 422, "Invalid")


def test_duplicate_fields_are_seen(api: Api) -> None:
    text = (
        b'{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":1,"size":2}}'
        % GROUP.encode()
    )
    message = refused(api.request("POST", WIDGETS, {"fieldValidation": "Strict"}, text), 400, "BadRequest")[
        "message"
    ]
    assert 'duplicate field "spec.size"' in message


def test_every_served_version_shows_the_same_object(api: Api) -> None:
    created = create(api, WIDGETS, widget())
    beta = get(api, WIDGETS.replace("/v1/", "/v1beta1/"))
    assert beta["apiVersion"] == f"{GROUP}/v1beta1"
    assert (beta["spec"], beta["metadata"]["uid"]) == (created["spec"], created["metadata"]["uid"])
    assert api.request("GET", WIDGETS.replace("/v1/", "/v2/")).status == 404


def test_definition_reports_its_served_versions(api: Api) -> None:
    definition = get(api, DEFINITIONS, f"widgets.{GROUP}")
    assert {c["type"]: c["status"] for c in definition["status"]["conditions"]} == {
        "NamesAccepted": "True",
        "Established": "True",
    }
    assert definition["status"]["acceptedNames"]["plural"] == "widgets"
    assert definition["status"]["storedVersions"] == ["v1"]
    assert definition["spec"]["conversion"] == {"strategy": "None"}


def other(plural: str = "gadgets", **spec: Any) -> Json:
    kind = plural.removesuffix("s").title()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}
                    },
                }
            ],
            **spec,
        },
    }


def test_a_definition_completes_its_names_and_ends_with_its_objects(api: Api) -> None:
    api.install(other())
    names = get(api, DEFINITIONS, f"gadgets.{GROUP}")["spec"]["names"]
    assert (names["singular"], names["listKind"]) == ("gadget", "GadgetList")
    path = f"/apis/{GROUP}/v1/namespaces/default/gadgets"
    create(api, path, {"apiVersion": f"{GROUP}/v1", "kind": "Gadget", "metadata": {"name": "a"}})
    assert api.request("DELETE", f"{DEFINITIONS}/gadgets.{GROUP}").status == 200
    while api.request("GET", f"{DEFINITIONS}/gadgets.{GROUP}").status != 404:
        pass  # the real server deletes the objects first
    while api.request("GET", path).status != 404:
        pass


def in_two_versions(*, beta: bool) -> Json:
    body = other()
    (stored,) = body["spec"]["versions"]
    body["spec"]["versions"] = [stored, {**stored, "name": "v1beta1", "storage": False, "served": beta}]
    return body


@pytest.mark.parametrize("selector", [{}, {"labelSelector": "app=x"}], ids=["all", "none of them"])
def test_watches_end_with_their_definition(api: Api, selector: dict[str, str]) -> None:
    api.install(other())
    path = f"/apis/{GROUP}/v1/namespaces/default/gadgets"
    create(api, path, {"apiVersion": f"{GROUP}/v1", "kind": "Gadget", "metadata": {"name": "a"}})
    with api.watch(path, selector, patience=30) as watch:
        assert api.request("DELETE", f"{DEFINITIONS}/gadgets.{GROUP}").status == 200
        types = [event["type"] for event in watch.rest()]
    assert types == ([] if selector else ["ADDED", "DELETED"])
    while api.request("GET", path).status != 404:
        pass  # the real server may end the watch before it takes the kind away
    assert api.request("GET", path, {"watch": "true"}).status == 404


def test_watches_end_where_a_version_is_no_longer_served(api: Api) -> None:
    api.install(in_two_versions(beta=True))
    path, beta = (f"/apis/{GROUP}/{version}/namespaces/default/gadgets" for version in ("v1", "v1beta1"))
    with api.watch(beta, patience=30) as ends, api.watch(path, patience=30) as begins_anew:
        api.install(in_two_versions(beta=False))
        assert ends.rest() == [] and begins_anew.rest() == []
    while api.request("GET", beta).status != 404:
        pass
    while (status := api.request("GET", path).status) == 429:
        pass  # the real server may set its storage up anew
    assert status == 200
    assert api.request("DELETE", f"{DEFINITIONS}/gadgets.{GROUP}").status == 200


def changed(path: str, value: Any) -> Json:
    body = copy.deepcopy(DEFINITION)
    body["metadata"]["name"] = f"wrongs.{GROUP}"
    body["spec"]["names"] = {"plural": "wrongs", "kind": "Wrong"}
    *heads, last = path.split("/")
    node: Any = body["spec"]
    for head in heads:
        node = node[int(head) if head.isdigit() else head]
    node[last] = value
    return body


SCHEMA = "versions/0/schema/openAPIV3Schema"


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("names/plural", "others", "metadata.name"),
        ("scope", "Galaxy", "spec.scope"),
        ("versions", [], "spec.versions"),
        ("versions/1/storage", True, "spec.versions"),
        ("versions/0/name", "V1", "spec.versions[0].name"),
        (f"{SCHEMA}/type", None, f"spec.{SCHEMA.replace('/0/', '[0].').replace('/', '.')}.type"),
        (f"{SCHEMA}/properties/spec/properties/size/type", "int", "properties[spec].properties[size].type"),
        (
            f"{SCHEMA}/properties/spec/properties/tags/x-kubernetes-list-type",
            "bag",
            "properties[tags].x-kubernetes-list-type",
        ),
        (
            f"{SCHEMA}/properties/spec/properties/parts/x-kubernetes-list-map-keys",
            ["nope"],
            "properties[parts].x-kubernetes-list-map-keys",
        ),
        (f"{SCHEMA}/properties/spec/properties/color/default", 7, "properties[color].default"),
    ],
)
def test_a_wrong_definition_is_refused(api: Api, path: str, value: Any, field: str) -> None:
    reply = api.request("POST", DEFINITIONS, body=changed(path, value))
    refused(reply, 422, "Invalid")
    assert any(field in cause for cause in causes(reply)), causes(reply)


def test_a_rule_that_is_no_cel_is_refused(api: Api) -> None:
    rule = [{"rule": "self.nothing == ", "message": "m"}]
    reply = api.request(
        "POST", DEFINITIONS, body=changed(f"{SCHEMA}/properties/spec/x-kubernetes-validations", rule)
    )
    refused(reply, 422, "Invalid")
    assert any("x-kubernetes-validations[0].rule" in field for field in causes(reply)), causes(reply)
