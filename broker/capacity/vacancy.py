"""Slots that become free after the launch of a successor outside, which EC2 then counts there.

See `absorption` for where EC2 can count an instance later.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from broker.capacity.absorption import ClosedPlaces, Place, lets_absorb, place_of, takes
from broker.capacity.class_catalog import ClassCatalog, image_for
from broker.capacity.model import Claim, NodeClass, Option, Pool
from broker.capacity.options import any_reservation
from broker.capacity.requirements import Requirements
from broker.capacity.supply import LaunchSupply


def absorbable(
    pool: Pool, requirements: Requirements, node_class: NodeClass, closed: Collection[Place]
) -> bool:
    """Whether EC2 may count an instance of this pool, which is outside reservations, in one later."""
    place = (pool.instance_type, pool.zone)
    return (
        pool.capacity_type == "on-demand"
        and place not in closed
        and any_reservation(requirements)
        and lets_absorb(node_class, place)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacancy:
    """A slot that becomes free after the launch of a successor, which has it then if EC2 counts it there."""

    odcr_id: str
    closed: ClosedPlaces
    supply: LaunchSupply

    def takes(self, option: Option, claim: Claim, known: ClassCatalog) -> bool:
        """Whether an instance of the option, launched for the claim, is one that EC2 counts in the slot."""
        node_class, odcr = known.node_class, self.supply.inventory.odcrs.get(self.odcr_id)
        pool = option.pool
        if odcr is None or place_of(odcr) != (pool.instance_type, pool.zone) or not takes(node_class, odcr):
            return False
        if all(usable.id != odcr.id for usable in node_class.resolved.usable):
            return False
        image = image_for(node_class, self.supply.types[pool.instance_type])
        closed = self.closed.of(node_class, self.supply.entitlements.draws.get(claim.uid, ""))
        alike = image is not None and image.platform == odcr.platform
        return alike and absorbable(pool, claim.requirements, node_class, closed)
