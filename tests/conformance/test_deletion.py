"""Deletion: at once, after finalizers, after a pod's grace; preconditions; collections."""

import pytest

from tests.conformance.calls import (
    CONFIGMAPS,
    GIZMOS,
    NAMESPACES,
    PODS,
    WIDGETS,
    configmap,
    create,
    get,
    gizmo,
    names,
    patch,
    pod,
    refused,
    widget,
)
from tests.controlplane.client import Api, Json


def held(body: Json) -> Json:
    body["metadata"]["finalizers"] = ["test.io/hold"]
    return body


def test_delete_answers_with_a_status_or_the_pod(api: Api) -> None:
    created = create(api, WIDGETS, widget())
    gone = api.request("DELETE", f"{WIDGETS}/a")
    assert gone.status == 200
    assert gone.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {
            "name": "a",
            "group": "conformance.capacity-broker.io",
            "kind": "widgets",
            "uid": created["metadata"]["uid"],
        },
    }
    create(api, PODS, pod())
    assert api.request("DELETE", f"{PODS}/a").body["kind"] == "Pod"
    assert api.request("GET", f"{PODS}/a").status == 404


def test_a_finalizer_holds_an_object(api: Api) -> None:
    create(api, WIDGETS, held(widget()))
    ending = api.request("DELETE", f"{WIDGETS}/a").body
    assert ending["metadata"]["deletionTimestamp"] and ending["metadata"]["deletionGracePeriodSeconds"] == 0
    assert ending["metadata"]["generation"] == 2
    again = api.request("DELETE", f"{WIDGETS}/a").body
    assert again["metadata"]["resourceVersion"] == ending["metadata"]["resourceVersion"]
    assert patch(api, f"{WIDGETS}/a", {"spec": {"size": 5}}).body["spec"]["size"] == 5
    assert patch(api, f"{WIDGETS}/a", {"metadata": {"finalizers": None}}).status == 200
    assert api.request("GET", f"{WIDGETS}/a").status == 404


def test_no_finalizer_is_added_to_an_object_that_ends(api: Api) -> None:
    create(api, WIDGETS, held(widget()))
    api.request("DELETE", f"{WIDGETS}/a")
    reply = patch(api, f"{WIDGETS}/a", {"metadata": {"finalizers": ["test.io/hold", "test.io/late"]}})
    assert (
        "no new finalizers can be added if the object is being deleted"
        in refused(reply, 422, "Invalid")["message"]
    )


def test_a_deletion_cannot_be_taken_back(api: Api) -> None:
    create(api, WIDGETS, held(widget()))
    ending = api.request("DELETE", f"{WIDGETS}/a").body
    del ending["metadata"]["deletionTimestamp"]
    assert api.request("PUT", f"{WIDGETS}/a", body=ending).body["metadata"]["deletionTimestamp"]


def test_preconditions(api: Api) -> None:
    created = create(api, WIDGETS, widget())
    other = {"preconditions": {"uid": "11111111-1111-1111-1111-111111111111"}}
    assert (
        "the UID in the precondition"
        in refused(api.request("DELETE", f"{WIDGETS}/a", body=other), 409, "Conflict")["message"]
    )
    old = {"preconditions": {"resourceVersion": "1"}}
    assert (
        "the ResourceVersion in the precondition"
        in refused(api.request("DELETE", f"{WIDGETS}/a", body=old), 409, "Conflict")["message"]
    )
    right = {"preconditions": {key: created["metadata"][key] for key in ("uid", "resourceVersion")}}
    assert api.request("DELETE", f"{WIDGETS}/a", body=right).status == 200


@pytest.mark.parametrize("how", ["query", "body"])
def test_a_bound_pod_has_its_grace(api: Api, how: str) -> None:
    create(api, PODS, pod(nodeName="n1", terminationGracePeriodSeconds=60))
    ending = api.request("DELETE", f"{PODS}/a").body["metadata"]
    assert ending["deletionGracePeriodSeconds"] == 60 and ending["deletionTimestamp"]
    shorter = api.request("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 5}).body["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 5
    longer = api.request("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 50}).body["metadata"]
    assert longer["deletionGracePeriodSeconds"] == 5
    now = {"gracePeriodSeconds": 0}
    done = api.request("DELETE", f"{PODS}/a", now if how == "query" else None, now if how == "body" else None)
    assert done.status == 200 and api.request("GET", f"{PODS}/a").status == 404


def test_a_finished_pod_has_no_grace(api: Api) -> None:
    create(api, PODS, pod(nodeName="n1"))
    patch(api, f"{PODS}/a/status", {"status": {"phase": "Succeeded"}})
    api.request("DELETE", f"{PODS}/a")
    assert api.request("GET", f"{PODS}/a").status == 404


def test_a_pod_with_a_finalizer_stays_after_its_grace(api: Api) -> None:
    create(api, PODS, held(pod(nodeName="n1")))
    assert api.request("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0}).body["metadata"]["deletionTimestamp"]
    assert get(api, PODS)["metadata"]["deletionGracePeriodSeconds"] == 0
    patch(api, f"{PODS}/a", {"metadata": {"finalizers": None}})
    assert api.request("GET", f"{PODS}/a").status == 404


def test_foreground_and_orphan_leave_a_finalizer(api: Api) -> None:
    for policy, finalizer in (("Foreground", "foregroundDeletion"), ("Orphan", "orphan")):
        create(api, CONFIGMAPS, configmap())
        ending = api.request("DELETE", f"{CONFIGMAPS}/a", {"propagationPolicy": policy}).body
        assert ending["metadata"]["finalizers"] == [finalizer]
        patch(api, f"{CONFIGMAPS}/a", {"metadata": {"finalizers": None}})
    refused(api.request("DELETE", f"{CONFIGMAPS}/a", {"propagationPolicy": "Sideways"}), 422, "Invalid")


def test_delete_collection_deletes_the_selected_objects(api: Api) -> None:
    for name, app in (("a", "x"), ("b", "y"), ("c", "x")):
        create(api, WIDGETS, widget(name, labels={"app": app}))
    gone = api.request("DELETE", WIDGETS, {"labelSelector": "app=x"})
    assert gone.status == 200 and gone.body["kind"] == "WidgetList" and names(gone.body) == ["a", "c"]
    assert names(api.request("GET", WIDGETS).body) == ["b"]


def test_delete_collection_in_a_namespace_leaves_the_others(api: Api) -> None:
    create(api, NAMESPACES, {"metadata": {"name": "other"}})
    elsewhere = CONFIGMAPS.replace("/default/", "/other/")
    create(api, elsewhere, configmap())
    create(api, CONFIGMAPS, configmap())
    assert api.request("DELETE", CONFIGMAPS).status == 200
    assert names(api.request("GET", elsewhere).body) == ["a"]


def test_a_deleted_name_is_free_again(api: Api) -> None:
    first = create(api, GIZMOS, gizmo())
    api.request("DELETE", f"{GIZMOS}/a")
    assert create(api, GIZMOS, gizmo())["metadata"]["uid"] != first["metadata"]["uid"]
