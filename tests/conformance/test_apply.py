"""Server-side apply: ownership, conflicts, force, lists by key, and managers of other writes."""

from tests.conformance.calls import (
    CONFIGMAPS,
    GIZMOS,
    NODES,
    PODS,
    WIDGETS,
    apply,
    configmap,
    create,
    get,
    gizmo,
    manager_of,
    patch,
    pod,
    refused,
    widget,
)
from tests.controlplane.client import Api, Json

PATH = f"{WIDGETS}/a"


def config(**spec: object) -> Json:
    body = widget()
    body["spec"] = spec
    return body


def test_apply_creates_and_then_changes_nothing(api: Api) -> None:
    first = apply(api, PATH, config(size=1))
    assert first.status == 201
    again = apply(api, PATH, config(size=1))
    assert again.status == 200 and again.body == first.body
    assert manager_of(first.body, "m1") == {"f:spec": {"f:size": {}}}
    entry = first.body["metadata"]["managedFields"][0]
    assert (entry["operation"], entry["apiVersion"]) == ("Apply", "conformance.capacity-broker.io/v1")


def test_apply_needs_a_manager_and_a_kind(api: Api) -> None:
    reply = api.request(
        "PATCH", PATH, body=config(size=1), headers={"Content-Type": "application/apply-patch+yaml"}
    )
    assert (
        "fieldManager: Required value: is required for apply patch"
        in refused(reply, 422, "Invalid")["message"]
    )
    refused(apply(api, PATH, {"metadata": {"name": "a"}}), 400, "BadRequest")


def test_another_value_is_a_conflict_the_same_value_is_shared(api: Api) -> None:
    apply(api, PATH, config(size=1, code="abc"), "m1")
    shared = apply(api, PATH, config(size=1), "m2")
    assert shared.status == 200 and manager_of(shared.body, "m2") == {"f:spec": {"f:size": {}}}
    body = refused(apply(api, PATH, config(size=2, code="xyz"), "m2"), 409, "Conflict")
    assert (
        body["message"] == 'Apply failed with 2 conflicts: conflicts with "m1":\n- .spec.code\n- .spec.size'
    )
    assert [c["field"] for c in body["details"]["causes"]] == [".spec.code", ".spec.size"]
    assert {c["reason"] for c in body["details"]["causes"]} == {"FieldManagerConflict"}
    assert body["details"]["causes"][0]["message"] == 'conflict with "m1"'


def test_force_takes_the_field_over(api: Api) -> None:
    apply(api, PATH, config(size=1, code="abc"), "m1")
    taken = apply(api, PATH, config(size=2), "m2", force=True).body
    assert taken["spec"]["size"] == 2
    assert manager_of(taken, "m1") == {"f:spec": {"f:code": {}}}
    assert manager_of(taken, "m2") == {"f:spec": {"f:size": {}}}


def test_field_no_longer_applied_is_removed_unless_shared(api: Api) -> None:
    apply(api, PATH, config(size=1, code="abc", words=["w"]), "m1")
    apply(api, PATH, config(size=1, code="abc"), "m2")
    left = apply(api, PATH, config(size=1), "m1").body["spec"]
    assert "words" not in left and left["code"] == "abc"


def test_a_default_comes_back_when_its_value_is_no_longer_applied(api: Api) -> None:
    apply(api, PATH, config(size=1, color="green"))
    assert apply(api, PATH, config(size=1)).body["spec"]["color"] == "red"


def test_lists_by_key_are_shared_by_entry(api: Api) -> None:
    apply(api, PATH, config(size=1, parts=[{"name": "one", "count": 1}]), "m1")
    both = apply(api, PATH, config(parts=[{"name": "two", "count": 2}]), "m2").body
    assert [(p["name"], p["count"]) for p in both["spec"]["parts"]] == [("one", 1), ("two", 2)]
    assert manager_of(both, "m2") == {
        "f:spec": {"f:parts": {'k:{"name":"two"}': {".": {}, "f:count": {}, "f:name": {}}}}
    }
    rest = apply(api, PATH, config(size=1), "m1").body
    assert [p["name"] for p in rest["spec"]["parts"]] == ["two"]


def test_a_key_of_two_fields_with_a_default(api: Api) -> None:
    apply(api, PATH, config(size=1, ports=[{"port": 80, "name": "t"}]), "m1")
    both = apply(api, PATH, config(ports=[{"port": 80, "protocol": "UDP", "name": "u"}]), "m2").body
    assert [(p["port"], p["protocol"]) for p in both["spec"]["ports"]] == [(80, "TCP"), (80, "UDP")]
    assert 'k:{"port":80,"protocol":"TCP"}' in manager_of(both, "m1")["f:spec"]["f:ports"]


def test_sets_are_shared_by_value_atomic_lists_are_not(api: Api) -> None:
    apply(api, PATH, config(size=1, tags=["a"]), "m1")
    both = apply(api, PATH, config(tags=["b"]), "m2").body
    assert both["spec"]["tags"] == ["a", "b"]
    assert manager_of(both, "m2") == {"f:spec": {"f:tags": {'v:"b"': {}}}}
    apply(api, PATH, config(size=1, tags=["a"], words=["x"]), "m1")
    refused(apply(api, PATH, config(words=["y"]), "m2"), 409, "Conflict")


def test_an_atomic_map_has_one_owner(api: Api) -> None:
    owned = apply(api, PATH, config(size=1, atom={"a": "1"}), "m1").body
    assert manager_of(owned, "m1") == {"f:spec": {"f:atom": {}, "f:size": {}}}
    refused(apply(api, PATH, config(atom={"b": "2"}), "m2"), 409, "Conflict")
    forced = apply(api, PATH, config(atom={"b": "2"}), "m2", force=True).body
    assert forced["spec"]["atom"] == {"b": "2"}


def test_other_writes_own_the_fields_that_they_change(api: Api) -> None:
    created = create(api, WIDGETS, widget(), fieldManager="hand")
    assert manager_of(created, "hand") == {
        "f:spec": {
            ".": {},
            "f:color": {},
            "f:nested": {".": {}, "f:depth": {}},
            "f:note": {},
            "f:replicas": {},
            "f:size": {},
        }
    }
    changed = patch(api, PATH, {"spec": {"size": 2}}, fieldManager="other").body
    assert manager_of(changed, "other") == {"f:spec": {"f:size": {}}}
    assert "f:size" not in manager_of(changed, "hand")["f:spec"]
    body = refused(apply(api, PATH, config(size=3), "m1"), 409, "Conflict")
    assert 'conflict with "other" using conformance.capacity-broker.io/v1' in body["message"]


def test_without_a_name_the_manager_is_the_user_agent(api: Api) -> None:
    reply = api.request("POST", WIDGETS, body=widget(), headers={"User-Agent": "tool/v1.2 (linux)"})
    assert reply.body["metadata"]["managedFields"][0]["manager"] == "tool"


def test_a_changed_field_is_lost_to_its_applier(api: Api) -> None:
    apply(api, PATH, config(size=1, code="abc"))
    edited = patch(api, PATH, {"spec": {"code": "xyz"}}, fieldManager="hand").body
    assert manager_of(edited, "m1") == {"f:spec": {"f:size": {}}}


def test_status_is_applied_by_its_own_subresource(api: Api) -> None:
    apply(api, PATH, config(size=1), "m1")
    status = config() | {"status": {"phase": "Ready"}}
    del status["spec"]
    applied = apply(api, f"{PATH}/status", status, "m1").body
    assert (applied["status"]["phase"], applied["spec"]["size"]) == ("Ready", 1)
    assert manager_of(applied, "m1", "status") == {"f:status": {"f:phase": {}}}
    assert manager_of(applied, "m1") == {"f:spec": {"f:size": {}}}
    assert apply(api, PATH, config(size=1) | {"status": {"phase": "Failed"}}, "m1").body["status"] == {
        "phase": "Ready"
    }


def test_two_managers_of_one_list_of_conditions(api: Api) -> None:
    apply(api, PATH, config(size=1))
    for manager, kind in (("m1", "Ready"), ("m2", "Other")):
        body = {k: v for k, v in config().items() if k != "spec"}
        body["status"] = {"conditions": [{"type": kind, "status": "True"}]}
        assert apply(api, f"{PATH}/status", body, manager).status == 200
    assert [c["type"] for c in get(api, WIDGETS)["status"]["conditions"]] == ["Ready", "Other"]


def test_builtin_lists_have_their_keys(api: Api) -> None:
    apply(api, f"{PODS}/a", pod(), "m1")
    side = pod(containers=[{"name": "side", "image": "s:1"}])
    both = apply(api, f"{PODS}/a", side, "m2")
    assert (
        "spec.containers: Forbidden: pod updates may not add or remove containers"
        in refused(both, 422, "Invalid")["message"]
    )
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}
    create(api, NODES, node)
    for manager, kind in (("m1", "Ready"), ("m2", "Other")):
        body = node | {"status": {"conditions": [{"type": kind, "status": "True"}]}}
        assert apply(api, f"{NODES}/a/status", body, manager).status == 200
    assert sorted(c["type"] for c in get(api, NODES)["status"]["conditions"]) == ["Other", "Ready"]


def test_a_schema_without_types_makes_lists_atomic_and_maps_granular(api: Api) -> None:
    applied = apply(api, f"{GIZMOS}/a", gizmo(spec={"map": {"x": 1}, "list": [{"y": 1}]}), "m1").body
    assert manager_of(applied, "m1") == {"f:spec": {"f:list": {}, "f:map": {".": {}, "f:x": {}}}}


def test_apply_with_another_uid_or_version(api: Api) -> None:
    apply(api, PATH, config(size=1))
    body = config(size=2)
    body["metadata"]["resourceVersion"] = "1"
    refused(apply(api, PATH, body), 409, "Conflict")
    body = config(size=2)
    body["metadata"]["uid"] = "11111111-1111-1111-1111-111111111111"
    assert "metadata.uid: Invalid value" in refused(apply(api, PATH, body), 422, "Invalid")["message"]


def test_apply_refuses_managed_fields_and_unknown_fields(api: Api) -> None:
    body = configmap(k="v")
    body["metadata"]["managedFields"] = [{"manager": "x"}]
    refused(apply(api, f"{CONFIGMAPS}/a", body), 400, "BadRequest")
    reply = apply(api, f"{PODS}/a", pod(unknown=True))
    assert reply.status == 500 and ".spec.unknown: field not declared in schema" in reply.body["message"]


def test_apply_can_remove_its_finalizer(api: Api) -> None:
    body = config(size=1)
    body["metadata"]["finalizers"] = ["test.io/hold"]
    assert apply(api, PATH, body).body["metadata"]["finalizers"] == ["test.io/hold"]
    api.request("DELETE", PATH)
    assert apply(api, PATH, config(size=1)).status == 200
    assert api.request("GET", PATH).status == 404


def test_managed_fields_can_be_cleared(api: Api) -> None:
    create(api, WIDGETS, widget())
    cleared = patch(api, PATH, {"metadata": {"managedFields": [{}]}}).body
    assert "managedFields" not in cleared["metadata"]
