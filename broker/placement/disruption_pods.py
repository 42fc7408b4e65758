"""Selects the pods that need another node if theirs is disrupted, and those that keep their node from it.

Source: Karpenter, pkg/utils/pod/scheduling.go (IsReschedulable, IsDisruptable) and pkg/utils/pdb/pdb.go. A
PodDisruptionBudget blocks if it allows no eviction at all now; several evictions are spread by the drain. The
API server never evicts a pod with several budgets.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, TypeVar

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.meta import Object
from broker.apis.policy import PodDisruptionBudget
from broker.placement.model import NodeTaint
from broker.placement.reading import label_selector, pod_tolerations
from broker.placement.selectors import Selector, matches
from broker.quota.flavors import tolerates
from broker.text import InvalidText, decode_duration

NO_SCHEDULE: Final = "NoSchedule"
STATIC_POD: Final = "kubernetes.io/config.mirror"
READY: Final = "Ready"
DEVICES: Final = "Pod asks for devices in spec.resourceClaims, which no other node is known to have"
ALWAYS_ALLOW: Final = "AlwaysAllow"
_DRAIN: Final = NodeTaint(names.DISRUPTED_TAINT, "", NO_SCHEDULE)

O = TypeVar("O", bound=Object)  # noqa: E741
Limits = list[tuple[PodDisruptionBudget, Selector | None]]


def active(pod: Pod) -> bool:
    """Whether the pod runs or will run, and is not being deleted."""
    return not pod.ended and pod.metadata.deletion_timestamp is None


def owned_by(pod: Pod, kind: str) -> bool:
    return any(owner.kind == kind for owner in pod.metadata.owner_references)


def static(pod: Pod) -> bool:
    """Whether the kubelet runs the pod by itself, so that it cannot be evicted."""
    return STATIC_POD in pod.annotations or owned_by(pod, "Node")


def reschedulable(pod: Pod) -> bool:
    """Whether the pod, or its successor, needs another node.

    A StatefulSet makes the successor of a pod only once the pod is gone, so that a terminating one counts.
    """
    if static(pod) or owned_by(pod, "DaemonSet"):
        return False
    return active(pod) or (not pod.ended and owned_by(pod, "StatefulSet"))


def protected(pod: Pod, now: datetime) -> bool:
    """Whether do-not-disrupt keeps the pod: always with `true`, or for a duration after its start."""
    annotation, started = pod.annotations.get(names.DO_NOT_DISRUPT, ""), pod.status.start_time
    if annotation == "true":
        return True
    try:
        length = decode_duration(annotation)
    except InvalidText:
        return False  # as in Karpenter
    return length > timedelta(0) and (started is None or now - started < length)


def annotated(objects: Iterable[O]) -> list[O]:
    """Those of the claims and Nodes that do-not-disrupt keeps. Only on pods may it be a duration."""
    return [item for item in objects if item.annotations.get(names.DO_NOT_DISRUPT) == "true"]


def over_budget(pods: Iterable[Pod], budgets: Iterable[PodDisruptionBudget]) -> list[Pod]:
    """The pods that their budgets keep if all are evicted one after another, in the given order."""
    limits = _limits(budgets)
    remaining = {budget.key: budget.status.disruptions_allowed for budget, _ in limits}
    kept: list[Pod] = []
    for pod in pods:
        covering = [budget.key for budget in _covering(pod, limits)]
        if len(covering) > 1 or any(remaining[key] <= 0 for key in covering):
            kept.append(pod)
            continue
        for key in covering:
            remaining[key] -= 1
    return kept


def blocker(pods: Iterable[Pod], budgets: Iterable[PodDisruptionBudget], now: datetime) -> str:
    """Why the pods keep their node from disruption, in Karpenter's words; empty if they do not.

    Where a pod's devices would be is not known, so that its node is as unconsolidatable as in Karpenter.
    """
    limits = _limits(budgets)
    for pod in pods:
        if not active(pod):
            continue
        if protected(pod, now):
            return f'Pod has "{names.DO_NOT_DISRUPT}" annotation (Pod={pod.key})'
        if static(pod) or tolerates_drain(pod):
            continue  # never evicted
        if pod.spec.resource_claims and reschedulable(pod):
            return f"{DEVICES} (Pod={pod.key})"
        covering = _covering(pod, limits)
        if len(covering) > 1 or any(budget.status.disruptions_allowed <= 0 for budget in covering):
            keys = sorted(budget.key for budget in covering)
            return f"Pdb prevents pod evictions (PodDisruptionBudget={', '.join(keys)})"
    return ""


def _limits(budgets: Iterable[PodDisruptionBudget]) -> Limits:
    return [(budget, label_selector(budget.spec.selector)) for budget in budgets]


def _covering(pod: Pod, limits: Limits) -> list[PodDisruptionBudget]:
    """The budgets that an eviction of the pod uses, or several that forbid it."""
    budgets = [
        budget
        for budget, selector in limits
        if budget.namespace == pod.namespace and matches(selector, pod.labels)
    ]
    if len(budgets) > 1 or not _unhealthy(pod):
        return budgets
    return [budget for budget in budgets if budget.spec.unhealthy_pod_eviction_policy != ALWAYS_ALLOW]


def _unhealthy(pod: Pod) -> bool:
    return any(item.type == READY and item.status == "False" for item in pod.status.conditions)


def tolerates_drain(pod: Pod) -> bool:
    """Whether the pod tolerates karpenter.sh/disrupted:NoSchedule, which has no value."""
    return tolerates(pod_tolerations(pod.spec.tolerations), _DRAIN)
