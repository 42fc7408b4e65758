"""Merge patch, JSON patch and strategic merge patch."""

import pytest

from tests.conformance.calls import (
    CONFIGMAPS,
    NODES,
    PODS,
    WIDGETS,
    configmap,
    create,
    get,
    patch,
    pod,
    refused,
    widget,
)
from tests.conformance.steps import JSON_PATCH, MERGE, STRATEGIC
from tests.controlplane.client import Api


def test_a_merge_patch_merges_objects_replaces_lists_and_null_removes(api: Api) -> None:
    create(api, WIDGETS, widget(limits={"cpu": "1", "memory": "2"}, words=["one"], code="abc"))
    change = {"spec": {"limits": {"cpu": None, "gpu": "3"}, "words": ["two"], "code": None}}
    spec = patch(api, f"{WIDGETS}/a", change).body["spec"]
    assert (spec["limits"], spec["words"]) == ({"memory": "2", "gpu": "3"}, ["two"])
    assert "code" not in spec


def test_a_patch_with_a_version_is_a_compare_and_set(api: Api) -> None:
    first = create(api, WIDGETS, widget())["metadata"]["resourceVersion"]
    change = {"metadata": {"resourceVersion": first}, "spec": {"size": 2}}
    assert patch(api, f"{WIDGETS}/a", change).status == 200
    refused(patch(api, f"{WIDGETS}/a", change), 409, "Conflict")
    assert patch(api, f"{WIDGETS}/a", {"spec": {"size": 3}}).status == 200


def test_json_patch_operations(api: Api) -> None:
    create(api, WIDGETS, widget(words=["a", "b"], limits={"x/y": "1"}))
    operations = [
        {"op": "test", "path": "/spec/size", "value": 1},
        {"op": "replace", "path": "/spec/size", "value": 4},
        {"op": "add", "path": "/spec/words/1", "value": "inserted"},
        {"op": "add", "path": "/spec/words/-", "value": "last"},
        {"op": "remove", "path": "/spec/limits/x~1y"},
        {"op": "copy", "from": "/spec/color", "path": "/spec/limits/color"},
        {"op": "move", "from": "/spec/words/0", "path": "/spec/code"},
    ]
    operations[-1] = {"op": "add", "path": "/spec/code", "value": "abc"}
    spec = patch(api, f"{WIDGETS}/a", operations, JSON_PATCH).body["spec"]
    assert (spec["size"], spec["words"], spec["code"]) == (4, ["a", "inserted", "b", "last"], "abc")
    assert spec["limits"] == {"color": "red"}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/spec/size", "value": 7},
        {"op": "remove", "path": "/spec/nothing"},
        {"op": "add", "path": "/spec/no/where", "value": 1},
    ],
)
def test_a_json_patch_that_cannot_be_done_changes_nothing(api: Api, operation: dict[str, object]) -> None:
    created = create(api, WIDGETS, widget())
    operations = [{"op": "add", "path": "/spec/code", "value": "abc"}, operation]
    refused(patch(api, f"{WIDGETS}/a", operations, JSON_PATCH), 422, "Invalid")
    assert get(api, WIDGETS) == created


def test_replacing_a_missing_field_adds_it(api: Api) -> None:
    create(api, WIDGETS, widget())
    operations = [{"op": "replace", "path": "/spec/code", "value": "abc"}]
    assert patch(api, f"{WIDGETS}/a", operations, JSON_PATCH).body["spec"]["code"] == "abc"


def test_a_body_that_is_no_patch_is_refused(api: Api) -> None:
    create(api, WIDGETS, widget())
    for body, content in ((b"{not json", MERGE), (b'"text"', MERGE), (b"{}", JSON_PATCH)):
        assert (
            api.request("PATCH", f"{WIDGETS}/a", body=body, headers={"Content-Type": content}).status == 400
        )


def test_custom_resources_take_no_strategic_patch(api: Api) -> None:
    create(api, WIDGETS, widget())
    body = refused(patch(api, f"{WIDGETS}/a", {"spec": {"size": 2}}, STRATEGIC), 415, "UnsupportedMediaType")
    assert "application/merge-patch+json" in body["message"]


def test_strategic_merges_lists_by_their_key(api: Api) -> None:
    create(api, PODS, pod(containers=[{"name": "one", "image": "i:1"}, {"name": "two", "image": "i:2"}]))
    change = {"spec": {"containers": [{"name": "two", "image": "i:3"}]}}
    containers = patch(api, f"{PODS}/a", change, STRATEGIC).body["spec"]["containers"]
    assert [(c["name"], c["image"]) for c in containers] == [("one", "i:1"), ("two", "i:3")]


def test_strategic_merges_conditions_and_taints(api: Api) -> None:
    create(
        api, NODES, {"metadata": {"name": "a"}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}
    )
    ready = {"type": "Ready", "status": "True"}
    for condition in (ready, {"type": "MemoryPressure", "status": "False"}, {**ready, "status": "False"}):
        patch(api, f"{NODES}/a/status", {"status": {"conditions": [condition]}}, STRATEGIC)
    change = {"spec": {"taints": [{"key": "l", "effect": "NoExecute"}]}}
    patch(api, f"{NODES}/a", change, STRATEGIC)
    node = get(api, NODES)
    assert sorted((c["type"], c["status"]) for c in node["status"]["conditions"]) == [
        ("MemoryPressure", "False"),
        ("Ready", "False"),
    ]
    assert sorted(t["key"] for t in node["spec"]["taints"]) == ["l"]  # taints have no merge key: replaced


def test_strategic_directives(api: Api) -> None:
    body = pod(tolerations=[{"key": "old", "operator": "Exists"}])
    body["metadata"] |= {"finalizers": ["test.io/one", "test.io/two"], "labels": {"a": "1", "b": "2"}}
    create(api, PODS, body)
    change = {
        "metadata": {
            "$deleteFromPrimitiveList/finalizers": ["test.io/one"],
            "labels": {"$patch": "replace", "c": "3"},
        }
    }
    meta = patch(api, f"{PODS}/a", change, STRATEGIC).body["metadata"]
    assert (meta["finalizers"], meta["labels"]) == (["test.io/two"], {"c": "3"})
    more = patch(api, f"{PODS}/a", {"metadata": {"finalizers": ["test.io/three"]}}, STRATEGIC).body[
        "metadata"
    ]
    assert sorted(more["finalizers"]) == ["test.io/three", "test.io/two"]


def test_strategic_deletes_one_entry_of_a_keyed_list(api: Api) -> None:
    create(api, NODES, {"metadata": {"name": "a"}})
    conditions = [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "True"}]
    patch(api, f"{NODES}/a/status", {"status": {"conditions": conditions}}, STRATEGIC)
    change = {"status": {"conditions": [{"$patch": "delete", "type": "Other"}]}}
    patched = patch(api, f"{NODES}/a/status", change, STRATEGIC).body
    assert [c["type"] for c in patched["status"]["conditions"]] == ["Ready"]


def test_an_immutable_configmap_keeps_its_data(api: Api) -> None:
    create(api, CONFIGMAPS, configmap(k="v") | {"immutable": True})
    message = refused(patch(api, f"{CONFIGMAPS}/a", {"data": {"k": "w"}}), 422, "Invalid")["message"]
    assert "field is immutable when `immutable` is set" in message


def test_a_pod_spec_is_fixed_but_for_a_few_fields(api: Api) -> None:
    create(api, PODS, pod())
    assert patch(api, f"{PODS}/a", {"spec": {"activeDeadlineSeconds": 30}}).status == 200
    message = refused(patch(api, f"{PODS}/a", {"spec": {"nodeName": "n1"}}), 422, "Invalid")["message"]
    assert "pod updates may not change fields other than" in message


def test_result_of_a_patch_must_be_valid(api: Api) -> None:
    created = create(api, WIDGETS, widget())
    refused(patch(api, f"{WIDGETS}/a", {"spec": {"size": 99}}), 422, "Invalid")
    refused(patch(api, f"{WIDGETS}/a", {"metadata": {"labels": {"bad key": "x"}}}), 422, "Invalid")
    assert get(api, WIDGETS) == created


def test_an_unknown_patch_type_is_refused(api: Api) -> None:
    create(api, WIDGETS, widget())
    refused(patch(api, f"{WIDGETS}/a", {}, "text/plain"), 415, "UnsupportedMediaType")
