"""Short forms of requests, for the hand-written checks."""

import time
from typing import Any

from tests.conformance.definitions import GROUP
from tests.conformance.steps import APPLY, MERGE, TABLE
from tests.controlplane.client import Api, Json, Reply

WIDGETS = f"/apis/{GROUP}/v1/namespaces/default/widgets"
GIZMOS = f"/apis/{GROUP}/v1/gizmos"
PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
NAMESPACES = "/api/v1/namespaces"
PATIENCE = 60.0
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def widget(name: str = "a", *, labels: dict[str, str] | None = None, **spec: Any) -> Json:
    meta: Json = {"name": name} | ({"labels": labels} if labels else {})
    return {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": meta, "spec": {"size": 1, **spec}}


def gizmo(name: str = "a", **fields: Any) -> Json:
    return {"apiVersion": f"{GROUP}/v1", "kind": "Gizmo", "metadata": {"name": name}, **fields}


def pod(name: str = "a", *, labels: dict[str, str] | None = None, **spec: Any) -> Json:
    meta: Json = {"name": name} | ({"labels": labels} if labels else {})
    spec = {"containers": [{"name": "main", "image": "img:1"}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def configmap(name: str = "a", **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def create(api: Api, collection: str, body: Json, **query: Any) -> Json:
    reply = api.request("POST", collection, query, body)
    assert reply.status == 201, reply
    return reply.body


def get(api: Api, collection: str, name: str = "a") -> Json:
    reply = api.request("GET", f"{collection}/{name}")
    assert reply.status == 200, reply
    return reply.body


def patch(api: Api, path: str, body: Json, content: str = MERGE, **query: Any) -> Reply:
    return api.request("PATCH", path, query, body, {"Content-Type": content})


def apply(api: Api, path: str, body: Json, manager: str = "m1", **query: Any) -> Reply:
    return patch(api, path, body, APPLY, fieldManager=manager, **query)


def table(api: Api, path: str, **query: Any) -> Json:
    reply = api.request("GET", path, query, headers={"Accept": TABLE})
    assert reply.status == 200, reply
    return reply.body


def names(listed: Json) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


def version(listed: Json) -> str:
    resource_version: str = listed["metadata"]["resourceVersion"]
    return resource_version


def causes(reply: Reply) -> dict[str, str]:
    """The fields in a Status's causes, and the reasons."""
    assert reply.body["kind"] == "Status", reply
    return {cause["field"]: cause["message"] for cause in reply.body["details"]["causes"]}


def refused(reply: Reply, status: int, reason: str) -> Json:
    """A Status as clients read it: code, reason and a message."""
    body = reply.body
    assert (reply.status, body["kind"], body["apiVersion"], body["status"]) == (
        status,
        "Status",
        "v1",
        "Failure",
    ), reply
    assert (body["code"], body.get("reason")) == (status, reason), body
    return body


def manager_of(obj: Json, name: str, subresource: str = "") -> Json:
    """The fields that a manager owns; None if it owns none."""
    for entry in obj["metadata"].get("managedFields", []):
        if entry["manager"] == name and entry.get("subresource", "") == subresource:
            return entry["fieldsV1"]
    return None


def cached(api: Api, path: str) -> None:
    """Returns when the server's cache has the object's last write.

    The real server first tries a change on its cache's copy, and calls the webhooks again if that was stale.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        copy, stored = (api.request("GET", path, query) for query in ({"resourceVersion": 0}, None))
        if copy.status == 200 and version(copy.body) == version(stored.body):
            return
        assert time.monotonic() < deadline, f"{path} is not in the server's cache after {PATIENCE:.0f} s"
        time.sleep(0.01)
