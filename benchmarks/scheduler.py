"""5,000 pods placed on 1,000 nodes over a real kube-apiserver, from the first bind to the last.

The pods exist before the scheduler starts, so it works as fast as it can. Then pods arrive one after another,
and each is timed from its creation to its bind. The baselines are kube-scheduler, and koord-scheduler if
`make koordinator` built it, each on a control plane of its own on the same machine. Writes are counted by
kube-apiserver's audit log, events included.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, run
from benchmarks.processes import ROOT
from broker.apis.core import Node, Pod
from broker.apis.crds import KIND as CRD
from broker.apis.crds import load
from broker.apis.kueue import Namespace
from broker.kube.client import Client
from broker.kube.errors import ApiError
from broker.kube.transports import HttpTransport
from tests.controlplane import server
from tests.controlplane.server import ControlPlane
from tests.peers import koordinator
from tests.peers.programs import Program, until

Json = dict[str, Any]
USER = "scheduler"
PATIENCE = 1800.0
PACE = 0.05  # seconds between two pods that arrive


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """`latency`: seconds from creation to bind, the slowest of a hundred. `writes`: of a pod."""

    pods: float
    latency: float
    writes: float
    cpu: float


@dataclass
class Binds:
    """The time at which the watch showed each pod's node, by name."""

    client: Client
    seen: dict[str, float] = field(default_factory=dict)

    def follow(self, since: str) -> None:
        threading.Thread(target=self._run, args=(since,), daemon=True).start()

    def _run(self, since: str) -> None:
        with suppress(ApiError):  # the API server ends with the measurement
            while True:
                for _, pod in self.client.watch(Pod.KIND, resource_version=since):
                    since = pod["metadata"]["resourceVersion"]
                    if pod.get("spec", {}).get("nodeName"):
                        self.seen.setdefault(pod["metadata"]["name"], time.monotonic())


def measure(*, small: bool) -> Sequence[Figure]:
    """Pods a second, latency and writes a pod, beside the schedulers of others."""
    nodes, pods = (20, 60) if small else (_size("NODES", 1000), _size("PODS", 5000))
    folder = server.find()
    if folder is None or not os.access(folder / "kube-scheduler", os.X_OK):
        raise SystemExit("no kube-apiserver and kube-scheduler: run `make controlplane` (it needs Go)")
    broker = _rate("capacity-broker", nodes, pods, _broker)
    baselines = {"kube-scheduler": _rate("default-scheduler", nodes, pods, _kube_scheduler)}
    if not koordinator.missing():
        baselines["koord-scheduler"] = _rate("koord-scheduler", nodes, pods, koordinator.command)
    figures = []
    for name, rate in baselines.items():
        figures += [
            Figure(
                name=f"pods a second, {nodes:,} nodes, {pods:,} pods",
                measured=round(broker.pods, 1),
                baseline=round(rate.pods, 1),
                of=name,
            ),
            Figure(
                name="99th percentile from creation to bind",
                measured=round(broker.latency * 1000),
                unit="ms",
                baseline=round(rate.latency * 1000),
                of=name,
            ),
            Figure(
                name="writes a pod",
                measured=round(broker.writes, 2),
                most=3,
                baseline=round(rate.writes, 2),
                of=name,
            ),
            Figure(
                name="CPU time a pod",
                measured=round(broker.cpu * 1000, 2),
                unit="ms",
                baseline=round(rate.cpu * 1000, 2),
                of=name,
            ),
        ]
    return figures


def _size(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


def _broker(kubeconfig: Path, folder: Path) -> Sequence[str]:
    del folder
    return (sys.executable, "-m", "benchmarks.scheduler_process", str(kubeconfig))


def _kube_scheduler(kubeconfig: Path, folder: Path) -> Sequence[str]:
    del folder
    programs = server.find()
    assert programs is not None
    return (
        str(programs / "kube-scheduler"),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={server.free_port()}",
        "--kube-api-qps=5000",
        "--kube-api-burst=5000",
    )


def _rate(name: str, nodes: int, pods: int, command: Callable[[Path, Path], Sequence[str]]) -> Rate:
    with tempfile.TemporaryDirectory(prefix="scheduler-") as scratch, ControlPlane(users=(USER,)) as plane:
        folder = Path(scratch)
        admin_config, scheduler_config = folder / "admin.kubeconfig", folder / "scheduler.kubeconfig"
        admin_config.write_text(plane.kubeconfig())
        scheduler_config.write_text(plane.kubeconfig(user=USER))
        client = Client(HttpTransport.from_kubeconfig(admin_config), field_manager="bench")
        _prepare(client, nodes, name == "koord-scheduler")
        _, since = client.list(Pod.KIND)
        binds = Binds(client)
        binds.follow(since)
        backlog = [f"pod-{number}" for number in range(pods)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda pod: client.create(Pod.KIND, _pod(pod, name)), backlog))
        with Program(
            name, command(scheduler_config, folder), folder=folder, environment={"PYTHONPATH": str(ROOT)}
        ) as program:
            until(lambda: len(binds.seen) >= pods, f"{pods} pods bound", patience=PATIENCE, interval=0.1)
            cpu = program.cpu_seconds()
            _until_quiet(plane)
            writes = sum(write.user == USER for write in plane.writes())
            latency = _latency(client, binds, name, 20 if pods < 100 else 200)
        times = sorted(binds.seen[pod] for pod in backlog)
        rate = (len(times) - 1) / (times[-1] - times[0])
        return Rate(pods=rate, latency=latency, writes=writes / pods, cpu=cpu / pods)


def _until_quiet(plane: ControlPlane) -> None:
    """Events are written after the binds."""
    before = -1
    while (now := len(plane.writes())) != before:
        before = now
        time.sleep(2.0)


def _latency(client: Client, binds: Binds, scheduler: str, count: int) -> float:
    """Pods that arrive one after another; seconds to the bind, of the slowest in a hundred."""
    created: dict[str, float] = {}
    for number in range(count):
        name = f"next-{number}"
        created[name] = time.monotonic()
        client.create(Pod.KIND, _pod(name, scheduler))
        time.sleep(PACE)
    until(lambda: created.keys() <= binds.seen.keys(), "all bound", patience=PATIENCE)
    return statistics.quantiles([binds.seen[name] - at for name, at in created.items()], n=100)[98]


def _prepare(client: Client, nodes: int, koordinators: bool) -> None:
    """The broker serves a scheduler's name if the API server has one of its kinds."""
    definitions = koordinator.crds() if koordinators else load()
    for definition in definitions:
        client.create(CRD, definition)
    until(lambda: all(map(_established, client.list(CRD)[0])), "definitions established")
    room = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}
    bodies = [
        {
            "metadata": {"name": f"node-{n:04}", "labels": {"kubernetes.io/hostname": f"node-{n:04}"}},
            "status": {"capacity": room, "allocatable": room, **ready},
        }
        for n in range(nodes)
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda body: client.create(Node.KIND, body), bodies))
    until(lambda: any(n["metadata"]["name"] == "default" for n in client.list(Namespace.KIND)[0]), "default")


def _established(definition: Json) -> bool:
    conditions = definition.get("status", {}).get("conditions") or ()
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


def _pod(name: str, scheduler: str) -> Json:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}}
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": resources}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": scheduler, "containers": [container]},
    }


if __name__ == "__main__":
    run(measure)
