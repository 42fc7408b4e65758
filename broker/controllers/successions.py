"""Which claims that end were looked at for a successor, so that no slot is freed before it is held.

Why: a slot that is free for a moment is anybody's. So the termination of an instance in a reservation waits
until a loop has made the claim that takes the slot over, or has decided that none is needed: disruption for
pods, and the loop of static pools for their nodes.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, Literal

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.successors import HOLD
from broker.controllers.claim_status import replaces
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.errors import Conflict, NotFound
from broker.kube.watches import Signal
from broker.placement.claims import taken_over
from broker.reservations.claims import occupied_odcr
from broker.text import format_time

# A disruption pass that cannot run does not keep instances alive for longer.
LONGEST: Final = timedelta(minutes=5)
Decider = Literal["pods", "static pools"]


def bind_successors(client: Client, claims: Cache[NodeClaim], old_uid: str, now: datetime) -> None:
    """Gives each successor of a claim, whose instance is gone, its slot until the end of the hold.

    Raises ApiError.
    """
    for claim in claims.list():
        slot, until = taken_over(claim)
        if slot and until is None and claim.waits and replaces(claim)[1] == old_uid:
            end = format_time(now + HOLD)
            meta = {"uid": claim.uid, "annotations": {names.TAKES_SLOT: f"{slot}/{end}"}}
            with suppress(NotFound, Conflict):
                claims.observe(client.patch(NodeClaim.KIND, claim.name, {"metadata": meta}))


class Successions:
    """Decisions of this process. Each table is replaced as a whole, so that any thread may read it."""

    def __init__(self) -> None:
        self.decided_now = Signal()  # by the name of the claim
        self._decided: dict[Decider, frozenset[str]] = {}
        self._asked: dict[str, datetime] = {}  # by the uid of an ending claim: when its end first waited

    def decide(self, decider: Decider, ending: Collection[NodeClaim]) -> None:
        """Records that a pass has looked at these claims: all that end and that it decides about."""
        before = self._decided.get(decider, frozenset())
        decided = self._decided[decider] = frozenset(claim.uid for claim in ending)
        asked = [*self._asked.items()]  # at once: other threads add to it
        self._asked = {uid: at for uid, at in asked if uid not in decided}
        for claim in ending:
            if claim.uid not in before:
                self.decided_now(claim.name)

    def observe(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """Forgets a claim that is gone, whose end may have waited in vain for a decision."""
        if old is not None and new is None:
            self._asked.pop(old.uid, None)

    def undecided(self, claim: NodeClaim, now: datetime) -> bool:
        """Whether the end of a claim in a reservation has to wait for the decision."""
        if not claim.deleting or not occupied_odcr(claim):
            return False
        if any(claim.uid in uids for uids in (*self._decided.values(),)):
            return False
        # Not since its deletionTimestamp: that is by the API server's clock.
        return now - self._asked.setdefault(claim.uid, now) < LONGEST
