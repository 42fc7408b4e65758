"""Decides which pods a drain waits for, and which of them it evicts now.

Invariant: pods that serve other pods go last. Critical pods go after the rest, and within both, pods of a
DaemonSet after the others. A group goes only when no pod of an earlier group is left. Pods that tolerate the
drain's taint and static pods stay. The drain waits for do-not-disrupt pods, and never evicts them. The rules
are Karpenter's (pkg/controllers/node/termination/terminator, pkg/utils/pod), and the order is that of a
graceful shutdown: https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import groupby

from broker.apis import names
from broker.apis.core import Pod, Toleration
from broker.text import InvalidText, decode_duration

NO_SCHEDULE = "NoSchedule"
STUCK_AFTER = timedelta(minutes=1)
STATIC_POD = "kubernetes.io/config.mirror"
CRITICAL = frozenset({"system-cluster-critical", "system-node-critical"})


def left(pods: Iterable[Pod], now: datetime) -> list[Pod]:
    """The pods that hold up the drain, in the order in which they go."""
    return sorted((pod for pod in pods if _holds_up(pod, now)), key=lambda pod: (_group(pod), pod.key))


def evictable(waiting: Iterable[Pod], now: datetime) -> list[Pod]:
    """The pods to evict now; empty while the pods of the first group only have to end."""
    _, first = next(groupby(waiting, key=_group), (None, iter(())))
    return [pod for pod in first if not pod.deleting and not kept(pod, now)]


def kept(pod: Pod, now: datetime) -> bool:
    """Whether the pod's annotation forbids its eviction: always, or for a time after its start."""
    said = pod.annotations.get(names.DO_NOT_DISRUPT, "")
    if said == "true":
        return True
    try:
        length = decode_duration(said)
    except InvalidText:
        return False  # as in Karpenter
    if length <= timedelta(0):
        return False
    return pod.status.start_time is None or now - pod.status.start_time < length


def _group(pod: Pod) -> tuple[bool, bool]:
    return pod.spec.priority_class_name in CRITICAL, _owned_by(pod, "DaemonSet")


def _holds_up(pod: Pod, now: datetime) -> bool:
    """Whether the drain waits for the pod.

    It does not wait for finished or static pods, nor for pods that tolerate the drain. Nor does it wait for
    pods that their kubelet should have ended a minute ago (Karpenter's IsStuckTerminating).
    """
    if pod.status.phase in ("Succeeded", "Failed") or STATIC_POD in pod.annotations or _owned_by(pod, "Node"):
        return False
    if pod.metadata.deletion_timestamp and now - pod.metadata.deletion_timestamp > STUCK_AFTER:
        return False
    return not any(map(_tolerates_drain, pod.spec.tolerations))


def _owned_by(pod: Pod, kind: str) -> bool:
    return any(owner.kind == kind for owner in pod.metadata.owner_references)


def _tolerates_drain(toleration: Toleration) -> bool:
    """Whether it tolerates karpenter.sh/disrupted:NoSchedule, which has no value."""
    if toleration.effect not in ("", NO_SCHEDULE):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", names.DISRUPTED_TAINT)
    same = toleration.key == names.DISRUPTED_TAINT and not toleration.value
    return same and toleration.operator in ("", "Equal")
