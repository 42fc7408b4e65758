"""The values of decisions about slots: owners, holders, requests and victims.

Only data; `slots` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker.quota.model import Preemption, Reason

CLAIM: Final = "NodeClaim "  # before a claim's name, which a cluster may have too


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedSlots:
    """The slots of one flavor that a queue owns, by EC2 reservation; it is entitled to `quota` of them."""

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
    """A queue, and the slots of others that it may hold, by flavor; None does not limit, a missing flavor
    allows none."""

    name: str
    cohort: str = ""
    borrowing_limit: Mapping[str, int | None] = field(default_factory=dict)
    preemption: Preemption = field(default_factory=Preemption)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHolder:
    """The holder of a slot, and since when. `cluster`: its dedicated cluster, which gives back as a
    whole.

    `terminating`: it gives the slot back, to the claim (`NodeClaim NAME`) or cluster `evicted_for`,
    if known. `non_preemptible`: it is never a victim.
    """

    name: str
    queue: str
    odcr_id: str
    cluster: str = ""
    priority: int = 0
    since: float = float("inf")
    terminating: bool = False
    non_preemptible: bool = False
    evicted_for: str = ""


class VictimRank(NamedTuple):
    """The order of victims, the smaller first."""

    stays: bool
    priority: int
    before: float
    name: str


def victim_order(holder: SlotHolder) -> VictimRank:
    return VictimRank(not holder.terminating, holder.priority, -holder.since, holder.name)


def cluster_holder(cluster: str) -> str:
    """The name under which a cluster holds all of its slots."""
    return f"cluster/{cluster}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSlots:
    """Slots of a dedicated cluster that holds quota for them, not yet used by any of its claims.

    `nominated`: it will hold the quota once its victims have left. `requesting`: the number of its claims
    that request a slot by themselves; they come before the rest of the pending slots.
    """

    cluster: str
    queue: str
    flavor: str
    count: int
    priority: int = 0
    since: float = float("inf")
    non_preemptible: bool = False
    nominated: bool = False
    requesting: int = 0

    def holder(self) -> SlotHolder:
        """A holder of slots in no EC2 reservation yet. A nominated cluster is never a victim for these."""
        return SlotHolder(
            name=f"{cluster_holder(self.cluster)}/pending",
            queue=self.queue,
            odcr_id="",
            cluster=self.cluster,
            priority=self.priority,
            since=self.since,
            non_preemptible=self.non_preemptible or self.nominated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequest:
    """A request for a slot in any of these EC2 reservations, of its queue or of those that it may borrow
    from."""

    name: str
    queue: str
    odcr_ids: tuple[str, ...]
    priority: int = 0
    queued: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A holder that must give its slot back: the request that it leaves for, the reason, and both
    positions.

    A victim of a dedicated cluster means the whole cluster; without `odcr_id`, only its pending slots.
    """

    holder: SlotHolder
    request: SlotRequest
    reason: Reason
    preemptor_path: str
    preemptee_path: str
