"""The documentation of Koordinator, Gödel and nos, followed with kubectl on a cluster of the broker's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from broker.apis.kueue import Namespace
from local.demo.machines import join, machine
from local.demo.workloads import Workloads
from local.kube import ApiServer, Collector
from tests.cluster.rooms import GODEL, KOORDINATOR, NOS, Rooms, rooms
from tests.walkthroughs.pages import Shown, follow, run, steps

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]
# Parts of a page's outputs that no cluster prints, and their replacements.
Corrections = Mapping[str, Mapping[str, str]]
KOORDINATOR_PAGE: Final[Corrections] = {
    # allocateOnce is true by default: the first owner ends the reservation, in Koordinator too.
    "kubectl get reservation reservation-demo -oyaml": {
        'reason: Available\n    status: "True"': 'reason: Succeeded\n    status: "False"',
        "phase: Available": "phase: Succeeded",
    },
    # The page repeats the specification of its first example.
    "kubectl get reservation reservation-demo-big -oyaml": {
        "  - object:\n      name: pod-demo-0\n      namespace: default\n": "  - object:\n"
        "      name: pod-demo-1\n      namespace: default\n  - labelSelector:\n"
        "      matchLabels:\n        app: app-demo\n",
        "cpu: 500m": "cpu: 6",
        "memory: 800Mi": "memory: 20Gi",
    },
}
GODEL_PAGE: Final[Corrections] = {
    # No image is pulled here.
    "kubectl get po res-pod -owide": {"0/1 ContainerCreating": "1/1 Running"},
    # The broker shows the phase, which Gödel leaves empty until a pod matches.
    **{
        command: {"worker 2024": "worker Reserved 2024", "worker2 2024": "worker2 Reserved 2024"}
        for command in ("kubectl get reservation", "kubectl get reservation -o wide")
    },
}


@contextmanager
def cluster(folder: Path, crds: tuple[str, ...], *nodes: dict[str, Any]) -> Iterator[Rooms]:
    """The scheduler on these nodes, with kubelets and Deployments simulated, and kubectl's configuration."""
    with rooms(crds=crds) as cluster_, ApiServer(cluster_.cluster) as server, Collector(cluster_.cluster):
        (folder / "config").write_text(server.kubeconfig())
        workloads = Workloads(cluster_.client, clock=cluster_.clock)
        for node in nodes:
            join(cluster_.client, node)
        cluster_.start(reservation_ttl=3600)
        workloads.start()
        try:
            yield cluster_
        finally:
            workloads.stop()


def environment(folder: Path) -> dict[str, str]:
    return {"HOME": str(folder), "KUBECONFIG": str(folder / "config"), "PATH": os.environ["PATH"]}


def corrected(step: Shown, corrections: Corrections) -> Shown:
    output = step.output
    for wrong, right in corrections.get(step.command, {}).items():
        output = output.replace(wrong, right)
    return Shown(step.command, output)


@pytest.mark.covers("KOO-01", "KOO-03", "KOO-13")
def test_koordinators_page(tmp_path: Path) -> None:
    room = {"cpu": "7800m", "ephemeral-storage": "100Gi", "hugepages-1Gi": "0", "hugepages-2Mi": "0"}
    nodes = [
        machine("node-0", {**room, "memory": "28625036Ki"}),
        machine("node-1", {**room, "memory": "28629692Ki"}),
    ]
    with cluster(tmp_path, (KOORDINATOR,), *nodes) as cluster_:
        requests, limits = {"cpu": "780m", "memory": "1216Mi"}, {"cpu": "7722m", "memory": "14044Mi"}
        resources = {"requests": requests, "limits": limits}
        system = {"name": "system", "image": "pause", "resources": resources}
        cluster_.pod("system", nodeName="node-1", containers=[system])
        for step in steps("koordinator.md"):
            follow(corrected(step, KOORDINATOR_PAGE), tmp_path, environment(tmp_path))


@pytest.mark.covers("GOD-01", "GOD-07")
def test_godels_page(tmp_path: Path) -> None:
    room = {"cpu": "4", "memory": "8Gi"}
    nodes = [machine(f"godel-demo-default-worker{number}", room) for number in ("", "2")]
    with cluster(tmp_path, (GODEL,), *nodes):
        for step in steps("godel.md"):
            if step.command == "kubectl create -f reservation-dp.yaml":
                run("kubectl delete pod back-pod", tmp_path, environment(tmp_path))
            follow(corrected(step, GODEL_PAGE), tmp_path, environment(tmp_path))


@pytest.mark.covers("NOS-01")
def test_page_of_nos(tmp_path: Path) -> None:
    with cluster(tmp_path, NOS, machine("node-0", {"cpu": "8", "memory": "16Gi"})) as cluster_:
        cluster_.client.create(Namespace.KIND, {"metadata": {"name": "team-a"}})
        for step in steps("nos.md"):
            # The page's `-f --` names a file `--`.
            command = step.command.replace("-f -- <<", "-f - <<")
            follow(Shown(command, step.output), tmp_path, environment(tmp_path))
        shown = "NAME USED-GPU-MEMORY MIN-GPU-MEMORY USED-CPU MIN-CPU INFORCE AGE\nquota-a 0 16 0 2 True 1s\n"
        command = "kubectl get eq quota-a --namespace team-a"
        follow(Shown(command, shown), tmp_path, environment(tmp_path))
        cluster_.until_bound("my-pod")
