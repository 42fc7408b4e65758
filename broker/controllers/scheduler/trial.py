"""Tries where pods would go, by the rules of the bind: quota, holds and filters, in this order.

Invariant: a pod is bound, and another pod is evicted for it, only after this same trial found it a place. The
trial of an eviction runs on the state in which the victims are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from broker.apis.core import UNSCHEDULABLE, Pod
from broker.controllers.elasticquota.reading import gigabytes
from broker.controllers.elasticquota.use import rejection
from broker.controllers.scheduler.binder import QUOTA_EXCEEDED, RESERVATION_REQUIRED
from broker.controllers.scheduler.state import SchedulerState
from broker.placement.affinity import node_affinity, node_name
from broker.placement.filters import Filter, Fits, prepare
from broker.placement.holds import Hold
from broker.placement.holds_decide import decide
from broker.placement.holds_match import HoldRequest
from broker.placement.holds_reading import operating_hold
from broker.placement.snapshot import PlacementSnapshot
from broker.placement.taints import taint_toleration
from broker.quota.elastic_gpu import GPU, needs_size
from broker.quota.elastic_labels import ElasticPod

# The rules of a node that do not depend on its pods.
NODE_RULES: Final[tuple[Filter, ...]] = (node_name, taint_toleration, node_affinity)


class QueuedPod(NamedTuple):
    """A waiting pod as holds and quotas see it."""

    pod: Pod
    request: HoldRequest
    elastic: ElasticPod


class SizedPod(NamedTuple):
    """A pod as it counts on these nodes; None: on all. `gigabytes`: of their GPUs, if the pod has any."""

    queued: QueuedPod
    nodes: Collection[str] | None
    gigabytes: int = 0


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
    placed: tuple[FoundPlace, ...] = ()
    rejected: tuple[NoPlace, ...] = ()


class TrialRules(NamedTuple):
    """`gpu_gb`: of a GPU on a node without the label. `only`: these nodes. `fullest`: with the least room."""

    node_fallback: bool
    gpu_gb: int
    only: Collection[str] | None = None
    fullest: bool = False


def try_places(pods: Sequence[QueuedPod], state: SchedulerState, rules: TrialRules) -> PlacementTrial:
    """The places of pods that are tried one after another.

    Several pods that do not all fit on the roomiest nodes are tried again on the fullest.
    """
    ordered = _largest_first(pods)
    trial = _in_order(ordered, state, rules)
    if not trial.rejected or len(pods) == 1:
        return trial
    packed = _in_order(ordered, state, rules._replace(fullest=True))
    return packed if len(packed.placed) > len(trial.placed) else trial


def try_gang(
    pods: Sequence[QueuedPod], needed: int, state: SchedulerState, rules: TrialRules
) -> PlacementTrial:
    """The places of all pods, or of only as many as the gang needs: the first in turn, or the smallest.

    Without the second trial, a large pod beyond the minimum could take the room of two that the gang needs.
    """
    trial = try_places(pods, state, rules)
    if needed < len(pods) and len(trial.placed) < needed:
        for chosen in (pods[:needed], _largest_first(pods)[-needed:]):
            part = try_places(chosen, state, rules)
            if not part.rejected:
                return part
    return trial


def sized(queued: QueuedPod, snapshot: PlacementSnapshot, rules: TrialRules) -> list[SizedPod]:
    """The pod with the GPU memory of each group of nodes that it may have, the smallest first.

    Its node decides how much GPU memory a pod with whole GPUs takes from its quota. Without such a node, or
    without whole GPUs, there is one group: all nodes.
    """
    requests = queued.elastic.requests
    if not needs_size(requests):
        return [SizedPod(queued, rules.only)]
    allowed = prepare(queued.request.pod, snapshot, NODE_RULES)
    groups: dict[int, set[str]] = {}
    for name, state in snapshot.states.items():
        has_gpus = state.node.allocatable.get(GPU, 0) >= requests[GPU]
        if has_gpus and (rules.only is None or name in rules.only) and not allowed.reasons(state):
            groups.setdefault(gigabytes(state.node.labels, rules.gpu_gb), set()).add(name)
    if not groups:
        return [SizedPod(queued, rules.only)]
    return [
        SizedPod(queued._replace(elastic=queued.elastic.with_gpus_of(size)), groups[size], size)
        for size in sorted(groups)
    ]


def strictest(rejected: Sequence[NoPlace]) -> str:
    """The reason for all pods of a gang: one that a new node cannot cure comes first."""
    return min((place.reason for place in rejected), key=lambda reason: reason == UNSCHEDULABLE)


def _in_order(pods: Sequence[QueuedPod], state: SchedulerState, rules: TrialRules) -> PlacementTrial:
    """Pods without a place are tried again as long as others get one: an affinity may need it."""
    trial, waiting = PlacementTrial(state), pods
    while True:
        before, trial = len(trial.placed), replace(trial, rejected=())
        for queued in waiting:
            trial = _with(trial, _place(queued, trial.state, rules))
        waiting = [item.queued for item in trial.rejected]
        if not waiting or len(trial.placed) == before:
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
    return replace(trial, state=state, placed=(*trial.placed, place))


def _place(queued: QueuedPod, state: SchedulerState, rules: TrialRules) -> FoundPlace | NoPlace:
    """On the nodes on which the pod's quota allows it."""
    refused: dict[str, tuple[str, ...]] = {}
    allowed: set[str] = set()
    quota = ""
    variants = sized(queued, state.snapshot, rules)
    for variant in variants:
        if refusal := rejection(state.totals, variant.queued.elastic):
            quota = refusal
            refused |= dict.fromkeys(variant.nodes or (), (refusal,))
        elif variant.nodes is not None:
            allowed |= {*variant.nodes}
    if quota and not allowed:
        rejected = dict.fromkeys(state.snapshot.states, (quota,))
        return NoPlace(queued, QUOTA_EXCEEDED, Fits((), rejected, quota))
    only = allowed if quota else rules.only
    decision = decide(
        queued.request,
        state.snapshot,
        state.ledger,
        node_fallback=rules.node_fallback,
        only=only,
        fullest=rules.fullest,
    )
    if decision.node:
        fitting = next(item for item in variants if item.nodes is None or decision.node in item.nodes)
        return FoundPlace(fitting.queued, decision.node, decision.hold)
    if quota:
        reasons = {**decision.fits.reasons, **refused}
        return NoPlace(queued, _reason_beside(queued, state, rules, refused), Fits((), reasons))
    return NoPlace(queued, RESERVATION_REQUIRED if decision.only_holds else UNSCHEDULABLE, decision.fits)


def _reason_beside(
    queued: QueuedPod, state: SchedulerState, rules: TrialRules, refused: Collection[str]
) -> str:
    """The quota, if the pod would fit on a node that its quota refuses: another such node would not help."""
    decision = decide(
        queued.request, state.snapshot, state.ledger, node_fallback=rules.node_fallback, only=refused
    )
    return QUOTA_EXCEEDED if decision.node else UNSCHEDULABLE
