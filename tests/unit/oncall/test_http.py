"""The probes and the metrics, over a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import urllib3
from prometheus_client import CollectorRegistry, Counter

from broker.oncall.http import HttpServer

STATE = {"nodeclaims": False, "nodes": True}


@pytest.fixture
def server() -> Iterator[HttpServer]:
    registries = (CollectorRegistry(), CollectorRegistry())
    for number, registry in enumerate(registries):
        Counter(f"shown_{number}", "Shown.", registry=registry).inc()
    http_server = HttpServer(
        host="127.0.0.1",
        port=0,
        ready=lambda: STATE,
        registries=registries,
    )
    http_server.start()
    yield http_server
    http_server.close()


def get(server: HttpServer, path: str) -> tuple[int, str]:
    answer = urllib3.request("GET", server.url + path, retries=False)
    return answer.status, answer.data.decode()


def test_not_ready_names_the_missing_parts(server: HttpServer) -> None:
    status, text = get(server, "/readyz")
    assert status == 503
    assert text == "[-]nodeclaims\n[+]nodes\nnot ok\n"


def test_healthy_while_not_ready(server: HttpServer) -> None:
    assert get(server, "/healthz") == (200, "[+]process\nok\n")


def test_metrics_of_every_registry(server: HttpServer) -> None:
    status, text = get(server, "/metrics")
    assert status == 200
    assert "shown_0_total 1.0" in text
    assert "shown_1_total 1.0" in text


def test_a_taken_port_is_an_error_that_names_it(server: HttpServer) -> None:
    port = int(server.url.rpartition(":")[2])
    second = HttpServer(host="127.0.0.1", port=port, ready=dict, registries=())
    with pytest.raises(OSError, match=str(port)):
        second.start()
    second.close()
