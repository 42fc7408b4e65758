"""The pods that wait: with a claim and without one, beside Karpenter and without it.

Invariant: `explain`, the web page, the metrics and the notifications read these values, so they agree. A
reason is one of a bounded set, and the message has the details: those of the pod's claim, those that the
broker reported on the pod, or those of the reservations of a class that Karpenter launches from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from broker.apis import names
from broker.apis.core import UNSCHEDULABLE, Pod
from broker.apis.karpenter import NodeClaim, NodePool, pods_of
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import condition, is_true
from broker.capacity.full_slots import full_ids
from broker.capacity.reasons import GANG_INCOMPLETE
from broker.capacity.requirements import Requirements
from broker.oncall.metrics import GaugeTable
from broker.oncall.pod_reports import PodReport
from broker.oncall.slot_holders import SlotUse
from broker.oncall.state import launch_state
from broker.oncall.waiters import (
    NO_OBSTACLES,
    PodObstacles,
    created,
    gates,
    owner_of,
    pod_command,
    template_command,
    waits,
)
from broker.placement.gangs import gang_of, unknown_sizes, waits_for_pods
from broker.placement.message import own_rejection
from broker.placement.model import PodInfo
from broker.placement.pool_choice import (
    NO_MACHINE,
    OFFERING,
    PoolVerdict,
    absent_pools,
    asked,
    buys,
    none_accepts,
    of_broker,
    pool_node,
    pool_verdicts,
)
from broker.placement.pool_room import TypeRoom
from broker.placement.reading import claim_requirements, pod_info
from broker.text import abridged

NEW: Final = "New"
GATED: Final = "SchedulingGated"
NODE_NOT_READY: Final = "NodeNotReady"
NO_NODEPOOL: Final = "NoNodePool"
NODEPOOL_NOT_READY: Final = "NodePoolNotReady"
RESERVATIONS_FULL: Final = "ReservationsFull"
OTHER_CONTROLLER: Final = "OtherController"
MOST_NAMED: Final = 3
_STEPS: Final = (names.REGISTERED_CONDITION, names.INITIALIZED_CONDITION)
# With these, no free slot helps.
_HELD: Final = frozenset({GATED, GANG_INCOMPLETE, NO_NODEPOOL})

_COUNT: Final = GaugeTable(
    "capacity_broker_pods_waiting",
    "Pods without a node, by the NodePool that they get one from (empty for none) and the reason.",
    ("nodepool", "reason"),
)
_OLDEST: Final = GaugeTable(
    "capacity_broker_pods_waiting_since_timestamp_seconds",
    "When the oldest of the pods without a node was created.",
    ("nodepool", "reason"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPod:
    """A pod without a node. `owner`: the workload that made it, as `Deployment web`; empty for none.

    `node_pool`: the NodePool of its claim, else the one that it gets a node from; empty for none.
    `own_message`: that of its events and conditions alone, which each reader of the pod may see.
    `remedy`: the part of its template that no NodePool meets, if that is the reason. `full`: the ids of the
    full reservations that its reason names and that it may use.
    """

    namespace: str
    name: str
    owner: str
    node_pool: str
    reason: str
    message: str
    since: datetime | None
    claim: str = ""
    own_message: str = ""
    remedy: str = ""
    full: tuple[str, ...] = ()
    obstacles: PodObstacles = NO_OBSTACLES

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def command(self) -> str:
        return pod_command(self.key)

    @property
    def edit(self) -> str:
        return template_command(self.namespace, self.name, self.owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingGroup:
    """Waiting pods of one owner, NodePool and reason; the first waits longest."""

    pods: tuple[WaitingPod, ...]

    @property
    def first(self) -> WaitingPod:
        return self.pods[0]

    @property
    def named(self) -> str:
        """The pods in words: one by its name, several by their owner."""
        first = self.first
        if len(self.pods) == 1 or not first.owner:
            return f"pod {first.key}"
        kind, _, name = first.owner.partition(" ")
        return f"{kind} {first.namespace}/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSurroundings:
    """The objects that the reasons follow from. `reports`: the launcher's last report on a pod, by its uid.

    `members`: the pods of each gang that exist. `advised`: the classes that the broker advises Karpenter on.
    """

    claims: Sequence[NodeClaim]
    pools: Sequence[NodePool]
    uses: Mapping[str, SlotUse]
    reports: Mapping[str, PodReport]
    members: Mapping[str, int]
    advised: frozenset[str]
    room: TypeRoom


def advised_classes(classes: Iterable[EC2NodeClass]) -> frozenset[str]:
    """The classes that the broker advises Karpenter on."""
    advised = names.RESERVATIONS_ADVISED
    return frozenset(item.name for item in classes if condition(item.status.conditions, advised) is not None)


def waiting_rows(pods: Iterable[Pod], around: PodSurroundings, now: datetime) -> list[WaitingPod]:
    """The waiting pods of these, the oldest first."""
    claim_of = {key: claim for claim in around.claims if not claim.deleting for key in pods_of(claim)}
    choices = _Choices(around)
    waiting = sorted(filter(waits, pods), key=lambda pod: (created(pod, now), pod.key))
    return [_row(pod, _unless_taken(pod, claim_of.get(pod.key), around), choices, around) for pod in waiting]


def _unless_taken(pod: Pod, claim: NodeClaim | None, around: PodSurroundings) -> NodeClaim | None:
    """The pod's claim; None if others took its node, and the launcher found no other for the pod since."""
    taken = claim is not None and pod.uid in around.reports and is_true(claim, names.INITIALIZED_CONDITION)
    return None if taken else claim


def grouped(rows: Iterable[WaitingPod]) -> list[WaitingGroup]:
    """Equal pods of one owner together; the order is that of the first of each."""
    groups: dict[tuple[str, ...], list[WaitingPod]] = {}
    for row in rows:
        owner = (row.namespace, row.owner or f"pod {row.name}")
        groups.setdefault((*owner, row.node_pool, row.reason), []).append(row)
    return [WaitingGroup(pods=tuple(group)) for group in groups.values()]


def follow(waiting: Callable[[], Iterable[WaitingPod]]) -> None:
    """Shows the pods that wait at each scrape, until the tables are cleared."""

    def by_labels() -> dict[tuple[str, ...], list[float]]:
        since: dict[tuple[str, ...], list[float]] = {}
        for pod in waiting():
            begun = pod.since.timestamp() if pod.since else 0.0
            since.setdefault((pod.node_pool, pod.reason), []).append(begun)
        return since

    _COUNT.follow(lambda: {labels: len(begun) for labels, begun in by_labels().items()})
    _OLDEST.follow(lambda: {labels: min(begun) for labels, begun in by_labels().items()})


class PoolChoice(NamedTuple):
    """The NodePools of a pod. `absent`: the NodePools or label values that it insists on, in a sentence, if
    none of them exists.
    """

    info: PodInfo
    verdicts: Sequence[PoolVerdict]
    absent: str


class _Choices:
    """The NodePools of each pod. Pods that ask for the same share the answer."""

    def __init__(self, around: PodSurroundings) -> None:
        self._around = around
        self._known: dict[Hashable, PoolChoice] = {}

    def of(self, pod: Pod) -> PoolChoice:
        info, around = pod_info(pod), self._around
        key = asked(info)
        if key not in self._known:
            verdicts = pool_verdicts(info, around.pools, around.room.lack)
            absent = absent_pools(info, [pool.name for pool in around.pools]) or around.room.unknown(info)
            self._known[key] = PoolChoice(info, verdicts, absent)
        return self._known[key]


def _row(pod: Pod, claim: NodeClaim | None, choices: _Choices, around: PodSurroundings) -> WaitingPod:
    pool = claim.labels.get(names.NODEPOOL, "") if claim is not None else ""
    remedy, choice = "", None
    if claim is not None:
        reason, message = _of_claim(claim)
    else:
        choice = choices.of(pod)
        pool = next((verdict.pool.name for verdict in choice.verdicts if verdict.accepts), "")
        reason, message = next(filter(None, (rule(pod, choice, around) for rule in _RULES)))
        remedy = _remedy(choice) if reason == NO_NODEPOOL else ""
    obstacles = _obstacles(pod, choice, message if reason in _HELD else "", around)
    without = reason == OTHER_CONTROLLER or bool(obstacles.held)
    return WaitingPod(
        namespace=pod.namespace,
        name=pod.name,
        owner=owner_of(pod),
        node_pool=pool,
        reason=reason,
        message=message,
        since=pod.metadata.creation_timestamp,
        claim=claim.name if claim is not None else "",
        own_message=_scheduler(pod, around),
        obstacles=obstacles,
        remedy=remedy,
        full=() if without else tuple(_full(claim, choice, reason, message, around)),
    )


def _obstacles(pod: Pod, choice: PoolChoice | None, held: str, around: PodSurroundings) -> PodObstacles:
    """None for a pod with a claim: those of the claim count."""
    if choice is None:
        return NO_OBSTACLES
    return PodObstacles(
        held=held or _held(pod, around),
        report=_report(pod, around).message,
        accepting=tuple((item.pool.name, item.rejection) for item in choice.verdicts if item.accepts),
    )


def _of_claim(claim: NodeClaim) -> tuple[str, str]:
    """Why the claim of a pod is not its node yet."""
    if claim.waits:
        reason, message = launch_state(claim)
        return reason, f"NodeClaim {claim.name}: {message}"
    for type_ in _STEPS:
        step = condition(claim.status.conditions, type_)
        if step is None or step.status != "True":
            state = f"{type_}={step.status} {step.reason}: {step.message}" if step else f"not {type_} yet"
            return NODE_NOT_READY, f"NodeClaim {claim.name} has its instance, and is {state}".rstrip(": ")
    return UNSCHEDULABLE, f"NodeClaim {claim.name} has its node; kube-scheduler has not bound the pod"


def _full(
    claim: NodeClaim | None, choice: PoolChoice | None, reason: str, message: str, around: PodSurroundings
) -> Iterator[str]:
    """The full reservations of the message that the claim allows, or the pod and its NodePool."""
    verdicts = choice.verdicts if choice is not None else ()
    if verdicts and reason == RESERVATIONS_FULL:
        named = [*advised_uses(verdicts[0].pool, around)]
    else:
        named = [use for id_ in full_ids(message) if (use := around.uses.get(id_))]
    full = [use for use in named if not use.free and use.state == "active"]
    suits = around.room.suits
    allowed: list[Requirements] = [claim_requirements(claim)] if full and claim is not None else []
    for verdict in verdicts if full else ():
        if verdict.accepts and choice is not None:
            allowed += pool_node(verdict.pool).selections(choice.info)
    for use in full:
        labels = {names.INSTANCE_TYPE: use.type, names.ZONE: use.zone, names.CAPACITY_TYPE: "reserved"}
        fits = [item for item in allowed if all(item.allows(*label) for label in labels.items())]
        if fits and (choice is None or suits(use.type, choice.info, fits)):
            yield use.id


Rule = Callable[[Pod, PoolChoice, PodSurroundings], tuple[str, str] | None]


def _gated(pod: Pod, _: object, __: object) -> tuple[str, str] | None:
    held = gates(pod)
    return (GATED, held) if held else None


def _new(pod: Pod, _: object, __: object) -> tuple[str, str] | None:
    return None if pod.scheduled else (NEW, "no scheduler has answered yet")


def _of_gang(pod: Pod, _: object, around: PodSurroundings) -> tuple[str, str] | None:
    gang = gang_of(pod, unknown_sizes)
    held = waits_for_pods(gang, around.members.get(gang.name, 1)) if gang.name else ""
    return (GANG_INCOMPLETE, held) if held else None


def _without_pool(pod: Pod, choice: PoolChoice, around: PodSurroundings) -> tuple[str, str] | None:
    verdicts = choice.verdicts
    if any(not verdict.rejection for verdict in verdicts):
        return None
    if closed := next((verdict for verdict in verdicts if verdict.accepts), None):
        return NODEPOOL_NOT_READY, f"NodePool {closed.pool.name}: {closed.rejection}"
    if not verdicts:
        return NO_NODEPOOL, f"the cluster has no NodePool; {_scheduler(pod, around)}"
    if choice.absent:
        return NO_NODEPOOL, choice.absent
    return NO_NODEPOOL, none_accepts(verdicts)


def _remedy(choice: PoolChoice) -> str:
    """The part of the pod's template that no NodePool meets; empty without any NodePool."""
    if not choice.verdicts:
        return ""
    if choice.absent:
        return f"its node selector or affinity names what is not there: {choice.absent}"
    lacks = {verdict.lack for verdict in choice.verdicts}
    if lacks == {"pool"}:
        return ""
    if "requests" in lacks:
        return "its requests are more than any instance type that its NodePools allow has"
    return "its node selector, affinity and tolerations are met by no NodePool"


def _held(pod: Pod, around: PodSurroundings) -> str:
    """The reason of the pod's own that keeps it from any machine; empty without one."""
    report, scheduled = _report(pod, around), pod.scheduled
    if report.held:
        return report.message
    return own_rejection(scheduled.message) if scheduled is not None else ""


def _rejected(pod: Pod, _: object, around: PodSurroundings) -> tuple[str, str] | None:
    return (UNSCHEDULABLE, _scheduler(pod, around)) if _held(pod, around) else None


def _of_others(pod: Pod, choice: PoolChoice, around: PodSurroundings) -> tuple[str, str] | None:
    """A pod that another controller gets a node for, with the reservations that the broker advises on."""
    chosen = choice.verdicts[0].pool
    if of_broker(chosen):
        return None
    ref = chosen.spec.template.spec.node_class_ref
    accepts = f"NodePool {chosen.name} of group {ref.group} accepts it"
    advised = [*advised_uses(chosen, around)]
    if not advised:
        return OTHER_CONTROLLER, f"{accepts}; {_scheduler(pod, around)}"
    texts = abridged([use.summary for use in advised], MOST_NAMED)
    full = not buys(chosen) and not any(use.free for use in advised)
    return (RESERVATIONS_FULL if full else OTHER_CONTROLLER), (
        f"{accepts}; the reservations of class {ref.name}: {texts}; {_scheduler(pod, around)}"
    )


def advised_uses(pool: NodePool, around: PodSurroundings) -> Iterator[SlotUse]:
    """The reservations that Karpenter may launch the pool's nodes into by the advice: none is dedicated."""
    ref = pool.spec.template.spec.node_class_ref
    if ref.group != names.KARPENTER_AWS or ref.name not in around.advised:
        return
    required = pool_node(pool).requirements
    if not required.allows(names.CAPACITY_TYPE, "reserved"):
        return
    for use in around.uses.values():
        fits = required.allows(names.INSTANCE_TYPE, use.type) and required.allows(names.ZONE, use.zone)
        if ref.name in use.node_classes and fits and use.tenancy != "dedicated":
            yield use


def _of_pool(pod: Pod, choice: PoolChoice, around: PodSurroundings) -> tuple[str, str] | None:
    chosen = choice.verdicts[0].pool
    offering = condition(chosen.status.conditions, OFFERING)
    if offering is None or offering.status != "False":
        return None
    return NO_MACHINE, _report(pod, around).message or f"NodePool {chosen.name}: {offering.message}"


def _reported(pod: Pod, _: object, around: PodSurroundings) -> tuple[str, str]:
    scheduled = pod.scheduled
    return (scheduled.reason if scheduled else "") or NEW, _scheduler(pod, around)


def _scheduler(pod: Pod, around: PodSurroundings) -> str:
    """The last report of the pod's launcher, else kube-scheduler's."""
    scheduled = pod.scheduled
    return (
        _report(pod, around).message
        or (scheduled.message if scheduled else "")
        or "no scheduler has answered yet"
    )


def _report(pod: Pod, around: PodSurroundings) -> PodReport:
    return around.reports.get(pod.uid, PodReport(""))


_RULES: Final[tuple[Rule, ...]] = (
    _gated,
    _new,
    _of_gang,
    _without_pool,
    _rejected,
    _of_others,
    _of_pool,
    _reported,
)
