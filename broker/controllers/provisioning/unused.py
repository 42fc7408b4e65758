"""The back-off of NodePools with launches that serve no pod.

A pod may never go to the node that was made for it: it has another scheduler's idea of room, it is bound
elsewhere, or it is deleted meanwhile. The node then ends empty, and the next one is made. Or EC2 ends the
instance at its start, for example because it cannot use the key of its volumes, and ends the next one, too.
So from the second such round on the pool gets no new machine for a time that doubles.

Invariant: the back-off follows from the pool's condition alone, so it survives a restart. Nodes launched
before the last record belong to its round: a batch that ends one by one counts once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import structlog

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool, pods_of
from broker.apis.meta import ConditionUpdate, condition, since
from broker.controllers.claim_caches import BY_NODE, ClaimCaches
from broker.controllers.pool_conditions import try_conditions
from broker.controllers.provisioning.refused import made_for_pods
from broker.doubling import doubled
from broker.kube.context import ControllerContext
from broker.oncall.metrics import GaugeTable
from broker.placement.disruption_pods import reschedulable
from broker.text import counted, decode_time, format_time

NODES_USED: Final = "NodesUsed"
ENDED_UNUSED: Final = "NodesEndedUnused"  # of the event
SOON: Final = timedelta(minutes=10)  # from launch to the end of a node that served no pod
FIRST: Final = timedelta(minutes=1)  # after the second round
LONGEST_WAIT: Final = timedelta(hours=1)
_MOST_PODS: Final = 3  # of a claim, in the message
_MOST_TEXT: Final = 300  # characters of a scheduler's message
_FORM: Final = re.compile(
    r"(?P<rounds>\d{1,9}) rounds? of nodes .*?; no new node before (?P<until>2\d{3}-\S{15}): "
    r"(?P<text>NodeClaim \S+ was made for pod (?P<pod>[^\s,]+), .*)",
    re.DOTALL,
)
_log = structlog.get_logger("unused_nodes")
_BACKING_OFF: Final = GaugeTable(
    "capacity_broker_nodepool_backing_off_rounds",
    "Rounds of nodes in a row that ended unused, of a NodePool that backs off; with a pod that a node was "
    "made for, and the reason of the pool's condition.",
    ("nodepool", "made_for", "cause"),
)


class UnusedCause(StrEnum):
    """Why a pod is not on the node that was made for it."""

    GONE = "PodGone"
    TERMINATING = "PodTerminating"
    ELSEWHERE = "PodOnOtherNode"
    LATE = "PodCameLate"
    WAITS = "PodUnschedulable"
    LOST = "NodeLost"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    """`rounds` in a row without use; no new machine before `until`.

    `pod`: the first pod of the last node, which is not there for `cause`. `text`: all its pods, and why.
    """

    rounds: int
    until: datetime
    pod: str
    cause: UnusedCause
    text: str

    @property
    def recorded(self) -> datetime:
        """When the round was recorded."""
        return self.until - _wait(self.rounds)

    @property
    def message(self) -> str:
        return (
            f"{counted(self.rounds, 'round')} of nodes in a row ended without a pod soon after launch; "
            f"no new node before {format_time(self.until)}: {self.text}"
        )


def back_off(pool: NodePool) -> BackOff | None:
    """The pool's back-off, from its condition; None if its nodes are used."""
    current = condition(pool.status.conditions, NODES_USED)
    if current is None or current.status != "False" or not (match := _FORM.fullmatch(current.message)):
        return None
    try:
        return BackOff(
            rounds=int(match["rounds"]),
            until=decode_time(match["until"]),
            pod=match["pod"],
            cause=UnusedCause(current.reason),
            text=match["text"],
        )
    except ValueError:
        return None  # edited by hand


def held_back(pool: NodePool, now: datetime) -> str:
    """Why the pool gets no new machine now; empty if it may."""
    known = back_off(pool)
    return known.message if known is not None and now < known.until else ""


def ended_unused(claim: NodeClaim, now: datetime) -> bool:
    """Whether the claim was made for pods, and its node ends soon after launch without ever having one."""
    launched = since(claim, names.LAUNCHED)
    return (
        made_for_pods(claim)
        and names.REPLACES not in claim.annotations
        and claim.status.last_pod_event_time is None
        and launched is not None
        and now - launched <= SOON
    )


def recorded(
    pool: NodePool, claim: NodeClaim, pod: Callable[[str], Pod | None], now: datetime, *, loss: str = ""
) -> ConditionUpdate | None:
    """The condition after this node ended unused; None if its round is recorded already.

    `loss`: why the instance is gone, if the broker did not end it.
    """
    before = back_off(pool)
    launched = since(claim, names.LAUNCHED)  # by the same clock as the record
    if before is not None and launched is not None and launched <= before.recorded:
        return None
    rounds = before.rounds + 1 if before is not None else 1
    keys = pods_of(claim)
    lost = (UnusedCause.LOST, f"lost its node: {loss[:_MOST_TEXT]}") if loss else None
    causes = [(key, *(lost or _cause(pod(key), claim))) for key in keys[:_MOST_PODS]]
    texts = "; ".join(f"pod {key}, which {text}" for key, _, text in causes)
    more = f"; and {len(keys) - _MOST_PODS} more" if len(keys) > _MOST_PODS else ""
    after = BackOff(
        rounds=rounds,
        until=now.replace(microsecond=0) + _wait(rounds),
        pod=keys[0],
        cause=causes[0][1],
        text=f"NodeClaim {claim.name} was made for {texts}{more}",
    )
    return ConditionUpdate(type=NODES_USED, status="False", reason=after.cause, message=after.message)


def used_again(pool: NodePool, claims: Iterable[NodeClaim], now: datetime) -> ConditionUpdate | None:
    """The condition of a pool that backs off no more: a later node got a pod, or none came for long."""
    known = back_off(pool)
    if known is None:
        return None
    used = any(
        claim.status.last_pod_event_time is not None
        and (launched := since(claim, names.LAUNCHED)) is not None
        and launched > known.recorded
        for claim in claims
    )
    if not used and now < known.until + LONGEST_WAIT:
        return None
    return ConditionUpdate(type=NODES_USED, status="True", reason=NODES_USED)


def show(pools: Iterable[NodePool], now: datetime) -> None:
    """Shows the pools that back off as a metric."""
    known = ((pool.name, back_off(pool)) for pool in pools)
    _BACKING_OFF.show(
        {
            (name, state.pod, state.cause): state.rounds
            for name, state in known
            if state is not None and now < state.until
        }
    )


def _wait(rounds: int) -> timedelta:
    return doubled(FIRST, LONGEST_WAIT, rounds - 2) if rounds > 1 else timedelta()


def _cause(pod: Pod | None, claim: NodeClaim) -> tuple[UnusedCause, str]:
    """Why the pod is not on the claim's node, as a word and as text."""
    if pod is None:
        return UnusedCause.GONE, "is gone"
    if pod.deleting:
        return UnusedCause.TERMINATING, "is being deleted"
    if (node := pod.spec.node_name) and node == claim.status.node_name:
        return UnusedCause.LATE, "came late"
    if node:
        return UnusedCause.ELSEWHERE, f"runs on {node}"
    scheduled = pod.scheduled
    text = scheduled.message[:_MOST_TEXT] if scheduled is not None else ""
    waits = f"waits for scheduler {pod.spec.scheduler_name}: {text or 'it gave no reason'}"
    return UnusedCause.WAITS, waits


class UnusedNodes:
    """`record` is called for each claim that ends without pods, or after its instance."""

    def __init__(self, context: ControllerContext, caches: ClaimCaches) -> None:
        self._client, self._recorder, self._caches = context.client, context.recorder, caches

    def record(self, claim: NodeClaim, now: datetime, *, loss: str = "") -> None:
        """Writes the pool's condition and its event, if the node served no pod.

        `loss`: why the instance is gone; empty if the broker ends it.
        """
        pool = self._caches.pools.get(claim.node_pool)
        if pool is None or not ended_unused(claim, now) or self._used(claim):
            return
        update = recorded(pool, claim, self._caches.pods.find, now, loss=loss)
        if update is None or not try_conditions(self._client, self._caches.pools, pool, update, now=now):
            return  # the next round is recorded instead
        self._recorder.event(pool, "Warning", ENDED_UNUSED, update.message)
        _log.warning("node ended unused", nodepool=pool.name, why=update.message)

    def _used(self, claim: NodeClaim) -> bool:
        """Whether a pod is there that the claim's status does not show yet."""
        node = claim.status.node_name
        return bool(node) and any(map(reschedulable, self._caches.pods.by(BY_NODE, node)))
