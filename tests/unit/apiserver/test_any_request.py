"""The server answers any request: a refusal is a Status, never an exception, and changes nothing."""

from __future__ import annotations

import copy
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from local.kube import ApiRequest, Cluster

from .objects import CONFIGMAPS, DEFINITIONS, NODES, PODS, WIDGETS, Clock, configmap, definition, pod, widget

Obj = dict[str, Any]
APPS, CORE = "/apis/apps/v1/namespaces/default", "/api/v1/namespaces/default"
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
WORKLOAD = {"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}}
ONCE = {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}
SIZES: Obj = {
    "type": "object",
    "properties": {
        "size": {"type": "integer", "minimum": 0, "default": 1},
        "names": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "parts": {
            "type": "array",
            "items": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
        "amount": {"x-kubernetes-int-or-string": True},
    },
    "x-kubernetes-validations": [{"rule": "!has(self.names) || self.names.size() < 3"}],
}
OBJECTS: list[tuple[str, Obj]] = [
    (PODS, pod("o", nodeSelector={"a": "b"}, tolerations=[{"key": "k", "operator": "Exists"}])),
    (CONFIGMAPS, configmap("o", labels={"a": "b"}, k="v")),
    (NODES, {"metadata": {"name": "o"}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}),
    (WIDGETS, widget("o", size=1, names=["a"], parts=[{"name": "x"}], amount="25%")),
    (DEFINITIONS, {**definition(SIZES), "metadata": {"name": "o"}}),
    ("/api/v1/namespaces", {"metadata": {"name": "o"}}),
    (f"{CORE}/secrets", {"metadata": {"name": "o"}, "stringData": {"a": "b"}}),
    (f"{CORE}/services", {"metadata": {"name": "o"}, "spec": {"ports": [{"port": 80}]}}),
    (
        f"{CORE}/events",
        {"metadata": {"name": "o"}, "involvedObject": {"namespace": "default"}, "count": 1},
    ),
    (f"{CORE}/resourcequotas", {"metadata": {"name": "o"}, "spec": {"hard": {"cpu": "1"}}}),
    (
        f"{CORE}/limitranges",
        {"metadata": {"name": "o"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}},
    ),
    (f"{APPS}/deployments", {"metadata": {"name": "o"}, **WORKLOAD}),
    (f"{APPS}/statefulsets", {"metadata": {"name": "o"}, **WORKLOAD}),
    (f"{APPS}/daemonsets", {"metadata": {"name": "o"}, **WORKLOAD}),
    ("/apis/batch/v1/namespaces/default/jobs", {"metadata": {"name": "o"}, "spec": ONCE}),
    (
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        {"metadata": {"name": "o"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}},
    ),
    (
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        {"metadata": {"name": "o"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 5}},
    ),
    ("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "o"}, "value": 5}),
]
STRANGE = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["", "x", "-", 1.5, [], {}, [{}], {"a": {}}])
)
NAMES = st.sampled_from(["finalizers", "spec", "status", "labels", "ownerReferences", "zz"])
KINDS = [
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
]


def steps(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in an object."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([path] if path else []), *(deep for key, child in inner for deep in steps(child, (*path, key)))]


@st.composite
def spoiled(draw: st.DrawFn, obj: Obj) -> Obj:
    """The object with one or two of its values replaced or dropped, or with one too many."""
    out = copy.deepcopy(obj)
    for _ in range(draw(st.integers(1, 2))):
        *way, last = draw(st.sampled_from(steps(out)))
        node: Any = out
        for step in way:
            node = node[step]
        if draw(st.booleans()):
            node[last] = copy.deepcopy(draw(STRANGE))
        elif isinstance(node, dict):
            del node[last]
            node[draw(NAMES)] = copy.deepcopy(draw(STRANGE))
        if not steps(out):
            break
    return out


def server() -> Cluster:
    cluster = Cluster(clock=Clock(), seed=1)
    cluster.create(DEFINITIONS, definition(SIZES, subresources={"status": {}}))
    for path, obj in OBJECTS:
        if path != DEFINITIONS:
            cluster.create(path, obj)
    return cluster


SERVER = server()


@given(data=st.data())
def test_a_corrupted_object_gets_a_response(data: st.DataObject) -> None:
    path, good = data.draw(st.sampled_from(OBJECTS))
    obj = data.draw(spoiled(good))
    if path == WIDGETS:
        obj = {"apiVersion": "example.com/v1", "kind": "Widget", **obj}
    how = data.draw(st.sampled_from(["POST", "PUT", "PATCH"]))
    sub = data.draw(st.sampled_from(["", "", "/status"])) if how != "POST" else ""
    kind = data.draw(st.sampled_from(KINDS)) if how == "PATCH" else "application/json"
    query = {
        "dryRun": "All",
        "fieldManager": "m",
        "fieldValidation": data.draw(st.sampled_from(["Warn", "Strict"])),
    }
    target = path if how == "POST" else f"{path}/o{sub}"
    revision = SERVER.state.store.revision
    answer = SERVER.handle(ApiRequest(how, target, query, {"Content-Type": kind}, orjson.dumps(obj)))
    body = answer.json()
    assert answer.status < 500 or body["message"], (how, target, obj, body)
    if answer.status >= 400:
        assert (body["kind"], body["status"], body["code"]) == ("Status", "Failure", answer.status)
        assert body["message"]
    assert SERVER.state.store.revision == revision


@given(
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]),
    parts=st.lists(
        st.sampled_from(
            [
                "api",
                "apis",
                "v1",
                "apps",
                "namespaces",
                "default",
                "pods",
                "o",
                "status",
                "scale",
                "eviction",
                "",
            ]
        ),
        max_size=7,
    ),
    query=st.dictionaries(
        st.sampled_from(["limit", "continue", "labelSelector", "fieldSelector", "resourceVersion", "dryRun"]),
        st.sampled_from(["", "1", "x", "-1", "a=b", "All", "eyJ4Ijoy"]),
        max_size=2,
    ),
    raw=st.sampled_from([b"", b"{}", b"[]", b"null", b"5", b"{", b'"x"', b"\xff", b'{"metadata": 5}']),
)
def test_any_path_gets_a_response(method: str, parts: list[str], query: dict[str, str], raw: bytes) -> None:
    answer = server_of_paths.handle(ApiRequest(method, "/" + "/".join(parts), query, {}, raw))
    assert 200 <= answer.status < 600


server_of_paths = server()
