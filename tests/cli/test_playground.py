"""The demo's cluster takes any workload of a person."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.apis.core import Node, Pod
from broker.apis.storage import PersistentVolume, PersistentVolumeClaim
from broker.commands import manifests
from broker.commands.examples import examples
from broker.kube.client import Client
from broker.kube.clock import SystemClock
from broker.kube.errors import NotFound
from broker.kube.transports import HttpTransport
from broker.settings import Settings
from local.demo import account
from local.demo.examples import apply
from local.demo.stage import until
from local.demo.story import Scene, open_scene
from local.demo.workloads import DEPLOYMENTS, JOBS, STATEFUL_SETS, WORKLOADS

Json = dict[str, Any]
CPU = {"requests": {"cpu": "10"}}  # of 16: a pod a node


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_CONFIG_FILE"):
            patch.setenv(name, "x")  # the demo's change is undone
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "x")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "x")
        with open_scene(Settings(), make=account.build) as opened:
            documents = manifests.read([str(examples() / "pods")], fill=opened.stage.ids.fill)
            apply(opened.stage.client, [d for d in documents if d["kind"] not in WORKLOADS])
            yield opened


def template(app: str, **spec: Any) -> Json:
    container = {"name": "main", "image": "nginx", "resources": CPU}
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": [container], **spec}}


def workload(name: str, **spec: Any) -> Json:
    selector = {"matchLabels": {"app": name}}
    body = {"replicas": 2, "selector": selector, "template": template(name), **spec}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": body}


def pods(client: Client, app: str) -> list[Pod]:
    return [
        pod
        for pod in map(Pod.decode, client.list(Pod.KIND, label_selector=f"app={app}")[0])
        if not pod.deleting
    ]


def run(scene: Scene, app: str, count: int) -> list[Pod]:
    """So many pods, Running on nodes that exist."""

    def all_run() -> bool:
        nodes = {item["metadata"]["name"] for item in scene.user.list(Node.KIND)[0]}
        own = pods(scene.user, app)
        on_nodes = all(pod.status.phase == "Running" and pod.spec.node_name in nodes for pod in own)
        return len(own) == count and on_nodes

    assert scene.until(all_run), [
        (p.name, p.spec.node_name, p.status.conditions) for p in pods(scene.user, app)
    ]
    return pods(scene.user, app)


def gone(scene: Scene, kind: Any, app: str) -> None:
    scene.user.delete(kind, app, namespace="default")
    assert scene.until(lambda: not scene.user.list(Pod.KIND, label_selector=f"app={app}")[0])
    with pytest.raises(NotFound):
        scene.user.get(kind, app, namespace="default")


@pytest.mark.covers("ONC-07")
@pytest.mark.parametrize("scheduler", ["", "capacity-broker", "of-a-team"])
def test_pod_runs_with_any_scheduler_name(scene: Scene, scheduler: str) -> None:
    name = f"pod-{scheduler or 'plain'}"
    given = {"schedulerName": scheduler} if scheduler else {}
    pod = template(name, **given)
    metadata = {**pod["metadata"], "name": name, "namespace": "default"}
    scene.user.create(Pod.KIND, {**pod, "metadata": metadata})
    run(scene, name, 1)
    gone(scene, Pod.KIND, name)


@pytest.mark.covers("ONC-07")
@pytest.mark.parametrize("strategy", [{}, {"type": "Recreate"}], ids=["rolling", "recreate"])
def test_deployment_scales_rolls_and_ends(scene: Scene, strategy: Json) -> None:
    name = strategy.get("type", "rolling").lower()
    body = workload(name, **({"strategy": strategy} if strategy else {}))
    scene.user.create(DEPLOYMENTS, body)
    run(scene, name, 2)

    def patch(spec: Json) -> None:
        scene.user.patch(DEPLOYMENTS, name, {"spec": spec}, namespace="default")

    patch({"replicas": 3})
    first = run(scene, name, 3)
    patch({"template": {"metadata": {"labels": {"version": "2"}}}})
    assert scene.until(lambda: {pod.labels.get("version") for pod in pods(scene.user, name)} == {"2"})
    assert not {pod.uid for pod in run(scene, name, 3)} & {pod.uid for pod in first}
    patch({"replicas": 1})
    run(scene, name, 1)

    def status() -> Json:
        deployment: Json = scene.user.get(DEPLOYMENTS, name, namespace="default")
        return dict(deployment["status"])

    wanted = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}
    assert scene.until(lambda: wanted.items() <= status().items()), status()
    patch({"replicas": 0})
    run(scene, name, 0)
    gone(scene, DEPLOYMENTS, name)


@pytest.mark.covers("ONC-07")
def test_stateful_set_numbers_its_pods_and_has_volumes(scene: Scene) -> None:
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    scene.user.create(STATEFUL_SETS, workload("db", serviceName="db", volumeClaimTemplates=[claim]))
    assert {pod.name for pod in run(scene, "db", 2)} == {"db-0", "db-1"}
    scene.user.delete(Pod.KIND, "db-0", namespace="default")
    assert {pod.name for pod in run(scene, "db", 2)} == {"db-0", "db-1"}
    scene.user.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 1}}, namespace="default")
    assert {pod.name for pod in run(scene, "db", 1)} == {"db-0"}
    gone(scene, STATEFUL_SETS, "db")


VOLUME_CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


@pytest.mark.covers("ONC-07")
def test_stateful_set_runs_with_a_volume_of_its_user(scene: Scene) -> None:
    volume = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/v"}}
    scene.user.create(PersistentVolume.KIND, {"metadata": {"name": "own"}, "spec": volume})
    metadata = {"name": "data-kept-0", "namespace": "default"}
    spec = {**VOLUME_CLAIM, "storageClassName": "", "volumeName": "own"}
    scene.user.create(PersistentVolumeClaim.KIND, {"metadata": metadata, "spec": spec})
    templates = [{"metadata": {"name": "data"}, "spec": VOLUME_CLAIM}]
    body = workload("kept", replicas=1, serviceName="kept", volumeClaimTemplates=templates)
    scene.user.create(STATEFUL_SETS, body)
    run(scene, "kept", 1)
    gone(scene, STATEFUL_SETS, "kept")


@pytest.mark.covers("ONC-07")
def test_pod_with_a_claim_a_sidecar_and_ephemeral_storage_runs(scene: Scene) -> None:
    metadata = {"name": "scratch", "namespace": "default"}
    scene.user.create(PersistentVolumeClaim.KIND, {"metadata": metadata, "spec": VOLUME_CLAIM})
    requests = {"requests": {"cpu": "10", "ephemeral-storage": "5Gi"}}
    spec = {
        "containers": [{"name": "main", "image": "nginx", "resources": requests}],
        "initContainers": [
            {"name": "migrate", "image": "nginx"},
            {"name": "proxy", "image": "nginx", "restartPolicy": "Always"},
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "scratch"}}],
    }
    pod = {"metadata": {**metadata, "labels": {"app": "scratch"}}, "spec": spec}
    scene.user.create(Pod.KIND, pod)
    run(scene, "scratch", 1)
    status = scene.user.get(Pod.KIND, "scratch", namespace="default")["status"]
    states = {item["name"]: [*item["state"]] for item in status["initContainerStatuses"] if item["ready"]}
    assert states == {"migrate": ["terminated"], "proxy": ["running"]}
    gone(scene, Pod.KIND, "scratch")


@pytest.mark.covers("ONC-07")
def test_job_runs_as_many_pods_as_it_may_at_once(scene: Scene) -> None:
    spec = {
        "parallelism": 2,
        "completions": 3,
        "completionMode": "Indexed",
        "template": template("sum", restartPolicy="Never"),
    }
    scene.user.create(JOBS, {"metadata": {"name": "sum", "namespace": "default"}, "spec": spec})
    indices = {pod.annotations["batch.kubernetes.io/job-completion-index"] for pod in run(scene, "sum", 2)}
    assert indices == {"0", "1"}
    scene.user.patch(JOBS, "sum", {"spec": {"suspend": True}}, namespace="default")
    run(scene, "sum", 0)
    gone(scene, JOBS, "sum")


@pytest.mark.covers("ONC-07")
def test_closing_hint_names_an_example_that_runs() -> None:
    command = [sys.executable, "-m", "broker.cli", "demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        shown = _read_until(demo.stdout.readline, "capacityreservations -A")
        example = next(line for line in shown.splitlines() if "kubectl create deployment" in line)
        assert "any Deployment, StatefulSet, Job or Pod that you apply gets nodes and runs" in shown
        name = shlex.split(example)[3]
        transport = HttpTransport.from_kubeconfig(*re.findall(r"KUBECONFIG=(\S+)", shown))
        client = Client(transport, field_manager="kubectl")
        client.create(DEPLOYMENTS, workload(name, replicas=3, template=template(name)))
        assert until(lambda: [p.status.phase for p in pods(client, name)] == ["Running"] * 3, SystemClock())
        client.delete(DEPLOYMENTS, name, namespace="default")
        assert until(lambda: not pods(client, name), SystemClock())
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()


def _read_until(read: Callable[[], str], text: str) -> str:
    lines: list[str] = []
    while not lines or text not in lines[-1]:
        lines.append(read())
        assert lines[-1], "the demo ended"
    return "".join(lines)
