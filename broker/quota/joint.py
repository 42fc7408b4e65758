"""Decides about quota and slots together: admissions, evictions, and the slots that may be used.

Invariant: dedicated clusters, which hold quota, and claims, which hold slots, are decided from one
snapshot, in sequence. So nothing is given twice, and only one victim frees the same room. Quota comes
first (`entitled`): claims that wait for an entitled slot count as holding it, and a claim outbid there
waits on. Slots come second (`slots`): victims of the quota decision leave there too, and newly admitted
clusters are promised their slots. A cluster gives back as a whole in both; only growth without instances
is separate (`GROWTH`), so that it can be evicted alone.

If Kueue counts quota, only slots are decided, and clusters are never victims.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from broker.quota.assign import SharingRules
from broker.quota.entitled import (
    AdmissionDecision,
    AdmissionPhase,
    ClusterRequest,
    Entitled,
    Eviction,
    entitle,
)
from broker.quota.model import AdmittedWorkload, Amounts, Queue, QuotaCohort
from broker.quota.slot_model import CLAIM, Member, OwnedSlots, Promise, SlotHolder, Victim
from broker.quota.slot_model import SlotRequest as SlotWant
from broker.quota.slots import SlotTree

GROWTH: Final = " (growth)"  # after a cluster's name: its quota beyond that of its instances


_NO_AMOUNTS: Final[Mapping[str, Amounts]] = {}
_NO_NAMES: Final[Mapping[str, str]] = {}
_NO_PRIORITIES: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaState:
    """The quota side: its holders (clusters by name, claims by `CLAIM` and name) and the clusters that
    request it."""

    queues: Sequence[Queue]
    cohorts: Sequence[QuotaCohort]
    rules: SharingRules
    holders: Sequence[AdmittedWorkload]
    wants: Sequence[ClusterRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """The slot side: the owners and holders of slots.

    `promises`: slots of clusters that none of their claims has yet, given the newly admitted quota
    and the victims of this decision. `nominations`: further slots that clusters are nominated for,
    given the quota that they will hold once their victims have left. `nominated`: the nominated
    claims.
    """

    lots: Sequence[OwnedSlots]
    members: Sequence[Member]
    cohorts: Sequence[QuotaCohort]
    holders: Sequence[SlotHolder]
    promises: Callable[[Mapping[str, Amounts], Collection[str]], Sequence[Promise]]
    nominations: Callable[[Mapping[str, Amounts], Collection[str]], Sequence[Promise]] = lambda *_: ()
    nominated: Sequence[SlotWant] = ()

    def slots(
        self,
        admitted: Mapping[str, Amounts],
        gone: Collection[str],
        *,
        nominated: Mapping[str, Amounts] = _NO_AMOUNTS,
        leaves_for: Mapping[str, str] = _NO_NAMES,
        priorities: Mapping[str, int] = _NO_PRIORITIES,
    ) -> SlotTree:
        """The slots as they stand once the quota decision is applied.

        `admitted` and `nominated`: a cluster's whole quota from now on, or once its victims have left.
        `gone`: the victims of this decision, named as in `QuotaState`. `leaves_for`: the claim or
        cluster that each victim leaves for, if known. `priorities`: those of the clusters that want quota.
        """

        def held(each: SlotHolder) -> SlotHolder:
            name = next((name for name in (each.cluster, f"{CLAIM}{each.name}") if name in gone), "")
            return replace(each, terminating=True, evicted_for=leaves_for.get(name, "")) if name else each

        return SlotTree(
            self.lots,
            self.members,
            [held(each) for each in self.holders] if gone else self.holders,
            promises=[
                replace(each, priority=priorities.get(each.cluster, each.priority))
                for each in (*self.promises(admitted, gone), *self.nominations(nominated, gone))
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

    want: SlotWant
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
    places: SlotState | None,
    waiting: Sequence[WaitingClaim],
    *,
    nominated: Collection[str] = (),
) -> JointDecision:
    """One decision. `waiting` in order of importance; `nominated`: the nominated clusters."""
    found, waiting = _by_quota(quota, waiting, nominated)
    if places is None:
        return JointDecision(decisions=found.decisions, evictions=found.evictions)
    admitted = {
        name: each.usage for name, each in found.decisions.items() if each.phase is AdmissionPhase.ADMITTED
    }
    later = {
        name: each.usage for name, each in found.decisions.items() if each.phase is AdmissionPhase.PREEMPTING
    }
    slots = places.slots(
        admitted,
        found.evictions.keys(),
        nominated=later,
        leaves_for={name: each.preemptor for name, each in found.evictions.items()},
        priorities={each.name: each.priority for each in quota.wants} if quota is not None else {},
    )
    decisions, evictions = dict(found.decisions), dict(found.evictions)
    victims = []
    for victim in slots.reclaim([each.want for each in waiting]):
        if not (name := victim.holder.cluster):
            victims.append(victim)
            continue
        if not victim.holder.odcr_id:
            if name in admitted:  # in this decision
                why = f"{CLAIM}{victim.want.name} goes before it"
                decisions[name] = AdmissionDecision(phase=AdmissionPhase.WAITING, why=why)
                continue
            name = f"{name}{GROWTH}" if any(each.cluster == name for each in places.holders) else name
        evictions[name] = Eviction(
            reason=victim.reason,
            preemptor=f"{CLAIM}{victim.want.name}",
            preemptor_path=victim.preemptor_path,
            preemptee_path=victim.preemptee_path,
        )
        decisions.pop(name, None)
    return JointDecision(decisions=decisions, evictions=evictions, victims=tuple(victims))


def _by_quota(
    quota: QuotaState | None, waiting: Sequence[WaitingClaim], nominated: Collection[str]
) -> tuple[Entitled, Sequence[WaitingClaim]]:
    """The quota decision, and the claims that still wait for slots after it."""
    if quota is None:
        return Entitled({}, {}), waiting
    left = {f"{CLAIM}{each.want.name}": each for each in waiting}
    first = {*nominated, *(name for name, each in left.items() if each.nominated)}
    while True:
        claimed = [
            AdmittedWorkload(
                name=name,
                queue=each.want.queue,
                usage=each.usage,
                priority=each.want.priority,
                queued=each.want.queued,
            )
            for name, each in left.items()
            if each.usage
        ]
        found = entitle(
            quota.queues,
            quota.cohorts,
            holders=quota.holders,
            wants=quota.wants,
            rules=quota.rules,
            claimed=claimed,
            nominated=first,
        )
        if not (beaten := left.keys() & found.evictions.keys()):
            return found, [*left.values()]
        for name in beaten:
            del left[name]
