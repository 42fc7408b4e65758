"""Has an API server take manifests with strict field validation: an unknown field is an error, not dropped.

`python -m tests.deploy.strict < manifests` does it on the embedded API server.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import yaml

from local.kube import ApiRequest, Cluster

Json = dict[str, Any]
# Method, path, query and body of a request; status and body of its answer.
Send = Callable[[str, str, Mapping[str, str], Json | None], tuple[int, Json]]
# The Prometheus Operator's kind, as far as the chart uses it (its API reference, ServiceMonitorSpec).
SERVICE_MONITOR = Path(__file__).with_name("servicemonitor.yaml")


def documents(text: str) -> list[Json]:
    return [document for document in yaml.safe_load_all(text) if document]


def create(send: Send, manifests: Iterable[Json], *, dry_run: bool = False) -> list[str]:
    """The problems of the manifests, one line each; empty if the server accepted them all."""
    query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
    wrong = []
    for manifest in manifests:
        status, answer = send("POST", _collection(send, manifest), query, manifest)
        if status != 201:
            wrong.append(
                f"{manifest['kind']}/{manifest['metadata']['name']}: {answer.get('message', answer)}"
            )
    return wrong


def embedded(cluster: Cluster) -> Send:
    def send(method: str, path: str, query: Mapping[str, str], body: Json | None) -> tuple[int, Json]:
        raw = None if body is None else orjson.dumps(body)
        answer = cluster.handle(ApiRequest(method, path, query, {"Content-Type": "application/json"}, raw))
        return answer.status, answer.json()

    return send


def prepared(namespace: str) -> Send:
    """A new embedded API server with the namespace and the Prometheus Operator's definition."""
    send = embedded(Cluster())
    definition = yaml.safe_load(SERVICE_MONITOR.read_text())
    manifests = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, definition]
    if wrong := create(send, manifests):
        raise AssertionError(wrong)
    return send


def _collection(send: Send, manifest: Json) -> str:
    """The collection's path, from the server's own discovery."""
    version = manifest["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    _, resource_list = send("GET", root, {}, None)
    for resource in resource_list.get("resources", ()):
        if resource["kind"] == manifest["kind"] and "/" not in resource["name"]:
            name = manifest["metadata"].get("namespace", "default")
            place = f"/namespaces/{name}" if resource["namespaced"] else ""
            return f"{root}{place}/{resource['name']}"
    raise AssertionError(f"the server does not know {version} {manifest['kind']}")


def main() -> int:
    manifests = documents(sys.stdin.read())
    wrong = create(prepared(manifests[0]["metadata"]["namespace"]), manifests)
    for line in wrong:
        print(line)
    print(f"{len(manifests) - len(wrong)} of {len(manifests)} manifests are taken with strict validation.")
    return 1 if wrong or not manifests else 0


if __name__ == "__main__":
    sys.exit(main())
