"""The two API servers that suites run on: the embedded one always, the real one where its programs are.

A pytest plugin. `api` is parametrised over both. A test sees an empty cluster: the embedded server is new
for each test, the real one is started once a process and emptied after each test.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

import orjson
import pytest
import urllib3

from tests.controlplane.server import ControlPlane, find, kubeconfig

REQUIRED = "CI_REQUIRE_CONTROLPLANE"
TIMEOUT = urllib3.Timeout(connect=5, read=30)

Json = Any
Query = Mapping[str, str | int | bool]


class Reply(NamedTuple):
    status: int
    body: Json


class Watch:
    """One watch stream; `status` is the answer's, `until` and `rest` give its events in order."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self.status = response.status
        self._response = response
        self._lines = self._split()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._response.close()

    def _split(self) -> Iterator[bytes]:
        rest = b""
        for chunk in self._response.stream(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
        if rest:
            yield rest

    def next(self) -> Json:
        """The next event; None when the server has ended the stream."""
        line = next(self._lines, None)
        return None if line is None else orjson.loads(line)

    def until(self, last: Callable[[Json], bool]) -> list[Json]:
        """Every event up to and with the first that is `last`."""
        seen = []
        while (event := self.next()) is not None:
            seen.append(event)
            if last(event):
                return seen
        raise AssertionError(f"the watch ended before the event that was waited for: {seen}")

    def take(self, count: int) -> list[Json]:
        seen = [event for _ in range(count) if (event := self.next()) is not None]
        assert len(seen) == count, f"the watch ended after {len(seen)} of {count} events: {seen}"
        return seen

    def rest(self) -> list[Json]:
        return list(iter(self.next, None))


@dataclass(frozen=True, kw_only=True)
class Api:
    """One API server: where it is, who asks, and a request in one line."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    token: str = ""
    ca: Path | None = None
    compact: Callable[[], None]
    pool: urllib3.PoolManager

    def kubeconfig(self) -> str:
        return kubeconfig(url=self.url, token=self.token, ca=self.ca)

    def request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """The status and the decoded body; text stays text. `bytes` are sent as they are."""
        response = self._send(method, path, query, body, headers, stream=False)
        kind = response.headers.get("Content-Type", "")
        return Reply(
            response.status, orjson.loads(response.data) if "json" in kind else response.data.decode()
        )

    def watch(self, path: str, query: Query | None = None, headers: Mapping[str, str] | None = None) -> Watch:
        return Watch(self._send("GET", path, {"watch": "true", **(query or {})}, None, headers, stream=True))

    def _send(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: Json,
        headers: Mapping[str, str] | None,
        *,
        stream: bool,
    ) -> urllib3.BaseHTTPResponse:
        text = {
            key: str(value).lower() if value is True or value is False else value
            for key, value in (query or {}).items()
        }
        url = self.url + path + ("?" + urlencode(text) if text else "")
        data = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
        sent = {"Content-Type": "application/json"} if data is not None else {}
        return self.pool.request(
            method,
            url,
            body=data,
            headers={**sent, **self.headers, **(headers or {})},
            preload_content=not stream,
            timeout=TIMEOUT,
            retries=False,
        )


# Collections that are emptied, in an order that leaves nothing waiting for another.
EMPTIED = (
    "/apis/policy/v1/poddisruptionbudgets",
    "/api/v1/pods",
    "/api/v1/nodes",
    "/apis/coordination.k8s.io/v1/leases",
    "/api/v1/configmaps",
    "/api/v1/secrets",
    "/api/v1/services",
    "/api/v1/serviceaccounts",
    "/api/v1/persistentvolumeclaims",
    "/api/v1/persistentvolumes",
    "/api/v1/events",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/replicasets",
    "/apis/apps/v1/daemonsets",
    "/apis/apps/v1/statefulsets",
    "/apis/batch/v1/jobs",
    "/apis/storage.k8s.io/v1/storageclasses",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
)
NAMESPACES = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
# What the API server itself makes and keeps; it would be made again, and seen by the next test as an event.
KEPT = frozenset({("default", "kubernetes"), ("", "system-node-critical"), ("", "system-cluster-critical")})


def empty(api: Api) -> None:
    """Removes what a test left: custom resources, definitions, workloads, nodes, leases, namespaces."""
    crds = api.request("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions").body["items"]
    for crd in crds:
        spec = crd["spec"]
        stored = next(v["name"] for v in spec["versions"] if v["storage"])
        _remove_all(api, f"/apis/{spec['group']}/{stored}/{spec['names']['plural']}")
    for path in EMPTIED:
        _remove_all(api, path)
    for crd in crds:
        _remove(api, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    for namespace in api.request("GET", "/api/v1/namespaces").body["items"]:
        name = namespace["metadata"]["name"]
        if name not in NAMESPACES:
            _remove(api, "/api/v1/namespaces", namespace)
            # The namespace controller's last word; it does not run here.
            namespace["spec"]["finalizers"] = []
            namespace["metadata"].pop("resourceVersion")
            api.request("PUT", f"/api/v1/namespaces/{name}/finalize", body=namespace)


def _remove_all(api: Api, collection: str) -> None:
    found = api.request("GET", collection)
    for item in found.body["items"] if found.status == 200 else []:
        if item["metadata"].get("namespace") == "kube-system":
            continue
        if (item["metadata"].get("namespace", ""), item["metadata"]["name"]) not in KEPT:
            _remove(api, collection, item)


def _remove(api: Api, collection: str, item: Json) -> None:
    meta = item["metadata"]
    path = f"{collection}/{meta['name']}"
    if "namespace" in meta:
        root, _, plural = collection.rpartition("/")
        path = f"{root}/namespaces/{meta['namespace']}/{plural}/{meta['name']}"
    if meta.get("finalizers"):
        api.request(
            "PATCH",
            path,
            body={"metadata": {"finalizers": None}},
            headers={"Content-Type": "application/merge-patch+json"},
        )
    api.request("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})


def missing() -> str:
    """Why the real API server cannot run here; empty when it can."""
    return "" if find() else "no etcd and kube-apiserver: run `make controlplane`, or set KUBEBUILDER_ASSETS"


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """The real control plane of this process."""
    if reason := missing():
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{REQUIRED}=1, but {reason}")
        pytest.skip(reason)
    with ControlPlane() as plane:
        yield plane


@pytest.fixture(scope="session")
def real_api(control_plane: ControlPlane) -> Api:
    return Api(
        name="real",
        url=control_plane.url,
        headers={"Authorization": f"Bearer {control_plane.token}"},
        token=control_plane.token,
        ca=control_plane.ca,
        compact=control_plane.compact,
        pool=urllib3.PoolManager(maxsize=8, ca_certs=str(control_plane.ca)),
    )


@pytest.fixture
def real(real_api: Api) -> Iterator[Api]:
    """The real API server, emptied after the test."""
    yield real_api
    empty(real_api)


@pytest.fixture
def embedded() -> Iterator[Api]:
    """The embedded API server, new and empty."""
    from broker.kube.embedded import ApiServer, Cluster

    cluster = Cluster()
    server = ApiServer(cluster).start()
    try:
        yield Api(
            name="embedded", url=server.url, compact=cluster.compact, pool=urllib3.PoolManager(maxsize=8)
        )
    finally:
        server.stop()


# One worker of pytest-xdist gets every test of the real server, so that a run starts one.
REAL = (pytest.mark.real, pytest.mark.xdist_group("controlplane"))


@pytest.fixture(params=["embedded", pytest.param("real", marks=REAL)])
def api(request: pytest.FixtureRequest) -> Api:
    """One API server, empty: the embedded one, then the real one."""
    server: Api = request.getfixturevalue(request.param)
    return server
