"""The webhook of `run`: served even while another replica leads; not served if no port is configured."""

from __future__ import annotations

import re
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from broker import logs, run
from broker.admission.registration import NAME
from broker.apis.admission import ValidatingWebhookConfiguration
from broker.kube.client import Client
from broker.kube.errors import NotFound
from broker.settings import Settings
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.support.clock import FakeClock

SETTINGS = Settings(
    cluster_name="blue", cluster_endpoint="https://blue.example", cluster_ca="Y2E=", http_port=0
)


@pytest.fixture(autouse=True)
def _process_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Signals and logs keep the settings of the test run."""
    monkeypatch.setattr(logs, "configure", lambda **_: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def serve(client: Client, settings: Settings) -> None:
    """Serves on a port that was free a moment ago, and that another process may have taken since."""
    provider: Any = None
    for last in (False, False, True):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        try:
            return run.serve(replace(settings, webhook_port=port), client, provider)
        except ValueError:
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

    def lose_election(*_: object, **__: object) -> None:
        """Stands in for an election that is never won."""
        FakeClock().until(lambda: registered(client) is not None)
        seen.append(registered(client))

    monkeypatch.setattr(run, "lead", lose_election)
    serve(client, replace(SETTINGS, webhook_service="mine", namespace="kube-system"))
    service = seen[0]["webhooks"][0]["clientConfig"]["service"]
    assert (service["name"], service["namespace"], service["port"]) == ("mine", "kube-system", 443)
    assert "webhook" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("port", "option"),
    [
        ("http_port", "--http-port (BROKER_HTTP_PORT)"),
        ("webhook_port", "--webhook-port (BROKER_WEBHOOK_PORT)"),
    ],
)
def test_port_in_use_is_an_error_that_names_its_option(port: str, option: str) -> None:
    provider: Any = None
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = int(taken.getsockname()[1])
        given: Any = {port: number}
        message = f"{option} is {number}: another process has it at 127.0.0.1; write a free port"
        with pytest.raises(ValueError, match=re.escape(message)):
            run.serve(replace(SETTINGS, **given), Client(InProcessTransport(Cluster())), provider)


def test_an_address_of_another_machine_is_an_error_that_names_its_option() -> None:
    unused: Any = None
    with pytest.raises(ValueError, match=r"--http-host \(BROKER_HTTP_HOST\) is '192\.0\.2\.1': "):
        run.serve(replace(SETTINGS, http_host="192.0.2.1"), unused, unused)


def test_without_a_port_no_webhook_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(InProcessTransport(Cluster()))
    monkeypatch.setattr(run, "lead", lambda *_, **__: None)
    provider: Any = None
    run.serve(SETTINGS, client, provider)
    assert registered(client) is None
