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
    """What was decided and may not be seen yet: launches planned (EC2 reservation by uid of the claim), what
    clusters (by uid) were admitted to and are nominated for (`later`), which of them (by name) must leave,
    and which claims (by uid); `leaves_for`: for which claim or cluster each was told to leave, by name, as in
    `broker.quota.joint`; `awaited`: which slots claims (by uid) wait to have, as of the last plan, and
    `kept`: the EC2 reservation of those that keep a slot while their gang waits."""

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
    """One look. `coming`: by EC2 reservation, how many slots come free in a moment. `holding`: the dedicated
    clusters that hold quota."""

    places: SlotState
    said: Sequence[ReservationSlots]
    lots: Mapping[str, SlotPool]
    holdings: Ownership
    coming: Mapping[str, int]
    holding: Collection[str]


def without_ended(holders: Iterable[SlotHolder], inventory: Inventory) -> list[SlotHolder]:
    """Without those who leave and whose slot EC2 counts as free already: their claims go in a moment."""
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
    """The EC2 reservation that its instance runs in."""
    return claim.labels.get(names.RESERVATION_ID, "") if claim.status.provider_id else ""


def usable_slots(
    lots: Mapping[str, SlotPool], inventory: Inventory, strange: Mapping[str, int], now: datetime
) -> dict[SlotPool, dict[str, int]]:
    """The slots of each lot by reservation, without those that cannot be launched into or are strangers'."""
    found: dict[SlotPool, dict[str, int]] = {}
    for odcr_id, lot in lots.items():
        odcr = inventory.odcrs.get(odcr_id)
        if odcr is not None and launchable(odcr, now):
            found.setdefault(lot, {})[odcr_id] = max(0, odcr.total - strange.get(odcr_id, 0))
    return found
