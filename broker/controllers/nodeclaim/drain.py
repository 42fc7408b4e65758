"""Which pods a drain waits for, and which of them it evicts now.

Invariant: who serves others goes last: critical pods after the rest, and among each a DaemonSet's after the
others, a group only once nobody is left of the ones before. What tolerates the drain's taint or is static
stays; what says do-not-disrupt is waited for and never evicted. The rules are Karpenter's
(pkg/controllers/node/termination/terminator, pkg/utils/pod), and the order is that of a graceful shutdown:
https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/
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
    """The pods that hold the drain up, in the order in which they go."""
    return sorted((pod for pod in pods if _holds_up(pod, now)), key=lambda pod: (_group(pod), pod.key))


def evictable(waiting: Iterable[Pod], now: datetime) -> list[Pod]:
    """Of the pods that hold the drain up, those to evict now; none while the first group only has to end."""
    _, first = next(groupby(waiting, key=_group), (None, iter(())))
    return [pod for pod in first if not pod.deleting and not kept(pod, now)]


def kept(pod: Pod, now: datetime) -> bool:
    """Whether the pod says that nobody may evict it: for good, or for so long after its start."""
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
    """Not finished pods, static ones, those that tolerate the drain, nor one that its kubelet should have
    ended a minute ago (Karpenter's IsStuckTerminating)."""
    if pod.status.phase in ("Succeeded", "Failed") or STATIC_POD in pod.annotations or _owned_by(pod, "Node"):
        return False
    if pod.metadata.deletion_timestamp and now - pod.metadata.deletion_timestamp > STUCK_AFTER:
        return False
    return not any(map(_tolerates_drain, pod.spec.tolerations))


def _owned_by(pod: Pod, kind: str) -> bool:
    return any(owner.kind == kind for owner in pod.metadata.owner_references)


def _tolerates_drain(toleration: Toleration) -> bool:
    """Of karpenter.sh/disrupted:NoSchedule, which has no value."""
    if toleration.effect not in ("", NO_SCHEDULE):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", names.DISRUPTED_TAINT)
    same = toleration.key == names.DISRUPTED_TAINT and not toleration.value
    return same and toleration.operator in ("", "Equal")
