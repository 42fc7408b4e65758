"""Which claims that end were looked at for a successor, so that no slot is freed before it is held.

Why: a slot that is free for a moment is anybody's. So the termination of an instance in a reservation waits
until a pass of disruption has made the claim that takes the slot over, or has decided that none is needed.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from broker.apis.karpenter import NodeClaim
from broker.controllers.claim_status import held_odcr
from broker.kube.watches import Signal

# A disruption pass that cannot run does not keep instances alive for longer.
LONGEST: Final = timedelta(minutes=5)


class Successions:
    """Decisions of this process. Each table is replaced as a whole, so that any thread may read it."""

    def __init__(self) -> None:
        self.decided_now = Signal()  # by the name of the claim
        self._decided: frozenset[str] = frozenset()

    def decide(self, ending: Collection[NodeClaim]) -> None:
        """Records that a pass has looked at these claims, which are all that end."""
        before, self._decided = self._decided, frozenset(claim.uid for claim in ending)
        for claim in ending:
            if claim.uid not in before:
                self.decided_now(claim.name)

    def undecided(self, claim: NodeClaim, now: datetime) -> bool:
        """Whether the end of a claim in a reservation has to wait for the decision."""
        since = claim.metadata.deletion_timestamp
        open_ = bool(held_odcr(claim)) and claim.uid not in self._decided
        return open_ and since is not None and now - since < LONGEST
