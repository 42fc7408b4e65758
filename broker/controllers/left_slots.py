"""Leaves slots to the launchers that freed them: other launchers replace their own nodes, too.

Why: Karpenter ends a node of a full reservation before it launches the replacement (its gates
TerminateFirstDrift and TerminateFirstRepair), and holds nothing for it. A claim of the broker would take the
slot at once, and Karpenter's pods would have no node.

The broker does the same for itself where it launched a successor beside a full reservation: EC2 is to count
that one in the slot, and nothing is launched into it for CONVERGENCE meanwhile.

Invariant: each claim of another launcher that ends to be replaced leaves at most one slot, for LEFT at most,
and until one more claim of its NodePool has an instance there. A new process finds the claims that still
end; it does not know those that were gone before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import since, true_condition
from broker.capacity.inventory import Inventory
from broker.controllers.assumed import AssumptionStore, LeftSlot
from broker.controllers.claim_status import replaces
from broker.kube.clock import StoppedClock
from broker.placement.claims import kept_slots
from broker.reservations.claims import held_slots, occupied_odcr

# For other reasons Karpenter's pods go to existing nodes, or to a new one that is there before.
REPLACING: Final = frozenset({"Drifted", "Unhealthy"})


class LeftSlots:
    """`observe` takes every change of a claim. `released`: called if a slot is left no longer."""

    def __init__(
        self,
        claims: Callable[[], Iterable[NodeClaim]],
        assumed: AssumptionStore,
        *,
        owns: Callable[[NodeClaim], bool],
        released: Callable[[], None] = lambda: None,
    ) -> None:
        self._claims, self._owns, self._assumed, self._released = claims, owns, assumed, released
        self._replaced: dict[str, str] = {}  # by uid of the replacement: the uid of the ended claim

    def observe(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        claim = new or old
        if claim is None:
            return
        if self._owns(claim):
            self._observe_own(claim, gone=new is None)
            return
        if new is None:
            self._replaced.pop(claim.uid, None)
        if _leaves(claim):
            self._leave(claim, gone=new is None)
        elif new is not None and _placed(new) and not (old is not None and _placed(old)):
            self._match(new)

    def _observe_own(self, claim: NodeClaim, *, gone: bool) -> None:
        """Leaves the slot of a node to its successor outside, until EC2 counts that one there."""
        old, slot = replaces(claim)[1], occupied_odcr(claim)
        counted = bool(slot) and claim.annotations.get(names.JOINS_SLOT) == slot
        if counted and old is not None and self._assumed.joining.forget((old,)):
            # The last description may still show the slot without it, and the old instance as ended.
            self._assumed.debits.assume(claim.instance_id, slot)
            self._released()
        ends = gone or (claim.deleting and since(claim, names.INSTANCE_TERMINATING) is not None)
        if slot and ends and any(_joins(other, claim, slot) for other in self._claims()):
            self._assumed.joining.assume(claim.uid, slot)

    def _leave(self, claim: NodeClaim, *, gone: bool) -> None:
        """Records the slot of a claim that ends, unless its replacement has an instance."""
        slot, ended = _slot(claim), since(claim, names.INSTANCE_TERMINATING)
        if claim.uid in self._replaced.values():
            return
        for other in self._claims():
            if other.uid not in self._replaced and self._replaces(other, slot, before=True):
                self._replaced[other.uid] = claim.uid
                return
        at = ended or (self._assumed.clock.now() if gone else slot.deleted)
        self._assumed.left.assume(claim.uid, slot, at=max(at, slot.deleted))

    def _match(self, claim: NodeClaim) -> None:
        """Releases the slot that was left longest, of those that the claim replaces."""
        for uid, slot in self._assumed.left.values().items():
            if claim.uid not in self._replaced and self._replaces(claim, slot, before=False):
                self._replaced[claim.uid] = uid
                if slot.odcr_id == occupied_odcr(claim):  # the last description may not show the launch
                    self._assumed.debits.assume(claim.instance_id, slot.odcr_id)
                self._assumed.left.forget((uid,))
                self._released()

    def _replaces(self, claim: NodeClaim, slot: LeftSlot, *, before: bool) -> bool:
        """`before`: in doubt the claim was created before the deletion; times are whole seconds."""
        created = claim.metadata.creation_timestamp
        if created is None or created < slot.since or not _placed(claim) or self._owns(claim):
            return False
        if not slot.pool or claim.node_pool != slot.pool:
            return False
        earlier = created <= slot.deleted if before else created < slot.deleted
        return earlier or occupied_odcr(claim) == slot.odcr_id


def slots_of_claims(
    claims: Sequence[NodeClaim], now: datetime, *, owns: Callable[[NodeClaim], bool]
) -> Inventory:
    """The occupied and promised slots alone, as a new process finds them by the claims."""
    assumed = AssumptionStore(StoppedClock(now))
    slots = LeftSlots(lambda: claims, assumed, owns=owns)
    for claim in claims:
        slots.observe(None, claim)
    left, joining = assumed.promised(None)
    kept = kept_slots(claims, now)
    occupied = held_slots(filter(owns, claims))
    return Inventory(left=left, joining=joining, kept=kept, occupied=occupied)


def _joins(successor: NodeClaim, old: NodeClaim, slot: str) -> bool:
    """Whether EC2 is to count the successor in the slot, and does not yet."""
    wanted = successor.annotations.get(names.JOINS_SLOT) == slot and replaces(successor)[1] == old.uid
    return wanted and _placed(successor) and occupied_odcr(successor) != slot


def _leaves(claim: NodeClaim) -> bool:
    """Whether the claim ends in a reservation, to be replaced."""
    disrupted = true_condition(claim, names.DISRUPTION_REASON)
    replaced = disrupted is not None and disrupted.reason in REPLACING
    return replaced and claim.deleting and bool(occupied_odcr(claim))


def _placed(claim: NodeClaim) -> bool:
    return bool(claim.status.provider_id) and not claim.deleting


def _slot(claim: NodeClaim) -> LeftSlot:
    deleted = claim.metadata.deletion_timestamp
    begun = since(claim, names.DISRUPTION_REASON)
    assert deleted is not None
    return LeftSlot(
        odcr_id=occupied_odcr(claim),
        pool=claim.node_pool,
        since=min(begun or deleted, deleted),
        deleted=deleted,
    )
