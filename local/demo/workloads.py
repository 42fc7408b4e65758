"""Simulates kube-controller-manager for workloads, and the kubelets of their pods.

Any Deployment, ReplicaSet, StatefulSet and Job has its pods, and a bound pod is Running at once. No container
runs: a pod of a Job never succeeds, and a deleted pod ends at once. Pods of a node that is gone are deleted.
The broker cannot see a difference. Left out: CronJobs, DaemonSets, revisions of StatefulSets.
Rule: https://kubernetes.io/docs/concepts/workloads/controllers/
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson

from broker.apis.core import Node, Pod
from broker.apis.godel import GodelDeployment, GodelReplicaSet
from broker.apis.meta import Kind
from broker.apis.storage import PersistentVolumeClaim
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import AlreadyExists, ApiError, NotFound
from broker.text import format_time
from local.demo.pod_status import running
from local.demo.simulated import Simulated
from local.demo.volumes import bind, bind_claims

Json = dict[str, Any]
EVERY: Final = 0.1
HASH: Final = "pod-template-hash"
DEPLOYMENTS: Final = GodelDeployment.KIND
REPLICA_SETS: Final = GodelReplicaSet.KIND
STATEFUL_SETS: Final = Kind(group="apps", version="v1", kind="StatefulSet", namespaced=True)
JOBS: Final = Kind(group="batch", version="v1", kind="Job", namespaced=True)
WORKLOADS: Final[Mapping[str, Kind]] = {
    kind.kind: kind for kind in (DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, JOBS)
}
_INDEX: Final = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of a cluster that do not end, by the uid of their controller; the oldest first."""

    by_owner: Mapping[str, Sequence[Json]]

    def of(self, owner: Json) -> Sequence[Json]:
        return self.by_owner.get(owner["metadata"]["uid"], ())


class Workloads(Simulated):
    """Every workload and every bound pod of a cluster, by one thread; `step` is one pass."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        super().__init__("workloads", clock=clock, every=EVERY)
        self._client = client

    def step(self) -> None:
        """Creates and deletes pods until each workload has its number, and runs those bound.

        Raises ApiError.
        """
        bind_claims(self._client)
        for kind, keep in self._keepers().items():
            pods = _pods(self._list(Pod.KIND))
            for workload in self._list(kind):
                if "deletionTimestamp" not in workload["metadata"]:
                    with suppress(ApiError):  # deleted meanwhile, or its pods are refused: the others go on
                        self._report(kind, workload, keep(workload, pods))
        nodes = {node["metadata"]["name"] for node in self._list(Node.KIND)}
        for number, pod in enumerate(self._list(Pod.KIND)):
            with suppress(ApiError):
                self._run_pod(pod, number, nodes)

    def _keepers(self) -> Mapping[Kind, Callable[[Json, Pods], Json]]:
        """What brings a workload's pods to their number, and returns its status, by kind."""
        return {
            DEPLOYMENTS: self._roll,
            REPLICA_SETS: self._replicate,
            STATEFUL_SETS: self._number,
            JOBS: self._work,
        }

    def _list(self, kind: Kind) -> list[Json]:
        return self._client.list(kind)[0]

    def _report(self, kind: Kind, workload: Json, status: Json) -> None:
        known = workload.get("status", {})
        if any(known.get(key) != value for key, value in status.items()):
            meta = workload["metadata"]
            body = {"status": status}
            self._client.patch(kind, meta["name"], body, namespace=meta["namespace"], subresource="status")

    # ---- Deployments and ReplicaSets

    def _roll(self, deployment: Json, pods: Pods) -> Json:
        """Moves replicas to the set of the present template, within maxSurge and maxUnavailable."""
        present, wanted = self._replica_set(deployment), deployment["spec"].get("replicas", 1)
        uid = deployment["metadata"]["uid"]
        others = [s for s in self._list(REPLICA_SETS) if _owner(s) == uid and s != present]
        old = [pod for replica_set in others for pod in pods.of(replica_set)]
        surge, unavailable = _bounds(deployment["spec"].get("strategy", {}), wanted)
        new = pods.of(present)
        self._scale(present, max(min(wanted, wanted + surge - len(old)), min(wanted, len(new))))
        keeps = max(0, wanted - unavailable - _ready(new))
        for replica_set in others:
            count = min(keeps, len(pods.of(replica_set)))
            self._scale(replica_set, count)
            keeps -= count
        ready = _ready(new) + _ready(old)
        return {
            **_counts(deployment, ready, len(new) + len(old)),
            "updatedReplicas": len(new),
            "conditions": [self._available(deployment, is_available=ready >= wanted - unavailable)],
        }

    def _available(self, deployment: Json, *, is_available: bool) -> Json:
        """The condition; its time is that of the last change."""
        status = "True" if is_available else "False"
        for known in deployment.get("status", {}).get("conditions", ()):
            if known["type"] == "Available" and known["status"] == status:
                return {**known}
        reason = f"MinimumReplicas{'A' if is_available else 'Una'}vailable"
        now = format_time(self._clock.now())
        return {
            "type": "Available",
            "status": status,
            "reason": reason,
            "lastTransitionTime": now,
            "lastUpdateTime": now,
        }

    def _scale(self, replica_set: Json, count: int) -> None:
        meta = replica_set["metadata"]
        if replica_set["spec"].get("replicas") != count:
            body = {"spec": {"replicas": count}}
            self._client.patch(REPLICA_SETS, meta["name"], body, namespace=meta["namespace"])

    def _replica_set(self, deployment: Json) -> Json:
        """The set of the present template; it is created if it does not exist."""
        template = deployment["spec"]["template"]
        digest = hashlib.sha256(orjson.dumps(template, option=orjson.OPT_SORT_KEYS)).hexdigest()[:10]
        name, namespace = f"{deployment['metadata']['name']}-{digest}", deployment["metadata"]["namespace"]
        with suppress(NotFound):
            return self._client.get(REPLICA_SETS, name, namespace=namespace)
        labels = {**template["metadata"].get("labels", {}), HASH: digest}
        body = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": labels,
                "ownerReferences": [_controller(DEPLOYMENTS, deployment)],
            },
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {**template, "metadata": {**template["metadata"], "labels": labels}},
            },
        }
        return self._client.create(REPLICA_SETS, body)

    def _replicate(self, replica_set: Json, pods: Pods) -> Json:
        own = pods.of(replica_set)
        missing = replica_set["spec"].get("replicas", 1) - len(own)
        for _ in range(missing):
            self._client.create(Pod.KIND, _pod(REPLICA_SETS, replica_set))
        # The replica set controller ends pods without a node first, then the newest.
        leaving = sorted(
            own, key=lambda pod: (bool(pod["spec"].get("nodeName")), pod["metadata"]["creationTimestamp"])
        )
        self._end(leaving[: max(0, -missing)])
        return _counts(replica_set, _ready(own), len(own))

    # ---- StatefulSets

    def _number(self, stateful_set: Json, pods: Pods) -> Json:
        """One pod for each ordinal, the next one after the others are Ready."""
        spec, meta, own = stateful_set["spec"], stateful_set["metadata"], pods.of(stateful_set)
        wanted = [f"{meta['name']}-{ordinal}" for ordinal in range(spec.get("replicas", 1))]
        present = {pod["metadata"]["name"] for pod in own}
        missing = [name for name in wanted if name not in present]
        ordered = spec.get("podManagementPolicy") != "Parallel"
        if ordered:
            missing = missing[:1] if _ready(own) == len(own) else []
        for name in missing:
            with suppress(AlreadyExists):  # the last one with this name still ends
                self._client.create(Pod.KIND, self._with_storage(stateful_set, name))
        surplus = sorted((p for p in own if p["metadata"]["name"] not in wanted), key=_ordinal, reverse=True)
        self._end(surplus[: 1 if ordered else None])
        return {**_counts(stateful_set, _ready(own), len(own)), "currentReplicas": len(own)}

    def _with_storage(self, stateful_set: Json, name: str) -> Json:
        """The pod, after its volumes were made as a provisioner that binds at once would."""
        spec, pod = stateful_set["spec"], _pod(STATEFUL_SETS, stateful_set, name=name)
        index = name.rpartition("-")[2]
        pod["metadata"]["labels"] = {
            **pod["metadata"].get("labels", {}),
            "statefulset.kubernetes.io/pod-name": name,
            "apps.kubernetes.io/pod-index": index,
        }
        pod["spec"] |= {"hostname": name, "subdomain": spec.get("serviceName", "")}
        templates = spec.get("volumeClaimTemplates") or ()
        claimed = {
            template["metadata"]["name"]: f"{template['metadata']['name']}-{name}" for template in templates
        }
        for template in templates:
            self._claim_volume(template, claimed[template["metadata"]["name"]], stateful_set)
        kept = [volume for volume in pod["spec"].get("volumes", ()) if volume["name"] not in claimed]
        pod["spec"]["volumes"] = [
            *kept,
            *({"name": key, "persistentVolumeClaim": {"claimName": claim}} for key, claim in claimed.items()),
        ]
        return pod

    def _claim_volume(self, template: Json, name: str, stateful_set: Json) -> None:
        """Creates and binds the claim, unless its user did."""
        namespace = stateful_set["metadata"]["namespace"]
        spec = {**template["spec"], "storageClassName": ""}
        with suppress(AlreadyExists):
            body = {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
            bind(self._client, self._client.create(PersistentVolumeClaim.KIND, body))

    # ---- Jobs

    def _work(self, job: Json, pods: Pods) -> Json:
        """As many pods as run at once; each index once, if the Job has indices."""
        spec, own = job["spec"], pods.of(job)
        most = min(spec.get("parallelism", 1), spec.get("completions") or spec.get("parallelism", 1))
        wanted = 0 if spec.get("suspend") else most
        indexed = spec.get("completionMode") == "Indexed"
        taken = {pod["metadata"].get("annotations", {}).get(_INDEX) for pod in own}
        free = [index for index in map(str, range(most)) if index not in taken]
        for number in range(wanted - len(own)):
            self._client.create(Pod.KIND, _pod(JOBS, job, index=free[number] if indexed else ""))
        self._end(own[wanted:])
        started = job.get("status", {}).get("startTime") or format_time(self._clock.now())
        begun = {} if spec.get("suspend") else {"startTime": started}
        return {"active": len(own), "ready": _ready(own), **begun}

    # ---- pods

    def _end(self, pods: Iterable[Json]) -> None:
        for pod in pods:
            meta = pod["metadata"]
            with suppress(NotFound):
                self._client.delete(Pod.KIND, meta["name"], namespace=meta["namespace"], uid=meta["uid"])

    def _run_pod(self, pod: Json, number: int, nodes: Iterable[str]) -> None:
        meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
        name, namespace, node = meta["name"], meta["namespace"], spec.get("nodeName")
        ends = "deletionTimestamp" in meta and meta.get("deletionGracePeriodSeconds")
        if ends or (node and node not in nodes):
            self._client.delete(Pod.KIND, name, namespace=namespace, grace_period=0, uid=meta["uid"])
        elif node and status.get("phase") == "Pending" and "deletionTimestamp" not in meta:
            body = {"status": running(pod, f"10.17.0.{number % 250 + 1}", self._clock.now())}
            self._client.patch(Pod.KIND, name, body, namespace=namespace, subresource="status")


def _pods(pods: Iterable[Json]) -> Pods:
    by_owner: dict[str, list[Json]] = defaultdict(list)
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"])):
        if "deletionTimestamp" not in pod["metadata"]:
            by_owner[_owner(pod)].append(pod)
    return Pods(by_owner)


def _owner(obj: Json) -> str:
    return next((str(reference["uid"]) for reference in obj["metadata"].get("ownerReferences", ())), "")


def _ordinal(pod: Json) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])


def _ready(pods: Iterable[Json]) -> int:
    return sum(pod.get("status", {}).get("phase") == "Running" for pod in pods)


def _counts(workload: Json, ready: int, count: int) -> Json:
    return {
        "replicas": count,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "observedGeneration": workload["metadata"].get("generation", 1),
    }


def _bounds(strategy: Mapping[str, Any], wanted: int) -> tuple[int, int]:
    """The pods that a rollout may have beyond the wanted number, and may lack."""
    if strategy.get("type") == "Recreate":
        return 0, wanted
    rolling = strategy.get("rollingUpdate") or {}
    surge = _share(rolling.get("maxSurge", "25%"), wanted, math.ceil)
    unavailable = _share(rolling.get("maxUnavailable", "25%"), wanted, math.floor)
    return surge, unavailable if surge or unavailable else 1


def _share(bound: int | str, wanted: int, round_: Callable[[float], int]) -> int:
    return round_(wanted * int(bound.rstrip("%")) / 100) if isinstance(bound, str) else bound


def _controller(kind: Kind, owner: Json) -> Json:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _pod(kind: Kind, owner: Json, *, name: str = "", index: str = "") -> Json:
    """A pod of the owner's template. `name`: of a pod whose name is given. `index`: of a Job."""
    template, meta = owner["spec"]["template"], owner["metadata"]
    given = {
        key: value for key, value in template["metadata"].items() if key not in ("name", "creationTimestamp")
    }
    prefix = f"{meta['name']}-{index}-" if index else f"{meta['name']}-"
    named = {"name": name} if name else {"generateName": prefix}
    metadata = {
        **given,
        **named,
        "namespace": meta["namespace"],
        "ownerReferences": [_controller(kind, owner)],
    }
    if index:
        metadata["annotations"] = {**given.get("annotations", {}), _INDEX: index}
        metadata["labels"] = {**given.get("labels", {}), _INDEX: index}
    return {"metadata": metadata, "spec": {**template["spec"]}}
