"""The pods that wait: with a claim and without one, beside Karpenter and without it.

Invariant: `explain`, the web page, the metrics and the notifications read these values, so they agree. A
reason is one of a bounded set, and the message has the details: those of the pod's claim, those that the
broker reported on the pod, or those of the reservations of a class that Karpenter launches from.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, pods_of
from broker.apis.meta import is_true
from broker.capacity.full_slots import full_ids
from broker.capacity.reasons import GANG_INCOMPLETE
from broker.capacity.requirements import Requirements
from broker.oncall.metrics import GaugeTable
from broker.oncall.pod_facts import (
    created,
    owner_of,
    pod_command,
    template_command,
    waits,
)
from broker.oncall.pod_reports import PodReport
from broker.oncall.waiting_reasons import (
    GATED,
    NO_NODEPOOL,
    OTHER_CONTROLLER,
    RESERVATIONS_FULL,
    PodSurroundings,
    PoolChoice,
    advised_uses,
    claim_reason,
    held_by,
    last_report,
    reason_without_claim,
    remedy_of,
    report_on,
)
from broker.placement.pool_choice import (
    absent_pools,
    asked,
    pool_node,
    pool_verdicts,
)
from broker.placement.reading import claim_requirements, pod_info
from broker.placement.type_reasons import over_limits

# With these, no free slot helps.
_HELD: Final = frozenset({GATED, GANG_INCOMPLETE, NO_NODEPOOL})

PODS_WAITING: Final = GaugeTable(
    "capacity_broker_pods_waiting",
    "Pods without a node, by the NodePool that they get one from (empty for none) and the reason.",
    ("nodepool", "reason"),
)
PODS_WAITING_SINCE: Final = GaugeTable(
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
    full reservations that its reason names and that it may use. `claim_waits`: its claim has no instance.

    Of a pod without a claim: `held`: what it waits for before it may have any machine. `report`: its
    launcher's last report. `accepting`: the NodePools that accept it, each with why it makes no node now.
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
    claim_waits: bool = False
    held: str = ""
    report: str = ""
    accepting: tuple[tuple[str, str], ...] = ()

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


def waiting_rows(pods: Iterable[Pod], around: PodSurroundings, now: datetime) -> list[WaitingPod]:
    """The waiting pods of these, the oldest first."""
    claims = [claim for claim in around.claims if not claim.deleting]
    made_for = {key: claim for claim in claims for key in pods_of(claim)}
    with_room = {name: claim for claim in claims for name in (claim.name, claim.status.node_name) if name}
    choices = _Choices(around)

    def claim_of(pod: Pod) -> NodeClaim | None:
        """The claim that the pod waits for: others may take the node that was made for it."""
        own, report = made_for.get(pod.key), report_on(pod, around)
        taken = own is not None and report.message and is_true(own, names.INITIALIZED_CONDITION)
        return with_room.get(report.room) or (None if taken else own)

    waiting = sorted(filter(waits, pods), key=lambda pod: (created(pod, now), pod.key))
    return [_row(pod, claim_of(pod), choices, around) for pod in waiting]


def grouped(rows: Iterable[WaitingPod]) -> list[WaitingGroup]:
    """Equal pods of one owner together; the order is that of the first of each."""
    groups: dict[tuple[str, ...], list[WaitingPod]] = {}
    for row in rows:
        owner = (row.namespace, row.owner or f"pod {row.name}")
        groups.setdefault((*owner, row.node_pool, row.reason), []).append(row)
    return [WaitingGroup(pods=tuple(group)) for group in groups.values()]


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
    pool = claim.node_pool if claim is not None else ""
    remedy, held, report, choice = "", "", "", None
    if claim is not None:
        reason, message = claim_reason(claim)
    else:
        choice = choices.of(pod)
        pool = _pool_of(choice, report_on(pod, around))
        reason, message = reason_without_claim(pod, choice, around)
        remedy = remedy_of(choice) if reason == NO_NODEPOOL else ""
        held = message if reason in _HELD else held_by(pod, around)
        report = report_on(pod, around).message
    verdicts = choice.verdicts if choice is not None else ()
    without = reason == OTHER_CONTROLLER or bool(held)
    return WaitingPod(
        namespace=pod.namespace,
        name=pod.name,
        owner=owner_of(pod),
        node_pool=pool,
        reason=reason,
        message=message,
        since=pod.metadata.creation_timestamp,
        claim=claim.name if claim is not None else "",
        own_message=last_report(pod, around),
        claim_waits=claim is not None and claim.waits,
        held=held,
        report=report,
        accepting=tuple((item.pool.name, item.rejection) for item in verdicts if item.accepts),
        remedy=remedy,
        full=() if without else tuple(_full(claim, choice, reason, message, around)),
    )


def _pool_of(choice: PoolChoice, report: PodReport) -> str:
    """The NodePool that the pod gets a node from: one at a limit only if each that accepts the pod is."""
    accepting = [verdict.pool.name for verdict in choice.verdicts if verdict.accepts]
    limited = dict(over_limits(report.message))
    return min(accepting, key=lambda name: name in limited, default="")


def _full(
    claim: NodeClaim | None, choice: PoolChoice | None, reason: str, message: str, around: PodSurroundings
) -> Iterator[str]:
    """The full reservations of the message that the claim allows, or the pod and its NodePool."""
    verdicts = choice.verdicts if choice is not None else ()
    if verdicts and reason == RESERVATIONS_FULL:
        named = [*advised_uses(verdicts[0].pool, around)]
    else:
        named = [use for id_ in full_ids(message) if (use := around.uses.get(id_))]
    full = [use for use in named if not use.free and use.active]
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
