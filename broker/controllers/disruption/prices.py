"""What the nodes of one pass cost, by the provider's prices, and what it costs their pods to move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from broker.apis import names
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.controllers.disruption.sources import DisruptionSources
from broker.placement.consolidation import NodeValue, PoolTotals
from broker.placement.disruption_cost import disruption_of
from broker.placement.node_prices import labelled_product
from providers.model import InstanceType
from providers.prices import usd_hour

BALANCED: Final = "Balanced"
MOVABLE: Final = ("on-demand", "spot")


@dataclass(frozen=True, kw_only=True)
class NodeValues:
    """The nodes of a pass by value; each is priced once."""

    sources: DisruptionSources
    types: Mapping[str, InstanceType]
    snapshot: DisruptionSnapshot

    @cached_property
    def by_uid(self) -> Mapping[str, NodeValue]:
        return {node.claim.uid: self._value(node) for node in self.snapshot.nodes if node.node is not None}

    @cached_property
    def totals(self) -> PoolTotals:
        return PoolTotals.of(self.by_uid.values())

    def of(self, nodes: Iterable[ManagedNode]) -> list[NodeValue]:
        return [self.by_uid[node.claim.uid] for node in nodes]

    def rejection(self, nodes: Iterable[ManagedNode]) -> str:
        """Why the policy of their pools forbids to end these nodes for their whole price; empty if not."""
        return self.totals.rejection(self.of(nodes))

    def _value(self, node: ManagedNode) -> NodeValue:
        labels = node.claim.labels
        return NodeValue(
            uid=node.claim.uid,
            pool=node.pool.name,
            instance_type=labels.get(names.INSTANCE_TYPE, ""),
            capacity_type=labels.get(names.CAPACITY_TYPE, ""),
            price=self._price(node),
            disruption=disruption_of(node.moving),
            balanced=node.pool.spec.disruption.consolidation_policy == BALANCED,
        )

    def _price(self, node: ManagedNode) -> float:
        """Dollars an hour of the node's instance now; 0 if unknown, or in a reservation.

        The slot is paid for in any case.
        """
        labels = node.claim.labels
        kind = labels.get(names.CAPACITY_TYPE, "")
        ready = self.sources.launch_class(node.pool.spec.template.spec.node_class_ref.name)
        product = labelled_product(labels)
        if kind not in MOVABLE or product is None or ready is None:
            return 0.0
        platform = next(
            (image.platform for image in ready.plan.images if image.id == node.claim.status.image_id),
            product.platform,
        )
        product = replace(product, platform=platform)
        known, type_ = usd_hour(self.types, product), self.types.get(product.instance_type)
        if known is None and not product.spot and type_ is not None:
            known = type_.price(platform, product.tenancy)  # a Local Zone's is not read: the Region's decides
        return known or 0.0
