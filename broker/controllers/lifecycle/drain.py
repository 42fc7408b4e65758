"""Decides which pods a drain waits for, and which of them it evicts now.

Invariant: pods that serve other pods go last. Critical pods go after the rest, and within both, pods of a
DaemonSet after the others. A group goes only when no pod of an earlier group is left. Pods that tolerate the
drain's taint and static pods stay. The drain waits for do-not-disrupt pods. It evicts such a pod, or one of a
later group, only when the end of the drain would cut off its own terminationGracePeriodSeconds. The rules are
Karpenter's (pkg/controllers/node/termination/terminator, pkg/utils/pod), and the order is that of a graceful
shutdown: https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby

from broker.apis.core import Pod
from broker.placement.disruption_pods import owned_by, protected, static, tolerates_drain

STUCK_AFTER = timedelta(minutes=1)
CRITICAL = frozenset({"system-cluster-critical", "system-node-critical"})


def remaining(pods: Iterable[Pod], now: datetime) -> list[Pod]:
    """The pods that hold up the drain, in the order in which they go."""
    return sorted((pod for pod in pods if _holds_up(pod, now)), key=lambda pod: (_group(pod), pod.key))


def evictable(waiting: Sequence[Pod], now: datetime, until: datetime | None = None) -> list[Pod]:
    """The pods to evict now; empty while those of the first group only have to end. `until`: as in `kept`."""
    _, first = next(groupby(waiting, key=_group), (None, iter(())))
    keys = {pod.key for pod in first} | {pod.key for pod in waiting if _late(pod, now, until)}
    return [pod for pod in waiting if pod.key in keys and not pod.deleting and not kept(pod, now, until)]


def kept(pod: Pod, now: datetime, until: datetime | None = None) -> bool:
    """Whether do-not-disrupt forbids an eviction of the pod. `until`: when the drain ends in any case."""
    return protected(pod, now) and not _late(pod, now, until)


def _late(pod: Pod, now: datetime, until: datetime | None) -> bool:
    """Whether the drain ends before the pod would, if it were evicted any later."""
    grace = pod.spec.termination_grace_period_seconds or 0
    return until is not None and (until - now).total_seconds() <= grace


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
