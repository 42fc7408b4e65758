"""Finds the workloads that run: those with a pod on a node, or with an instance.

Invariant: a workload counts as running if in doubt, since it may be evicted otherwise. A pod names its
workload by Kueue's annotation, its group, its owner, or the name of its job; a pod that Kueue manages and
that names no workload of its namespace may belong to any of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.kueue import KUEUE, OF_POD_GROUP, OF_WORKLOAD, Workload
from broker.controllers.nodeclaim.caches import ClaimCaches


@dataclass(slots=True)
class RunningWorkloads:
    """The keys of running workloads; `outside`: those without a pod on a node that may be reserved."""

    running: set[str] = field(default_factory=set)
    outside: set[str] = field(default_factory=set)


def running_workloads(workloads: Iterable[Workload], caches: ClaimCaches) -> RunningWorkloads:
    """Which of these workloads run."""
    by_namespace: dict[str, list[Workload]] = defaultdict(list)
    for workload in workloads:
        by_namespace[workload.namespace].append(workload)
    nodes: dict[str, set[str]] = defaultdict(set)  # of the pods of each workload, by its key
    if by_namespace:
        for pod in caches.pods.list():
            if pod.namespace in by_namespace and pod.spec.node_name and pod.status.phase != "Failed":
                for key in _of(pod, by_namespace[pod.namespace]):
                    nodes[key].add(pod.spec.node_name)
    dedicated = _with_instances(caches)
    for listed in by_namespace.values():
        for workload in listed:
            if workload.labels.get(names.DEDICATED, "") in dedicated:
                nodes[workload.key].add("")
    return RunningWorkloads(
        running=set(nodes), outside={key for key, used in nodes.items() if _all_outside(used, caches)}
    )


def _of(pod: Pod, workloads: Sequence[Workload]) -> Collection[str]:
    marks = {*pod.labels, *pod.annotations}
    owners = {owner.uid for owner in pod.metadata.owner_references} | {pod.uid}
    job_names = {value for key, value in pod.labels.items() if key.endswith("name")}
    named = {pod.annotations.get(OF_WORKLOAD), pod.labels.get(OF_POD_GROUP)}
    matching = [
        workload.key
        for workload in workloads
        if workload.name in named
        or any(owner.uid in owners or owner.name in job_names for owner in workload.metadata.owner_references)
    ]
    if matching or not any(mark.startswith(f"{KUEUE}/") for mark in marks):
        return matching
    return [workload.key for workload in workloads]


def _with_instances(caches: ClaimCaches) -> Mapping[str, object]:
    """The dedicated clusters with an instance."""
    return {
        claim.labels[names.DEDICATED]: None
        for claim in caches.claims.list()
        if names.DEDICATED in claim.labels and claim.status.provider_id
    }


def _all_outside(used: Iterable[str], caches: ClaimCaches) -> bool:
    """Whether all these nodes are known to be outside of reservations."""
    nodes = [caches.nodes.get(name) if name else None for name in used]
    types = [node.labels.get(names.CAPACITY_TYPE, "") if node is not None else "" for node in nodes]
    return all(type_ not in ("", "reserved") for type_ in types)
