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
from broker.apis.meta import ConditionUpdate, condition, is_true, since
from broker.apis.ome import DedicatedState
from broker.apis.ome_clusters import DedicatedAICluster
from broker.apis.units import written
from broker.capacity.reasons import CLASS_NOT_FOUND
from broker.capacity.types import ACCELERATORS
from broker.controllers.dedicatedaicluster.demand import ClusterDemand, DemandError
from broker.controllers.dedicatedaicluster.machines import (
    LAUNCH_LIMIT,
    ClaimChanges,
    claim_changes,
    flavor_name,
    more_than,
)
from broker.controllers.dedicatedaicluster.snapshot import PREEMPTED, ClusterState
from broker.kube.partial import PartialObject
from broker.quota.entitled import AdmissionDecision, AdmissionPhase, Eviction, Shortfall
from broker.quota.model import Amounts, Reason
from broker.quota.resolve import UnresolvedName
from broker.quota.usage import ReservationKey
from broker.reservations.cluster_admission import ClusterAdmission, by_flavor, usage_text
from broker.reservations.cluster_sizes import Size
from broker.reservations.sizing import FlavorProblem, SizedQuota
from broker.text import counted, quantity

QUOTA_RESERVED: Final = "QuotaReserved"
READY: Final = "Ready"
CONDITIONS: Final = (QUOTA_RESERVED, PREEMPTED, READY)

_SMALLER: Final = "request less in spec.resources or spec.count, or raise nominalQuota of the reservation"
_SOONER: Final = "it continues by itself once other quota is released or nominalQuota is raised"
CLASS_HINT: Final = (
    f"; annotation {names.NODE_CLASS} of the cluster, its profile or its reservation names another"
)


_WHY: Final[Mapping[Reason, str]] = {
    Reason.IN_QUEUE: "of higher priority in the same reservation",
    Reason.RECLAIM: "which reclaims its reservation's own quota",
    Reason.RECLAIM_WHILE_BORROWING: "of higher priority in its cohort",
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
    """The facts about a cluster.

    `unready_nodes`: names of nodes that are not ready. `kept`: maps the needed quota to the quota that counts
    as held. `launch_limit`: the limit of its claims without an instance at a time. `left_out`: its unreadable
    claims.
    """

    state: ClusterState
    decision: AdmissionDecision | None = None
    eviction: ClusterEviction | None = None
    claims: Sequence[NodeClaim] = ()
    left_out: Sequence[PartialObject] = ()
    unready_nodes: Collection[str] = ()
    kept: Callable[[Amounts], Amounts] = lambda held: held
    launch_limit: int = LAUNCH_LIMIT

    @property
    def all_claims(self) -> Sequence[NodeClaim | PartialObject]:
        return (*self.claims, *self.left_out)

    @property
    def ready(self) -> list[NodeClaim]:
        """The claims with ready nodes, without terminating ones."""
        return [
            claim
            for claim in self.claims
            if not claim.deleting
            and is_true(claim, names.READY)
            and claim.status.node_name not in self.unready_nodes
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """`held`: the cluster's quota from now on; `sized`: its size in instances, by flavor."""

    state: DedicatedState
    detail: str
    conditions: tuple[ConditionUpdate, ...]
    held: ClusterAdmission | None = None
    sized: Mapping[str, SizedQuota] = field(default_factory=dict)
    changes: ClaimChanges = field(default_factory=ClaimChanges)
    available: int = 0
    allocated: int = 0
    releasable: bool = False  # the cluster is deleted, and none of its claims is left
    requeue_after: float | None = None  # seconds until the status changes by time alone


def next_status(facts: ClusterFacts, size: Size, *, now: datetime, wait: float) -> ClusterStatus:
    """The cluster's next status. `wait`: seconds to wait for quota before it is FAILED; it keeps waiting."""
    admission = facts.state.held
    whole = facts.eviction is not None and facts.eviction.keeps is None
    if facts.state.terminating or (whole and admission is not None):
        return _terminating_status(facts, admission)
    decision = facts.decision
    if (
        decision is not None
        and decision.phase is AdmissionPhase.ADMITTED
        and isinstance(facts.state.reserved, ReservationKey)
    ):
        before = admission or ClusterAdmission(reserved=facts.state.reserved, since=now, usage={})
        admission = replace(before, usage=decision.usage)
    if admission is None:
        return _waiting_status(facts, now=now, limit=wait)
    return _serving_status(facts, replace(admission, priority=facts.state.priority), size)


def _terminating_status(facts: ClusterFacts, admission: ClusterAdmission | None) -> ClusterStatus:
    """Gives back instances first, then quota, then the object."""
    cluster, claims = facts.state.cluster, facts.all_claims
    done = not claims
    preempted_before = condition(cluster.status.conditions, PREEMPTED)
    updates: list[ConditionUpdate] = []
    if cluster.deleting:
        state: DedicatedState = "DELETING"
        reason, why = "Deleting", "the cluster is deleted"
    elif facts.eviction is not None:
        state, reason, why = "UPDATING", facts.eviction.reason, facts.eviction.message
        updates.append(ConditionUpdate(type=PREEMPTED, status="True", reason=reason, message=why))
    elif preempted_before is not None and preempted_before.status == "True":
        state, reason, why = "UPDATING", preempted_before.reason, preempted_before.message
    else:
        state, reason = "UPDATING", "ReservationChanged"
        why = f"it moves to reservation {facts.state.reserved}"
    detail = f"{why}: {counted(len(claims), 'instance')} left{_unread_claim(facts)}" if claims else why
    if done:
        updates.append(ConditionUpdate(type=QUOTA_RESERVED, status="False", reason=reason, message=why))
    updates.append(ConditionUpdate(type=READY, status="False", reason=reason, message=detail))
    held_now = None if done else admission
    return ClusterStatus(
        state=state,
        detail=detail,
        conditions=tuple(updates),
        held=held_now,
        changes=claim_changes({}, facts.claims),
        available=_available(facts.ready),
        allocated=_accelerators(held_now.usage) if held_now else 0,
        releasable=cluster.deleting and done,
    )


def _waiting_status(facts: ClusterFacts, *, now: datetime, limit: float) -> ClusterStatus:
    """The status of a cluster without quota: CREATING until the wait times out, else FAILED."""
    decision, barred = facts.decision, facts.state.barred
    demand, reserved = facts.state.demand, facts.state.reserved
    left: float | None = None
    state: DedicatedState = "FAILED"
    if isinstance(demand, DemandError):
        reason, why = demand.reason, demand.message
    elif isinstance(reserved, UnresolvedName):
        reason, why = reserved.reason, f"spec.capacityReservationId: {reserved.message}"
    elif barred or (decision is None and not facts.state.full):
        reason = "ReservationInvalid"
        why = f"reservation {reserved} grants nothing: {barred or 'it is not judged yet'}"
    elif decision is not None and decision.phase is AdmissionPhase.NEVER:
        reason, why = (
            "NotEnoughResources",
            f"reservation {reserved} can never grant it: {_shortfalls_text(decision)}; {_SMALLER}",
        )
    else:
        reason = "WaitingForQuota"
        shortfalls = _shortfalls_text(decision) if decision is not None else facts.state.full
        why = f"waits for quota of {reserved}: {shortfalls}; {_SOONER}"
        waits_since = since(facts.state.cluster, QUOTA_RESERVED, "False") or now
        left = limit - (now - waits_since).total_seconds()
        state = "CREATING" if left > 0 else "FAILED"
        if left <= 0:
            reason, left = "NotEnoughResources", None
    updates = [
        ConditionUpdate(type=type_, status="False", reason=reason, message=why)
        for type_ in (QUOTA_RESERVED, READY)
    ]
    return ClusterStatus(
        state=state,
        detail=why,
        conditions=tuple(updates),
        # Instances without quota mean a lost status. They end only if the decision gave no quota.
        changes=claim_changes({}, facts.claims) if decision is not None else ClaimChanges(),
        available=_available(facts.ready),
        requeue_after=left,
    )


def _serving_status(facts: ClusterFacts, admission: ClusterAdmission, size: Size) -> ClusterStatus:
    """The status of a cluster with quota, which shrinks only after its instances have."""
    cluster, claims = facts.state.cluster, facts.claims
    target = _shrunk(admission.usage, facts.state.demand)
    if facts.eviction is not None and (keeps := facts.eviction.keeps) is not None:
        target = {key: min(value, keeps[key]) for key, value in target.items() if keeps.get(key)}
    sized: dict[str, SizedQuota] = {}
    problems: list[FlavorProblem] = []
    counts: dict[str, int] = {}
    for flavor, amounts in by_flavor(target).items():
        sizing = size(flavor, amounts)
        if isinstance(sizing, FlavorProblem):
            problems.append(sizing)
            # A flavor that cannot be sized now keeps its instances.
            counts[flavor] = sum(flavor_name(claim) == flavor for claim in facts.all_claims)
        else:
            sized[flavor], counts[flavor] = sizing, sizing.count
    if not more_than(counts, facts.all_claims):
        admission = replace(admission, usage=facts.kept(target))
    alive = [claim for claim in claims if not claim.deleting]
    ready = facts.ready
    whole = len(ready) == sum(counts.values()) and not more_than(counts, facts.all_claims)
    holds = f"it holds {usage_text(admission.usage)} of {admission.reserved}"
    updates = [ConditionUpdate(type=QUOTA_RESERVED, status="True", reason="QuotaReserved", message=holds)]
    if condition(cluster.status.conditions, PREEMPTED) is not None:
        updates.append(ConditionUpdate(type=PREEMPTED, status="False", reason="QuotaReserved", message=holds))
    state, reason, detail = _quota_state(facts, problems)
    if not whole and not problems:
        reason, state = "InstancesPending", state if state == "FAILED" else _pending(cluster)
        trouble = _unread_claim(facts) or _first_obstacle(alive, facts.unready_nodes)
        progress = (
            f"{len(ready)} of {counted(sum(counts.values()), 'instance is', 'instances are')} ready{trouble}"
        )
        detail = f"{detail}; {progress}" if detail else progress
    serving = whole and not problems
    updates.append(
        ConditionUpdate(
            type=READY,
            status="True" if serving else "False",
            reason="InstancesReady" if serving else reason,
            message=counted(len(ready), "instance is ready", "instances are ready") if serving else detail,
        )
    )
    return ClusterStatus(
        state=state,
        detail=detail or state,
        conditions=tuple(updates),
        held=admission,
        sized=sized,
        changes=claim_changes(counts, claims, facts.left_out, launch_limit=facts.launch_limit),
        available=_available(facts.ready),
        allocated=_accelerators(admission.usage),
    )


def _quota_state(facts: ClusterFacts, problems: Sequence[FlavorProblem]) -> tuple[DedicatedState, str, str]:
    """State, reason and detail of a cluster with quota, without regard to its instances."""
    decision, barred = facts.decision, facts.state.barred
    demand, reserved = facts.state.demand, facts.state.reserved
    if problems:
        return "FAILED", problems[0].reason, problems[0].message
    kept = "it keeps what it has"
    if facts.eviction is not None:
        rest = usage_text(facts.eviction.keeps or {})
        return "UPDATING", facts.eviction.reason, f"{facts.eviction.message}; it keeps {rest}"
    if isinstance(demand, DemandError):
        return "UPDATING", demand.reason, f"{demand.message}; {kept}"
    if isinstance(reserved, UnresolvedName):
        return "UPDATING", reserved.reason, f"{reserved.message}; {kept}"
    if barred:
        return "UPDATING", "ReservationInvalid", f"reservation {reserved}: {barred}; {kept}"
    if decision is not None and decision.phase is AdmissionPhase.NEVER:
        return (
            "FAILED",
            "NotEnoughResources",
            f"it can never have more: {_shortfalls_text(decision)}; {_SMALLER}; {kept}",
        )
    if decision is not None and decision.phase is not AdmissionPhase.ADMITTED:
        return (
            "UPDATING",
            "WaitingForQuota",
            f"waits for more quota: {_shortfalls_text(decision)}; {_SOONER}; {kept}",
        )
    return "ACTIVE", "", ""


def _pending(cluster: DedicatedAICluster) -> DedicatedState:
    """The state of an incomplete cluster: UPDATING if it was complete once, else CREATING."""
    been = is_true(cluster, READY)
    return "UPDATING" if been or cluster.status.dac_lifecycle_state in ("ACTIVE", "UPDATING") else "CREATING"


def _shrunk(usage: Amounts, demand: ClusterDemand | DemandError) -> Amounts:
    """The part of the held quota that the cluster still requests."""
    if isinstance(demand, DemandError):
        return usage
    return {
        key: min(value, demand.requests.get(key.resource, 0))
        for key, value in usage.items()
        if demand.requests.get(key.resource)
    }


def _shortfalls_text(decision: AdmissionDecision) -> str:
    texts = [_shortfall_text(shortfall) for shortfall in decision.shortfalls[:6]]
    return "; ".join([*texts, *decision.misfits[:6]]) or decision.why or "other requests come first"


def _shortfall_text(shortfall: Shortfall) -> str:
    resource = shortfall.key.resource
    requested, most = written(resource, shortfall.wanted), written(resource, shortfall.most)
    if not shortfall.key.flavor:
        return f"{requested} of {resource} requested, which none of its groups covers"
    return f"{requested} of {resource} requested, {most} available in {shortfall.key.flavor}"


def preempted(eviction: Eviction, *, keeps: Amounts | None = None) -> ClusterEviction:
    """The eviction by the broker's own decision."""
    return ClusterEviction(
        keeps=keeps,
        reason=str(eviction.reason),
        message=f"preempted for {eviction.preemptor}, {_WHY[eviction.reason]}; preemptor path: "
        f"{eviction.preemptor_path}; preemptee path: {eviction.preemptee_path}",
    )


def _unread_claim(facts: ClusterFacts) -> str:
    """The name and error of the first claim that is left out."""
    first = min(facts.left_out, key=lambda claim: claim.name, default=None)
    return f"; {first.name} is left out: {first.error}" if first is not None else ""


def _first_obstacle(claims: Sequence[NodeClaim], unready_nodes: Collection[str]) -> str:
    """The first obstacle, by claim name, to a launch or to a ready node."""
    for claim in sorted(claims, key=lambda item: item.name):
        launched = condition(claim.status.conditions, names.LAUNCHED)
        if launched is not None and launched.status != "True" and launched.message:
            way = CLASS_HINT if launched.reason == CLASS_NOT_FOUND else ""
            return f"; {claim.name}: {launched.reason}: {launched.message}{way}"
        if claim.status.node_name in unready_nodes:
            return f"; node {claim.status.node_name} is not ready"
    return ""


def _available(ready: Sequence[NodeClaim]) -> int:
    """The accelerators of claims with ready nodes."""
    return sum(
        int(quantity(amount))
        for claim in ready
        for resource, amount in claim.status.capacity.items()
        if resource in ACCELERATORS
    )


def _accelerators(usage: Amounts) -> int:
    return sum(value for key, value in usage.items() if key.resource in ACCELERATORS)
