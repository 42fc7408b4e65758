"""Which claims that end were looked at for a successor, so that no slot is freed before it is held.

Why: a slot that is free for a moment is anybody's. So the termination of an instance in a reservation waits
until a loop has made the claim that takes the slot over, or has decided that none is needed: disruption for
pods, and the loop of static pools for their nodes.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final, Literal

from broker.apis.karpenter import NodeClaim
from broker.controllers.claim_status import held_odcr
from broker.kube.watches import Signal

# A disruption pass that cannot run does not keep instances alive for longer.
LONGEST: Final = timedelta(minutes=5)
Decider = Literal["pods", "static pools"]


class Successions:
    """Decisions of this process. Each table is replaced as a whole, so that any thread may read it."""

    def __init__(self) -> None:
        self.decided_now = Signal()  # by the name of the claim
        self._decided: dict[Decider, frozenset[str]] = {}

    def decide(self, decider: Decider, ending: Collection[NodeClaim]) -> None:
        """Records that a pass has looked at these claims: all that end and that it decides about."""
        before = self._decided.get(decider, frozenset())
        self._decided[decider] = frozenset(claim.uid for claim in ending)
        for claim in ending:
            if claim.uid not in before:
                self.decided_now(claim.name)

    def undecided(self, claim: NodeClaim, now: datetime) -> bool:
        """Whether the end of a claim in a reservation has to wait for the decision."""
        since = claim.metadata.deletion_timestamp
        decided = any(claim.uid in uids for uids in (*self._decided.values(),))
        open_ = bool(held_odcr(claim)) and not decided
        return open_ and since is not None and now - since < LONGEST
