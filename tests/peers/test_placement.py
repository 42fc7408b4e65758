"""The filters of `broker/placement` beside the real kube-scheduler, on random worlds.

An extender, which kube-scheduler calls with the nodes that pass its filters, records these nodes and rejects
all of them. So each pending pod shows its whole set of nodes, and its condition the reasons of all others. A
difference counts once the pod was created again, since a scheduler's caches may lag behind.

PLACEMENT_WORLDS sets the number of worlds. PLACEMENT_SEED sets the first.
"""

from __future__ import annotations

import json
import os
import random
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from broker.apis import core, storage
from broker.apis.kueue import Namespace
from broker.apis.meta import Object
from broker.placement.filters import Fits, fits
from broker.placement.message import message
from broker.placement.model import PodInfo, PodTerm
from broker.placement.reading import namespace_labels, node_info, pod_info, takes_room
from broker.placement.selectors import matches
from broker.placement.snapshot import PlacementSnapshot
from broker.placement.storage import Storage
from tests.controlplane import server
from tests.controlplane.client import Api
from tests.controlplane.server import SCHEDULER, ControlPlane, free_port
from tests.peers.programs import Program
from tests.support import servers
from tests.unit.placement.worlds import World, world

Json = dict[str, Any]
WORLDS = int(os.environ.get("PLACEMENT_WORLDS", "40"))
SEED = int(os.environ.get("PLACEMENT_SEED", "1"))
ATTEMPTS = 4
PATIENCE = 60.0
FITS = "fits"
MODELS: dict[str, type[Object]] = {
    "Node": core.Node,
    "Pod": core.Pod,
    "Namespace": Namespace,
    "PersistentVolumeClaim": storage.PersistentVolumeClaim,
    "PersistentVolume": storage.PersistentVolume,
    "StorageClass": storage.StorageClass,
    "CSINode": storage.CsiNode,
}
pytestmark = pytest.mark.peers


class Extender:
    """Records the nodes that pass kube-scheduler's filters, by pod, and rejects all of them."""

    def __init__(self) -> None:
        self.passed: dict[str, frozenset[str]] = {}
        extender = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                names = call["NodeNames"] or []
                extender.passed[call["Pod"]["metadata"]["name"]] = frozenset(names)
                body = json.dumps(
                    {"NodeNames": [], "FailedNodes": dict.fromkeys(names, FITS), "Error": ""}
                ).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def configuration(kubeconfig: Path, extender: Extender) -> Json:
    """The default filters, no preemption, and every node looked at."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 1000},
        "percentageOfNodesToScore": 100,
        "podInitialBackoffSeconds": 60,
        "podMaxBackoffSeconds": 60,
        "profiles": [
            {
                "schedulerName": "default-scheduler",
                "plugins": {"postFilter": {"disabled": [{"name": "*"}]}},
            }
        ],
        "extenders": [
            {
                "urlPrefix": extender.url,
                "filterVerb": "filter",
                "nodeCacheCapable": True,
                "httpTimeout": "30s",
            }
        ],
    }


@dataclass(frozen=True)
class Decision:
    """Which nodes a pod fits on, and the text of all others."""

    nodes: frozenset[str]
    text: str


@dataclass
class Stage:
    api: Api
    extender: Extender
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4))

    def create(self, bodies: list[Json]) -> list[Object]:
        """The objects as the API server stores them. Objects that it does not accept are left out."""
        created = self.pool.map(self._create, bodies)
        return [item for item in created if item is not None]

    def _create(self, body: Json) -> Object | None:
        kind = body["kind"]
        reply = self.api.request("POST", path(body), body=body)
        if reply.status == 422:
            return None
        assert reply.status == 201, reply.body
        if body["metadata"].get("annotations", {}).get("terminating"):
            name = f"{path(body)}/{body['metadata']['name']}"
            reply = self.api.request("DELETE", name, {"gracePeriodSeconds": 3600})
            assert reply.status in (200, 202), reply.body
        return MODELS[kind].decode(reply.body) if kind in MODELS else None

    def decisions(self, pods: list[core.Pod]) -> dict[str, Decision]:
        """Waits until kube-scheduler has decided on all pods."""
        names = {pod.name for pod in pods}
        deadline = time.monotonic() + PATIENCE
        texts: dict[str, str] = {}
        while names - texts.keys():
            for space in {pod.namespace for pod in pods}:
                for item in self.api.request("GET", f"/api/v1/namespaces/{space}/pods").body["items"]:
                    texts.update(
                        (item["metadata"]["name"], condition["message"])
                        for condition in item.get("status", {}).get("conditions", ())
                        if condition["type"] == "PodScheduled" and condition["status"] == "False"
                    )
            assert time.monotonic() < deadline, f"kube-scheduler has not decided on {names - texts.keys()}"
            time.sleep(0.01)
        return {name: Decision(self.extender.passed.get(name, frozenset()), texts[name]) for name in names}

    def remove(self, pod: core.Pod) -> None:
        self.api.request(
            "DELETE", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", {"gracePeriodSeconds": 0}
        )


def path(body: Json) -> str:
    group, _, version = body["apiVersion"].rpartition("/")
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    space = body["metadata"].get("namespace")
    plural = body["kind"].lower() + ("es" if body["kind"].endswith("ss") else "s")
    return f"{root}/namespaces/{space}/{plural}" if space else f"{root}/{plural}"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    servers.need()
    folder = server.find()
    assert folder is not None
    if not os.access(folder / "kube-scheduler", os.X_OK):
        if os.environ.get(servers.REQUIRED) == "1":
            pytest.fail(f"{servers.REQUIRED}=1, but no kube-scheduler: run `make controlplane`")
        pytest.skip("no kube-scheduler: run `make controlplane` (it needs Go)")
    extender = Extender()
    with tempfile.TemporaryDirectory(prefix="placement-") as name, ControlPlane() as plane:
        scratch = Path(name)
        kubeconfig = scratch / "kubeconfig"
        kubeconfig.write_text(plane.kubeconfig(user=SCHEDULER))
        config = scratch / "scheduler.json"
        config.write_text(json.dumps(configuration(kubeconfig, extender)))
        port = free_port()
        command = [
            str(folder / "kube-scheduler"),
            f"--config={config}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
        ]
        with Program("kube-scheduler", command, folder=scratch, environment={}) as program:
            program.until(lambda: server._get(f"https://127.0.0.1:{port}/readyz") == 200, "ready")
            yield Stage(servers.over_real(plane), extender)
    extender.stop()


def snapshot(objects: list[Object]) -> PlacementSnapshot:
    """The world as the API server stores it."""

    def of(kind: type[Object]) -> list[Any]:
        return [item for item in objects if type(item) is kind]

    return PlacementSnapshot.of(
        map(node_info, of(core.Node)),
        [pod_info(pod) for pod in of(core.Pod) if takes_room(pod)],
        namespaces=namespace_labels(of(Namespace)),
        storage=Storage.of(
            claims=of(storage.PersistentVolumeClaim),
            volumes=of(storage.PersistentVolume),
            classes=of(storage.StorageClass),
            nodes=of(storage.CsiNode),
        ),
    )


def decided(outcome: Fits) -> Decision:
    """The broker's decision, with the extender's reason for the nodes that fit."""
    reasons = {**outcome.reasons, **dict.fromkeys(outcome.nodes, (FITS,))}
    rejected = Fits((), reasons, outcome.rejection)
    return Decision(frozenset(outcome.nodes), message(rejected))


def everywhere(term: PodTerm) -> PodTerm:
    """A term as Kubernetes 1.36 reads it: see DIFFERENCES."""
    selector = term.namespace_selector
    return term._replace(namespace_selector=()) if selector and matches(selector, {}) else term


def as_kube_scheduler_reads(pod: PodInfo) -> PodInfo:
    return replace(
        pod,
        affinity=tuple(map(everywhere, pod.affinity)),
        anti_affinity=tuple(map(everywhere, pod.anti_affinity)),
    )


# Each known difference with its reason, and the pod as kube-scheduler reads it.
DIFFERENCES: tuple[tuple[str, Callable[[PodInfo], PodInfo]], ...] = (
    (
        "Kubernetes 1.36 keeps the new pod's namespace selector beside the names that it resolves to, "
        "and tests it without labels: NotIn and DoesNotExist select all namespaces.",
        as_kube_scheduler_reads,
    ),
)


def known(pod: core.Pod, state: PlacementSnapshot, kube_decision: Decision) -> str:
    """The reason of a known difference that explains kube-scheduler's decision."""
    explains = (
        why for why, read in DIFFERENCES if decided(fits(read(pod_info(pod)), state)) == kube_decision
    )
    return next(explains, "")


def reasons_of(outcome: Fits) -> Iterator[str]:
    """The message of each reason, and whether the pod fits anywhere."""
    yield "pods that fit" if outcome.nodes else "pods that fit nowhere"
    if outcome.rejection is not None:
        yield re.sub('"[^"]*"', '"..."', outcome.rejection)
    else:
        yield from (reason for reasons in outcome.reasons.values() for reason in reasons)


def differences(stage: Stage, case: World, seen: Counter[str]) -> tuple[int, list[str]]:
    """The number of decisions, and those that differ after the last attempt. Counts our reasons in `seen`."""
    objects: list[Object] = []
    for bodies in case.stages():
        objects += stage.create(bodies)
    state = snapshot(objects)
    pending = case.pending
    count = 0
    for attempt in range(ATTEMPTS):
        suffix = f"-{attempt}"
        bodies = [
            {**body, "metadata": {**body["metadata"], "name": body["metadata"]["name"] + suffix}}
            for body in pending
        ]
        pods = [pod for pod in stage.create(bodies) if isinstance(pod, core.Pod)]
        count = count or len(pods)
        kube_decisions = stage.decisions(pods)
        wrong = []
        for pod in pods:
            outcome = fits(pod_info(pod), state)
            own_decision = decided(outcome)
            if not attempt:
                seen.update(reasons_of(outcome))
            if own_decision == kube_decisions[pod.name]:
                continue
            if reason := known(pod, state, kube_decisions[pod.name]):
                seen[reason] += 1
            else:
                wrong.append(
                    (
                        pod,
                        f"seed {case.seed} {pod.name}: {kube_decisions[pod.name]} but broker {own_decision}",
                    )
                )
        for pod in pods:
            stage.remove(pod)
        if not wrong:
            return count, []
        names = {pod.name.removesuffix(suffix) for pod, _ in wrong}
        pending = [body for body in pending if body["metadata"]["name"] in names]
        time.sleep(0.2 * (attempt + 1))
    return count, [text for _, text in wrong]


def test_pods_fit_the_nodes_that_kube_scheduler_finds(stage: Stage) -> None:
    different: list[str] = []
    seen: Counter[str] = Counter()
    decisions = 0
    started = time.monotonic()
    for seed in range(SEED, SEED + WORLDS):
        count, wrong = differences(stage, world(random.Random(seed), seed), seen)
        decisions += count
        different += wrong
        assert stage.api.wipe is not None
        stage.api.wipe()
    took = time.monotonic() - started
    print(f"{WORLDS} worlds, {decisions} decisions, {len(different)} differences, {took:.0f} s")
    for text, count in seen.most_common():
        print(f"{count:6} {text}")
    assert not different, "\n".join(different[:20])
    assert decisions >= 3 * WORLDS
