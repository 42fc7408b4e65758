"""Finds the workloads that run: those with a pod on a node, or with an instance.

Invariant: a workload counts as running if in doubt, since it may be evicted otherwise. A pod names its
workload by Kueue's annotation, its group, its owner, or the name of its job; a pod that Kueue manages and
that names no workload of its namespace may belong to any of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import KUEUE, OF_POD_GROUP, OF_WORKLOAD, Workload
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.newest import readable
from broker.kube.client import Client


@dataclass(slots=True)
class RunningWorkloads:
    """The keys of running workloads; `outside`: those without a pod on a node that may be reserved."""

    running: set[str] = field(default_factory=set)
    outside: set[str] = field(default_factory=set)


def running_workloads(workloads: Iterable[Workload], caches: ClaimCaches) -> RunningWorkloads:
    """Which of these workloads run, by the caches."""
    return _running(workloads, caches, caches.pods.list, caches.claims.list())


def running_now(
    chosen: Collection[Workload], workloads: Iterable[Workload], caches: ClaimCaches, client: Client
) -> Collection[str]:
    """The keys of the chosen ones of these workloads that run: the caches may be behind. Raises ApiError."""
    namespaces = sorted({workload.namespace for workload in chosen})
    clusters = sorted({name for workload in chosen if (name := workload.labels.get(names.DEDICATED))})
    pods = [pod for namespace in namespaces for pod in readable(client, Pod, namespace=namespace)]
    claims = [
        claim
        for cluster in clusters
        for claim in readable(client, NodeClaim, label_selector=f"{names.DEDICATED}={cluster}")
    ]
    running = _running(workloads, caches, lambda: pods, claims).running
    return running & {workload.key for workload in chosen}


def _running(
    workloads: Iterable[Workload],
    caches: ClaimCaches,
    pods: Callable[[], Iterable[Pod]],
    claims: Iterable[NodeClaim],
) -> RunningWorkloads:
    by_namespace: dict[str, _WorkloadNames] = defaultdict(_WorkloadNames)
    for workload in workloads:
        by_namespace[workload.namespace].add(workload)
    nodes: dict[str, set[str]] = defaultdict(set)  # of the pods of each workload, by its key
    if by_namespace:
        for pod in pods():
            if pod.namespace in by_namespace and pod.spec.node_name and pod.status.phase != "Failed":
                for key in by_namespace[pod.namespace].of(pod):
                    nodes[key].add(pod.spec.node_name)
    dedicated = _with_instances(claims)
    for namespace in by_namespace.values():
        for key, cluster in namespace.dedicated.items():
            if cluster in dedicated:
                nodes[key].add("")
    return RunningWorkloads(
        running=set(nodes), outside={key for key, used in nodes.items() if _all_outside(used, caches)}
    )


class _WorkloadNames:
    """The keys of a namespace's workloads, by all that a pod may name them with."""

    def __init__(self) -> None:
        self.dedicated: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._owners: dict[str, set[str]] = defaultdict(set)  # by the uid of an owner
        self._jobs: dict[str, set[str]] = defaultdict(set)  # by the name of an owner

    def add(self, workload: Workload) -> None:
        self.dedicated[workload.key] = workload.labels.get(names.DEDICATED, "")
        self._names[workload.name] = workload.key
        for owner in workload.metadata.owner_references:
            self._owners[owner.uid].add(workload.key)
            self._jobs[owner.name].add(workload.key)

    def of(self, pod: Pod) -> Collection[str]:
        """The workloads of the pod; all of them, if Kueue manages it and it names none."""
        owners = {owner.uid for owner in pod.metadata.owner_references} | {pod.uid}
        job_names = {value for key, value in pod.labels.items() if key.endswith("name")}
        named = {pod.annotations.get(OF_WORKLOAD, ""), pod.labels.get(OF_POD_GROUP, "")}
        matching = {self._names[name] for name in named & self._names.keys()}
        matching.update(*(self._owners[uid] for uid in owners & self._owners.keys()))
        matching.update(*(self._jobs[name] for name in job_names & self._jobs.keys()))
        marks = {*pod.labels, *pod.annotations}
        if matching or not any(mark.startswith(f"{KUEUE}/") for mark in marks):
            return matching
        return self._names.values()


def _with_instances(claims: Iterable[NodeClaim]) -> Mapping[str, object]:
    """The dedicated clusters with an instance."""
    return {
        claim.labels[names.DEDICATED]: None
        for claim in claims
        if names.DEDICATED in claim.labels and claim.status.provider_id
    }


def _all_outside(used: Iterable[str], caches: ClaimCaches) -> bool:
    """Whether all these nodes are known to be outside of reservations."""
    nodes = [caches.nodes.get(name) if name else None for name in used]
    types = [node.labels.get(names.CAPACITY_TYPE, "") if node is not None else "" for node in nodes]
    return all(type_ not in ("", "reserved") for type_ in types)
