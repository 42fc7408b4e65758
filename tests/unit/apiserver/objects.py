"""Small objects for the tests of the embedded API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from local.kube import ApiRequest, Cluster, Response

Obj = dict[str, Any]
NOW = 1_700_000_000.0  # 2023-11-14T22:13:20Z
PODS = "/api/v1/namespaces/default/pods"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
NODES = "/api/v1/nodes"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"


class Clock:
    """Time that a test moves."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def pod(name: str = "p", *, node: str = "", labels: dict[str, str] | None = None, **spec: Any) -> Obj:
    body = {"containers": [{"name": "c", "image": "i"}], **spec, **({"nodeName": node} if node else {})}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": body}


def configmap(name: str = "c", *, labels: dict[str, str] | None = None, **data: str) -> Obj:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def definition(spec: Obj | None = None, **more: Any) -> Obj:
    """The definition of widgets.example.com with this schema for the spec; `more` goes into the version."""
    properties = {"spec": spec or {"type": "object"}, "status": {"type": "object"}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema, **more}
    names = {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]}
    body = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "widgets.example.com"}, "spec": body}


def widget(name: str = "w", **spec: Any) -> Obj:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        **({"spec": spec} if spec else {}),
    }


def with_widgets(cluster: Cluster, spec: Obj | None = None, **more: Any) -> Cluster:
    cluster.create(DEFINITIONS, definition(spec, **more))
    return cluster


def send(
    cluster: Cluster,
    method: str,
    path: str,
    body: Any = None,
    *,
    query: dict[str, str] | None = None,
    **headers: str,
) -> Response:
    """One request as a client sends it; header names with `_` for `-`."""
    raw = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return cluster.handle(ApiRequest(method, path, query or {}, named, raw))


def events(response: Response) -> Iterator[Obj]:
    """The events of a watch, one at a time; ends with the stream."""
    assert response.stream is not None
    for chunk in response.stream:
        yield from (orjson.loads(line) for line in chunk.splitlines())


def waiting(response: Response) -> list[Obj]:
    """The present events of a watch, without waiting for more."""
    out: list[Obj] = []
    while chunk := response.stream.poll():  # type: ignore[union-attr]
        out += [orjson.loads(line) for line in chunk.splitlines()]
    return out


def names(listed: Obj) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]
