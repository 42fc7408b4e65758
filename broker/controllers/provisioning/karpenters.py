"""Pods that Karpenter serves: those that one of its ready NodePools accepts.

Why: Karpenter makes a claim for every pod that its pools accept, and does not see the broker's claims. If
both made one, the pod would get two nodes. So such a pod is Karpenter's, whatever the broker's pools accept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.meta import condition
from broker.capacity.requirements import InvalidRequirement, Requirements
from broker.capacity.types import WELL_KNOWN
from broker.controllers.provisioning.pools import required_by
from broker.placement.model import NodeTaint, PodInfo
from broker.placement.reading import node_taints
from broker.placement.selectors import (
    DOES_NOT_EXIST,
    GREATER,
    LESS,
    NOT_IN,
    Selector,
    SelectorRequirement,
)
from broker.placement.taints import tolerates_all

_WITHOUT: Final = (NOT_IN, DOES_NOT_EXIST)


@dataclass(frozen=True, slots=True, kw_only=True)
class KarpenterPool:
    requirements: Requirements
    taints: tuple[NodeTaint, ...]

    def accepts(self, pod: PodInfo) -> bool:
        """Whether a node of the pool could satisfy the pod's taints, selector and required affinity."""
        if pod.named_nodes is not None or not tolerates_all(pod.tolerations, self.taints):
            return False
        if not self._allows(pod.node_selector):
            return False
        return pod.node_terms is None or any(self._allows(term.expressions) for term in pod.node_terms)

    def _allows(self, selector: Selector) -> bool:
        unknown = [
            item
            for item in selector
            if item.key not in self.requirements
            and item.key not in WELL_KNOWN
            and item.operator not in _WITHOUT
        ]
        if unknown:
            return False  # a label of the user's own exists only if the pool defines it
        try:
            selected = Requirements.of((item.key, item.operator, _values(item)) for item in selector)
        except InvalidRequirement:
            return False
        return not (self.requirements & selected).problems()


def _values(item: SelectorRequirement) -> tuple[str, ...]:
    return (str(item.bound),) if item.operator in (GREATER, LESS) else tuple(sorted(item.values))


def karpenter_pools(pools: Iterable[NodePool]) -> Sequence[KarpenterPool]:
    """Karpenter's pools that serve pods now. A pool that is not Ready serves none."""
    accepting: list[KarpenterPool] = []
    for pool in pools:
        template = pool.spec.template
        ready = condition(pool.status.conditions, names.READY)
        if (
            template.spec.node_class_ref.group != names.KARPENTER_AWS
            or pool.deleting
            or pool.spec.replicas is not None
            or ready is None
            or ready.status != "True"
        ):
            continue
        try:
            labels = {**template.metadata.labels, names.NODEPOOL: pool.name}
            requirements = required_by(pool) & Requirements.of_labels(labels)
        except InvalidRequirement:
            continue  # Karpenter rejects such a pool
        taints = node_taints(template.spec.taints)
        accepting.append(KarpenterPool(requirements=requirements, taints=taints))
    return accepting
