"""Pods that need a machine: Karpenter's rule, with the pod's gang and its reservation.

The rule is that of karpenter pkg/utils/pod/scheduling.go (IsProvisionable): kube-scheduler marked the pod
Unschedulable; it is not bound, evicts no others (`preempting`), and belongs to no DaemonSet and to no Node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from broker.apis import names
from broker.apis.core import UNSCHEDULABLE, Pod
from broker.apis.karpenter import NodePool
from broker.apis.koordinator import KoordinatorReservation
from broker.placement.holds_reading import priority, template_pod
from broker.placement.model import PodInfo
from broker.placement.packing_model import Drawing, PendingPod
from broker.placement.reading import pod_info
from broker.reservations.drawing import DrawRights
from broker.text import InvalidText, counted, decode_whole

Draw = Callable[[str, str], Drawing]  # of a namespace and the annotation of its pod

POD_GROUP: Final = "scheduling.x-k8s.io/pod-group"
KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
JOBSET: Final = "jobset.sigs.k8s.io/jobset-name"
_MOST: Final = 100_000
_OWNERS: Final = frozenset({("apps/v1", "DaemonSet"), ("v1", "Node")})


def provisionable(pod: Pod) -> bool:
    """Whether the pod needs room that kube-scheduler did not find."""
    scheduled = pod.scheduled
    return (
        scheduled is not None
        and scheduled.reason == UNSCHEDULABLE
        and not pod.spec.node_name
        and not pod.deleting
        and not pod.ended
        and not any((owner.api_version, owner.kind) in _OWNERS for owner in pod.metadata.owner_references)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGang:
    """The gang of a pod: all its pods get machines, or none. `size` 0: unknown."""

    name: str = ""
    size: int = 0


ALONE: Final = PodGang()


def gang_of(pod: Pod, group_size: Callable[[str], int]) -> PodGang:
    """The pod's gang, by the broker's annotation, a PodGroup, Kueue's group, or a JobSet.

    `group_size`: the minimum of a PodGroup by `namespace/name`; 0 if it is unknown.
    """
    if name := pod.annotations.get(names.GANG):
        return PodGang(name=f"{pod.namespace}/{name}", size=_count(pod.annotations.get(names.GANG_SIZE)))
    if name := pod.labels.get(POD_GROUP):
        return PodGang(name=f"{pod.namespace}/{name}", size=group_size(f"{pod.namespace}/{name}"))
    if name := pod.labels.get(KUEUE_GROUP):
        return PodGang(name=f"{pod.namespace}/{name}", size=_count(pod.annotations.get(KUEUE_COUNT)))
    if name := pod.labels.get(JOBSET):
        return PodGang(name=f"{pod.namespace}/{name}")
    return ALONE


def _count(text: str | None) -> int:
    try:
        return decode_whole(text or "0", least=0, most=_MOST)
    except InvalidText:
        return 0


def drawing_in(rights: DrawRights, pools: Iterable[NodePool]) -> Draw:
    """The reservations that pods may draw from in these NodePools."""
    named = frozenset(pool.spec.template.metadata.annotations.get(names.DRAWS_FROM, "") for pool in pools)
    return lambda namespace, given: rights.of_pod(namespace, given, named)


def pending_pod(
    pod: Pod, draw: Draw, group_size: Callable[[str], int], info: PodInfo | None = None
) -> PendingPod:
    """The pod for packing."""
    gang = gang_of(pod, group_size)
    return PendingPod(
        info=info or pod_info(pod),
        priority=pod.spec.priority,
        gang=gang.name,
        gang_size=gang.size,
        drawing=draw(pod.namespace, pod.annotations.get(names.DRAWS_FROM, "")),
    )


def pending_reservations(
    reservations: Mapping[str, KoordinatorReservation], draw: Draw, group_size: Callable[[str], int]
) -> Iterator[PendingPod]:
    """Reservations for packing: the pods of their templates, under the keys of the reservations."""
    for key, reservation in reservations.items():
        pod = template_pod(reservation)
        try:
            info = replace(pod_info(pod), name=key.partition("/")[2])
        except ValueError:
            continue  # the scheduler reports it
        yield replace(pending_pod(pod, draw, group_size, info), priority=priority(reservation))


def incomplete(
    pending: Iterable[PendingPod], pods: Iterable[Pod], group_size: Callable[[str], int]
) -> dict[str, str]:
    """The reason of each gang that waits for pods which do not exist yet, by the gang's name."""
    sizes = {pod.gang: pod.gang_size for pod in pending if pod.gang and pod.gang_size}
    if not sizes:
        return {}
    present = Counter(gang_of(pod, group_size).name for pod in pods if not pod.deleting and not pod.ended)
    return {
        gang: f"gang {gang} has {present[gang]} of {counted(size, 'pod')}: "
        "it gets machines once all of them exist"
        for gang, size in sizes.items()
        if present[gang] < size
    }
