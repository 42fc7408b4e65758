"""Simulates the controllers of Deployments, and kubelets for nodes that have no machine.

It writes ReplicaSets, pods and their statuses as kube-controller-manager and a kubelet do. No container runs:
a bound pod is Running at once, and a deleted one ends at once. The broker cannot see a difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from broker.apis.core import Node, Pod
from broker.apis.godel import GodelDeployment, GodelReplicaSet
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.conditions import owner_reference, timestamp
from broker.kube.errors import NotFound
from local.demo.simulated import Simulated

Json = dict[str, Any]
EVERY: Final = 0.1
HASH: Final = "pod-template-hash"


def machine(name: str, room: Mapping[str, str], *, taints: tuple[Json, ...] = ()) -> Json:
    """A node that is ready and has this much room."""
    resources = {"pods": "110", **room}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"taints": [*taints]},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


class Deployments(Simulated):
    """Every Deployment and every bound pod of a cluster, by one thread; `step` is one pass."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        super().__init__("deployments", clock=clock, every=EVERY)
        self._client = client

    def add(self, node: Json) -> None:
        """Joins a node. Raises ApiError."""
        self._client.create(Node.KIND, {key: node[key] for key in ("metadata", "spec")})
        name, status = node["metadata"]["name"], {"status": node["status"]}
        self._client.patch(Node.KIND, name, status, subresource="status")

    def step(self) -> None:
        """Creates and deletes pods until each Deployment has its number, and runs those bound. Raises
        ApiError.
        """
        pods = self._client.list(Pod.KIND)[0]
        for deployment in self._client.list(GodelDeployment.KIND)[0]:
            self._scale(deployment, pods)
        for number, pod in enumerate(pods):
            try:
                self._run_pod(pod, number)
            except NotFound:
                continue

    # ---- controllers

    def _scale(self, deployment: Json, pods: list[Json]) -> None:
        replica_set = self._replica_set(deployment)
        uid, namespace = replica_set["metadata"]["uid"], replica_set["metadata"]["namespace"]
        own_pods = [pod for pod in pods if _owner(pod) == uid and "deletionTimestamp" not in pod["metadata"]]
        missing = deployment["spec"].get("replicas", 1) - len(own_pods)
        for _ in range(missing):
            self._client.create(Pod.KIND, _pod(replica_set))
        # The replica set controller ends pods without a node first, then the newest.
        own_pods.sort(
            key=lambda pod: (bool(pod["spec"].get("nodeName")), pod["metadata"]["creationTimestamp"])
        )
        for pod in own_pods[: max(0, -missing)]:
            self._client.delete(Pod.KIND, pod["metadata"]["name"], namespace=namespace)

    def _replica_set(self, deployment: Json) -> Json:
        """The set of the present template; it is created if it does not exist."""
        template = deployment["spec"]["template"]
        digest = hashlib.sha256(orjson.dumps(template, option=orjson.OPT_SORT_KEYS)).hexdigest()[:10]
        name, namespace = f"{deployment['metadata']['name']}-{digest}", deployment["metadata"]["namespace"]
        try:
            return self._client.get(GodelReplicaSet.KIND, name, namespace=namespace)
        except NotFound:
            pass
        labels = {**template["metadata"].get("labels", {}), HASH: digest}
        body = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": labels,
                "ownerReferences": [owner_reference(GodelDeployment.decode(deployment))],
            },
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {**template, "metadata": {**template["metadata"], "labels": labels}},
            },
        }
        return self._client.create(GodelReplicaSet.KIND, body)

    # ---- kubelets

    def _run_pod(self, pod: Json, number: int) -> None:
        meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
        name, namespace = meta["name"], meta["namespace"]
        if "deletionTimestamp" in meta:
            if meta.get("deletionGracePeriodSeconds"):
                self._client.delete(Pod.KIND, name, namespace=namespace, grace_period=0, uid=meta["uid"])
        elif spec.get("nodeName") and status.get("phase") == "Pending":
            running = {"status": self._running(spec, f"10.17.0.{number % 250 + 1}")}
            self._client.patch(Pod.KIND, name, running, namespace=namespace, subresource="status")

    def _running(self, spec: Json, address: str) -> Json:
        now = timestamp(self._clock.now())
        containers = [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
            for container in spec["containers"]
        ]
        return {
            "phase": "Running",
            "startTime": now,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "containerStatuses": containers,
        }


def _owner(pod: Json) -> str:
    return next((str(reference["uid"]) for reference in pod["metadata"].get("ownerReferences", ())), "")


def _pod(replica_set: Json) -> Json:
    template, meta = replica_set["spec"]["template"], replica_set["metadata"]
    given = {key: value for key, value in template["metadata"].items() if key != "name"}
    owner = owner_reference(GodelReplicaSet.decode(replica_set))
    return {
        "metadata": {
            **given,
            "generateName": f"{meta['name']}-",
            "namespace": meta["namespace"],
            "ownerReferences": [owner],
        },
        "spec": template["spec"],
    }
