"""The cluster at rest with a broker beside it, each in a process of its own, for `steady` and `restart`."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import Program, Usage, program, until
from broker.kube.client import Client
from broker.kube.transports import HttpTransport
from tests.cluster.account import CLUSTER, REGION

# After so many seconds with less than this share of a core used, a broker has done its work.
QUIET, IDLE = 4.0, 0.1
SMALL = ("--claims", "40", "--nodes", "20", "--odcrs", "4", "--few-types")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The calls to the two servers so far."""

    aws: Counter[str]
    writes: Counter[str]

    @property
    def but_events(self) -> int:
        return sum(times for written, times in self.writes.items() if not written.endswith("/events"))

    def since(self, before: Counts) -> Counts:
        return Counts(aws=self.aws - before.aws, writes=self.writes - before.writes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The addresses of the two servers."""

    kubeconfig: Path
    aws: str

    def client(self) -> Client:
        return Client(HttpTransport.from_kubeconfig(self.kubeconfig), field_manager="benchmark")

    def counts(self) -> Counts:
        counts = json.loads(_read(f"{self.aws}/count"))
        return Counts(aws=Counter(counts["aws"]), writes=Counter(counts["writes"]))


class Broker:
    """`capacity-broker run` as a program, with its output."""

    def __init__(self, child: Program) -> None:
        self.program = child
        self.began = child.began
        self.url = child.wait_for_output(r'"?url"?[=:]\s*"?(http://[^\s"]+)')

    def ready(self) -> bool:
        """Whether the broker is ready and leads. A standby is ready too, but has read nothing."""
        try:
            return "standby" not in _read(f"{self.url}/readyz")
        except urllib.error.HTTPError:
            return False

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name with its labels."""
        lines = _read(f"{self.url}/metrics").splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def usage(self) -> Usage:
        return self.program.usage()

    def wait_until_reconciled(self, cluster: Cluster, *, passes: int) -> None:
        """Returns when so many passes over all claims wrote nothing but events, which follow at 50 a
        second."""
        until(self.ready, "broker that is ready")
        self._pass_without_writes(cluster, passes)

    def wait_until_idle(self, cluster: Cluster, *, passes: int = 0) -> None:
        """Returns when the broker has also been idle for some seconds: no writes, no calls to AWS, almost no
        CPU time.
        """
        self.wait_until_reconciled(cluster, passes=passes)
        counts, used, since = cluster.counts(), self.usage().cpu, time.monotonic()

        def quiet() -> bool:
            nonlocal counts, used, since
            passed = time.monotonic() - since
            if cluster.counts() != counts or self.usage().cpu - used > IDLE * QUIET:
                counts, used, since = cluster.counts(), self.usage().cpu, time.monotonic()
            return passed >= QUIET

        until(quiet, "broker that is done")

    def _pass_without_writes(self, cluster: Cluster, passes: int) -> None:
        writes, since = cluster.counts().but_events, self._passes()

        def done() -> bool:
            nonlocal writes, since
            if writes != (writes := cluster.counts().but_events):
                since = self._passes()
            return self._passes() - since >= passes

        until(done, "broker that has nothing to write", interval=1.0)

    def _passes(self) -> float:
        """Passes of the launch loop that have ended."""
        sample = 'capacity_broker_reconciles_total{controller="launch",result="requeue"}'
        return self.metrics().get(sample, 0.0)


@contextmanager
def resting(*, small: bool) -> Iterator[Cluster]:
    with program("-m", "benchmarks.fixture", *(SMALL if small else ())) as child:
        endpoints = json.loads(child.wait_for_output(r"fixture (\{.*\})"))
        yield Cluster(kubeconfig=Path(endpoints["kubeconfig"]), aws=endpoints["aws"])


@contextmanager
def broker(cluster: Cluster) -> Iterator[Broker]:
    environment = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "AWS_ENDPOINT_URL": cluster.aws,
        "AWS_REGION": REGION,
        "CLUSTER_NAME": CLUSTER,
        "CLUSTER_ENDPOINT": "https://blue.example",
        "CLUSTER_CA_BUNDLE": "bm9uZQ==",
        "BROKER_HTTP_PORT": "0",
        "BROKER_LOG_FORMAT": "json",
    }
    with program("-m", "broker.cli", "run", environment=environment) as child:
        yield Broker(child)


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def grouped(writes: Counter[str]) -> dict[str, int]:
    """Writes by method and resource."""
    counts: Counter[str] = Counter()
    for written, times in writes.items():
        method, path = written.split(" ", 1)
        noun = re.search(r"/v1[a-z0-9]*/(?:namespaces/[^/]+/)?([a-z0-9]+)", path)
        counts[f"{method} {noun[1] if noun else path}{'/status' if path.endswith('/status') else ''}"] += (
            times
        )
    return dict(counts)
