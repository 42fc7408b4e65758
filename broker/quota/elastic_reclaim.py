"""Which pods a pod may evict to get the quota that its namespace is guaranteed.

Within its min, a pod evicts pods over quota of quotas that borrow. Over its min, it evicts pods of lower
priority in its own quota, and pods over quota of those that keep more than their guaranteed part of the
unused min. A pod within the quota of another is never evicted. Namespaces without a quota evict among
themselves, by priority. Source: nos, capacity_scheduling.go (SelectVictimsOnNode).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from broker.quota.elastic import Amounts, ElasticShare, ElasticTotals, added, exceeds
from broker.quota.elastic_labels import ElasticPod

# Whether the pod fits on the node without these pods.
FitsWithout = Callable[[Sequence[ElasticPod]], bool]


def victims(
    totals: ElasticTotals, preemptor: ElasticPod, pods: Iterable[ElasticPod], fits_without: FitsWithout
) -> tuple[ElasticPod, ...] | None:
    """The pods of a node to evict, the least important first; None if evictions do not help.

    All candidates are removed first. Then pods come back as long as the preemptor fits and has quota: first
    those that a budget protects, and of them the most important.
    """
    removed: list[ElasticPod] = []
    for pod in sorted(pods, key=_importance):
        if _evictable(totals, preemptor, pod):
            removed.append(pod)
            totals = _shifted(totals, pod, -1)
    if not _helps(totals, preemptor, removed, fits_without):
        return None
    for pod in sorted(removed, key=lambda pod: (pod.protected, _importance(pod)), reverse=True):
        back = [other for other in removed if other is not pod]
        returned = _shifted(totals, pod, 1)
        if _helps(returned, preemptor, back, fits_without):
            removed, totals = back, returned
    return tuple(removed)


def _evictable(totals: ElasticTotals, preemptor: ElasticPod, pod: ElasticPod) -> bool:
    """Whether the preemptor may evict the pod, after the evictions before."""
    own, other = totals.share_of(preemptor.namespace), totals.share_of(pod.namespace)
    if own is None or other is None:
        return own is other and pod.priority < preemptor.priority
    wanted = added(own.used, preemptor.requests)
    within = not exceeds(wanted, own.min, preemptor.requests)
    if own.id == other.id:
        return not within and pod.priority < preemptor.priority
    if not pod.borrowed or not other.over_min:
        return False
    return within or _fair(totals, own, other, wanted, preemptor.requests)


def _fair(
    totals: ElasticTotals, own: ElasticShare, other: ElasticShare, wanted: Amounts, requests: Amounts
) -> bool:
    """Whether the preemptor stays within its guaranteed part, and the other quota is above its own."""
    allowed = added(own.min, totals.guaranteed_overquota(own.id))
    part = added(other.min, totals.guaranteed_overquota(other.id))
    return not exceeds(wanted, allowed, requests) and exceeds(
        other.used, {name: part.get(name, 0) for name in other.min}
    )


def _helps(
    totals: ElasticTotals, preemptor: ElasticPod, removed: Sequence[ElasticPod], fits_without: FitsWithout
) -> bool:
    return totals.refusal(preemptor.namespace, preemptor.requests) is None and fits_without(removed)


def _shifted(totals: ElasticTotals, pod: ElasticPod, sign: int) -> ElasticTotals:
    share = totals.share_of(pod.namespace)
    return totals if share is None else totals.with_usage(share.id, pod.requests, sign)


def _importance(pod: ElasticPod) -> tuple[int, float, str]:
    """By priority, then by age: the older pod is the more important."""
    return (pod.priority, -pod.created.timestamp(), pod.uid)
