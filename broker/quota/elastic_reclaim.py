"""Which pods a pod may evict to get the quota that its namespace is guaranteed.

Within its min, a pod evicts pods over quota of quotas that borrow. Over its min, it evicts pods of lower
priority in its own quota, and pods over quota of those that keep more than their guaranteed part of the
unused min. A pod within the quota of another is never evicted. Namespaces without a quota evict among
themselves, by priority. Source: nos, capacity_scheduling.go (SelectVictimsOnNode).

Invariant: the pods of all nodes are candidates, since each of them may hold the missing quota. A candidate is
a victim only if the preemptor does not fit without its eviction.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from broker.quota.elastic import Amounts, ElasticShare, ElasticTotals, added, exceeds
from broker.quota.elastic_labels import ElasticPod

# Whether the preemptor fits on a node without these pods.
FitsWithout = Callable[[Sequence[ElasticPod]], bool]


def victims(
    totals: ElasticTotals,
    preemptor: ElasticPod,
    pods: Iterable[ElasticPod],
    fits_without: FitsWithout,
    *,
    near: Container[str] = (),
    lacks: Amounts | None = None,
) -> tuple[ElasticPod, ...] | None:
    """The pods to evict, the least important first; None if evictions do not help.

    All candidates are removed first. Then pods come back as long as the preemptor fits and has quota: first
    those that a budget protects, then the most important, and of equal ones those that free the least of the
    missing resources. `near`: the pods (by uid) of the node to make room on, `lacks`: what it lacks.
    """
    removed = _reclaimable(totals, preemptor, pods, near)

    def helps(evicted: Sequence[ElasticPod]) -> bool:
        after = totals_with(totals, evicted, -1)
        return after.refusal(preemptor.namespace, preemptor.requests) is None and fits_without(evicted)

    if not helps(removed):
        return None
    missing = _missing(totals, preemptor, lacks or {})
    needed = _needed(sorted(removed, key=lambda pod: _return_order(pod, missing)), (), helps)
    return tuple(reversed(needed))


def _part(pod: ElasticPod, missing: Amounts) -> tuple[float, float]:
    """The share of the missing resources that the pod would free: as needed, and in all."""
    parts = [pod.requests.get(name, 0) / amount for name, amount in missing.items()]
    return sum(min(1.0, part) for part in parts), sum(parts)


def totals_with(totals: ElasticTotals, pods: Iterable[ElasticPod], sign: int = 1) -> ElasticTotals:
    """The totals with these pods in addition; without them with `sign` -1."""
    sums: dict[str, dict[str, int]] = {}
    for pod in pods:
        share = totals.share_of(pod.namespace)
        if share is not None:
            sums[share.id] = added(sums.get(share.id, {}), pod.requests)
    for id_, amounts in sums.items():
        totals = totals.with_usage(id_, amounts, sign)
    return totals


def _reclaimable(
    totals: ElasticTotals, preemptor: ElasticPod, pods: Iterable[ElasticPod], near: Container[str]
) -> list[ElasticPod]:
    """All pods that may be evicted, each after those before it: the near ones, then the least important."""
    removed: list[ElasticPod] = []
    for pod in sorted(pods, key=lambda pod: (pod.uid not in near, _importance(pod))):
        if _evictable(totals, preemptor, pod):
            removed.append(pod)
            totals = totals_with(totals, (pod,), -1)
    return removed


def _needed(pods: Sequence[ElasticPod], others: Sequence[ElasticPod], helps: FitsWithout) -> list[ElasticPod]:
    """The pods that cannot come back, tried in order. `others`: the victims beside them for now.

    Many come back together, so that the number of trials follows that of the victims.
    """
    if helps(others):
        return []
    if len(pods) == 1:
        return [*pods]
    half = len(pods) // 2
    first = _needed(pods[:half], (*pods[half:], *others), helps)
    return [*first, *_needed(pods[half:], (*first, *others), helps)]


def _missing(totals: ElasticTotals, preemptor: ElasticPod, lacks: Amounts) -> Mapping[str, int]:
    """The amounts that the preemptor lacks of its quota or of the node; its requests if unknown."""
    quota = totals.missing(preemptor.namespace, preemptor.requests)
    missing = {name: max(quota.get(name, 0), lacks.get(name, 0)) for name in {**quota, **lacks}}
    known = missing or preemptor.requests
    return {name: amount for name, amount in known.items() if amount > 0}


def _return_order(pod: ElasticPod, missing: Amounts) -> tuple[bool, int, float, float, float, str]:
    useful, whole = _part(pod, missing)
    return (not pod.protected, -pod.priority, useful, -whole, pod.created.timestamp(), pod.uid)


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


def _importance(pod: ElasticPod) -> tuple[int, float, str]:
    """Orders by priority, then by age: the older pod is the more important."""
    return (pod.priority, -pod.created.timestamp(), pod.uid)
