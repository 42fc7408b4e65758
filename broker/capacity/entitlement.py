"""Who may take the slots of EC2 reservations that belong to somebody.

Invariant: a slot that belongs to a CapacityReservation goes to claims that draw from it, up to its quota;
then to claims of others in its cohort, as far as they may borrow and it lends; and to nobody else. What
belongs to no CapacityReservation is anybody's. Nothing is decided here: the rooms are worked out from the
quota tree, and a plan keeps to them. The rules are Kueue's (ClusterQueue: nominalQuota, borrowingLimit,
lendingLimit), counted in instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

Reclaim = Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority", "Any"]
Right = Literal["free", "own", "lent"]

RESERVED_FOR_OTHERS: Final = "ReservedForOthers"
QUOTA_REACHED: Final = "QuotaReached"
BORROWING_LIMIT: Final = "BorrowingLimitReached"
LENDING_LIMIT: Final = "LendingLimitReached"
RECLAIMING: Final = "ReclaimingSlots"
# The queue of claims that may take no slot now, whatever they draw from: no reservation has this name.
KEPT: Final = "?"
WHY_KEPT: Final = "the quota that it would use is kept for a dedicated cluster that others leave for"


class SlotPool(NamedTuple):
    """The slots of one flavor that one reservation owns. `owner` is the name of its queue."""

    owner: str
    flavor: str


class Borrower(NamedTuple):
    """Whoever holds a slot of a lot and could give it back, and the queue that it draws from. `coming`: it is
    on its way out already, `leaves_for` which claim (by name) if that is known. Without `odcr_id` it is
    promised one of any."""

    odcr_id: str
    priority: int
    coming: bool = False
    queue: str = ""
    leaves_for: str = ""


class SlotPreemption(NamedTuple):
    """Whom of lower priority claims of a queue may have leave: `within` their own, and, where they borrow,
    `lower` others that do, up to the threshold."""

    within: bool = False
    lower: bool = False
    threshold: int | None = None


NO_PREEMPTION: Final = SlotPreemption()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAvailability:
    """How many more slots of a lot may be taken.

    `quota`: by its owner, were nothing lent; `room`: by all together; `lendable`: of those by others. These
    two are negative where more is held or promised than there is: nobody's leaving alone helps then.
    `borrowers` hold slots that others may have, those first that give theirs back first.
    """

    quota: int = 0
    room: int = 0
    lendable: int = 0
    reclaim: Reclaim = "Never"
    borrowers: tuple[Borrower, ...] = ()


_NONE: Final = SlotAvailability()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entitlements:
    """`lots` of EC2 reservations by id.

    `draws` tells the queue of each claim (by uid) that draws from one. `borrow`: by a queue and a flavor, how
    many more slots of others it may take. `peers` are those that it may borrow from. `names` are those that
    people write; `barred` says of a queue why it is entitled to nothing; `rules` whom its claims preempt.
    `held` are claims (by uid) for which quota is held already; `nominated` those that others were told to
    leave for, and the lot where, as far as that is known: they come before all others.
    """

    lots: Mapping[str, SlotPool] = field(default_factory=dict)
    terms: Mapping[SlotPool, SlotAvailability] = field(default_factory=dict)
    draws: Mapping[str, str] = field(default_factory=dict)
    borrow: Mapping[SlotPool, int] = field(default_factory=dict)
    peers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    barred: Mapping[str, str] = field(default_factory=dict)
    rules: Mapping[str, SlotPreemption] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    nominated: Mapping[str, SlotPool | None] = field(default_factory=dict)

    @property
    def owned(self) -> bool:
        """Whether anything belongs to anybody, or is kept."""
        return bool(self.lots or KEPT in self.barred)

    def of(self, lot: SlotPool) -> SlotAvailability:
        return self.terms.get(lot, _NONE)

    def right(self, queue: str, odcr_id: str) -> Right | None:
        """As what a claim of this queue (empty: of none) may have a slot of the reservation at all."""
        lot = self.lots.get(odcr_id)
        if lot is None:
            return None if queue == KEPT else "free"
        if not queue or queue in self.barred or not lot.flavor:
            return None
        if lot.owner == queue:
            return "own"
        return "lent" if lot.owner in self.peers.get(queue, ()) else None

    def why_not(self, queue: str, odcr_id: str) -> str:
        """Why a claim of this queue may not have a slot of the reservation."""
        if (lot := self.lots.get(odcr_id)) is None:
            return f"the claim waits: {self.barred[queue]}"
        whose = f"reservation {odcr_id} belongs to {self.name(lot.owner)}"
        if not queue:
            return f"{whose}, and the claim draws from no reservation"
        if queue == KEPT:
            return f"{whose}; {self.barred[queue]}"
        draws = f"the claim draws from {self.name(queue)}"
        if queue in self.barred:
            return f"{whose}; {draws}: {self.barred[queue]}"
        if not lot.flavor:
            return f"{whose} and fits none of its flavors"
        if queue not in self.peers:
            return f"{whose}; {draws}, which may not borrow"
        return f"{whose}; {draws}, which is not in its cohort"

    def limit(self, queue: str, lot: SlotPool) -> tuple[str, str] | None:
        """The reason and the sentence where a claim of this queue may have no more slots of a lot now."""
        terms = self.of(lot)
        slots = f"slots of flavor {lot.flavor}"
        if lot.owner == queue:
            if terms.quota <= 0:
                return QUOTA_REACHED, f"{self.name(queue)} has no quota left for {slots}"
            return None
        if self.borrow.get(SlotPool(queue, lot.flavor), 0) <= 0:
            return BORROWING_LIMIT, f"{self.name(queue)} may borrow no more {slots}"
        if terms.lendable <= 0 and terms.room > 0:
            return LENDING_LIMIT, f"{self.name(lot.owner)} lends no more {slots}"
        if terms.room <= 0:
            return QUOTA_REACHED, f"all {slots} that {self.name(lot.owner)} has quota for are taken"
        return None

    def rule(self, uid: str) -> SlotPreemption:
        """What claims of the claim's reservation may preempt."""
        return self.rules.get(self.draws.get(uid, ""), NO_PREEMPTION)

    def name(self, queue: str) -> str:
        """As people write it."""
        return self.names.get(queue, queue)


NO_ENTITLEMENTS: Final = Entitlements()


@dataclass(frozen=True, slots=True, kw_only=True)
class NominatedSlot:
    """A slot that a claim waits to have: it may be of any of these reservations of a lot. `queue`: that it
    draws from, the owner's own or another's."""

    lot: SlotPool
    odcr_ids: tuple[str, ...]
    queue: str
