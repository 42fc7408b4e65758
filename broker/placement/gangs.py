"""The gang of a pod: pods that get room all together, or not at all.

Invariant: provisioning, disruption and the scheduler read gangs here. A gang is whole if as many of its pods
as its size have a place; pods beyond the size are placed one by one. Sources of the marks: Kubernetes'
scheduling.k8s.io (Workload of 1.35, PodGroup since 1.36), scheduler-plugins, Koordinator
(apis/extension/coscheduling.go), Kueue, JobSet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from broker.apis import names
from broker.apis.core import FAILED, Pod
from broker.apis.kueue import OF_POD_GROUP
from broker.text import InvalidText, counted, decode_whole, shortened

POD_GROUP: Final = "scheduling.x-k8s.io/pod-group"
KOORDINATOR_GANG: Final = "gang.scheduling.koordinator.sh/name"
KOORDINATOR_MINIMUM: Final = "gang.scheduling.koordinator.sh/min-available"
KUEUE_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
JOBSET: Final = "jobset.sigs.k8s.io/jobset-name"
_MOST: Final = 100_000

# Marks with the size beside them: label or annotation with the name, annotation with the size.
_COUNTED_MARKS: Final = (
    (KOORDINATOR_GANG, KOORDINATOR_MINIMUM),
    (OF_POD_GROUP, KUEUE_COUNT),
    (JOBSET, ""),
)
_MARKS: Final = frozenset({names.GANG, names.GANG_DOMAIN, POD_GROUP, *(mark for mark, _ in _COUNTED_MARKS)})


class GroupRef(NamedTuple):
    """An object that has the size of a gang. `api`: its group; `part`: a pod group of a Workload."""

    api: str
    namespace: str
    name: str
    part: str = ""


class GroupSize(NamedTuple):
    """`size` 0: unknown. `alone`: the group's pods are placed one by one. `absent`: it does not exist."""

    size: int = 0
    alone: bool = False
    absent: bool = False


GroupSizes = Callable[[GroupRef], GroupSize]
NATIVE: Final = "scheduling.k8s.io"
PLUGINS: Final = "scheduling.x-k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGang:
    """The gang of a pod. `size` 0: the pods that exist. `absent`: the group that the pod names is missing.
    `fault`: the mark that cannot be read, with the remedy.
    """

    name: str = ""
    size: int = 0
    absent: bool = False
    fault: str = ""


ALONE: Final = PodGang()


def gang_of(pod: Pod, sizes: GroupSizes) -> PodGang:
    """The pod's gang: by the broker's annotation, else by the first other mark.

    A domain belongs to claims: kube-scheduler would not keep it. A pod with one gets no room, even without a
    gang: machines in several domains are dear, and their pods cannot move.
    """
    spec, metadata = pod.spec, pod.metadata
    if (
        not (spec.scheduling_group or spec.workload_ref)
        and _MARKS.isdisjoint(metadata.labels)
        and _MARKS.isdisjoint(metadata.annotations)
    ):
        return ALONE  # as nearly every pod is, and each pass asks for all of them
    gang = _marked(pod, sizes)
    if not (domain := pod.annotations.get(names.GANG_DOMAIN)):
        return gang
    fault = (
        f"metadata.annotations[{names.GANG_DOMAIN}] is {shortened(domain)}, and only NodeClaims may have it: "
        "leave it out, and require podAffinity with that topologyKey"
    )
    return replace(gang, name=gang.name or pod.key, fault=fault)


def _marked(pod: Pod, sizes: GroupSizes) -> PodGang:
    if name := pod.annotations.get(names.GANG):
        return _sized(pod, name, names.GANG_SIZE)
    if reference := _group(pod):
        group = sizes(reference)
        name = "/".join(part for part in reference[1:] if part)
        if workload := pod.spec.workload_ref:
            name += f"/{workload.pod_group_replica_key}" if workload.pod_group_replica_key else ""
        return ALONE if group.alone else PodGang(name=name, size=group.size, absent=group.absent)
    for mark, size in _COUNTED_MARKS:
        if name := pod.labels.get(mark) or pod.annotations.get(mark, ""):
            return _sized(pod, name, size)
    return ALONE


def unknown_sizes(_: GroupRef) -> GroupSize:
    """For readers that need the names of gangs only."""
    return GroupSize()


def is_member(pod: Pod) -> bool:
    """Whether the pod counts to its gang's size: one that succeeded had its place, a failed one had none."""
    return not pod.deleting and pod.status.phase != FAILED


def unread(gangs: Iterable[PodGang]) -> dict[str, PodGang]:
    """The gangs of which a pod has a mark that cannot be read, by name: none of their pods gets room."""
    return {gang.name: gang for gang in gangs if gang.fault}


def waits_for_pods(gang: PodGang, present: int, ready: int) -> str:
    """Why the gang waits for its pods or its group; empty if it does not. `present`: its members; `ready`:
    those of them that have a place or may get one, as none with scheduling gates may.
    """
    if gang.fault:
        return f"gang {gang.name} gets no room: {gang.fault}"
    if gang.absent:
        return f"gang {gang.name} has no group of its name: it gets room once the group exists"
    size = counted(gang.size, "pod")
    if present < gang.size:
        return f"gang {gang.name} has {present} of {size}: it gets room once all of them exist"
    if ready < gang.size:
        return f"gang {gang.name} is placed whole: {ready} of {size} are ready to be placed"
    return ""


def _group(pod: Pod) -> GroupRef | None:
    if group := pod.spec.scheduling_group:
        return GroupRef(NATIVE, pod.namespace, group.pod_group_name)
    if workload := pod.spec.workload_ref:
        return GroupRef(NATIVE, pod.namespace, workload.name, workload.pod_group)
    if name := pod.labels.get(POD_GROUP):
        return GroupRef(PLUGINS, pod.namespace, name)
    return None


def _sized(pod: Pod, name: str, size: str) -> PodGang:
    """The gang of this name, with the size in an annotation."""
    gang, text = f"{pod.namespace}/{name}", pod.annotations.get(size) or "0"
    try:
        return PodGang(name=gang, size=decode_whole(text, least=0, most=_MOST))
    except InvalidText:
        fault = f"metadata.annotations[{size}] is {shortened(text)}: write how many pods it has, such as 8"
        return PodGang(name=gang, fault=fault)
