"""The two API servers that suites run on: the embedded one always, the real one where its programs are.

A pytest plugin. `api` is parametrised over both. A test sees an empty cluster: the embedded server is new
for each test, the real one is started once a process and emptied after each test
(only CustomResourceDefinitions stay).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import urllib3

from tests.controlplane.client import Api, Json
from tests.controlplane.server import ControlPlane, find

REQUIRED = "CI_REQUIRE_CONTROLPLANE"
# The API server's own objects; it would make them again, and the next test would see an event.
KEPT = frozenset({("default", "kubernetes"), ("", "system-node-critical"), ("", "system-cluster-critical")})


def empty(api: Api, collections: tuple[str, ...] = ()) -> None:
    """Removes the objects of a test: on the real server all, on another `collections`.

    Definitions stay: a server takes two seconds to accept the first object of a new one.
    """
    if api.wipe is not None:
        api.wipe()
        return
    for path in collections:
        _remove_all(api, path)


def _remove_all(api: Api, collection: str) -> None:
    listed = api.request("GET", collection)
    for item in listed.body["items"] if listed.status == 200 else []:
        if item["metadata"].get("namespace") == "kube-system":
            continue
        if (item["metadata"].get("namespace", ""), item["metadata"]["name"]) not in KEPT:
            _remove(api, collection, item)


def _remove(api: Api, collection: str, item: Json) -> None:
    meta = item["metadata"]
    path = f"{collection}/{meta['name']}"
    if "namespace" in meta and "/namespaces/" not in collection:
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


def need() -> None:
    """Leaves the test out where the real API server cannot run; fails it where it is required."""
    reason = missing()
    if reason and os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED}=1, but {reason}")
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """The real control plane of this process."""
    need()
    with ControlPlane() as plane:
        yield plane


@pytest.fixture(scope="session")
def real_api(control_plane: ControlPlane) -> Api:
    return over_real(control_plane)


def over_real(plane: ControlPlane) -> Api:
    return Api(
        name="real",
        url=plane.url,
        headers={"Authorization": f"Bearer {plane.token}"},
        token=plane.token,
        ca=plane.ca,
        compact=plane.compact,
        wipe=plane.wipe,
        pool=urllib3.PoolManager(maxsize=8, ca_certs=str(plane.ca)),
    )


@pytest.fixture
def real(real_api: Api) -> Iterator[Api]:
    """The real API server, emptied after the test."""
    yield real_api
    empty(real_api)


@contextmanager
def over_embedded() -> Iterator[Api]:
    from local.kube import ApiServer, Cluster

    cluster = Cluster()
    server = ApiServer(cluster).start()
    try:
        yield Api(
            name="embedded", url=server.url, compact=cluster.compact, pool=urllib3.PoolManager(maxsize=8)
        )
    finally:
        server.stop()


@pytest.fixture
def embedded() -> Iterator[Api]:
    """The embedded API server, new and empty."""
    with over_embedded() as api:
        yield api


REAL = pytest.mark.real


@pytest.fixture(params=["embedded", pytest.param("real", marks=REAL)])
def api(request: pytest.FixtureRequest) -> Api:
    """One API server, empty: the embedded one, then the real one."""
    server: Api = request.getfixturevalue(request.param)
    return server
