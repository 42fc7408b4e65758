"""A real Prometheus with the deployed rules scrapes a running broker."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from broker.app import LEASE, REGISTRIES
from broker.kube.client import Client
from broker.kube.clock import SystemClock
from broker.kube.identity import NAMESPACE
from broker.kube.lease import Elector
from broker.oncall.http import HttpServer
from local.generators import monitoring, rules
from local.generators.dashboards import DASHBOARDS, query
from tests.cluster.account import CLUSTER, REGION, A
from tests.cluster.clocks import HastyClock
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.ome.reserved import GPU, flavor, flavors_alone, machine, reserve
from tests.cluster.stack import Provider, Stack

SHORT = "InsufficientInstanceCapacity"
FIRED = (
    "CapacityBrokerShortage",
    "CapacityBrokerReservationEnding",
    "CapacityBrokerReservationsNotDescribed",
)
pytestmark = pytest.mark.skipif(
    not shutil.which("prometheus"), reason="prometheus is in Debian's package prometheus"
)


class Prometheus:
    """A Prometheus process, queried over its HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **parameters: str) -> Any:
        url = f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())["data"]

    def up(self) -> bool:
        try:
            return bool(self.get("query", query="up == 1")["result"])
        except (urllib.error.URLError, ConnectionError):
            return False

    def firing(self) -> set[str]:
        return {
            alert["labels"]["alertname"]
            for alert in self.get("alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def without_data(self, queries: Sequence[str]) -> list[str]:
        return [query_ for query_ in queries if not self.get("query", query=query_)["result"]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def hasty_rules() -> str:
    """The deployed rules, without their waits."""
    file = monitoring.CHART / "rules" / "reservations.yaml"
    given = yaml.safe_load(file.read_text())
    for group in given["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    return yaml.safe_dump(given)


@contextmanager
def scraping(target: str, folder: Path) -> Iterator[Prometheus]:
    port = free_port()
    (folder / "rules.yaml").write_text(hasty_rules())
    job = {"job_name": "broker", "static_configs": [{"targets": [target]}]}
    every = {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "250ms"}
    given = {"global": every, "rule_files": ["rules.yaml"], "scrape_configs": [{**job, "honor_labels": True}]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(given))
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield Prometheus(port)
        finally:
            process.terminate()
            process.wait()


def repeats() -> float:
    """How many times EC2 has refused the capacity that is short, by the broker's own metric."""
    metrics = (metric for registry in REGISTRIES for metric in registry.collect())
    samples = (sample for metric in metrics for sample in metric.samples)
    return max((s.value for s in samples if s.name == "capacity_broker_shortage_repeats"), default=0.0)


@contextmanager
def led(stack: Stack) -> Iterator[None]:
    """This process holds the broker's Lease."""
    elector = Elector(Client(stack.tap), LEASE, NAMESPACE, "replica-0", SystemClock())
    held = threading.Event()

    def lead(lost: threading.Event) -> None:
        held.set()
        lost.wait()

    thread = threading.Thread(target=lambda: elector.run(lead), daemon=True)
    thread.start()
    assert held.wait(60)
    try:
        yield
    finally:
        elector.stop()
        thread.join()


@contextmanager
def served(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A broker with its /metrics; yields host and port."""
    calls = CollectorRegistry(auto_describe=True)

    def provider() -> Provider:
        return Provider(
            cluster=CLUSTER,
            region=REGION,
            endpoint_url=stack.server.endpoint,
            clock=HastyClock(stack.clock),
            registry=calls,
        )

    monkeypatch.setattr(stack, "provider", provider)
    stack.start()
    nothing: Callable[[], dict[str, bool]] = dict
    http = HttpServer(host="127.0.0.1", port=0, ready=nothing, registries=(*REGISTRIES, calls))
    http.start()
    try:
        yield http.url.removeprefix("http://")
    finally:
        http.close()


def a_team(stack: Stack) -> None:
    flavors_alone(stack)
    flavor(stack, "h100")
    machine(stack, "gpu-0", "h100")
    reserve(stack, "training", quotas={GPU: "8"})


@pytest.mark.covers("CAP-14", "CAP-15", "ONC-08")
@pytest.mark.parametrize("stack", ["embedded"], indirect=True)
@pytest.mark.both_servers
def test_dashboards_show_data_and_alerts_fire(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odcr = stack.aws.odcr("m5.large", A, 2)
    stack.node_class(id_=odcr)
    stack.aws.capacity_block(ends=timedelta(minutes=90))
    a_team(stack)
    with led(stack), served(stack, monkeypatch) as target, scraping(target, tmp_path) as prometheus:
        stack.until(prometheus.up, "Prometheus scrapes")
        stack.until_class("ReservationsResolved", "True")
        stack.until(lambda: FIRED[1] in prometheus.firing(), "the ending block is an alert")
        assert not {FIRED[0], FIRED[2]} & prometheus.firing()

        # A launch; then capacity is short, and stays so; then one that falls back.
        stack.claim("c-0", types=("m5.large",), zones=(A,))
        stack.until_launched("c-0")
        stack.control.fault(action="CreateFleet", code="RequestLimitExceeded", message="slow", status=503)
        stack.control.pool(instance_type="m5.large", zone=A, size=0)
        stack.claim("c-1", types=("m5.large",), zones=(A,), capacity=(ON_DEMAND,))
        stack.until_waiting("c-1", "InsufficientCapacity")
        # A slow Prometheus would see the block end before it sees the shortage.
        stack.until(lambda: repeats() >= 2, "it stays short", step=20.0)
        stack.until(lambda: FIRED[0] in prometheus.firing(), "the shortage is an alert")
        stack.control.fault(
            action="CreateFleet",
            stage="launch",
            code="ReservationCapacityExceeded",
            message="full",
            match={"InstanceType": "m5.large"},
        )
        stack.claim("c-2", types=("m5.large", "m5.xlarge"), zones=(A,), capacity=(RESERVED, ON_DEMAND))
        stack.until_launched("c-2")

        big = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "9999"}}}
        stack.pod("too-big", containers=[big])
        every = [query(panel, monitoring.catalog()) for dashboard in DASHBOARDS for panel in dashboard.panels]
        plain = [
            text.replace("$namespace", ".*")
            .replace("$reservation", ".*")
            .replace("$nodeclass", ".*")
            .replace("$instance_type", ".*")
            for text in every
        ]
        plain += [recording.expr for recording in rules.RECORDINGS]
        missing: list[str] = []

        def complete() -> bool:
            missing[:] = prometheus.without_data(missing or plain)
            return not missing

        try:
            stack.until(complete, "every query returns data")
        except AssertionError as error:
            raise AssertionError(f"without data: {missing}") from error

        stack.control.fault(
            action="DescribeCapacityReservations",
            code="UnauthorizedOperation",
            status=403,
            message="no",
            times=-1,
        )
        stack.until(lambda: FIRED[2] in prometheus.firing(), "an unreadable EC2 is an alert", step=2.0)
