"""Quota held by claims that draw from a reservation and belong to no dedicated cluster.

Invariant: a claim counts once it has an instance, with its share of the quota. The
share is its accelerators, and the flavor's other resources in proportion. The number of instances that the
quota was sized to thus uses up all of it. A claim of unknown flavor holds nothing, and neither does a claim
that fell back to on-demand. If Kueue counts quota, it counts the workloads on such claims, and the claims do
not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome import ReservationSpec
from broker.apis.units import units
from broker.capacity.types import ACCELERATORS
from broker.placement.claims import priority_of
from broker.quota.hardware import attribute
from broker.quota.model import Amounts, FlavorResource, Queue
from broker.quota.usage import ReservationHolder, ReservationKey
from broker.reservations.cluster_holders import Holders
from broker.reservations.drawing import DrawRights
from broker.reservations.queues import queue

RESERVED: Final = "reserved"  # the capacity type of an instance in an ODCR


def claim_holders(
    claims: Iterable[NodeClaim],
    specs: Mapping[ReservationKey, ReservationSpec],
    flavors: Mapping[str, ResourceFlavor],
    rights: DrawRights,
) -> Holders:
    """The holders among these claims, by reservation. Only specs without problems have holders."""
    drawing_claims = [claim for claim in claims if names.DRAWS_FROM in claim.annotations]
    if not drawing_claims:
        return {}
    queues: dict[ReservationKey, Queue] = {}
    by_reservation: dict[ReservationKey, list[ReservationHolder]] = {}
    for claim in sorted(drawing_claims, key=lambda drawing_claim: drawing_claim.name):
        if names.DEDICATED in claim.labels or not claim.status.provider_id:
            continue
        if claim.labels.get(names.CAPACITY_TYPE, RESERVED) != RESERVED:
            continue
        reserved = rights.of_claim(claim)
        if not isinstance(reserved, ReservationKey) or reserved not in specs:
            continue
        if reserved not in queues:
            queues[reserved] = queue(reserved, specs[reserved])
        own_queue = queues[reserved]
        named = sorted({flavor for group in own_queue.groups for flavor in group.flavors})
        labels = {name: flavors[name].spec.node_labels for name in named if name in flavors}
        if len(of := attribute(claim.labels, labels)) != 1:
            continue
        since = claim.metadata.creation_timestamp
        holder = ReservationHolder(
            kind="NodeClaim",
            name=claim.name,
            reserved=reserved,
            usage=share(
                own_queue, of[0], {name: units(name, text) for name, text in claim.status.capacity.items()}
            ),
            priority=priority_of(claim),
            since=since.timestamp() if since else 0.0,
        )
        by_reservation.setdefault(reserved, []).append(holder)
    return {reserved: tuple(holders) for reserved, holders in by_reservation.items()}


def share(queue: Queue, flavor: str, has: Mapping[str, int]) -> Amounts:
    """The part of a queue's quota that an instance with the resources `has` uses."""
    quota = {key.resource: limits.nominal for key, limits in queue.quotas.items() if key.flavor == flavor}
    by = next((name for name in ACCELERATORS if has.get(name) and quota.get(name)), None)
    return {
        FlavorResource(flavor, name): has[name]
        if by in (None, name)
        else min(has[name], nominal * has[by] // quota[by])
        for name, nominal in quota.items()
        if has.get(name)
    }
