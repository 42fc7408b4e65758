"""Decides about quota and slots together: admissions, evictions, and the slots that may be used.

Invariant: dedicated clusters, which hold quota, and claims, which hold slots, are decided from one
snapshot, in sequence. So nothing is given twice, and only one victim frees the same room. Quota comes
first (`entitled`): claims that wait for an entitled slot count as holding it, and a claim outbid there
waits on. Slots come second (`slots`): victims of the quota decision leave there too, and slots of newly
admitted clusters count as pending. A cluster gives back as a whole in both; only growth without instances
is separate (`GROWTH`), so that it can be evicted alone.

If Kueue counts quota, only slots are decided, and clusters are never victims.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from broker.quota.cycle import Head
from broker.quota.entitled import AdmissionDecision, AdmissionPhase, Entitled, Eviction, entitle
from broker.quota.flavors import Flavor
from broker.quota.model import AdmittedWorkload, Amounts, Queue, QuotaCohort
from broker.quota.slot_model import CLAIM, Member, OwnedSlots, PendingSlots, SlotHolder, SlotRequest, Victim
from broker.quota.slots import SlotTree

GROWTH: Final = " (growth)"  # after a cluster's name: its quota beyond that of its instances


NOTHING_DECIDED: Final = Entitled({}, {})
_NO_PRIORITIES: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaState:
    """The quota side: its holders (clusters by name, claims by `CLAIM` and name) and the clusters that
    request it."""

    queues: Sequence[Queue]
    flavors: Mapping[str, Flavor]
    holders: Sequence[AdmittedWorkload]
    requests: Sequence[Head]


# The slots of clusters, given quota by cluster and the victims of a decision.
SlotsOfQuota = Callable[[Mapping[str, Amounts], Collection[str]], Sequence[PendingSlots]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """The slot side: the owners and holders of slots.

    `pending_slots`: slots of clusters that none of their claims has yet, given the newly admitted quota
    and the victims of this decision. `nominated_slots`: further slots that clusters are nominated for,
    given the quota that they will hold once their victims have left. `nominated`: the nominated
    claims.
    """

    owned_slots: Sequence[OwnedSlots]
    members: Sequence[Member]
    cohorts: Sequence[QuotaCohort]
    holders: Sequence[SlotHolder]
    pending_slots: SlotsOfQuota
    nominated_slots: SlotsOfQuota = lambda *_: ()
    nominated: Sequence[SlotRequest] = ()

    def slots(
        self, decided: Entitled = NOTHING_DECIDED, priorities: Mapping[str, int] = _NO_PRIORITIES
    ) -> SlotTree:
        """The slots after the quota decision is applied. `priorities`: those of the clusters that request
        quota.
        """
        victims = decided.evictions.keys()

        def held(holder: SlotHolder) -> SlotHolder:
            for name in (holder.cluster, f"{CLAIM}{holder.name}"):
                if name in victims:
                    return replace(holder, terminating=True, evicted_for=decided.evictions[name].preemptor)
            return holder

        return SlotTree(
            self.owned_slots,
            self.members,
            [held(holder) for holder in self.holders] if victims else self.holders,
            pending_slots=[
                replace(pending, priority=priorities.get(pending.cluster, pending.priority))
                for pending in (
                    *self.pending_slots(_usage(decided, AdmissionPhase.ADMITTED), victims),
                    *self.nominated_slots(_usage(decided, AdmissionPhase.PREEMPTING), victims),
                )
            ],
            nominated=self.nominated,
            cohorts=self.cohorts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingClaim:
    """A claim that waits for a slot, and the quota with it; none for a cluster's claim, since the cluster
    has it.

    `nominated`: victims have left for it already.
    """

    request: SlotRequest
    usage: Amounts = field(default_factory=dict)
    nominated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JointDecision:
    """`decisions` of clusters; `evictions` of clusters and claims for clusters, and of clusters for
    claims.

    `victims` are claims that leave for claims.
    """

    decisions: Mapping[str, AdmissionDecision] = field(default_factory=dict)
    evictions: Mapping[str, Eviction] = field(default_factory=dict)
    victims: Sequence[Victim] = ()


def decide(
    quota: QuotaState | None,
    slot_state: SlotState | None,
    waiting: Sequence[WaitingClaim],
    *,
    nominated: Collection[str] = (),
) -> JointDecision:
    """One decision. `waiting` in order of importance; `nominated`: the nominated clusters."""
    entitled, waiting = _by_quota(quota, waiting, nominated)
    if slot_state is None:
        return JointDecision(decisions=entitled.decisions, evictions=entitled.evictions)
    requests = quota.requests if quota is not None else ()
    tree = slot_state.slots(entitled, {request.name: request.priority for request in requests})
    admitted = _usage(entitled, AdmissionPhase.ADMITTED)
    decisions, evictions = dict(entitled.decisions), dict(entitled.evictions)
    victims = []
    for victim in tree.reclaim([claim.request for claim in waiting]):
        if not (name := victim.holder.cluster):
            victims.append(victim)
            continue
        if not victim.holder.odcr_id:
            if name in admitted:  # in this decision
                why = f"{CLAIM}{victim.request.name} goes before it"
                decisions[name] = AdmissionDecision(phase=AdmissionPhase.WAITING, why=why)
                continue
            name = f"{name}{GROWTH}" if any(holder.cluster == name for holder in slot_state.holders) else name
        evictions[name] = Eviction(
            reason=victim.reason,
            preemptor=f"{CLAIM}{victim.request.name}",
            preemptor_path=victim.preemptor_path,
            preemptee_path=victim.preemptee_path,
        )
        decisions.pop(name, None)
    return JointDecision(decisions=decisions, evictions=evictions, victims=tuple(victims))


def _usage(entitled: Entitled, phase: AdmissionPhase) -> Mapping[str, Amounts]:
    """The quota in the decisions of this phase."""
    decisions = entitled.decisions.items()
    return {name: decision.usage for name, decision in decisions if decision.phase is phase}


def _by_quota(
    quota: QuotaState | None, waiting: Sequence[WaitingClaim], nominated: Collection[str]
) -> tuple[Entitled, Sequence[WaitingClaim]]:
    """The quota decision, and the claims that still wait for slots after it."""
    if quota is None:
        return NOTHING_DECIDED, waiting
    claims = {f"{CLAIM}{claim.request.name}": claim for claim in waiting}
    first = {*nominated, *(name for name, claim in claims.items() if claim.nominated)}
    while True:
        claimed = [
            AdmittedWorkload(
                name=name,
                queue=claim.request.queue,
                usage=claim.usage,
                priority=claim.request.priority,
                queued=claim.request.queued,
            )
            for name, claim in claims.items()
            if claim.usage
        ]
        entitled = entitle(
            quota.queues,
            holders=quota.holders,
            requests=quota.requests,
            flavors=quota.flavors,
            claimed=claimed,
            nominated=first,
        )
        if not (outbid := claims.keys() & entitled.evictions.keys()):
            return entitled, [*claims.values()]
        for name in outbid:
            del claims[name]
