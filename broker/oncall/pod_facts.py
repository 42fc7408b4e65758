"""What a pod alone shows: whether it needs a node, its workload, its gang, and the commands about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.meta import Object
from broker.oncall.slot_holders import is_workload
from broker.oncall.workload_kinds import kubectl_type, named_kind
from broker.placement.gangs import gang_of, is_member, unknown_sizes
from broker.quota.resolve import UnresolvedName
from broker.quota.usage import ReservationKey
from broker.reservations.drawing import DrawRights

# Kinds of objects with a template that cannot be changed: Kubernetes' own, and Volcano's Job.
FIXED = frozenset({"Job", "Pod"})
# By the label with the hash in a ReplicaSet's name: the workload that has the template.
_OF_REPLICA_SETS: Final[Mapping[str, str]] = {
    "pod-template-hash": "Deployment",
    "rollouts-pod-template-hash": "Rollout",
}


def created(obj: Object, now: datetime) -> datetime:
    return obj.metadata.creation_timestamp or now


def waits(pod: Pod) -> bool:
    """Whether the pod needs a node. A DaemonSet's pod has one."""
    return pod.waits and is_workload(pod)


def gang_members(pods: Iterable[Pod]) -> Counter[str]:
    """The pods of each gang that exist."""
    gangs = (gang_of(pod, unknown_sizes).name for pod in pods if is_member(pod))
    return Counter(name for name in gangs if name)


def pod_command(pod: str) -> str:
    """The command that explains a pod, by its key."""
    namespace, _, name = pod.rpartition("/")
    return f"capacity-broker explain pod -n {namespace} {name}"


def owner_of(pod: Pod) -> str:
    """The workload that made the pod, as `Job train`. A Deployment's ReplicaSet has its name and a hash."""
    for owner in pod.metadata.owner_references:
        for label, kind in _OF_REPLICA_SETS.items() if owner.kind == "ReplicaSet" else ():
            if hash_ := pod.labels.get(label):
                return f"{kind} {owner.name.removesuffix(f'-{hash_}')}"
        return f"{named_kind(owner.kind, owner.api_version)} {owner.name}"
    return ""


def template_command(namespace: str, pod: str, owner: str) -> str:
    """The command with which a person changes the template of a pod, that of its workload. The template of a
    Job, and a pod without a workload, cannot be changed: the command writes it for a changed copy.
    """
    kind, _, name = (owner or f"Pod {pod}").partition(" ")
    type_ = kubectl_type(kind)
    if kind.partition(".")[0] in FIXED:
        return f"kubectl get {type_} -n {namespace} {name} -o yaml"
    return f"kubectl edit {type_} -n {namespace} {name}"


def drawn_by_pod(rights: DrawRights, pod: Pod, of_pool: str = "") -> ReservationKey | UnresolvedName | None:
    """The reservation that a pod draws from by its own word or its Namespace's, else by its NodePool's."""
    return rights.of_pod_in(pod.namespace, pod.annotations.get(names.DRAWS_FROM, ""), of_pool)


def gates(pod: Pod) -> str:
    """The scheduling gates that a pod waits for, in words; empty without any."""
    gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
    return f"it waits for its scheduling gate {gates}" if gates else ""
