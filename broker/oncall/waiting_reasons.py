"""Why a pod waits: one of a bounded set of reasons, and a message with the details.

A pod with a claim has the reason of the claim. For another the first rule that has one decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.apis import names
from broker.apis.core import UNSCHEDULABLE, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import condition
from broker.capacity.reasons import GANG_INCOMPLETE
from broker.oncall.pod_facts import gates
from broker.oncall.pod_reports import PodReport
from broker.oncall.slot_holders import SlotUse
from broker.oncall.state import launch_state
from broker.placement.gangs import gang_of, unknown_sizes, waits_for_pods
from broker.placement.message import own_rejection
from broker.placement.model import PodInfo
from broker.placement.pool_choice import (
    NO_MACHINE,
    OFFERING,
    PoolVerdict,
    buys,
    none_accepts,
    of_broker,
    pool_node,
    static_pool,
)
from broker.placement.pool_room import TypeRoom
from broker.text import abridged

NEW: Final = "New"
GATED: Final = "SchedulingGated"
NODE_NOT_READY: Final = "NodeNotReady"
NO_NODEPOOL: Final = "NoNodePool"
NODEPOOL_NOT_READY: Final = "NodePoolNotReady"
STATIC_NODEPOOL: Final = "StaticNodePool"
RESERVATIONS_FULL: Final = "ReservationsFull"
OTHER_CONTROLLER: Final = "OtherController"
MOST_NAMED: Final = 3
_STEPS: Final = (names.REGISTERED_CONDITION, names.INITIALIZED_CONDITION)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSurroundings:
    """The objects that the reasons follow from. `reports`: the launcher's last report on a pod, by its uid.

    `members`: the pods of each gang that exist; `gated`: those with scheduling gates. `advised`: the classes
    that the broker advises Karpenter on.
    """

    claims: Sequence[NodeClaim]
    pools: Sequence[NodePool]
    uses: Mapping[str, SlotUse]
    reports: Mapping[str, PodReport]
    members: Callable[[], Mapping[str, int]]
    gated: Callable[[], Mapping[str, int]]
    advised: frozenset[str]
    room: TypeRoom


def advised_classes(classes: Iterable[EC2NodeClass]) -> frozenset[str]:
    """The classes that the broker advises Karpenter on."""
    advised = names.RESERVATIONS_ADVISED
    return frozenset(item.name for item in classes if condition(item.status.conditions, advised) is not None)


class PoolChoice(NamedTuple):
    """The NodePools of a pod. `absent`: the NodePools or label values that it insists on, in a sentence, if
    none of them exists.
    """

    info: PodInfo
    verdicts: Sequence[PoolVerdict]
    absent: str


def claim_reason(claim: NodeClaim) -> tuple[str, str]:
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


Rule = Callable[[Pod, PoolChoice, PodSurroundings], tuple[str, str] | None]


def _gated(pod: Pod, _: object, __: object) -> tuple[str, str] | None:
    held = gates(pod)
    return (GATED, held) if held else None


def _new(pod: Pod, _: object, __: object) -> tuple[str, str] | None:
    return None if pod.scheduled else (NEW, "no scheduler has answered yet")


def _of_gang(pod: Pod, _: object, around: PodSurroundings) -> tuple[str, str] | None:
    gang = gang_of(pod, unknown_sizes)
    if not gang.name:
        return None
    present = around.members().get(gang.name, 1)
    held = waits_for_pods(gang, present, present - around.gated().get(gang.name, 0))
    return (GANG_INCOMPLETE, held) if held else None


def _without_pool(pod: Pod, choice: PoolChoice, _: object) -> tuple[str, str] | None:
    verdicts = choice.verdicts
    if any(not verdict.rejection for verdict in verdicts):
        return None
    if closed := next((verdict for verdict in verdicts if verdict.accepts), None):
        static = closed.rejection == static_pool(closed.pool)
        return (
            STATIC_NODEPOOL if static else NODEPOOL_NOT_READY,
            f"NodePool {closed.pool.name}: {closed.rejection}",
        )
    if not verdicts:
        # What a launcher reported before its last NodePool went holds no more.
        return NO_NODEPOOL, f"the cluster has no NodePool; {_unscheduled(pod)}"
    if choice.absent:
        return NO_NODEPOOL, choice.absent
    return NO_NODEPOOL, none_accepts(verdicts)


def remedy_of(choice: PoolChoice) -> str:
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


def held_by(pod: Pod, around: PodSurroundings) -> str:
    """The reason of the pod's own that keeps it from any machine; empty without one."""
    report, scheduled = report_on(pod, around), pod.scheduled
    if report.held:
        return report.message
    return own_rejection(scheduled.message) if scheduled is not None else ""


def _rejected(pod: Pod, _: object, around: PodSurroundings) -> tuple[str, str] | None:
    return (UNSCHEDULABLE, last_report(pod, around)) if held_by(pod, around) else None


def _of_others(pod: Pod, choice: PoolChoice, around: PodSurroundings) -> tuple[str, str] | None:
    """A pod that another controller gets a node for, with the reservations that the broker advises on."""
    chosen = choice.verdicts[0].pool
    if of_broker(chosen):
        return None
    ref = chosen.spec.template.spec.node_class_ref
    accepts = f"NodePool {chosen.name} of group {ref.group} accepts it"
    advised = [*advised_uses(chosen, around)]
    if not advised:
        return OTHER_CONTROLLER, f"{accepts}; {last_report(pod, around)}"
    texts = abridged([use.summary for use in advised], MOST_NAMED)
    full = not buys(chosen) and any(use.active for use in advised) and not any(use.free for use in advised)
    return (RESERVATIONS_FULL if full else OTHER_CONTROLLER), (
        f"{accepts}; the reservations of class {ref.name}: {texts}; {last_report(pod, around)}"
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
    return NO_MACHINE, report_on(pod, around).message or f"NodePool {chosen.name}: {offering.message}"


def _reported(pod: Pod, _: object, around: PodSurroundings) -> tuple[str, str]:
    scheduled = pod.scheduled
    return (scheduled.reason if scheduled else "") or NEW, last_report(pod, around)


def last_report(pod: Pod, around: PodSurroundings) -> str:
    """The last report of the pod's launcher, else kube-scheduler's."""
    return report_on(pod, around).message or _unscheduled(pod)


def _unscheduled(pod: Pod) -> str:
    """Why kube-scheduler has no node for the pod."""
    scheduled = pod.scheduled
    return (scheduled.message if scheduled else "") or "no scheduler has answered yet"


def report_on(pod: Pod, around: PodSurroundings) -> PodReport:
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


def reason_without_claim(pod: Pod, choice: PoolChoice, around: PodSurroundings) -> tuple[str, str]:
    """The reason and the message of a pod that no claim stands for."""
    return next(filter(None, (rule(pod, choice, around) for rule in _RULES)))
