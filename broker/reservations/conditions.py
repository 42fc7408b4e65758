"""Obstacles and conditions of a reservation, each with its reason.

Invariant: all five conditions exist from the first write on, so that each can change. Messages of healthy
conditions are OME's own; the others name amounts and the remedy. SpecNormalized exists only if a part of the
spec is read differently from how it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from broker.apis import names, spelling
from broker.apis.meta import ConditionUpdate
from broker.apis.ome import SPEC_NORMALIZED
from broker.apis.ome_rules import JudgedSpec
from broker.apis.units import written
from broker.quota.hardware import HardwareShare, beyond
from broker.quota.lifecycle import Obstacle, ObstacleKind, State, ready
from broker.quota.model import Amounts, FlavorResource
from broker.quota.usage import ReservationHolder
from broker.reservations.annotations import INVALID_ANNOTATION
from broker.reservations.cluster_admission import by_flavor
from broker.reservations.ownership import ReservationProblem
from broker.reservations.queue_problems import BLOCKERS
from broker.reservations.queues import excess
from broker.reservations.sizing import Sizing, deciding_resources
from providers.model import Odcr

READY: Final = "Ready"
SUFFICIENT: Final = "ResourcesSufficient"
PROVISIONED: Final = "ResourcesProvisioned"
DACS: Final = "DACAssociationsHealthy"
WORKLOADS: Final = "WorkloadsHealthy"
# The author of the object can correct these in it.
ANNOTATION_REASONS: Final = (INVALID_ANNOTATION, spelling.REASON)
ACTIVE: Final = "Capacity reservation is active and healthy"
AVAILABLE: Final = "Sufficient resources available for allocation"
HEALTHY_DACS: Final = "All associated DACs are in healthy state"
HEALTHY_WORKLOADS: Final = "All associated workloads are in healthy state"
RATIO: Final = (
    "no number of instances has them in this ratio: lower the quota of the missing one, or set annotation "
    f"{names.SIZING}: max"
)
OUT_OF_SERVICE: Final = (
    "a cordoned node counts again once it is uncordoned, a broken machine once it is replaced"
)
MOST_NAMED: Final = 10  # entries that a message lists


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """The state of the reservation's ClusterQueue."""

    active: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationFacts:
    """The facts of one reservation.

    `deciding`: resources that its flavors are sized by; `cloud`: its ODCRs, each with its flavor; `pending`:
    those of them that do not serve yet; `ended`: those that it lost.
    `out_of_service`: why machines of its flavors cannot be used. `taken`: its resources in use by others, on
    the nodes `takers` if known. `failures`: problems of its purchases; `queue_failures`: those of its queues.
    `remedies`: ways to get missing instances if the broker buys none. `remaining`: the objects and ODCRs that
    still keep a deleted reservation.
    """

    judged: JudgedSpec
    refused: tuple[str, ...] = ()
    nominal: Amounts = field(default_factory=dict)
    limit: Amounts = field(default_factory=dict)
    share: HardwareShare = field(default_factory=HardwareShare)
    deciding: frozenset[FlavorResource] = frozenset()
    missing_flavors: tuple[str, ...] = ()
    nearest_flavor: str = ""  # the end of a message; empty if no name is similar to the first missing one
    cloud: tuple[tuple[str, Odcr], ...] = ()
    group_arn: str = ""
    pending: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    out_of_service: tuple[str, ...] = ()
    taken: Amounts = field(default_factory=dict)
    takers: tuple[str, ...] = ()
    queue: QueueState | None = None
    failures: tuple[ReservationProblem, ...] = ()
    queue_failures: tuple[ReservationProblem, ...] = ()
    remedies: tuple[str, ...] = ()
    holders: tuple[ReservationHolder, ...] = ()
    used: Amounts = field(default_factory=dict)
    priority_missing: str = ""
    remaining: tuple[str, ...] = ()


def obstacles(facts: ReservationFacts) -> Iterator[Obstacle]:
    """The obstacles, the deciding one first."""
    noted = [failure.text for failure in facts.failures if failure.reason in ANNOTATION_REASONS]
    for obstacle in _before_hardware(facts):
        yield replace(obstacle, message="; ".join([obstacle.message, *noted]))
    lacking = beyond(facts.nominal, facts.share.supplied)
    if decides := {key: value for key, value in lacking.items() if key in facts.deciding}:
        waits = any(failure.pending for failure in facts.failures) or bool(facts.pending)
        reason = "CloudReservationPending" if waits else "InsufficientCapacity"
        causes = [failure.message if failure.reason == reason else failure.text for failure in facts.failures]
        causes += facts.pending if waits else facts.remedies
        yield Obstacle(
            kind=ObstacleKind.BUYING if waits else ObstacleKind.SUPPLY,
            reason=reason,
            message="; ".join(
                filter(
                    None,
                    [
                        amounts_missing(facts.nominal, facts.share.supplied, decides),
                        listed(facts.ended),
                        *causes,
                    ],
                )
            ),
        )
    if excess_text := excess(facts.used, facts.limit):
        yield Obstacle(
            kind=ObstacleKind.USE,
            reason="QuotaExceeded",
            message=f"{excess_text}: nothing is evicted for it, and nothing more is admitted until it fits, "
            "except into slots without an owner, which need no quota; end some of "
            "status.associationUsages, or raise nominalQuota",
        )


def _before_hardware(facts: ReservationFacts) -> Iterator[Obstacle]:
    """Obstacles that are checked before the hardware: the spec, its flavors, its queue."""
    if facts.judged.problems:
        yield Obstacle(kind=ObstacleKind.SPEC, reason="SpecInvalid", message="; ".join(facts.judged.problems))
    if facts.refused:
        yield Obstacle(kind=ObstacleKind.SPEC, reason="QuotaExceeded", message="; ".join(facts.refused))
    if facts.missing_flavors:
        yield Obstacle(
            kind=ObstacleKind.QUEUE,
            reason="FlavorNotFound",
            message=f"no ResourceFlavor {listed(facts.missing_flavors)}: create it, with the node labels of "
            "its instances, or correct the flavor's name; without Kueue, a flavor is named after its "
            f"instance type, such as p5.48xlarge{facts.nearest_flavor}",
        )
    if facts.queue is not None and not facts.queue.active:
        state = ": ".join(part for part in (facts.queue.reason, facts.queue.message) if part)
        yield Obstacle(
            kind=ObstacleKind.QUEUE,
            reason="ClusterQueueInactive",
            message=f"its ClusterQueue is not active: {state}",
        )


def condition_updates(
    facts: ReservationFacts,
    state: State,
    obstacle: Obstacle | None,
    *,
    first: bool,
    was_ready: bool,
    anew: bool = False,
) -> tuple[ConditionUpdate, ...]:
    """The conditions in this state. `first`: none was written before. `anew`: the reservation had failed,
    and its spec changed since.
    """
    if first:
        message = "the reservation is new: its state is not known yet"
        return (
            ConditionUpdate(type=READY, status="False", reason="Creating", message=message),
            ConditionUpdate(type=SUFFICIENT, status="Unknown", reason="Creating", message=message),
            ConditionUpdate(type=PROVISIONED, status="False", reason="Creating", message=message),
            ConditionUpdate(type=DACS, status="Unknown", reason="Creating", message=message),
            ConditionUpdate(type=WORKLOADS, status="Unknown", reason="Creating", message=message),
        )
    if state == "Deleting":
        deleting = _ready(state, obstacle, facts, was_ready=was_ready)
        return (
            deleting,
            replace(deleting, type=SUFFICIENT, status="Unknown"),
            replace(deleting, type=PROVISIONED),
            _dacs(facts),
            _workloads(facts),
        )
    updates = (
        _ready(state, obstacle, facts, was_ready=was_ready),
        _sufficient(facts),
        _provisioned(state, obstacle, anew=anew),
        _dacs(facts),
        _workloads(facts),
    )
    if not facts.judged.notes:
        return updates
    notes = "; ".join(facts.judged.notes)
    return (
        *updates,
        ConditionUpdate(type=SPEC_NORMALIZED, status="True", reason="Normalized", message=notes),
    )


def detail(
    state: State, obstacle: Obstacle | None, updates: Sequence[ConditionUpdate], facts: ReservationFacts
) -> str:
    """One line for people: the state's name, or the problem. Problems of purchases and queues are all named:
    a later one may have the remedy of the first.
    """
    if state == "Deleting":
        return f"Deleting: {'; '.join(facts.remaining)}" if facts.remaining else state
    if obstacle is not None:
        return f"{obstacle.reason}: {obstacle.message}"
    if state != "Active":
        return state
    failures = (*facts.failures, *facts.queue_failures)
    if problem := next((update for update in updates if update.status == "False"), None):
        return f"{problem.reason}: {problem.message}"
    return "; ".join(failure.text for failure in failures) or state


def transition(state: State, obstacle: Obstacle | None, detail: str) -> str:
    """The message of the event of a new state.

    Machines of a flavor can serve a reservation before its own purchase: it is Active, and `detail` is the
    purchase in progress.
    """
    if state == "Active" and obstacle is None and detail != state:
        return f"machines for the whole quota exist; {detail}"
    return detail


def _ready(
    state: State, obstacle: Obstacle | None, facts: ReservationFacts, *, was_ready: bool
) -> ConditionUpdate:
    if ready(state, obstacle, was_ready=was_ready):
        if state == "Active":
            return ConditionUpdate(type=READY, status="True", reason="ReservationActive", message=ACTIVE)
        message = "the spec changed; the earlier capacity serves meanwhile"
        return ConditionUpdate(type=READY, status="True", reason="ReservationUpdating", message=message)
    if state == "Deleting":
        message = "; ".join(facts.remaining) or "nothing is left of it"
        return ConditionUpdate(type=READY, status="False", reason="Deleting", message=message)
    if obstacle is not None:
        return ConditionUpdate(type=READY, status="False", reason=obstacle.reason, message=obstacle.message)
    message = "the spec changed, and no capacity serves it yet"
    return ConditionUpdate(type=READY, status="False", reason="ReservationUpdating", message=message)


# Obstacles that stop admission and do not concern the hardware.
ADMISSION_ONLY: Final = ((ObstacleKind.QUEUE, "ClusterQueueInactive"), (ObstacleKind.SPEC, "QuotaExceeded"))


def _sufficient(facts: ReservationFacts) -> ConditionUpdate:
    def no(reason: str, message: str) -> ConditionUpdate:
        return ConditionUpdate(type=SUFFICIENT, status="False", reason=reason, message=message)

    for obstacle in obstacles(facts):
        if (obstacle.kind, obstacle.reason) not in ADMISSION_ONLY:
            return no(obstacle.reason, obstacle.message)
    if lacking := beyond(facts.nominal, facts.share.supplied):
        shortage = amounts_missing(facts.nominal, facts.share.supplied, lacking)
        ratio = "ResourceRatioUnsatisfiable"
        causes = [failure.message if failure.reason == ratio else failure.text for failure in facts.failures]
        return no(ratio, "; ".join([shortage, *(causes or [RATIO])]))
    if out := beyond(facts.nominal, facts.share.allocatable):
        shortage = amounts_missing(facts.nominal, facts.share.allocatable, out, verb="can be used now")
        why = filter(None, (shortage, listed(facts.out_of_service), OUT_OF_SERVICE))
        return no("HardwareUnavailable", "; ".join(why))
    if facts.taken:
        return no("HardwareInUse", _in_use(facts))
    return ConditionUpdate(type=SUFFICIENT, status="True", reason="CapacityAvailable", message=AVAILABLE)


def _in_use(facts: ReservationFacts) -> str:
    usage_text = ", ".join(
        f"flavor {key.flavor}: {written(key.resource, value)} of {written(key.resource, facts.nominal[key])} "
        f"{key.resource} are used by others"
        for key, value in sorted(facts.taken.items())
    )
    if facts.queue is not None:
        return (
            f"{usage_text}: pods on its nodes that no workload with quota accounts for; queue them for a "
            "reservation, or move them away (kubectl get pods -A -o wide)"
        )
    return (
        f"{usage_text}: pods on {listed(facts.takers)} draw from another reservation or none; give the "
        f"NodePool's template the annotation {names.DRAWS_FROM}, or drain them"
    )


def _provisioned(state: State, obstacle: Obstacle | None, *, anew: bool) -> ConditionUpdate:
    """The condition's last change is when capacity of the spec began to be missing."""
    if anew:
        message = "the spec changed: the capacity of the new one is being provisioned"
        return ConditionUpdate(type=PROVISIONED, status="Unknown", reason="Updating", message=message)
    if state == "Active" and (obstacle is None or obstacle.kind is ObstacleKind.USE):
        message = "the capacity of the spec exists"
        return ConditionUpdate(type=PROVISIONED, status="True", reason="CapacityProvisioned", message=message)
    reason, message = (obstacle.reason, obstacle.message) if obstacle is not None else (state, state)
    return ConditionUpdate(type=PROVISIONED, status="False", reason=reason, message=message)


def _dacs(facts: ReservationFacts) -> ConditionUpdate:
    if text := _unhealthy(facts, clusters=True):
        return ConditionUpdate(type=DACS, status="False", reason="DACFailed", message=text)
    return ConditionUpdate(type=DACS, status="True", reason="AllDACsHealthy", message=HEALTHY_DACS)


def _workloads(facts: ReservationFacts) -> ConditionUpdate:
    if facts.priority_missing:
        message = (
            f"spec.priorityClassName {facts.priority_missing} is no WorkloadPriorityClass and no "
            "PriorityClass: workloads have priority 0 until there is one; create it, or correct the name"
        )
        return ConditionUpdate(
            type=WORKLOADS, status="False", reason="PriorityClassNotFound", message=message
        )
    for failure in facts.queue_failures:
        if failure.reason in BLOCKERS:
            return ConditionUpdate(
                type=WORKLOADS, status="False", reason=failure.reason, message=failure.message
            )
    if text := _unhealthy(facts, clusters=False):
        return ConditionUpdate(type=WORKLOADS, status="False", reason="WorkloadFailed", message=text)
    return ConditionUpdate(
        type=WORKLOADS, status="True", reason="AllWorkloadsHealthy", message=HEALTHY_WORKLOADS
    )


def _unhealthy(facts: ReservationFacts, *, clusters: bool) -> str:
    """The dedicated clusters, or the other holders, that are not healthy."""
    unhealthy = [
        f"{holder.name}: {holder.why or 'not healthy'}"
        for holder in facts.holders
        if not holder.healthy and (holder.kind == "DedicatedAICluster") is clusters
    ]
    return listed(unhealthy, "; ")


def amounts_missing(wanted: Amounts, has: Amounts, lacking: Amounts, *, verb: str = "there are") -> str:
    return ", ".join(
        f"flavor {key.flavor}: {verb} {written(key.resource, has.get(key, 0))} of "
        f"{written(key.resource, wanted[key])} {key.resource}"
        for key in sorted(lacking)
    )


def listed(entries: Sequence[str], separator: str = ", ") -> str:
    more = len(entries) - MOST_NAMED
    return separator.join([*entries[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])


def deciding(nominal: Amounts, sizing: Sizing) -> frozenset[FlavorResource]:
    """Resources that size each flavor's quota."""
    return frozenset(
        FlavorResource(flavor, resource)
        for flavor, amounts in by_flavor(nominal).items()
        for resource in deciding_resources(amounts, sizing)
    )
