"""Values and pure steps of the slot snapshot.

Invariant: a slot is usable only in an ODCR that can be launched into, and unattributed slots are not usable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.entitlement import (
    NominatedSlot,
    SlotPool,
)
from broker.capacity.matching import launchable
from broker.capacity.model import Inventory
from broker.controllers.dedicatedaicluster.admission import ClusterAdmission
from broker.controllers.preemption.terms import ReservationSlots
from broker.quota.joint import SlotState
from broker.quota.slot_model import SlotHolder
from broker.reservations.ownership import Ownership


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Decisions that the caches may not show yet.

    `planned`: EC2 reservations of planned launches, by uid of the claim. `admitted` and `later`: admissions
    and nominations of clusters, by uid. `leave`: clusters and claims to evict, by name; `left`: deleted
    claims, by uid. `leaves_for`: the claim or cluster that each victim leaves for, by name as in
    `broker.quota.joint`. `awaited`: the slots that claims (by uid) wait for since the last plan. `kept`: the
    EC2 reservation of each claim (by uid) that keeps a slot while its gang waits.
    """

    planned: Mapping[str, str] = field(default_factory=dict)
    admitted: Mapping[str, ClusterAdmission] = field(default_factory=dict)
    later: Mapping[str, ClusterAdmission] = field(default_factory=dict)
    leave: Collection[str] = ()
    left: Collection[str] = ()
    leaves_for: Mapping[str, str] = field(default_factory=dict)
    awaited: Mapping[str, NominatedSlot] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SlotSnapshot:
    """One snapshot. `coming`: slots that are being freed, by EC2 reservation. `holding`: the dedicated
    clusters that hold quota.
    """

    places: SlotState
    said: Sequence[ReservationSlots]
    lots: Mapping[str, SlotPool]
    holdings: Ownership
    coming: Mapping[str, int]
    holding: Collection[str]


def without_ended(holders: Iterable[SlotHolder], inventory: Inventory) -> list[SlotHolder]:
    """The holders, without terminating ones in slots that EC2 counts as free: their claims end soon."""
    held = list(holders)
    over = Counter(each.odcr_id for each in held)
    for odcr_id in over:
        odcr = inventory.odcrs.get(odcr_id)
        over[odcr_id] += inventory.free(odcr_id) - odcr.total if odcr is not None else 0
    kept = []
    for each in held:
        if each.terminating and over[each.odcr_id] > 0:
            over[each.odcr_id] -= 1
        else:
            kept.append(each)
    return kept


def held_odcr(claim: NodeClaim) -> str:
    """The EC2 reservation that the claim's instance runs in."""
    return claim.labels.get(names.RESERVATION_ID, "") if claim.status.provider_id else ""


def usable_slots(
    lots: Mapping[str, SlotPool], inventory: Inventory, strange: Mapping[str, int], now: datetime
) -> dict[SlotPool, dict[str, int]]:
    """The slots of each lot by reservation, without unattributed slots and reservations that cannot be
    launched into.
    """
    found: dict[SlotPool, dict[str, int]] = {}
    for odcr_id, lot in lots.items():
        odcr = inventory.odcrs.get(odcr_id)
        if odcr is not None and launchable(odcr, now):
            found.setdefault(lot, {})[odcr_id] = max(0, odcr.total - strange.get(odcr_id, 0))
    return found
