"""Pods that need a machine: Karpenter's rule, with the pod's gang and its reservation.

The rule is that of karpenter pkg/utils/pod/scheduling.go (IsProvisionable): kube-scheduler marked the pod
Unschedulable; it is not bound, evicts no others (`preempting`), and belongs to no DaemonSet and to no Node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from broker.apis import names
from broker.apis.core import UNSCHEDULABLE, Pod
from broker.apis.karpenter import NodeClaim, NodePool, pods_in
from broker.apis.koordinator import KoordinatorReservation
from broker.controllers.claim_caches import BY_INSTANCE, ClaimCaches
from broker.controllers.nominations import preempting
from broker.kube.cache import Guard
from broker.kube.partial import PartialObject
from broker.placement.gangs import GroupSizes, gang_of, is_member, unread, waits_for_pods
from broker.placement.holds_reading import priority, template_pod
from broker.placement.model import PodInfo
from broker.placement.packing_model import Drawing, PendingPod
from broker.placement.reading import pod_info
from broker.reservations.drawing import DrawRights

Draw = Callable[[str, str], Drawing]  # of a namespace and the annotation of its pod

# Then a scheduler holds the pod back by itself, as one that waits for the rest of a gang at Permit.
LOOKED_AT: Final = timedelta(seconds=30)
_OWNERS: Final = frozenset({("apps/v1", "DaemonSet"), ("v1", "Node")})


def provisionable(pod: Pod) -> bool:
    """Whether the pod needs room that kube-scheduler did not find."""
    scheduled = pod.scheduled
    return (
        pod.waits
        and scheduled is not None
        and scheduled.reason == UNSCHEDULABLE
        and not any((owner.api_version, owner.kind) in _OWNERS for owner in pod.metadata.owner_references)
    )


def waiting_pods(
    pods: Sequence[Pod],
    claims: Iterable[NodeClaim],
    caches: ClaimCaches,
    report: Callable[[Pod, str], None],
) -> list[Pod]:
    """The pods that need room. A pod of a claim that is left out needs no other one: it gets the reason."""
    nodes = caches.nodes
    evicting = preempting(pods, nodes.list(), claims, [node.name for node in nodes.left_out])
    made_for = _made_for(caches)
    waiting: list[Pod] = []
    for pod in pods:
        with caches.pods.guard(pod):
            if not provisionable(pod) or pod.key in evicting:
                continue
            if (claim := made_for.get(pod.key)) is None:
                waiting.append(pod)
            else:
                report(pod, f"NodeClaim {claim.name} is for it, and is left out: {claim.error}")
    return waiting


def _made_for(caches: ClaimCaches) -> dict[str, PartialObject]:
    """The claims that are left out and have no initialized node, by the pods that they were made for."""
    return {
        key: partial
        for partial in caches.claims.left_out
        if not any(
            node.labels.get(names.INITIALIZED) == "true"
            for node in caches.nodes.by(BY_INSTANCE, partial.instance_id)
        )
        for key in pods_in(partial.annotations)
    }


def drawing_in(rights: DrawRights, pools: Iterable[NodePool]) -> Draw:
    """The reservations that pods may draw from in these NodePools."""
    named = frozenset(pool.draws_from for pool in pools)
    return lambda namespace, given: rights.of_pod(namespace, given, named)


def pending_pod(pod: Pod, draw: Draw, group_size: GroupSizes, info: PodInfo | None = None) -> PendingPod:
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
    reservations: Mapping[str, KoordinatorReservation],
    draw: Draw,
    group_size: GroupSizes,
    guard: Guard[KoordinatorReservation] = nullcontext,
) -> Iterator[PendingPod]:
    """Reservations for packing: the pods of their templates, under the keys of the reservations."""
    for key, reservation in reservations.items():
        with guard(reservation), suppress(ValueError):  # the scheduler reports it
            pod = template_pod(reservation)
            info = replace(pod_info(pod), name=key.partition("/")[2])
            yield replace(pending_pod(pod, draw, group_size, info), priority=priority(reservation))


def _is_new(pod: Pod, now: datetime) -> bool:
    """Whether kube-scheduler is about to bind the pod, or to report that it cannot."""
    created = pod.metadata.creation_timestamp
    return pod.waits and pod.scheduled is None and created is not None and now - created < LOOKED_AT


def incomplete(
    pending: Iterable[PendingPod], pods: Iterable[Pod], group_size: GroupSizes, now: datetime
) -> dict[str, str]:
    """The reason of each gang that waits for objects which do not exist yet, for pods with scheduling gates,
    or for those that kube-scheduler has not looked at, by the gang's name.
    """
    waiting = {pod.gang for pod in pending if pod.gang}
    if not waiting:
        return {}
    every = ((gang_of(pod, group_size), pod) for pod in pods)
    members = [(gang, pod) for gang, pod in every if gang.name in waiting and is_member(pod)]
    known = [gang for gang, _ in members]
    present = Counter(gang.name for gang in known)
    gangs = {gang.name: gang for gang in known} | unread(known)
    unready = Counter(gang.name for gang, pod in members if pod.spec.scheduling_gates or _is_new(pod, now))
    reasons = {
        name: waits_for_pods(gang, present[name], present[name] - unready[name])
        for name, gang in gangs.items()
    }
    return {name: reason for name, reason in reasons.items() if reason}
