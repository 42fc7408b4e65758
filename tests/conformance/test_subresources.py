"""Status, scale, binding and eviction."""

import pytest

from tests.conformance.calls import (
    BUDGETS,
    PODS,
    WIDGETS,
    apply,
    create,
    get,
    patch,
    pod,
    refused,
    widget,
)
from tests.controlplane.client import Api, Json, Reply


def test_status_is_not_written_with_the_object(api: Api) -> None:
    created = create(api, WIDGETS, widget() | {"status": {"phase": "Ready"}})
    assert "status" not in created
    patch(api, f"{WIDGETS}/a/status", {"status": {"phase": "Pending"}})
    assert patch(api, f"{WIDGETS}/a", {"status": {"phase": "Ready"}}).body["status"] == {"phase": "Pending"}


def test_status_writes_nothing_else(api: Api) -> None:
    created = create(api, WIDGETS, widget(labels={"app": "x"}))
    change = {
        "metadata": {"labels": {"app": "y"}, "annotations": {"n": "1"}},
        "spec": {"size": 5},
        "status": {"phase": "Ready"},
    }
    changed = patch(api, f"{WIDGETS}/a/status", change).body
    assert changed["spec"] == created["spec"] and changed["status"] == {"phase": "Ready"}
    assert changed["metadata"]["labels"] == {"app": "x"} and "annotations" not in changed["metadata"]
    created["status"] = {"phase": "Failed"}
    refused(api.request("PUT", f"{WIDGETS}/a/status", body=created), 409, "Conflict")
    assert api.request("GET", f"{WIDGETS}/a/status").body == changed


def test_status_is_validated(api: Api) -> None:
    create(api, WIDGETS, widget())
    body = refused(patch(api, f"{WIDGETS}/a/status", {"status": {"phase": "Odd"}}), 422, "Invalid")
    assert (
        'status.phase: Unsupported value: "Odd": supported values: "Pending", "Ready", "Failed"'
        in body["message"]
    )


def test_scale_reads_and_writes_the_replicas(api: Api) -> None:
    created = create(api, WIDGETS, widget(replicas=3))
    patch(api, f"{WIDGETS}/a/status", {"status": {"replicas": 2, "selector": "app=x"}})
    scale = get(api, f"{WIDGETS}/a", "scale")
    assert (scale["apiVersion"], scale["kind"]) == ("autoscaling/v1", "Scale")
    assert (scale["spec"], scale["status"]) == ({"replicas": 3}, {"replicas": 2, "selector": "app=x"})
    assert scale["metadata"]["uid"] == created["metadata"]["uid"]
    scale["spec"]["replicas"] = 5
    assert api.request("PUT", f"{WIDGETS}/a/scale", body=scale).body["spec"] == {"replicas": 5}
    refused(api.request("PUT", f"{WIDGETS}/a/scale", body=scale), 409, "Conflict")
    assert patch(api, f"{WIDGETS}/a/scale", {"spec": {"replicas": 7}}).body["spec"] == {"replicas": 7}
    widget_now = get(api, WIDGETS)
    assert (widget_now["spec"]["replicas"], widget_now["metadata"]["generation"]) == (7, 3)


def test_a_negative_scale_is_refused(api: Api) -> None:
    create(api, WIDGETS, widget())
    refused(patch(api, f"{WIDGETS}/a/scale", {"spec": {"replicas": -1}}), 422, "Invalid")


def binding(node: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a"},
        "target": {"kind": "Node", "name": node},
    }


def test_binding_gives_the_pod_its_node_once(api: Api) -> None:
    create(api, PODS, pod())
    done = api.request("POST", f"{PODS}/a/binding", body=binding("n1"))
    assert (done.status, done.body["status"]) == (201, "Success")
    bound = get(api, PODS)
    assert bound["spec"]["nodeName"] == "n1"
    assert [(c["type"], c["status"]) for c in bound["status"]["conditions"]] == [("PodScheduled", "True")]
    body = refused(api.request("POST", f"{PODS}/a/binding", body=binding("n2")), 409, "Conflict")
    assert 'pod a is already assigned to node "n1"' in body["message"]


def test_binding_needs_a_node_and_no_gates(api: Api) -> None:
    create(api, PODS, pod())
    nowhere = api.request("POST", f"{PODS}/a/binding", body=binding(""))
    assert (nowhere.status, nowhere.body["message"]) == (500, "target.name: Required value")
    create(api, PODS, pod("gated", schedulingGates=[{"name": "test.io/gate"}]))
    gated = binding("n1") | {"metadata": {"name": "gated"}}
    body = refused(api.request("POST", f"{PODS}/gated/binding", body=gated), 409, "Conflict")
    assert "pod gated has non-empty .spec.schedulingGates" in body["message"]


def budget(api: Api, allowed: int, name: str = "budget") -> None:
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}
    created = create(api, BUDGETS, {"metadata": {"name": name}, "spec": spec})
    status = {
        "disruptionsAllowed": allowed,
        "currentHealthy": 1 + allowed,
        "desiredHealthy": 1,
        "expectedPods": 1 + allowed,
        "observedGeneration": created["metadata"]["generation"],
    }
    assert patch(api, f"{BUDGETS}/{name}/status", {"status": status}).status == 200


def running(api: Api, name: str) -> None:
    create(api, PODS, pod(name, labels={"app": "x"}, nodeName="n1", terminationGracePeriodSeconds=0))
    ready = {"type": "Ready", "status": "True"}
    patch(api, f"{PODS}/{name}/status", {"status": {"phase": "Running", "conditions": [ready]}})


def evict(api: Api, name: str, **fields: object) -> Reply:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, **fields}
    return api.request("POST", f"{PODS}/{name}/eviction", body=body)


def test_eviction_without_a_budget_deletes(api: Api) -> None:
    running(api, "a")
    done = evict(api, "a")
    assert (done.status, done.body["status"]) == (201, "Success")
    assert api.request("GET", f"{PODS}/a").status == 404
    refused(evict(api, "a"), 404, "NotFound")


def test_eviction_spends_the_budget(api: Api) -> None:
    running(api, "a")
    running(api, "b")
    budget(api, 1)
    assert evict(api, "a").status == 201
    spent = get(api, BUDGETS, "budget")["status"]
    assert spent["disruptionsAllowed"] == 0 and list(spent["disruptedPods"]) == ["a"]
    body = refused(evict(api, "b"), 429, "TooManyRequests")
    assert body["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert body["details"]["causes"] == [
        {
            "reason": "DisruptionBudget",
            "message": "The disruption budget budget does not allow evicting pods currently",
        }
    ]


def test_eviction_waits_for_a_budget_without_a_status(api: Api) -> None:
    running(api, "a")
    spec = {"minAvailable": 0, "selector": {"matchLabels": {"app": "x"}}}
    create(api, BUDGETS, {"metadata": {"name": "new"}, "spec": spec})
    body = refused(evict(api, "a"), 429, "TooManyRequests")
    assert "The disruption budget new is still being processed by the server." in str(body["details"])


def test_two_budgets_for_one_pod_are_an_error(api: Api) -> None:
    running(api, "a")
    budget(api, 1, "one")
    budget(api, 1, "two")
    reply = evict(api, "a")
    assert reply.status == 500 and "more than one PodDisruptionBudget" in reply.body["message"]


@pytest.mark.parametrize("phase", ["Pending", "Succeeded"])
def test_a_pod_that_does_not_run_needs_no_budget(api: Api, phase: str) -> None:
    running(api, "a")
    patch(api, f"{PODS}/a/status", {"status": {"phase": phase}})
    budget(api, 0)
    assert evict(api, "a").status == 201


def test_an_eviction_can_be_tried(api: Api) -> None:
    running(api, "a")
    budget(api, 1)
    assert evict(api, "a", deleteOptions={"dryRun": ["All"]}).status == 201
    assert get(api, PODS)["status"]["phase"] == "Running"
    assert get(api, BUDGETS, "budget")["status"]["disruptionsAllowed"] == 1


def test_a_budget_is_kept_by_status_apply_too(api: Api) -> None:
    budget(api, 1)
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "budget"}}
    applied = apply(
        api, f"{BUDGETS}/budget/status", body | {"status": {"disruptionsAllowed": 0}}, "m1", force=True
    )
    assert applied.body["status"]["disruptionsAllowed"] == 0


def test_eviction_takes_an_empty_precondition_for_one_until_its_delete(api: Api) -> None:
    """The pod has its condition by then: only the delete compares a precondition without a value."""
    running(api, "a")
    done = evict(api, "a", deleteOptions={"preconditions": {"uid": ""}})
    assert "the UID in the precondition" in refused(done, 409, "Conflict")["message"]
    conditions = get(api, PODS)["status"]["conditions"]
    assert [c["type"] for c in conditions] == ["Ready", "DisruptionTarget"]
    done = evict(api, "a", deleteOptions={"preconditions": {"uid": "11111111-1111-1111-1111-111111111111"}})
    refused(done, 409, "Conflict")
