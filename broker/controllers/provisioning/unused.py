"""The back-off of NodePools with launches that serve no pod.

A pod may never go to the node that was made for it: it has another scheduler's idea of room, it is bound
elsewhere, or it is deleted meanwhile. The node then ends empty, and the next one is made. So from the second
such round on the pool gets no new machine for a time that doubles.

Invariant: the back-off follows from the pool's condition alone, so it survives a restart. Nodes launched
before the last record belong to its round: a batch that ends one by one counts once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from prometheus_client import Gauge

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool, pods_of
from broker.apis.meta import ConditionUpdate, condition
from broker.controllers.nodeclaim.status import since
from broker.controllers.provisioning.refused import made_for_pods
from broker.doubling import doubled
from broker.oncall.metrics import REGISTRY
from broker.text import InvalidText, counted, decode_time, format_time

NODES_USED: Final = "NodesUsed"
ENDED_UNUSED: Final = "NodesEndedUnused"
SOON: Final = timedelta(minutes=10)  # from launch to the end of a node that served no pod
FIRST: Final = timedelta(minutes=1)  # after the second round
LONGEST: Final = timedelta(hours=1)
_MOST_PODS: Final = 3  # of a claim, in the message
_MOST_TEXT: Final = 300  # characters of a scheduler's message
_FORM: Final = re.compile(r"(\d{1,9}) rounds? of nodes .*?; no new node before (\S{20}): (.*)", re.DOTALL)
_BACKING_OFF = Gauge(
    "capacity_broker_nodepool_backing_off_rounds",
    "Rounds of nodes in a row that ended unused, of a NodePool that backs off; with a pod that a node was "
    "made for, and why the pod did not go there.",
    ["nodepool", "made_for", "cause"],
    registry=REGISTRY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    """`rounds` in a row without use; no new machine before `until`. `cause`: the pods, and why."""

    rounds: int
    until: datetime
    cause: str

    @property
    def recorded(self) -> datetime:
        """When the round was recorded."""
        return self.until - _wait(self.rounds)

    @property
    def message(self) -> str:
        return (
            f"{counted(self.rounds, 'round')} of nodes in a row ended without a pod soon after launch; "
            f"no new node before {format_time(self.until)}: {self.cause}"
        )


def back_off(pool: NodePool) -> BackOff | None:
    """The pool's back-off, from its condition; None if its nodes are used."""
    current = condition(pool.status.conditions, NODES_USED)
    match = _FORM.fullmatch(current.message) if current and current.status == "False" else None
    if match is None:
        return None
    try:
        return BackOff(rounds=int(match[1]), until=decode_time(match[2]), cause=match[3])
    except InvalidText:
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


def recorded(pool: NodePool, claim: NodeClaim, cause: str, now: datetime) -> ConditionUpdate | None:
    """The condition after this node ended unused; None if its round is recorded already."""
    before = back_off(pool)
    launched = since(claim, names.LAUNCHED)  # by the same clock as the record
    if before is not None and launched is not None and launched <= before.recorded:
        return None
    rounds = before.rounds + 1 if before is not None else 1
    after = BackOff(rounds=rounds, until=now.replace(microsecond=0) + _wait(rounds), cause=cause)
    return ConditionUpdate(type=NODES_USED, status="False", reason=ENDED_UNUSED, message=after.message)


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
    if not used and now < known.until + LONGEST:
        return None
    return ConditionUpdate(type=NODES_USED, status="True", reason=NODES_USED)


def cause_of(claim: NodeClaim, pod: Callable[[str], Pod | None]) -> str:
    """The pods that the claim was made for, each with the reason why it is not on the node."""
    keys = pods_of(claim)
    texts = [f"pod {key}, which {_fate(pod(key), claim)}" for key in keys[:_MOST_PODS]]
    more = f"; and {len(keys) - _MOST_PODS} more" if len(keys) > _MOST_PODS else ""
    return f"NodeClaim {claim.name} was made for {'; '.join(texts)}{more}"


def show(pools: Iterable[NodePool], now: datetime) -> None:
    """Shows the pools that back off as a metric."""
    _BACKING_OFF.clear()
    for pool in pools:
        known = back_off(pool)
        if known is not None and known.rounds > 1 and now < known.until:
            _BACKING_OFF.labels(pool.name, _pod(known.cause), known.cause).set(known.rounds)


def _wait(rounds: int) -> timedelta:
    return doubled(FIRST, LONGEST, rounds - 2) if rounds > 1 else timedelta()


def _fate(pod: Pod | None, claim: NodeClaim) -> str:
    """Why the pod is not on the claim's node."""
    if pod is None:
        return "is gone"
    if pod.deleting:
        return "is being deleted"
    if pod.spec.node_name:
        return (
            f"runs on {pod.spec.node_name}" if pod.spec.node_name != claim.status.node_name else "came late"
        )
    scheduled = pod.scheduled
    text = scheduled.message[:_MOST_TEXT] if scheduled is not None else ""
    return f"waits for scheduler {pod.spec.scheduler_name}: {text or 'it gave no reason'}"


def _pod(cause: str) -> str:
    match = re.search(r"made for pod ([^\s,]+)", cause)
    return match[1] if match else ""
