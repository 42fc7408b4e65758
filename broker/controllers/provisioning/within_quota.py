"""Decides which claims to create without pods that their elastic quota refuses beside those before them.

Why: each of several waiting pods may be within the quota, but not all together. The scheduler binds the first
ones, and machines for the others would stay empty.

Invariant: only a pod that gets room in the same decision counts before another. A pod without any machine, or
with a claim that EC2 refuses, holds up none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.capacity.demand import units
from broker.controllers.elasticquota.use import rejection
from broker.controllers.provisioning.awaited import AwaitedRoom, decide_beside
from broker.controllers.provisioning.decide import ProvisioningDecision, ProvisioningPlanner
from broker.controllers.provisioning.elastic_sizes import ElasticRules, needed_of, started, with_quota
from broker.controllers.provisioning.refused import pods_refused
from broker.placement.packing_model import PendingPod
from broker.quota.elastic import ElasticTotals
from broker.quota.elastic_labels import ElasticPod
from broker.quota.elastic_reclaim import totals_with

ROUNDS: Final = 3  # a refused pod leaves its machine to others


def decide_within_quota(
    planner: ProvisioningPlanner,
    kept: Mapping[str, AwaitedRoom],
    rules: ElasticRules,
    too_large: Mapping[str, str],
    smallest_gpu: int,
) -> ProvisioningDecision:
    """`kept`: as in `decide_beside`. `too_large`: the quotas that keep pods off larger GPUs, as
    `ElasticRules.within` found them.

    `smallest_gpu`: GB of the smallest GPU on offer.
    """
    decision = decide_beside(planner, kept)
    refused: dict[str, str] = {}
    for _ in range(ROUNDS if rules.quotas else 0):
        more = _QuotaRefusals(planner, rules, smallest_gpu).of(decision)
        if not more:
            break
        refused |= more
        planner = replace(planner, pending=[pod for pod in planner.pending if pod.key not in refused])
        decision = decide_beside(planner, kept)
    return replace(decision, reasons={**with_quota(decision.reasons, too_large), **refused})


class _QuotaRefusals:
    """The pods with room in a decision that their quota refuses."""

    def __init__(self, planner: ProvisioningPlanner, rules: ElasticRules, smallest_gpu: int) -> None:
        self._planner, self._rules, self._smallest_gpu = planner, rules, smallest_gpu
        self._pods = {pod.key: pod for pod in planner.cluster.pods}

    def of(self, decision: ProvisioningDecision) -> dict[str, str]:
        """The reason of each refused pod, by key: the pods of a gang beyond its size, otherwise all of it."""
        totals = self._rules.totals(self._planner.cluster.occupancy.pods)
        bought = _bought(self._planner.cluster.claims, decision, self._planner)
        opened = {pod.key for item in decision.created for pod in item.packed.pods}
        listed = [
            (item, elastic)
            for item in self._planner.pending
            if (elastic := self._elastic(item)) is not None
            and item.key in {*bought, *decision.assigned.taken, *opened}
        ]
        totals = totals_with(totals, (elastic for item, elastic in listed if item.key in bought))
        before = started(
            (item.gang for item, _ in listed if item.gang),
            self._planner.cluster.occupancy.pods,
            self._planner.cluster.group_size,
        ) + Counter(item.gang for item, _ in listed if item.key in bought)
        waiting = [(item, elastic) for item, elastic in listed if item.key not in bought]
        in_turn = sorted(waiting, key=lambda pair: _turn(*pair))
        refused: dict[str, str] = {}
        for unit in units(in_turn, lambda pair: pair[0].gang):
            reasons, after = _counted(unit, totals)
            needed = needed_of(unit[0][0], len(unit), before)
            if len(unit) - len(reasons) >= needed:
                refused, totals = refused | reasons, after
            else:
                text = next(iter(reasons.values()))
                refused |= {item.key: reasons.get(item.key, text) for item, _ in unit}
        return refused

    def _elastic(self, item: PendingPod) -> ElasticPod | None:
        """The pod as it counts; None if its scheduler applies no quota."""
        pod: Pod | None = self._pods.get(item.key)
        if pod is None or pod.spec.scheduler_name not in self._rules.served:
            return None
        elastic = self._rules.reading.read(pod)
        return elastic.with_gpus_of(self._smallest_gpu) if self._smallest_gpu else elastic


def _bought(
    claims: Iterable[NodeClaim], decision: ProvisioningDecision, planner: ProvisioningPlanner
) -> set[str]:
    """The pods with a claim in flight that EC2 does not refuse."""
    return decision.assigned.nominated.keys() - pods_refused(claims, planner.now)


def _turn(item: PendingPod, elastic: ElasticPod) -> tuple[object, ...]:
    return -item.priority, elastic.created, item.key


def _counted(
    unit: Iterable[tuple[PendingPod, ElasticPod]], totals: ElasticTotals
) -> tuple[dict[str, str], ElasticTotals]:
    """The reason of each pod that is refused after those before it, and the totals with the others."""
    reasons: dict[str, str] = {}
    for item, elastic in unit:
        if refusal := rejection(totals, elastic):
            reasons[item.key] = f"beside the pods that come before it, {refusal}"
        else:
            totals = totals_with(totals, (elastic,))
    return reasons, totals
