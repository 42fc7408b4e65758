"""The slots of EC2 reservations and their users: claim, pods, owner, since when and until when.

`explain` and the web page show the same values. They follow from Kubernetes alone: the mirrors of the
reservations, the claims and their pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition, true_condition
from broker.lists import lists_by_key
from broker.placement.claims import deadline_of
from broker.quota.resolve import UnresolvedName
from broker.quota.usage import ReservationKey
from broker.reservations.claims import occupied_odcr
from broker.reservations.drawing import drawn_key
from broker.text import abridged, counted, format_time

MOST_NAMED: Final = 3
DAEMON_SET: Final = "DaemonSet"
Draws = Callable[[NodeClaim], ReservationKey | UnresolvedName | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUser:
    """The user of a slot. `owner`: the CapacityReservation that it draws from; empty for none.

    `ends`: why its claim or its pods end, if they do. `until`: the latest known time at which it leaves;
    `why`: the cause, also if it is the reservation's end.
    """

    claim: str
    pods: tuple[str, ...]
    owner: str
    since: datetime | None
    ends: str = ""
    until: datetime | None = None
    why: str = ""

    @property
    def named(self) -> str:
        """The claim and its pods in words."""
        pods = abridged(self.pods, MOST_NAMED) if self.pods else "no pod"
        return f"claim {self.claim} ({pods})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUse:
    """One EC2 reservation and its users. `owner`: the CapacityReservation of its slots; empty for none.

    `free`: the slots that any claim may take; `kept`: the unused ones that are promised to certain claims.
    `elsewhere`: the used slots that no claim of this cluster has.
    """

    id: str
    type: str
    zone: str
    state: str
    total: int
    free: int
    owner: str
    node_classes: frozenset[str]
    holders: tuple[SlotUser, ...]
    kept: int = 0
    tenancy: str = "default"
    active: bool = True
    begins: datetime | None = None
    ends: datetime | None = None
    drains: datetime | None = None

    @property
    def elsewhere(self) -> int:
        return max(0, self.total - self.unused - len(self.holders)) if self.active else 0

    @property
    def lent(self) -> tuple[SlotUser, ...]:
        """The users to whom its slots are lent."""
        return tuple(filter(self.lends_to, self.holders))

    def lends_to(self, user: SlotUser) -> bool:
        """Whether the user does not draw from the owner of its slot; False without an owner."""
        return bool(self.owner) and user.owner != self.owner

    @property
    def leaves(self) -> tuple[datetime | None, str]:
        """When it takes the slots from its users, and why; neither if it has no end."""
        if self.drains is not None:
            return self.drains, f"its node drains before Capacity Block {self.id} ends"
        return (self.ends, "the reservation ends") if self.ends is not None else (None, "")

    @property
    def unused(self) -> int:
        return self.free + self.kept

    @property
    def held_by(self) -> str:
        return held_by(self.holders, self.elsewhere)

    @property
    def summary(self) -> str:
        """The use of the slots in a sentence."""
        held = f", held by {self.held_by}" if self.held_by else ""
        free = f"{self.free} of {self.total} free" if self.unused else f"full ({self.total} of {self.total})"
        if not self.active:
            begins = f", starts at {format_time(self.begins)}" if self.begins is not None else ""
            free = f"{self.state}{begins}"
        kept = f", {self.kept} kept for certain claims" if self.kept else ""
        return f"{self.id} ({self.type}, {self.zone}): {free}{kept}{held}"


def held_by(holders: Iterable[SlotUser], elsewhere: int) -> str:
    """The users of slots in words; empty without any. `elsewhere`: the instances of no claim."""
    named = sorted(holder.named for holder in holders)
    shown = [abridged(named, MOST_NAMED)] if named else []
    if elsewhere:
        shown.append(f"{counted(elsewhere, 'instance')} of no claim of this cluster")
    return ", and ".join(shown)


def slot_uses(
    mirrors: Iterable[OnDemandCapacityReservation],
    owners: Mapping[str, ReservationKey],
    claims: Iterable[NodeClaim],
    pods: Iterable[Pod],
    draws: Draws,
    promised: Callable[[str], int],
) -> dict[str, SlotUse]:
    """The reservations that are described and not over, by id. `owners`: of their slots, by id. `promised`:
    the number of slots of a reservation that only certain claims may take.
    """
    by_reservation = lists_by_key((id_, claim) for claim in claims if (id_ := occupied_odcr(claim)))
    nodes = {claim.status.node_name for held in by_reservation.values() for claim in held} - {""}
    workloads = (pod for pod in pods if pod.spec.node_name in nodes and is_workload(pod))
    on_node = lists_by_key((pod.spec.node_name, pod) for pod in workloads)
    return {
        mirror.name: _use(
            mirror,
            owners.get(mirror.name),
            by_reservation.get(mirror.name, ()),
            on_node,
            draws,
            promised(mirror.name),
        )
        for mirror in mirrors
        if mirror.status.state and not mirror.status.over
    }


def workloads_on(claim: NodeClaim, pods: Iterable[Pod]) -> list[Pod]:
    """The pods of these that are on the claim's node for their own sake; none without a node."""
    node = claim.status.node_name
    return [pod for pod in pods if node and pod.spec.node_name == node and is_workload(pod)]


def is_workload(pod: Pod) -> bool:
    """Whether the pod is there for its own sake: it has not ended, and no DaemonSet made it."""
    return not pod.ended and all(owner.kind != DAEMON_SET for owner in pod.metadata.owner_references)


def _use(
    mirror: OnDemandCapacityReservation,
    owner: ReservationKey | None,
    claims: Iterable[NodeClaim],
    pods: Mapping[str, Sequence[Pod]],
    draws: Draws,
    promised: int,
) -> SlotUse:
    status = mirror.status
    held = [*claims]
    unused = max(0, min(status.idle, status.total - len(held)))  # EC2's count may lack the newest claims
    use = SlotUse(
        id=mirror.name,
        type=status.type,
        zone=status.zone,
        state=status.state,
        total=status.total,
        free=max(0, unused - promised),
        kept=min(promised, unused),
        owner=str(owner) if owner else "",
        node_classes=frozenset(status.node_classes),
        holders=(),
        tenancy=status.tenancy or "default",
        active=status.active,
        begins=status.start,
        ends=status.end,
        drains=status.drain,
    )
    users = [holder(claim, pods.get(claim.status.node_name, ()), draws, use) for claim in held]
    by_age = sorted(users, key=lambda row: (row.since is None, row.since, row.claim))
    return replace(use, holders=tuple(by_age))


def holder(claim: NodeClaim, pods: Sequence[Pod], draws: Draws, use: SlotUse | None) -> SlotUser:
    """A claim with an instance, as the user of its slot. `pods`: those on its node. `use`: its reservation;
    None outside reservations.
    """
    launched = condition(claim.status.conditions, names.LAUNCHED)
    own, ends = _end(claim, pods)
    until, why = own, ends
    last, ended = use.leaves if use is not None else (None, "")
    if last is not None and (last < own if own is not None else not ends):
        until, why = last, ended
    return SlotUser(
        claim=claim.name,
        pods=tuple(sorted(pod.key for pod in pods)),
        owner=drawn_key(draws(claim)),
        since=(launched and launched.last_transition_time) or claim.metadata.creation_timestamp,
        ends=ends,
        until=until,
        why=why,
    )


def leaving(claim: NodeClaim) -> str:
    """What takes a claim's node away, after the word for the claim; empty if nothing does yet."""
    if claim.deleting:
        drained = condition(claim.status.conditions, names.DRAINED)
        return f"ends: {drained.message}" if drained is not None and drained.status == "Unknown" else "ends"
    if disrupted := true_condition(claim, names.DISRUPTION_REASON):
        return f"is replaced: {disrupted.message}"
    if preempted := true_condition(claim, names.PREEMPTED):
        return f"gives its slot back: {preempted.message}"
    return ""


def _end(claim: NodeClaim, pods: Sequence[Pod]) -> tuple[datetime | None, str]:
    """When the slot becomes free at the latest, and why; neither if that is not known."""
    if why := leaving(claim):
        return deadline_of(claim), f"its claim {why}"
    known = [*takewhile(lambda end: end is not None, map(_deadline, pods))]
    if known and len(known) == len(pods):
        return max(filter(None, known)), "activeDeadlineSeconds of its pods"
    return None, ""


def _deadline(pod: Pod) -> datetime | None:
    seconds, start = pod.spec.active_deadline_seconds, pod.status.start_time
    return start + timedelta(seconds=seconds) if seconds is not None and start is not None else None
