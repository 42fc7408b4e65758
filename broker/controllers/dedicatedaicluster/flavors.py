"""The reservations and flavors that quota is decided by.

Invariant: quota is counted against the same specs that reservations are judged by everywhere. A reservation
that a ResourceQuota refuses gives as little as one with an invalid spec. One that is deleted gives nothing
new, though what it gave counts until it is given back.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.apis import names
from broker.apis.kueue import ResourceFlavor, ResourceFlavorSpec
from broker.apis.meta import ObjectMeta
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation, ReservationSpec
from broker.controllers.ome.reads import OmeReads
from broker.controllers.ome.room import NamespaceQuota
from broker.quota import flavors
from broker.quota.usage import Reserved

Reservation = CapacityReservation | ClusterCapacityReservation


def reservations(reads: OmeReads) -> Mapping[Reserved, Reservation]:
    """All there are."""
    both: tuple[Reservation, ...] = (
        *reads.reservations.cache.list(),
        *reads.cluster_reservations.cache.list(),
    )
    return {Reserved(one.namespace, one.name): one for one in both}


def judged(reads: OmeReads) -> tuple[Mapping[Reserved, ReservationSpec], Mapping[Reserved, str]]:
    """The specs that were judged without problems, and why others, or more, is not to be had."""
    specs: dict[Reserved, ReservationSpec] = {}
    barred: dict[Reserved, str] = {}
    refusals = NamespaceQuota(reads).refusals()
    for reserved, one in reservations(reads).items():
        found = reads.specs.of(one)
        if problems := (*found.problems, *refusals.get(reserved, ())):
            barred[reserved] = "; ".join(problems)
            continue
        specs[reserved] = found.spec
        if one.deleting:
            barred[reserved] = "it is deleted"
    return specs, barred


def flavors_of(reads: OmeReads, specs: Mapping[Reserved, ReservationSpec]) -> Mapping[str, ResourceFlavor]:
    """By name. Where Kueue is not installed, a flavor of an instance type's name means that type."""
    if not reads.flavors.missing:
        return {one.name: one for one in reads.flavors.cache.list()}
    named = {
        flavor.name for spec in specs.values() for group in spec.resource_groups for flavor in group.flavors
    }
    return {
        name: ResourceFlavor(
            metadata=ObjectMeta(name=name), spec=ResourceFlavorSpec(node_labels={names.INSTANCE_TYPE: name})
        )
        for name in named
    }


def rule(one: ResourceFlavor) -> flavors.Flavor:
    """A flavor as quota is assigned by it."""
    return flavors.Flavor(
        name=one.name,
        labels=one.spec.node_labels,
        taints=tuple(
            flavors.FlavorTaint(key=each.key, value=each.value, effect=each.effect)
            for each in one.spec.node_taints
        ),
        tolerations=tuple(
            flavors.FlavorToleration(
                key=each.key, operator=each.operator, value=each.value, effect=each.effect
            )
            for each in one.spec.tolerations
        ),
    )
