"""Gives slots to the successors of nodes that ended for them, before all other claims.

Why: where a reservation is full, a node is replaced by ending it first. Without a hold any claim that waits
could take the slot, and the pods of the node would have none.

Invariant: successors whose old instance is gone come first, so that none takes the slot of another. Until its
hold ends, only the successor launches into the slot, and it launches nowhere else. The successors of a gang
launch together, and their holds end together, with the last. A slot that is borrowed is held only while no
claim of its owner waits for one, and EC2 does not take it back for the owner of an interruptible reservation:
an owner may have its slots back. One that EC2 shows taken by others is not held: an instance that it
absorbed, or one of another cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from broker.apis.names import RESERVATION_ID, ZONE
from broker.capacity.class_catalog import named
from broker.capacity.demand import units
from broker.capacity.domains import LaunchedGangs
from broker.capacity.inventory import Inventory
from broker.capacity.model import Assignment, Claim, Unplaced
from broker.capacity.option_catalog import OptionCatalog
from broker.capacity.supply import LaunchSupply
from broker.text import format_time
from providers.errors import ErrorClass

AWAITS_REPLACED: Final = "AwaitsReplaced"
# After the old instance is gone: how long its slot is kept, and when EC2's count shows whether it is free.
HOLD: Final = timedelta(minutes=10)
COUNTED: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Succession:
    """`others`: the claims that hold no slot. `supply`: of all claims. `slots`: the free slot of each
    successor (by uid).

    `held`: the claims with holds, also of slots that their nodes have not left yet.
    """

    others: Sequence[Claim]
    supply: LaunchSupply
    assignments: tuple[Assignment, ...] = ()
    unplaced: Mapping[str, Unplaced] = field(default_factory=dict)
    slots: Mapping[str, str] = field(default_factory=dict)
    held: Sequence[Claim] = ()

    @property
    def odcr_ids(self) -> frozenset[str]:
        """The reservations with holds."""
        return frozenset(claim.slot for claim in self.held)

    def beside(self, launched: LaunchedGangs, inventory: Inventory) -> LaunchedGangs:
        """The launched claims of each gang, and those that have a slot by name."""
        gangs = {gang: [*labels] for gang, labels in launched.items()}
        for claim in self.held:
            if claim.gang:
                labels = {ZONE: inventory.odcrs[claim.slot].zone, RESERVATION_ID: claim.slot}
                gangs.setdefault(claim.gang, []).append(labels)
        return gangs

    @property
    def rest(self) -> LaunchSupply:
        """The supply without the slots of successors."""
        supply = self.supply
        if not self.slots:
            return supply
        draws = supply.entitlements.draws
        taken = [(draws.get(uid, ""), odcr_id) for uid, odcr_id in self.slots.items()]
        return replace(
            supply,
            inventory=supply.inventory.taken(Counter(self.slots.values())),
            entitlements=supply.entitlements.after(taken),
        )


def succeed(claims: Sequence[Claim], supply: LaunchSupply) -> Succession:
    """The successors among the claims with the slots that they get now."""
    if not any(claim.slot for claim in claims):
        return Succession(others=claims, supply=supply)
    supply = _deciding(claims, supply)
    catalog, lent = OptionCatalog(supply), supply
    # Until EC2's count shows that a node has left its slot, the node still counts as a borrower.
    left = _slots_of((claim for claim in claims if claim.slot_until is not None), supply.inventory)
    held_units: list[list[Claim]] = []
    single_first = sorted(
        units((claim for claim in claims if claim.slot), lambda claim: claim.gang),
        key=lambda unit: bool(unit[0].gang),
    )
    for unit in single_first:
        if over((claim.slot_until for claim in unit), supply.now):
            continue
        if all(_may_launch(claim, claims, catalog, lent, left=claim.uid in left) for claim in unit):
            held_units.append(unit)
            again = [(_queue(claim, supply), claim.slot) for claim in unit if claim.uid in left]
            lent = replace(lent, entitlements=lent.entitlements.after(again))
    holding = [claim for unit in held_units for claim in unit]
    slots = _slots_of(holding, supply.inventory)
    assignments: list[Assignment] = []
    unplaced: dict[str, Unplaced] = {}
    for unit in held_units:
        refused = [item for claim in unit if claim.uid in slots and (item := _refused(claim, catalog))]
        if refused:
            unplaced |= {claim.uid: replace(refused[0], claim=claim) for claim in unit}
        elif all(claim.uid in slots for claim in unit):
            for claim in unit:
                option = named(supply.inventory.odcrs[claim.slot], catalog.known(claim))
                assignments.append(Assignment(claim=claim, option=option))
        elif not any(_taken(claim, supply.now) for claim in unit if claim.uid not in slots):
            unplaced |= {claim.uid: _waits(claim, claim.uid in slots) for claim in unit}
    held = {*unplaced, *(assignment.claim.uid for assignment in assignments)}
    return Succession(
        others=[claim for claim in claims if claim.uid not in held],
        supply=supply,
        assignments=tuple(assignments),
        unplaced=unplaced,
        slots={uid: slot for uid, slot in slots.items() if uid in held},
        held=tuple(claim for claim in holding if claim.uid in held),
    )


def _deciding(claims: Iterable[Claim], supply: LaunchSupply) -> LaunchSupply:
    """The supply for a plan that decides itself about the slots that are kept for these claims.

    A claim whose class cannot launch now keeps its slot.
    """
    decided = {claim.uid for claim in claims if claim.node_class in supply.classes}
    kept = {uid: slot for uid, slot in supply.inventory.kept.items() if uid not in decided}
    return replace(supply, inventory=replace(supply.inventory, kept=kept))


def _slots_of(holding: Iterable[Claim], inventory: Inventory) -> dict[str, str]:
    """The slots that are free for successors, by uid: first for those whose node has left its own.

    Such a slot was not left to another launcher, whose node may not even have ended.
    """
    slots: dict[str, str] = {}
    taken: Counter[str] = Counter()
    for claim in sorted(holding, key=lambda claim: claim.slot_until is None):
        bound = claim.slot_until is not None
        room = inventory.unused(claim.slot) if bound else inventory.free(claim.slot)
        if taken[claim.slot] < room:
            taken[claim.slot] += 1
            slots[claim.uid] = claim.slot
    return slots


def owner_waits(odcr_id: str, claims: Iterable[Claim], catalog: OptionCatalog, supply: LaunchSupply) -> str:
    """The name of a claim of the reservation's owner, within its quota, that waits for a slot of it, where no
    other of its slots is free; empty without one.
    """
    entitlements, free = supply.entitlements, supply.inventory.free
    for claim in claims:
        if claim.node_class not in supply.classes:
            continue
        own = catalog.candidates(claim).own
        if claim.slot or odcr_id not in own or any(free(other) for other in own if other != odcr_id):
            continue
        if entitlements.limit(_queue(claim, supply), entitlements.slot_pools[odcr_id]) is None:
            return claim.name
    return ""


def _may_launch(
    claim: Claim, claims: Iterable[Claim], catalog: OptionCatalog, supply: LaunchSupply, *, left: bool
) -> bool:
    """Whether the slot is one that the claim may launch into: of a lent one, whether it still may borrow.

    `left`: the slot is free, so that its node is no borrower any more.
    """
    if claim.node_class not in supply.classes:
        return False
    queue, entitlements = _queue(claim, supply), supply.entitlements
    right = entitlements.right(queue, claim.slot)
    if right == "lent":
        full = left and entitlements.limit(queue, entitlements.slot_pools[claim.slot]) is not None
        if full or owner_waits(claim.slot, claims, catalog, supply):
            return False
    options = catalog.candidates(claim).options
    if right is None or not any(claim.slot in option.odcr_ids for option in options):
        return False
    refusal = catalog.refusal(claim, claim.slot) if supply.inventory.odcrs[claim.slot].interruptible else None
    return refusal is None or refusal[0].class_ is not ErrorClass.RESERVATION_GONE


def _queue(claim: Claim, supply: LaunchSupply) -> str:
    return supply.entitlements.draws.get(claim.uid, "")


def over(ends: Iterable[datetime | None], now: datetime) -> bool:
    """Whether the hold of a unit has ended: with that of its last node. None: a node has not left yet."""
    return all(end is not None and end <= now for end in ends)


def _refused(claim: Claim, catalog: OptionCatalog) -> Unplaced | None:
    """Why EC2 is not asked for the slot of a claim now: it refused that lately. The slot stays kept."""
    refusal = catalog.refusal(claim, claim.slot)
    if refusal is None:
        return None
    refused, until = refusal
    message = f"its slot of {claim.slot} is kept for it, and {refused.message}"
    return Unplaced(claim=claim, reason=refused.reason, message=message, retry_at=until)


def _taken(claim: Claim, now: datetime) -> bool:
    """Whether a slot that is not free was taken by others, and is not still that of the old node."""
    return claim.slot_until is not None and now >= _counted(claim.slot_until)


def _counted(until: datetime) -> datetime:
    return until - HOLD + COUNTED


def _waits(claim: Claim, free: bool) -> Unplaced:
    state = "is free, and others of its gang wait for theirs" if free else "has not left it yet"
    until = f"; the slot is kept for it until {format_time(claim.slot_until)}" if claim.slot_until else ""
    message = f"it takes over a slot of {claim.slot}; the node that it replaces {state}{until}"
    if free:
        message = f"its slot of {claim.slot} {state}{until}"
    retry_at = _counted(claim.slot_until) if claim.slot_until and not free else claim.slot_until
    return Unplaced(claim=claim, reason=AWAITS_REPLACED, message=message, retry_at=retry_at)
