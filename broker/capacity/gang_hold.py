"""Holds free slots for a gang that outranks the claims which would take them, for a bounded time.

Invariant: a slot is held only while the gang's window is open, against claims of lower priority, and not
beyond the number of slots that the gang needs. The window begins when the first waiting claim of the gang
was made, or the claims before it that gave way. So it survives a restart, and neither a claim that joins the
gang later nor a new set of claims renews it. Of several gangs,
the one that comes first holds first; the others hold the rest. So two gangs never hold parts of the slots
that one of them could launch with. A gang that the reservations could not serve even if they were empty holds
nothing.

A slot that the gang's reservation can have back is lent meanwhile: to borrowers if the owner reclaims, and to
claims of its own queue if that preempts within itself (see `entitlement`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from broker.capacity.allocation import matched
from broker.capacity.entitlement import Entitlements
from broker.capacity.flow import Flow
from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim, GangHold, NodeClass
from broker.capacity.option_catalog import CandidateOptions
from broker.quota.model import Preemption


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingGang:
    """A gang that may hold slots until a time: the usable reservations of each claim that needs one."""

    name: str
    until: datetime
    priority: int
    created: datetime
    slots: Mapping[str, tuple[str, ...]]  # by claim (uid)


def open_windows(
    gangs: Mapping[str, Sequence[Claim]], node_classes: Mapping[str, NodeClass], now: datetime
) -> dict[str, datetime]:
    """The end of each gang's window, if that is open."""
    ends: dict[str, datetime] = {}
    for name, gang in gangs.items():
        node_class = node_classes.get(gang[0].node_class)
        if node_class is None or not node_class.defaults.gang_hold_seconds:
            continue
        begun = [claim.since or claim.created for claim in gang if claim.created is not None]
        if len(begun) == len(gang):
            until = min(filter(None, begun)) + timedelta(seconds=node_class.defaults.gang_hold_seconds)
            if until > now:
                ends[name] = until
    return ends


def holding(
    gang: Sequence[Claim],
    until: datetime,
    candidates: Mapping[str, CandidateOptions],
    inventory: Inventory,
) -> HoldingGang | None:
    """The gang as a holder of slots; None if there are too few slots for it, free or not."""
    if any(claim.uid not in candidates for claim in gang):
        return None
    must = [claim for claim in gang if not candidates[claim.uid].unreserved]
    reach = {
        claim.uid: tuple(
            odcr_id
            for option in candidates[claim.uid].options
            if option.pool.reserved
            for odcr_id in option.odcr_ids
        )
        for claim in must
    }
    total = {
        odcr_id: odcr.total
        for odcr_id in {id_ for ids in reach.values() for id_ in ids}
        if (odcr := inventory.odcrs.get(odcr_id)) is not None and not odcr.unlaunchable
    }
    flow: Flow[str, str] = Flow(
        {uid: tuple(id_ for id_ in ids if id_ in total) for uid, ids in reach.items()}, total
    )
    if not must or not all(flow.add(claim.uid) for claim in must):
        return None
    return HoldingGang(
        name=gang[0].gang,
        until=until,
        priority=max(claim.priority for claim in gang),
        created=min(claim.created for claim in gang if claim.created is not None),
        slots={claim.uid: tuple(candidates[claim.uid].slots) for claim in must},
    )


def first_come(gangs: Iterable[HoldingGang]) -> list[HoldingGang]:
    """The gangs in the order in which they hold slots."""
    return sorted(gangs, key=lambda gang: (-gang.priority, gang.created, gang.name))


def held_for(
    gang: HoldingGang,
    room: Inventory,
    entitlements: Entitlements,
    *,
    lendable: Callable[[str, str], bool],
) -> Mapping[str, str]:
    """The free slots that the gang holds: the reservation of each claim that has one.

    `lendable`: whether a claim (by uid) can have a slot of a reservation back, so that it needs no hold.
    """
    edges = {uid: tuple(id_ for id_ in ids if not lendable(uid, id_)) for uid, ids in gang.slots.items()}
    return matched(edges, room, entitlements)


def from_its_queue(entitlements: Entitlements) -> Callable[[str, str], bool]:
    """Whether a claim can have a slot back from other claims of its queue."""
    return _lendable(entitlements, lambda rule: rule.within)


def from_borrowers(entitlements: Entitlements) -> Callable[[str, str], bool]:
    """Whether a claim can have a slot back from borrowers of lower priority."""
    return _lendable(entitlements, lambda rule: rule.reclaim)


def _lendable(entitlements: Entitlements, policy: Callable[[Preemption], str]) -> Callable[[str, str], bool]:
    def lendable(uid: str, odcr_id: str) -> bool:
        slot_pool = entitlements.slot_pools.get(odcr_id)
        own = slot_pool is not None and slot_pool.owner == entitlements.draws.get(uid)
        return own and policy(entitlements.rule(uid)) != "Never"

    return lendable


def merged(gang: HoldingGang, *held: Iterable[str]) -> GangHold:
    """The hold of a gang: of the parts that hold it against different claims, the larger of each."""
    slots: Counter[str] = Counter()
    for part in held:
        slots |= Counter(part)
    return GangHold(
        gang=gang.name, until=gang.until, priority=gang.priority, needs=len(gang.slots), slots=dict(slots)
    )
