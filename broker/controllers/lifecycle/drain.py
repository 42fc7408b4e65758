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
from broker.apis.core import Pod
from broker.placement.disruption_pods import owned_by, protected, static, tolerates_drain

STUCK_AFTER = timedelta(minutes=1)
CRITICAL = frozenset({"system-cluster-critical", "system-node-critical"})


def remaining(pods: Iterable[Pod], now: datetime) -> list[Pod]:
    """The pods that hold up the drain, in the order in which they go."""
    return sorted((pod for pod in pods if _holds_up(pod, now)), key=lambda pod: (_group(pod), pod.key))


def evictable(waiting: Iterable[Pod], now: datetime) -> list[Pod]:
    """The pods to evict now; empty while the pods of the first group only have to end."""
    _, first = next(groupby(waiting, key=_group), (None, iter(())))
    return [pod for pod in first if not pod.deleting and not kept(pod, now)]


def kept(pod: Pod, now: datetime) -> bool:
    """Whether the pod's annotation forbids its eviction: always, or for a time after its start."""
    return protected(pod.annotations.get(names.DO_NOT_DISRUPT, ""), pod.status.start_time, now)


def _group(pod: Pod) -> tuple[bool, bool]:
    return pod.spec.priority_class_name in CRITICAL, owned_by(pod, "DaemonSet")


def _holds_up(pod: Pod, now: datetime) -> bool:
    """Whether the drain waits for the pod.

    It does not wait for finished or static pods, nor for pods that tolerate the drain. Nor does it wait for
    pods that their kubelet should have ended a minute ago (Karpenter's IsStuckTerminating).
    """
    if pod.ended or static(pod):
        return False
    if pod.metadata.deletion_timestamp and now - pod.metadata.deletion_timestamp > STUCK_AFTER:
        return False
    return not tolerates_drain(pod)
