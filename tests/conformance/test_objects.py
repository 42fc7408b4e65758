"""Create, read, replace, delete: the fields set by the server, and the refusals."""

import re

from tests.conformance.calls import (
    CONFIGMAPS,
    GIZMOS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    WIDGETS,
    configmap,
    create,
    get,
    gizmo,
    patch,
    pod,
    refused,
    widget,
)
from tests.controlplane.client import Api


def test_new_object_has_the_fields_that_the_server_sets(api: Api) -> None:
    created = create(api, WIDGETS, widget())
    meta = created["metadata"]
    assert (created["apiVersion"], created["kind"]) == ("conformance.capacity-broker.io/v1", "Widget")
    assert (meta["namespace"], meta["generation"]) == ("default", 1)
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", meta["uid"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", meta["creationTimestamp"])
    assert get(api, WIDGETS) == created


def test_client_cannot_choose_the_fields_that_the_server_sets(api: Api) -> None:
    body = widget()
    body["metadata"] |= {
        "uid": "u",
        "generation": 9,
        "creationTimestamp": "2020-01-01T00:00:00Z",
        "selfLink": "x",
    }
    meta = create(api, WIDGETS, body)["metadata"]
    assert meta["generation"] == 1 and meta["uid"] != "u"
    assert not meta["creationTimestamp"].startswith("2020") and "selfLink" not in meta


def test_creating_with_a_resource_version_is_refused(api: Api) -> None:
    body = widget()
    body["metadata"]["resourceVersion"] = "5"
    reply = api.request("POST", WIDGETS, body=body)
    assert (
        reply.status == 500
        and "resourceVersion should not be set on objects to be created" in reply.body["message"]
    )


def test_a_name_twice_already_exists(api: Api) -> None:
    create(api, WIDGETS, widget())
    body = refused(api.request("POST", WIDGETS, body=widget()), 409, "AlreadyExists")
    assert body["message"] == 'widgets.conformance.capacity-broker.io "a" already exists'
    assert body["details"] == {"name": "a", "group": "conformance.capacity-broker.io", "kind": "widgets"}


def test_generate_name_gives_different_names(api: Api) -> None:
    body = widget()
    body["metadata"] = {"generateName": "w-"}
    created = [create(api, WIDGETS, body)["metadata"] for _ in range(2)]
    assert all(re.fullmatch(r"w-[a-z0-9]{5}", meta["name"]) for meta in created)
    assert created[0]["name"] != created[1]["name"] and created[0]["generateName"] == "w-"


def test_a_name_is_required(api: Api) -> None:
    body = widget()
    del body["metadata"]["name"]
    message = refused(api.request("POST", WIDGETS, body=body), 422, "Invalid")["message"]
    assert "metadata.name: Required value: name or generateName is required" in message


def test_names_are_dns_names(api: Api) -> None:
    for bad in ("UPPER", "under_score", "-dash", "x" * 254):
        message = refused(api.request("POST", CONFIGMAPS, body=configmap(bad)), 422, "Invalid")["message"]
        assert "metadata.name: Invalid value" in message


def test_the_namespace_of_body_and_path_must_agree(api: Api) -> None:
    body = widget()
    body["metadata"]["namespace"] = "elsewhere"
    message = refused(api.request("POST", WIDGETS, body=body), 400, "BadRequest")["message"]
    assert message == "the namespace of the provided object does not match the namespace sent on the request"


def test_the_namespace_must_exist(api: Api) -> None:
    for path, body in ((WIDGETS, widget()), (PODS, pod()), (CONFIGMAPS, configmap())):
        reply = api.request("POST", path.replace("/default/", "/nowhere/"), body=body)
        assert refused(reply, 404, "NotFound")["message"] == 'namespaces "nowhere" not found'


def test_nothing_is_created_in_a_namespace_that_ends(api: Api) -> None:
    create(api, NAMESPACES, {"metadata": {"name": "ending"}})
    path = CONFIGMAPS.replace("/default/", "/ending/")
    kept = configmap()
    kept["metadata"]["finalizers"] = ["test.io/hold"]
    create(api, path, kept)
    ending = api.request("DELETE", f"{NAMESPACES}/ending").body
    assert ending["status"]["phase"] == "Terminating" and ending["metadata"]["deletionTimestamp"]
    body = refused(api.request("POST", path, body=configmap("b")), 403, "Forbidden")
    assert "because it is being terminated" in body["message"]
    assert body["details"]["causes"][0]["reason"] == "NamespaceTerminating"


def test_a_body_of_another_kind_is_refused(api: Api) -> None:
    wrong = widget() | {"kind": "Gadget"}
    body = refused(api.request("POST", WIDGETS, body=wrong), 422, "Invalid")
    assert 'kind: Invalid value: "Gadget": must be Widget' in body["message"]
    refused(api.request("POST", CONFIGMAPS, body=configmap() | {"kind": "Secret"}), 400, "BadRequest")


def test_missing_object_is_not_found(api: Api) -> None:
    for method in ("GET", "DELETE"):
        body = refused(api.request(method, f"{WIDGETS}/nobody"), 404, "NotFound")
        assert body["message"] == 'widgets.conformance.capacity-broker.io "nobody" not found'
    body = refused(api.request("PUT", f"{PODS}/a", body=pod()), 404, "NotFound")
    assert body["details"] == {"name": "a", "kind": "pods"}


def test_replace_needs_the_latest_version(api: Api) -> None:
    first = create(api, WIDGETS, widget())
    second = api.request("PUT", f"{WIDGETS}/a", body=first | {"spec": {"size": 2}}).body
    assert (second["spec"]["size"], second["metadata"]["generation"]) == (2, 2)
    body = refused(api.request("PUT", f"{WIDGETS}/a", body=first), 409, "Conflict")
    assert "the object has been modified; please apply your changes to the latest version" in body["message"]
    assert get(api, WIDGETS) == second


def test_replacing_a_custom_resource_needs_a_version_a_configmap_does_not(api: Api) -> None:
    create(api, WIDGETS, widget())
    message = refused(api.request("PUT", f"{WIDGETS}/a", body=widget()), 422, "Invalid")["message"]
    assert (
        "metadata.resourceVersion: Invalid value" in message and "must be specified for an update" in message
    )
    create(api, CONFIGMAPS, configmap(k="v"))
    assert api.request("PUT", f"{CONFIGMAPS}/a", body=configmap(k="w")).status == 200


def test_a_lease_can_be_created_by_replacing_it(api: Api) -> None:
    lease = {"metadata": {"name": "a"}, "spec": {"holderIdentity": "me"}}
    assert api.request("PUT", f"{LEASES}/a", body=lease).status == 201


def test_replace_with_another_uid_is_a_conflict(api: Api) -> None:
    created = create(api, WIDGETS, widget())
    created["metadata"]["uid"] = "11111111-1111-1111-1111-111111111111"
    body = refused(api.request("PUT", f"{WIDGETS}/a", body=created), 409, "Conflict")
    assert "Precondition failed: UID in precondition" in body["message"]


def test_the_name_cannot_be_changed(api: Api) -> None:
    created = create(api, WIDGETS, widget())
    created["metadata"]["name"] = "b"
    message = refused(api.request("PUT", f"{WIDGETS}/a", body=created), 400, "BadRequest")["message"]
    assert message == "the name of the object (b) does not match the name on the URL (a)"


def test_a_write_that_changes_nothing_makes_no_version(api: Api) -> None:
    created = create(api, WIDGETS, widget())
    assert api.request("PUT", f"{WIDGETS}/a", body=created).body == created
    assert patch(api, f"{WIDGETS}/a", {"spec": {"size": 1}}).body == created


def test_generation_counts_changes_of_the_spec(api: Api) -> None:
    create(api, WIDGETS, widget())
    assert (
        patch(api, f"{WIDGETS}/a", {"metadata": {"labels": {"l": "1"}}}).body["metadata"]["generation"] == 1
    )
    assert patch(api, f"{WIDGETS}/a", {"spec": {"size": 2}}).body["metadata"]["generation"] == 2
    assert (
        patch(api, f"{WIDGETS}/a/status", {"status": {"phase": "Ready"}}).body["metadata"]["generation"] == 2
    )


def test_without_a_status_subresource_status_is_part_of_the_object(api: Api) -> None:
    created = create(api, GIZMOS, gizmo(status={"phase": "Free"}))
    assert created["status"] == {"phase": "Free"} and "namespace" not in created["metadata"]
    changed = patch(api, f"{GIZMOS}/a", {"status": {"phase": "Taken"}}).body
    assert (changed["status"]["phase"], changed["metadata"]["generation"]) == ("Taken", 2)
    assert api.request("GET", f"{GIZMOS}/a/status").status == 404


def test_builtin_kinds_count_generations_or_not(api: Api) -> None:
    assert "generation" not in create(api, NODES, {"metadata": {"name": "a"}})["metadata"]
    assert "generation" not in create(api, CONFIGMAPS, configmap())["metadata"]
    assert create(api, PODS, pod())["metadata"]["generation"] == 1


def test_dry_run_answers_and_writes_nothing(api: Api) -> None:
    created = create(api, WIDGETS, widget(), dryRun="All")
    assert created["metadata"]["uid"] and created["spec"]["color"] == "red"
    assert api.request("GET", f"{WIDGETS}/a").status == 404
    kept = create(api, WIDGETS, widget())
    assert patch(api, f"{WIDGETS}/a", {"spec": {"size": 9}}, dryRun="All").body["spec"]["size"] == 9
    assert api.request("DELETE", f"{WIDGETS}/a", {"dryRun": "All"}).status == 200
    assert get(api, WIDGETS) == kept
    refused(api.request("POST", WIDGETS, {"dryRun": "Some"}, widget("b")), 422, "Invalid")


def test_owner_references_are_checked(api: Api) -> None:
    body = widget()
    body["metadata"]["ownerReferences"] = [{"kind": "Node", "name": "n"}]
    message = refused(api.request("POST", WIDGETS, body=body), 422, "Invalid")["message"]
    assert "metadata.ownerReferences.apiVersion: Invalid value" in message
    assert 'metadata.ownerReferences.uid: Invalid value: "": must not be empty' in message
