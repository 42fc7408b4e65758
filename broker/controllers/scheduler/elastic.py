"""Elastic quota in the scheduler: admission of pods, and the evictions that give a namespace its guarantee.

Bound pods count, also those that do not run yet; the status of a quota counts running pods only. Evictions
go through the Eviction API. A pod that a PodDisruptionBudget protects is tried last for a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from broker.apis.core import Pod
from broker.apis.policy import PodDisruptionBudget
from broker.controllers.elasticquota.reading import ElasticPods, Quota, declarations
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import NotFound, TooManyRequests
from broker.placement.disruption_pods import over_budget
from broker.placement.filters import prepare
from broker.placement.holds_match import HoldRequest
from broker.placement.snapshot import PlacementSnapshot
from broker.quota.elastic import ElasticRefusal, ElasticTotals
from broker.quota.elastic_labels import ElasticPod
from broker.quota.elastic_reclaim import victims
from broker.quota.elastic_resolve import in_force

PROTECTED: Final = 60.0
_TEXTS: Final = {
    ElasticRefusal.OVER_MAX: "pod is rejected because its elastic quota {0} would exceed its max",
    ElasticRefusal.OVER_TOTAL_MIN: "pod is rejected because the total use of elastic quotas would exceed "
    "their total min",
}


def totals_of(
    quotas: Iterable[Quota], pods: Iterable[Pod], reading: ElasticPods, *, absent_is_zero: bool
) -> ElasticTotals:
    """The quotas in force with the requests of bound pods."""
    shares, _ = in_force(declarations(quotas))
    totals = ElasticTotals.of(shares, absent_is_zero=absent_is_zero)
    if not shares:
        return totals
    used: dict[str, dict[str, int]] = {}
    for pod in pods:
        share = totals.share_of(pod.namespace)
        if share is not None:
            sums = used.setdefault(share.id, {})
            for name, amount in reading.requests(pod).items():
                sums[name] = sums.get(name, 0) + amount
    for id_, sums in used.items():
        totals = totals.with_usage(id_, sums)
    return totals


def with_pod(totals: ElasticTotals, pod: ElasticPod) -> ElasticTotals:
    share = totals.share_of(pod.namespace)
    return totals if share is None else totals.with_usage(share.id, pod.requests)


def rejection(totals: ElasticTotals, pod: ElasticPod) -> str | None:
    """Why the quota of the pod's namespace rejects it."""
    refusal = totals.refusal(pod.namespace, pod.requests)
    if refusal is None:
        return None
    share = totals.share_of(pod.namespace)
    return _TEXTS[refusal].format(share.id if share else "")


class ElasticReclaim:
    """Chooses a node and evicts its victims."""

    def __init__(self, client: Client, clock: Clock, reading: ElasticPods) -> None:
        self._client, self._clock, self._reading = client, clock, reading
        self._protected: dict[str, float] = {}

    def choose(
        self,
        request: HoldRequest,
        preemptor: ElasticPod,
        totals: ElasticTotals,
        snapshot: PlacementSnapshot,
        bound: Mapping[str, list[Pod]],
    ) -> tuple[str, list[Pod]] | None:
        """The node with the fewest victims, by highest priority, number and name; None if none helps."""
        if totals.share_of(preemptor.namespace) is None:
            return None
        choices: list[tuple[int, int, str, list[Pod]]] = []
        for node in snapshot.states:
            pods = {pod.uid: pod for pod in bound.get(node, ()) if not pod.deleting}
            chosen = self._on_node(request, preemptor, totals, snapshot, node, [*pods.values()])
            if chosen:
                highest = max(pod.priority for pod in chosen)
                choices.append((highest, len(chosen), node, [pods[pod.uid] for pod in chosen]))
        if not choices:
            return None
        best = min(choices, key=lambda item: item[:3])
        return best[2], best[3]

    def _on_node(
        self,
        request: HoldRequest,
        preemptor: ElasticPod,
        totals: ElasticTotals,
        snapshot: PlacementSnapshot,
        node: str,
        pods: Sequence[Pod],
    ) -> tuple[ElasticPod, ...] | None:
        now = self._clock.monotonic()
        values = [self._reading.read(pod, protected=self._protected.get(pod.uid, 0.0) > now) for pod in pods]
        infos = {pod.uid: pod for pod in snapshot.states[node].pods}

        def fits_without(removed: Sequence[ElasticPod]) -> bool:
            without = snapshot
            for pod in removed:
                if pod.uid in infos:
                    without = without.without_pod(infos[pod.uid], node)
            return not prepare(request.pod, without).reasons(without.states[node])

        return victims(totals, preemptor, values, fits_without)

    def evict(self, pods: Sequence[Pod]) -> list[Pod]:
        """Evicts the pods; returns those that a budget protects. Raises ApiError.

        Several pods are tried without effect first, and counted against their budgets together: if one is
        protected, the others are not evicted in vain.
        """
        if len(pods) > 1 and (kept := self._over_budget(pods) or self._evict(pods, dry_run=True)):
            return kept
        return self._evict(pods, dry_run=False)

    def _over_budget(self, pods: Sequence[Pod]) -> list[Pod]:
        """The API server judges each eviction by itself: two pods may share the last one of a budget."""
        budgets = [
            PodDisruptionBudget.decode(body)
            for namespace in sorted({pod.namespace for pod in pods})
            for body in self._client.list(PodDisruptionBudget.KIND, namespace=namespace)[0]
        ]
        kept = over_budget(pods, budgets)
        for pod in kept:
            self._protected[pod.uid] = self._clock.monotonic() + PROTECTED
        return kept

    def _evict(self, pods: Sequence[Pod], *, dry_run: bool) -> list[Pod]:
        kept: list[Pod] = []
        for pod in pods:
            try:
                self._client.evict(pod.name, pod.namespace, dry_run=dry_run)
            except NotFound:
                continue
            except TooManyRequests:
                self._protected[pod.uid] = self._clock.monotonic() + PROTECTED
                kept.append(pod)
                break
        return kept
