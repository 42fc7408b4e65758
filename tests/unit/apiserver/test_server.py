"""The HTTP front: requests and responses, watches in chunks, and the command that starts it alone."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import urllib3
import yaml

from local.kube import ApiServer, Cluster

from .objects import CONFIGMAPS, PODS, configmap, pod

POOL = urllib3.PoolManager(retries=False)
LONG = 20.0


@pytest.fixture
def server(cluster: Cluster) -> Iterator[ApiServer]:
    with ApiServer(cluster) as running:
        yield running


def call(server: ApiServer, method: str, path: str, body: Any = None, **headers: str) -> Any:
    raw = None if body is None else orjson.dumps(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return POOL.request(method, server.url + path, body=raw, headers=named, timeout=LONG)


def lines(answer: Any) -> Iterator[Any]:
    rest = b""
    for chunk in answer.stream(65536):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from map(orjson.loads, whole)


def watch(server: ApiServer, path: str) -> Any:
    return POOL.request("GET", f"{server.url}{path}", preload_content=False, timeout=LONG)


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/readyz/"])
def test_health_is_plain_text(server: ApiServer, path: str) -> None:
    answer = call(server, "GET", path)
    assert (answer.status, answer.data) == (200, b"ok")
    assert answer.headers["Content-Type"].startswith("text/plain")


def test_an_object_is_created_and_deleted(server: ApiServer) -> None:
    assert call(server, "POST", CONFIGMAPS, configmap("a", k="v")).status == 201
    assert call(server, "GET", f"{CONFIGMAPS}/a").json()["data"] == {"k": "v"}
    assert call(server, "DELETE", f"{CONFIGMAPS}/a").json()["status"] == "Success"
    gone = call(server, "GET", f"{CONFIGMAPS}/a")
    assert gone.status == 404
    assert gone.json()["message"] == 'configmaps "a" not found'


def test_a_warning_is_a_header(server: ApiServer) -> None:
    answer = call(server, "POST", f"{CONFIGMAPS}?fieldValidation=Warn", {**configmap("a"), "frob": 1})
    assert answer.headers["Warning"] == '299 - "unknown field \\"frob\\""'


def test_the_limit_of_a_body_is_three_megabytes(server: ApiServer) -> None:
    annotated = configmap("a", k="v" * 1_000_000)
    annotated["binaryData"] = {}
    annotated["metadata"]["annotations"] = {"a": "x" * 200_000}
    assert call(server, "POST", CONFIGMAPS, annotated).status == 201
    refused = call(server, "POST", CONFIGMAPS, configmap("b", k="v" * (3 << 20)))
    assert refused.status == 413
    assert refused.json()["reason"] == "RequestEntityTooLarge"


def test_open_watch_sends_events(server: ApiServer, cluster: Cluster) -> None:
    answer = watch(server, f"{PODS}?watch=true&resourceVersion=0")
    received = lines(answer)
    cluster.create(PODS, pod("a"))
    assert (first := next(received))["type"] == "ADDED"
    assert first["object"]["metadata"]["name"] == "a"
    cluster.delete(f"{PODS}/a")
    assert [event["type"] for event in (next(received), next(received))] == ["MODIFIED", "DELETED"]
    answer.close()


def test_dropped_watches_end_and_new_ones_go_on(server: ApiServer, cluster: Cluster) -> None:
    answer = watch(server, f"{PODS}?watch=true&resourceVersion=0")
    cluster.faults.drop_watches()
    assert list(lines(answer)) == []
    cluster.create(PODS, pod("a"))
    again = watch(server, f"{PODS}?watch=true&resourceVersion=0")
    assert next(lines(again))["object"]["metadata"]["name"] == "a"
    again.close()


def test_all_watchers_get_the_same_events(server: ApiServer, cluster: Cluster) -> None:
    answers = [watch(server, f"{PODS}?watch=true&resourceVersion=0") for _ in range(5)]
    for name in "abc":
        cluster.create(PODS, pod(name))
    for answer in answers:
        received = lines(answer)
        assert [next(received)["object"]["metadata"]["name"] for _ in range(3)] == ["a", "b", "c"]
        answer.close()


def test_a_delayed_request_holds_up_no_other(server: ApiServer, cluster: Cluster) -> None:
    held, waiting = threading.Event(), threading.Event()

    def sleep(_: float) -> None:
        waiting.set()
        held.wait(LONG)

    cluster.faults.sleep = sleep
    cluster.faults.delay(1.0, verb="list", resource="pods")
    slow = threading.Thread(target=call, args=(server, "GET", PODS))
    slow.start()
    assert waiting.wait(LONG)
    assert call(server, "GET", CONFIGMAPS).status == 200
    held.set()
    slow.join()


def test_stopping_ends_watches_and_frees_the_port(cluster: Cluster) -> None:
    server = ApiServer(cluster).start()
    answer = watch(server, f"{PODS}?watch=true&resourceVersion=0")
    server.stop()
    assert list(lines(answer)) == []
    port = int(server.url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        server.stop()  # a second time does nothing


def test_a_port_in_use_is_an_error(server: ApiServer, cluster: Cluster) -> None:
    with pytest.raises(OSError, match="address already in use"):
        ApiServer(cluster, port=int(server.url.rpartition(":")[2])).start()


def test_a_kubeconfig_points_to_the_server(server: ApiServer) -> None:
    config = yaml.safe_load(server.kubeconfig(name="here"))
    assert config["current-context"] == "here"
    assert config["clusters"] == [{"name": "here", "cluster": {"server": server.url}}]
    assert config["contexts"][0]["context"] == {"cluster": "here", "user": "here", "namespace": "default"}


def test_command_serves_until_it_is_stopped(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    command = [sys.executable, "-m", "local.kube", "--port", "0", "--kubeconfig", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("serving on ").strip()
        try:
            assert POOL.request("GET", f"{url}/readyz", timeout=LONG).data == b"ok"
            assert url in config.read_text()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == 0


def test_command_reports_a_taken_port(server: ApiServer) -> None:
    port = server.url.rpartition(":")[2]
    command = [sys.executable, "-m", "local.kube", "--port", port]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert "--port 0" in ended.stderr
