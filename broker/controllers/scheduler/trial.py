"""Tries where pods would go, by the rules of the bind: quota, holds and filters, in this order.

Invariant: a pod is bound, and another pod is evicted for it, only after this same trial found it a place. The
trial of an eviction runs on the state in which the victims are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from broker.apis.core import UNSCHEDULABLE, Pod
from broker.controllers.scheduler.binder import QUOTA_EXCEEDED, RESERVATION_REQUIRED
from broker.controllers.scheduler.elastic import rejection
from broker.controllers.scheduler.state import SchedulerState
from broker.placement.filters import Fits
from broker.placement.holds import Hold
from broker.placement.holds_decide import decide
from broker.placement.holds_match import HoldRequest
from broker.placement.holds_reading import operating_hold
from broker.quota.elastic_labels import ElasticPod


class QueuedPod(NamedTuple):
    """A waiting pod as holds and quotas see it."""

    pod: Pod
    request: HoldRequest
    elastic: ElasticPod


class FoundPlace(NamedTuple):
    queued: QueuedPod
    node: str
    hold: Hold | None


class NoPlace(NamedTuple):
    """`fits`: the reasons by node."""

    queued: QueuedPod
    reason: str
    fits: Fits


@dataclass(frozen=True, slots=True)
class PlacementTrial:
    """The pods with a place, those without one, and the state in which the first are placed."""

    state: SchedulerState
    found: tuple[FoundPlace, ...] = ()
    rejected: tuple[NoPlace, ...] = ()


def try_places(
    pods: Sequence[QueuedPod],
    state: SchedulerState,
    *,
    node_fallback: bool,
    only: Collection[str] | None = None,
) -> PlacementTrial:
    """The places of pods that are tried one after another, on these nodes `only`.

    Several pods that do not all fit on the roomiest nodes are tried again on the fullest.
    """
    ordered = _largest_first(pods)
    trial = _in_order(ordered, state, TrialRules(node_fallback, only))
    if not trial.rejected or len(pods) == 1:
        return trial
    packed = _in_order(ordered, state, TrialRules(node_fallback, only, fullest=True))
    return packed if len(packed.found) > len(trial.found) else trial


def strictest(rejected: Sequence[NoPlace]) -> str:
    """The reason for all pods of a gang: one that a new node cannot cure comes first."""
    return min((place.reason for place in rejected), key=lambda reason: reason == UNSCHEDULABLE)


class TrialRules(NamedTuple):
    """`only`: these nodes. `fullest`: the node with the least room comes first."""

    node_fallback: bool
    only: Collection[str] | None = None
    fullest: bool = False


def _in_order(pods: Sequence[QueuedPod], state: SchedulerState, rules: TrialRules) -> PlacementTrial:
    """Pods without a place are tried again as long as others get one: an affinity may need it."""
    trial, waiting = PlacementTrial(state), pods
    while True:
        before, trial = len(trial.found), replace(trial, rejected=())
        for queued in waiting:
            trial = _with(trial, _place(queued, trial.state, rules))
        waiting = [item.queued for item in trial.rejected]
        if not waiting or len(trial.found) == before:
            return trial


def _largest_first(pods: Sequence[QueuedPod]) -> list[QueuedPod]:
    """Small pods fit into the room that large ones leave."""
    most: Counter[str] = Counter()
    for item in pods:
        most |= Counter(item.request.requests)

    def size(item: QueuedPod) -> float:
        return sum(amount / most[name] for name, amount in item.request.requests.items())

    return sorted(pods, key=size, reverse=True)


def _with(trial: PlacementTrial, place: FoundPlace | NoPlace) -> PlacementTrial:
    if isinstance(place, NoPlace):
        return replace(trial, rejected=(*trial.rejected, place))
    queued, node, hold = place
    state = trial.state.placed(queued.request, node, hold, queued.elastic)
    if (lent := operating_hold(queued.pod, node)) is not None:
        state = state.lent(lent)
    return replace(trial, state=state, found=(*trial.found, place))


def _place(queued: QueuedPod, state: SchedulerState, rules: TrialRules) -> FoundPlace | NoPlace:
    if refusal := rejection(state.totals, queued.elastic):
        rejected = dict.fromkeys(state.snapshot.states, (refusal,))
        return NoPlace(queued, QUOTA_EXCEEDED, Fits((), rejected, refusal))
    decision = decide(
        queued.request,
        state.snapshot,
        state.ledger,
        node_fallback=rules.node_fallback,
        only=rules.only,
        fullest=rules.fullest,
    )
    if decision.node:
        return FoundPlace(queued, decision.node, decision.hold)
    return NoPlace(queued, RESERVATION_REQUIRED if decision.only_holds else UNSCHEDULABLE, decision.fits)
