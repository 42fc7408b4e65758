"""The parts of a cluster that a broker does not bring: controllers of workloads and budgets, kubelets
and kube-scheduler. Each look of theirs goes past the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.policy import PodDisruptionBudget
from broker.kube.errors import ApiError
from tests.simulation.pools import PREFIX, App, millis, pod_cpu, pod_gpus, pods_of
from tests.simulation.world import World, condition, ready

Json = dict[str, Any]


def run_cluster(world: World) -> None:
    """One look of each controller, kubelet and scheduler."""
    if not world.with_pools:
        return
    for act in (_workloads, _kubelets, _budgets, _schedule):
        act(world)


def _workloads(world: World) -> None:
    """Each controller of a workload makes the pods that are missing, and deletes those that are too many."""
    pods: dict[str, list[Json]] = {}
    for pod in pods_of(world):
        if not pod["metadata"].get("deletionTimestamp"):
            pods.setdefault(pod["metadata"]["labels"]["app"], []).append(pod)
    for name, owned in pods.items():
        known = world.pool_facts.apps.get(name)
        for pod in owned[known.replicas if known else 0 :]:
            meta = pod["metadata"]
            world.client.delete(Pod.KIND, meta["name"], namespace=meta["namespace"])
    for known in world.pool_facts.apps.values():
        for _ in range(known.replicas - len(pods.get(known.name, ()))):
            known.created += 1
            world.client.create(Pod.KIND, _pod(known))


def _pod(owner: App) -> Json:
    annotations: Json = {}
    if owner.gang:
        annotations |= {names.GANG: owner.name, names.GANG_SIZE: str(owner.replicas)}
    if owner.draws_from:
        annotations[names.DRAWS_FROM] = owner.draws_from
    requests = {"cpu": owner.cpu} | ({"nvidia.com/gpu": str(owner.gpus)} if owner.gpus else {})
    return {
        "metadata": {
            "name": f"{owner.name}-{owner.created}",
            "namespace": owner.namespace,
            "labels": {"app": owner.name},
            "annotations": annotations,
        },
        "spec": {
            "containers": [
                {"name": "main", "image": "x", "resources": {"requests": requests, "limits": requests}}
            ],
            "terminationGracePeriodSeconds": owner.grace,
            **({"nodeSelector": {names.NODEPOOL: owner.pool}} if owner.pool else {}),
            **owner.preferences,
        },
    }


def _kubelets(world: World) -> None:
    """Bound pods run where their node is ready, deleted ones end, those of a Node that went are collected."""
    nodes = world.objects(Node.KIND)
    for pod in pods_of(world):
        meta, name = pod["metadata"], pod["spec"].get("nodeName", "")
        node = nodes.get(("", name))
        ends = meta.get("deletionTimestamp") and name not in world.sick
        if ends or (name and node is None):
            world.client.delete(Pod.KIND, meta["name"], namespace=meta["namespace"], grace_period=0)
        elif node is not None:
            status = "True" if ready(node) else "False"
            if condition(pod, "Ready").get("status") != status:
                _set(world, pod, {"phase": "Running", "conditions": [{"type": "Ready", "status": status}]})


def _set(world: World, pod: Json, status: Json) -> None:
    meta = pod["metadata"]
    body = {"status": status}
    world.client.patch(Pod.KIND, meta["name"], body, namespace=meta["namespace"], subresource="status")


def _budgets(world: World) -> None:
    """The status of each PodDisruptionBudget, as its controller counts it."""
    for (namespace, name), listed in [*world.objects(PodDisruptionBudget.KIND).items()]:
        if not name.startswith(PREFIX):
            continue
        owner = world.pool_facts.apps.get(name)
        expected = owner.replicas if owner is not None else 0
        healthy = sum(
            condition(pod, "Ready").get("status") == "True" and not pod["metadata"].get("deletionTimestamp")
            for pod in pods_of(world)
            if pod["metadata"]["labels"]["app"] == name
        )
        desired = max(0, expected - int(listed["spec"]["maxUnavailable"]))
        status = {
            "disruptionsAllowed": max(0, healthy - desired) if healthy else 0,
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "observedGeneration": listed["metadata"].get("generation", 1),
            "disruptedPods": None,
        }
        before = listed.get("status", {})
        if any(before.get(key) != value for key, value in status.items()):
            body = {"status": status}
            world.client.patch(
                PodDisruptionBudget.KIND, name, body, namespace=namespace, subresource="status"
            )


def _schedule(world: World) -> None:
    """Binds pods to the ready node with most room, and marks the others Unschedulable."""
    rooms = dict(rooms_of(world))
    waiting = [pod for pod in pods_of(world) if not pod["spec"].get("nodeName")]
    for pod in waiting:
        if pod["metadata"].get("deletionTimestamp"):
            continue
        cpu, gpus = pod_cpu(pod), pod_gpus(pod)
        selected = pod["spec"].get("nodeSelector", {})
        places = [
            (free, name)
            for name, (free, devices, labels) in rooms.items()
            if free >= cpu and devices >= gpus and selected.items() <= labels.items()
        ]
        if not places:
            if condition(pod, "PodScheduled").get("reason") != "Unschedulable":
                no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                _set(world, pod, {"conditions": [{**no_room, "message": "no node has room"}]})
            continue
        free, name = max(places)
        rooms[name] = (free - cpu, rooms[name][1] - gpus, rooms[name][2])
        _bind(world, pod, name)


def rooms_of(
    world: World, counts: Callable[[Json], bool] = lambda _: True
) -> Iterator[tuple[str, tuple[int, int, Json]]]:
    """Free CPUs and GPUs and the labels of each node that takes pods without tolerations.

    `counts`: which pods take room.
    """
    taken: dict[str, list[Json]] = {}
    for pod in world.pods():
        taken.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
    for (_, name), node in world.objects(Node.KIND).items():
        closed = any(taint["effect"] != "PreferNoSchedule" for taint in node["spec"].get("taints") or ())
        if closed or not ready(node) or node["spec"].get("unschedulable") or name == "theirs":
            continue
        room = node["status"].get("allocatable", {})
        pods = [
            pod for pod in taken.get(name, ()) if pod["metadata"]["name"].startswith(PREFIX) and counts(pod)
        ]
        cpu = millis(str(room.get("cpu", "0"))) - sum(map(pod_cpu, pods))
        gpus = int(room.get("nvidia.com/gpu", 0)) - sum(map(pod_gpus, pods))
        yield name, (cpu, gpus, node["metadata"].get("labels", {}))


def _bind(world: World, pod: Json, node: str) -> None:
    meta = pod["metadata"]
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/binding"
    try:
        world.client.raw("POST", path, {}, body)
    except ApiError:
        return  # it is deleted
