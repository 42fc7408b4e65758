"""Assigns orphans, instances of this cluster without a claim, to waiting claims.

Invariant: an orphan goes to a claim of the class that it was launched for. It satisfies the claim's
requirements and requests as it runs (place, reservation, purchase). As many orphans as possible are adopted.
Earlier claims are served first, each with the smallest orphan that fits. An orphan that is left over fits no
waiting claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from broker.apis.names import RESERVATION_ID
from broker.capacity.demand import order, units
from broker.capacity.flow import Flow
from broker.capacity.model import Claim, NodeClass
from broker.capacity.options import capacity_types, tenancy
from broker.capacity.types import WELL_KNOWN, allocatable, lacking, node_labels, size_key
from providers.model import CapacityType, Instance, InstanceType, Odcr
from providers.names import TAG_NODECLASS


def adopt(
    orphans: Sequence[Instance],
    claims: Iterable[Claim],
    node_classes: Mapping[str, NodeClass],
    types: Mapping[str, InstanceType],
    *,
    odcrs: Mapping[str, Odcr] | None = None,
    guard: Callable[[Claim], AbstractContextManager[object]] = nullcontext,
) -> list[tuple[Claim, Instance]]:
    """Pairs in the order of the claims; one that fails inside its `guard` adopts nothing.

    An orphan that EC2 does not describe yet is left over, since its reservation is unknown. A gang
    adopts for all of its claims or for none.
    """
    waiting = sorted(claims, key=order)
    known = {
        orphan.id: orphan
        for orphan in orphans
        if orphan.alive and orphan.described and orphan.instance_type in types
    }
    ranked = sorted(known.values(), key=lambda orphan: (size_key(types[orphan.instance_type]), orphan.id))
    edges: dict[str, tuple[str, ...]] = dict.fromkeys((claim.uid for claim in waiting), ())
    for claim in waiting:
        with guard(claim):
            edges[claim.uid] = tuple(
                orphan.id
                for orphan in ranked
                if satisfies(orphan, claim, node_classes, types, odcrs=odcrs or {})
            )
    flow: Flow[str, str] = Flow(edges, dict.fromkeys(known, 1))
    taken: list[Claim] = []
    for unit in units(waiting, lambda claim: claim.gang):
        if flow.add_all(claim.uid for claim in unit):
            taken += unit
    return [(claim, known[next(iter(flow.taken(claim.uid)))]) for claim in taken]


def satisfies(
    instance: Instance,
    claim: Claim,
    node_classes: Mapping[str, NodeClass],
    types: Mapping[str, InstanceType],
    *,
    odcrs: Mapping[str, Odcr],
) -> bool:
    """Whether the instance, as it runs, satisfies the claim."""
    node_class = node_classes.get(claim.node_class)
    type_ = types.get(instance.instance_type)
    if node_class is None or type_ is None or instance.tags.get(TAG_NODECLASS) != claim.node_class:
        return False
    if capacity_type(instance) not in capacity_types(claim.requirements):
        return False  # a claim without this requirement takes no spot
    if instance.tenancy != (tenancy(claim.requirements) or node_class.tenancy):
        return False
    labels = node_labels(
        type_,
        instance.zone,
        zone_id=instance.zone_id,
        capacity_type=capacity_type(instance),
        odcr=odcrs.get(instance.reservation_id) if instance.reservation_id else None,
        tenancy=instance.tenancy,
    )
    if instance.reservation_id:
        labels[RESERVATION_ID] = instance.reservation_id
    return not claim.requirements.unmet(labels, among=WELL_KNOWN) and not lacking(
        claim.requests, allocatable(type_, node_class)
    )


def capacity_type(instance: Instance) -> CapacityType:
    """How EC2 counts the instance."""
    if instance.reservation_id:
        return "reserved"
    return "spot" if instance.lifecycle == "spot" else "on-demand"
