"""Computes one dedicated cluster's quota, instances and status from its facts.

Invariant: quota is held before an instance is requested, and given back only when no instance is left that
needs it. A cluster that is deleted, preempted, or moved to another reservation gives back its instances
first. If its spec, its profile or its reservation becomes invalid, a cluster keeps its quota and reports
the error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import Condition, condition
from broker.apis.ome import DedicatedState
from broker.apis.ome_clusters import DedicatedAICluster
from broker.apis.units import written
from broker.controllers.dedicatedaicluster.demand import ClusterDemand, DemandError
from broker.controllers.dedicatedaicluster.machines import (
    AT_ONCE,
    ClaimChanges,
    claim_changes,
    flavor_name,
    more_than,
)
from broker.controllers.nodeclaim.status import is_true
from broker.kube.conditions import ConditionUpdate
from broker.kube.partial import PartialObject
from broker.quota.entitled import AdmissionDecision, AdmissionPhase, Eviction, Shortfall
from broker.quota.model import Amounts, Reason
from broker.quota.resolve import UnresolvedName
from broker.quota.usage import Reserved
from broker.reservations.cluster_admission import ClusterAdmission, by_flavor, held, told
from broker.reservations.sizing import ACCELERATORS, FlavorProblem, SizedQuota
from broker.text import counted, quantity

QUOTA_RESERVED: Final = "QuotaReserved"
PREEMPTED: Final = "Preempted"
READY: Final = "Ready"
CONDITIONS: Final = (QUOTA_RESERVED, PREEMPTED, READY)

_SMALLER: Final = "ask for less in spec.resources or spec.count, or raise nominalQuota of the reservation"
_SOONER: Final = "it goes on by itself when others give theirs back, or once nominalQuota is raised"
CLASS_WAY: Final = (
    f"; annotation {names.NODE_CLASS} of the cluster, its profile or its reservation names another"
)

Size = Callable[[str, Mapping[str, int]], SizedQuota | FlavorProblem]

_WHY: Final[Mapping[Reason, str]] = {
    Reason.IN_QUEUE: "of higher priority in the same reservation",
    Reason.RECLAIM: "whose reservation wants its own quota back",
    Reason.RECLAIM_WHILE_BORROWING: "of higher priority in its cohort",
    Reason.FAIR_SHARING: "whose reservation uses less than its share",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEviction:
    """The reason for which a cluster must give quota back, and a message. `keeps`: the quota that it keeps;
    None if it must give back all."""

    reason: str
    message: str
    keeps: Amounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The facts about a cluster. `barred`: the reason why its reservation gives no quota at all. `down`:
    names of nodes that are not ready. `kept`: maps the needed quota to the quota that counts as held.
    `waiting`: the limit of its claims without an instance at a time. `left_out`: its unreadable claims."""

    cluster: DedicatedAICluster
    wanted: ClusterDemand | DemandError
    reserved: Reserved | UnresolvedName
    priority: int = 0
    barred: str = ""
    verdict: AdmissionDecision | None = None
    eviction: ClusterEviction | None = None
    claims: Sequence[NodeClaim] = ()
    left_out: Sequence[PartialObject] = ()
    down: Collection[str] = ()
    kept: Callable[[Amounts], Amounts] = lambda held: held
    waiting: int = AT_ONCE

    @property
    def there(self) -> Sequence[NodeClaim | PartialObject]:
        return (*self.claims, *self.left_out)

    @property
    def ready(self) -> list[NodeClaim]:
        """The claims with ready nodes, without terminating ones."""
        return [
            each
            for each in self.claims
            if not each.deleting and is_true(each, names.READY) and each.status.node_name not in self.down
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """`held`: the cluster's quota from now on; `sized`: its size in instances, by flavor."""

    state: DedicatedState
    detail: str
    said: tuple[ConditionUpdate, ...]
    held: ClusterAdmission | None = None
    sized: Mapping[str, SizedQuota] = field(default_factory=dict)
    change: ClaimChanges = field(default_factory=ClaimChanges)
    available: int = 0
    allocated: int = 0
    over: bool = False  # the cluster is deleted, and none of its claims is left
    patience: float | None = None  # seconds until the status changes by time alone


def terminating(cluster: DedicatedAICluster, reserved: Reserved | UnresolvedName) -> bool:
    """Whether a cluster is to give its quota back: it is deleted, moved, or marked as preempted."""
    now = condition(cluster.status.conditions, PREEMPTED)
    mine = held(cluster)
    moved = mine is not None and isinstance(reserved, Reserved) and reserved != mine.reserved
    return cluster.deleting or moved or (now is not None and now.status == "True")


def settle(facts: ClusterFacts, size: Size, *, now: datetime, wait: float) -> ClusterStatus:
    """The cluster's next status. `wait`: seconds to wait for quota before it is FAILED; it keeps waiting."""
    cluster, mine = facts.cluster, held(facts.cluster)
    whole = facts.eviction is not None and facts.eviction.keeps is None
    if mine is not None and (whole or terminating(cluster, facts.reserved)):
        return _leave(facts, mine)
    if cluster.deleting:
        return _leave(facts, None)
    verdict = facts.verdict
    if (
        verdict is not None
        and verdict.phase is AdmissionPhase.ADMITTED
        and isinstance(facts.reserved, Reserved)
    ):
        before = mine or ClusterAdmission(reserved=facts.reserved, since=now, usage={})
        mine = replace(before, usage=verdict.usage)
    if mine is None:
        return _wait(facts, now=now, limit=wait)
    return _serve(facts, replace(mine, priority=facts.priority), size)


def _leave(facts: ClusterFacts, mine: ClusterAdmission | None) -> ClusterStatus:
    """Gives back instances first, then quota, then the object."""
    cluster, there = facts.cluster, facts.there
    done = not there
    said = _kept(cluster)
    if cluster.deleting:
        state: DedicatedState = "DELETING"
        reason, why = "Deleting", "the cluster is deleted"
    elif facts.eviction is not None:
        state, reason, why = "UPDATING", facts.eviction.reason, facts.eviction.message
        said[PREEMPTED] = ConditionUpdate(type=PREEMPTED, status="True", reason=reason, message=why)
    elif PREEMPTED in said and said[PREEMPTED].status == "True":
        state, reason, why = "UPDATING", said[PREEMPTED].reason, said[PREEMPTED].message
    else:
        state, reason, why = "UPDATING", "ReservationChanged", f"it moves to reservation {facts.reserved}"
    detail = f"{why}: {counted(len(there), 'instance')} left{_unread(facts)}" if there else why
    if done:
        said[QUOTA_RESERVED] = ConditionUpdate(
            type=QUOTA_RESERVED, status="False", reason=reason, message=why
        )
    said[READY] = ConditionUpdate(type=READY, status="False", reason=reason, message=detail)
    held_now = None if done else mine
    return ClusterStatus(
        state=state,
        detail=detail,
        said=tuple(said.values()),
        held=held_now,
        change=claim_changes({}, facts.claims),
        available=_available(facts.ready),
        allocated=_accelerators(held_now.usage) if held_now else 0,
        over=cluster.deleting and done,
    )


def _wait(facts: ClusterFacts, *, now: datetime, limit: float) -> ClusterStatus:
    """The status of a cluster without quota: CREATING until the wait times out, else FAILED."""
    cluster, verdict = facts.cluster, facts.verdict
    said = _kept(cluster)
    left: float | None = None
    state: DedicatedState = "FAILED"
    if isinstance(facts.wanted, DemandError):
        reason, why = facts.wanted.reason, facts.wanted.message
    elif isinstance(facts.reserved, UnresolvedName):
        reason, why = facts.reserved.reason, f"spec.capacityReservationId: {facts.reserved.message}"
    elif facts.barred or verdict is None:
        reason = "ReservationInvalid"
        why = f"reservation {facts.reserved} gives nothing: {facts.barred or 'it is not judged yet'}"
    elif verdict.phase is AdmissionPhase.NEVER:
        reason, why = (
            "NotEnoughResources",
            f"reservation {facts.reserved} can never give it: {_lacks(verdict)}; {_SMALLER}",
        )
    else:
        reason = "WaitingForQuota"
        why = f"waits for quota of {facts.reserved}: {_lacks(verdict)}; {_SOONER}"
        since = _since(cluster) or now
        left = limit - (now - since).total_seconds()
        state = "CREATING" if left > 0 else "FAILED"
        if left <= 0:
            reason, left = "NotEnoughResources", None
    said[QUOTA_RESERVED] = ConditionUpdate(type=QUOTA_RESERVED, status="False", reason=reason, message=why)
    said[READY] = ConditionUpdate(type=READY, status="False", reason=reason, message=why)
    return ClusterStatus(
        state=state,
        detail=why,
        said=tuple(said.values()),
        # Instances without quota mean a lost status. They end only if the decision gave no quota.
        change=claim_changes({}, facts.claims) if verdict is not None else ClaimChanges(),
        available=_available(facts.ready),
        patience=left,
    )


def _serve(facts: ClusterFacts, mine: ClusterAdmission, size: Size) -> ClusterStatus:
    """The status of a cluster with quota, which shrinks only after its instances have."""
    cluster, claims = facts.cluster, facts.claims
    target = _shrunk(mine.usage, facts.wanted)
    if facts.eviction is not None and (keeps := facts.eviction.keeps) is not None:
        target = {key: min(value, keeps[key]) for key, value in target.items() if keeps.get(key)}
    sized: dict[str, SizedQuota] = {}
    problems: list[FlavorProblem] = []
    counts: dict[str, int] = {}
    for flavor, amounts in by_flavor(target).items():
        found = size(flavor, amounts)
        if isinstance(found, FlavorProblem):
            problems.append(found)
            # A flavor that cannot be sized now keeps its instances.
            counts[flavor] = sum(flavor_name(each) == flavor for each in facts.there)
        else:
            sized[flavor], counts[flavor] = found, found.count
    if not more_than(counts, facts.there):
        mine = replace(mine, usage=facts.kept(target))
    alive = [each for each in claims if not each.deleting]
    ready = facts.ready
    whole = len(ready) == sum(counts.values()) and not more_than(counts, facts.there)
    said = _kept(cluster)
    holds = f"it holds {told(mine.usage)} of {mine.reserved}"
    said[QUOTA_RESERVED] = ConditionUpdate(
        type=QUOTA_RESERVED, status="True", reason="QuotaReserved", message=holds
    )
    if PREEMPTED in said:
        said[PREEMPTED] = ConditionUpdate(
            type=PREEMPTED, status="False", reason="QuotaReserved", message=holds
        )
    state, reason, detail = _how(facts, problems)
    if not whole and not problems:
        reason, state = "InstancesPending", state if state == "FAILED" else _pending(cluster)
        trouble = _unread(facts) or _trouble(alive, facts.down)
        some = (
            f"{len(ready)} of {counted(sum(counts.values()), 'instance is', 'instances are')} ready{trouble}"
        )
        detail = f"{detail}; {some}" if detail else some
    serving = whole and not problems
    said[READY] = ConditionUpdate(
        type=READY,
        status="True" if serving else "False",
        reason="InstancesReady" if serving else reason,
        message=counted(len(ready), "instance is ready", "instances are ready") if serving else detail,
    )
    return ClusterStatus(
        state=state,
        detail=detail or state,
        said=tuple(said.values()),
        held=mine,
        sized=sized,
        change=claim_changes(counts, claims, facts.left_out, waiting=facts.waiting),
        available=_available(facts.ready),
        allocated=_accelerators(mine.usage),
    )


def _how(facts: ClusterFacts, problems: Sequence[FlavorProblem]) -> tuple[DedicatedState, str, str]:
    """State, reason and detail of a cluster with quota, without regard to its instances."""
    verdict = facts.verdict
    if problems:
        return "FAILED", problems[0].reason, problems[0].message
    kept = "it keeps what it has"
    if facts.eviction is not None:
        rest = told(facts.eviction.keeps or {})
        return "UPDATING", facts.eviction.reason, f"{facts.eviction.message}; it keeps {rest}"
    if isinstance(facts.wanted, DemandError):
        return "UPDATING", facts.wanted.reason, f"{facts.wanted.message}; {kept}"
    if isinstance(facts.reserved, UnresolvedName):
        return "UPDATING", facts.reserved.reason, f"{facts.reserved.message}; {kept}"
    if facts.barred:
        return "UPDATING", "ReservationInvalid", f"reservation {facts.reserved}: {facts.barred}; {kept}"
    if verdict is not None and verdict.phase is AdmissionPhase.NEVER:
        return (
            "FAILED",
            "NotEnoughResources",
            f"it can never have more: {_lacks(verdict)}; {_SMALLER}; {kept}",
        )
    if verdict is not None and verdict.phase is not AdmissionPhase.ADMITTED:
        return "UPDATING", "WaitingForQuota", f"waits for more quota: {_lacks(verdict)}; {_SOONER}; {kept}"
    return "ACTIVE", "", ""


def _pending(cluster: DedicatedAICluster) -> DedicatedState:
    """The state of an incomplete cluster: UPDATING if it was complete once, else CREATING."""
    ready = condition(cluster.status.conditions, READY)
    been = ready is not None and ready.status == "True"
    return "UPDATING" if been or cluster.status.dac_lifecycle_state in ("ACTIVE", "UPDATING") else "CREATING"


def _shrunk(usage: Amounts, wanted: ClusterDemand | DemandError) -> Amounts:
    """The part of the held quota that the cluster still wants."""
    if isinstance(wanted, DemandError):
        return usage
    return {
        key: min(value, wanted.requests.get(key.resource, 0))
        for key, value in usage.items()
        if wanted.requests.get(key.resource)
    }


def _kept(cluster: DedicatedAICluster) -> dict[str, ConditionUpdate]:
    """The broker's own conditions, unchanged."""
    found = {each.type: each for each in cluster.status.conditions}
    return {type_: _said(found[type_]) for type_ in CONDITIONS if type_ in found}


def _said(one: Condition) -> ConditionUpdate:
    return ConditionUpdate(type=one.type, status=one.status, reason=one.reason, message=one.message)


def _since(cluster: DedicatedAICluster) -> datetime | None:
    """The time since which the cluster waits for quota."""
    waits = condition(cluster.status.conditions, QUOTA_RESERVED)
    if waits is not None and waits.status == "False":
        return waits.last_transition_time
    return None


def _lacks(verdict: AdmissionDecision) -> str:
    said = [_lack(each) for each in verdict.shortfalls[:6]]
    return "; ".join([*said, *verdict.misfits[:6]]) or verdict.why or "others come first"


def _lack(one: Shortfall) -> str:
    resource = one.key.resource
    asked, most = written(resource, one.wanted), written(resource, one.most)
    if not one.key.flavor:
        return f"{asked} of {resource} wanted, which none of its groups covers"
    return f"{asked} of {resource} wanted, {most} to be had in {one.key.flavor}"


def preempted(eviction: Eviction, *, keeps: Amounts | None = None) -> ClusterEviction:
    """The eviction by the broker's own decision."""
    return ClusterEviction(
        keeps=keeps,
        reason=str(eviction.reason),
        message=f"preempted for {eviction.preemptor}, {_WHY[eviction.reason]}; preemptor path: "
        f"{eviction.preemptor_path}; preemptee path: {eviction.preemptee_path}",
    )


def _unread(facts: ClusterFacts) -> str:
    """The name and error of the first claim that is left out."""
    first = min(facts.left_out, key=lambda each: each.name, default=None)
    return f"; {first.name} is left out: {first.error}" if first is not None else ""


def _trouble(claims: Sequence[NodeClaim], down: Collection[str]) -> str:
    """The first obstacle, by claim name, to a launch or to a ready node."""
    for each in sorted(claims, key=lambda claim: claim.name):
        found = condition(each.status.conditions, names.LAUNCHED)
        if found is not None and found.status != "True" and found.message:
            way = CLASS_WAY if found.reason == "NodeClassNotFound" else ""
            return f"; {each.name}: {found.reason}: {found.message}{way}"
        if each.status.node_name in down:
            return f"; node {each.status.node_name} is not ready"
    return ""


def _available(ready: Sequence[NodeClaim]) -> int:
    """The accelerators of claims with ready nodes."""
    return sum(
        int(quantity(amount))
        for each in ready
        for resource, amount in each.status.capacity.items()
        if resource in ACCELERATORS
    )


def _accelerators(usage: Amounts) -> int:
    return sum(value for key, value in usage.items() if key.resource in ACCELERATORS)
