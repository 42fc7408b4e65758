"""What is decided about slots, as values: who owns them, who has them, who wants one, and who must leave.

Nothing here does anything; `slots` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.quota.model import Preemption, Reason

CLAIM: Final = "NodeClaim "  # before a claim's name, which a cluster may have too


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedSlots:
    """The slots of one flavor that a queue owns, by EC2 reservation; `quota` of them it is entitled to."""

    owner: str
    flavor: str
    slots: Mapping[str, int]
    quota: int
    lending_limit: int | None = None

    @property
    def nominal(self) -> int:
        return min(self.quota, sum(self.slots.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A queue, and how many slots of others it may hold, by flavor; None does not limit, absent is none."""

    name: str
    cohort: str = ""
    borrowing_limit: Mapping[str, int | None] = field(default_factory=dict)
    preemption: Preemption = field(default_factory=Preemption)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHolder:
    """Who holds a slot, and since when. `cluster`: the dedicated cluster that it belongs to, which gives back
    as a whole. `leaving`: it gives it back, `leaves_for` which claim (`NodeClaim NAME`) or cluster where that
    is known; `spared`: it may not be asked to."""

    name: str
    queue: str
    odcr_id: str
    cluster: str = ""
    priority: int = 0
    since: float = float("inf")
    terminating: bool = False
    non_preemptible: bool = False
    evicted_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Slots of a dedicated cluster that holds quota for them, and that none of its claims has yet. `later`:
    it is nominated for them, and will hold quota once others have left. `asking`: how many of its claims ask
    for a slot by themselves; they come before the rest of the promise."""

    cluster: str
    queue: str
    flavor: str
    count: int
    priority: int = 0
    since: float = float("inf")
    non_preemptible: bool = False
    later: bool = False
    asking: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequest:
    """Who wants a slot in any of these EC2 reservations, of its queue or of those that it may borrow from."""

    name: str
    queue: str
    odcr_ids: tuple[str, ...]
    priority: int = 0
    queued: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """Who is to give its slot back, for whom, why, and where both are in the tree. One that belongs to a
    dedicated cluster stands for all of that; without `odcr_id`, for what is only promised to it."""

    holder: SlotHolder
    want: SlotRequest
    reason: Reason
    preemptor_path: str
    preemptee_path: str
