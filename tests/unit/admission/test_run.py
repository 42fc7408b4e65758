"""What `run` serves: the webhook, while another replica leads, too; none where no port is named."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from broker import logs, run
from broker.admission.keeper import NAME
from broker.apis.admission import ValidatingWebhookConfiguration
from broker.kube.client import Client
from broker.kube.clock import FakeClock
from broker.kube.embedded import Cluster
from broker.kube.errors import NotFound
from broker.kube.transports import InProcessTransport
from broker.settings import Settings

SETTINGS = Settings(
    cluster_name="blue", cluster_endpoint="https://blue.example", cluster_ca="Y2E=", http_port=0
)


@pytest.fixture(autouse=True)
def _process_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Signals, logs and garbage collection are the test run's own."""
    monkeypatch.setattr(logs, "configure", lambda **_: None)
    monkeypatch.setattr(run, "tune_collector", lambda: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def serve(client: Client, settings: Settings) -> None:
    """On a port that was free a moment ago, which another process may have taken since."""
    nobody: Any = None
    for last in (False, False, True):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        try:
            return run.serve(replace(settings, webhook_port=port), client, nobody)
        except OSError:
            if last:
                raise
    return None


def registered(client: Client) -> Any:
    try:
        return client.get(ValidatingWebhookConfiguration.KIND, NAME)
    except NotFound:
        return None


def test_a_standby_serves_the_webhook(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(InProcessTransport(Cluster()))
    seen: list[Any] = []

    def standing_by(*_: object, **__: object) -> None:
        """In the place of an election that is not won."""
        FakeClock().until(lambda: registered(client) is not None)
        seen.append(registered(client))

    monkeypatch.setattr(run, "lead", standing_by)
    serve(client, replace(SETTINGS, webhook_service="mine", namespace="kube-system"))
    service = seen[0]["webhooks"][0]["clientConfig"]["service"]
    assert (service["name"], service["namespace"], service["port"]) == ("mine", "kube-system", 443)
    assert "webhook" not in {thread.name for thread in threading.enumerate()}


def test_without_a_port_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(InProcessTransport(Cluster()))
    monkeypatch.setattr(run, "lead", lambda *_, **__: None)
    nobody: Any = None
    run.serve(SETTINGS, client, nobody)
    assert registered(client) is None
