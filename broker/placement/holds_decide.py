"""Decides where a pod goes: into a hold that it may take, else onto a node beside all holds.

Holds come first. A pod with reservation affinity runs in a matching hold only. An owner of a Restricted hold
waits while it does not fit, unless `node_fallback` lets it run on a node (Koordinator's own behaviour). A
whole hold is a preference: if its room does not fit, the pod goes elsewhere. A pod that ignores reservations
gets room that no hold keeps first, then room of Koordinator's holds that no owner uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from broker.placement.filters import Fits, fits, prepare
from broker.placement.holds import Amounts, Consumption, Hold, HoldState
from broker.placement.holds_fit import NodeRoom, lacks, score
from broker.placement.holds_ledger import HoldLedger
from broker.placement.holds_match import HoldRequest
from broker.placement.message import message
from broker.placement.quantities import CPU, MEMORY, PODS
from broker.placement.snapshot import NodeState, PlacementSnapshot

NO_MATCH: Final = "node(s) no reservations match reservation affinity"
RESTRICTED: Final = "node(s) had no Restricted reservation of the pod"

# So many nodes that fit a pod are compared: the cost of a pod does not grow with the nodes. They begin at
# another node for each pod, the same after every restart.
ENOUGH: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldDecision:
    """A node, and the hold that the pod takes there; without a node, `fits` has the reasons.

    `only_holds`: the pod may run in a hold only, so another node would not help it.
    """

    node: str = ""
    hold: Hold | None = None
    fits: Fits
    only_holds: bool = False

    @property
    def message(self) -> str:
        return message(self.fits)


def decide(
    request: HoldRequest,
    snapshot: PlacementSnapshot,
    ledger: HoldLedger,
    *,
    node_fallback: bool = False,
    only: Collection[str] | None = None,
    fullest: bool = False,
) -> HoldDecision:
    """The place of a pod, of these nodes `only`. The snapshot must have the ledger's placeholders.

    `fullest`: on the node with the least room that fits, instead of the most.
    """
    whole: list[HoldState] = []
    partial: list[HoldState] = []
    for state in ledger.matching(request):
        if state.hold.node in snapshot.states:
            (whole if state.hold.consumption is Consumption.WHOLE else partial).append(state)
    rejected: dict[str, tuple[str, ...]] = {}
    for state in (*preferred(request.requests, partial), *whole):
        if only is not None and state.hold.node not in only:
            continue
        reasons = _through(request, state, snapshot)
        if not reasons:
            return HoldDecision(node=state.hold.node, hold=state.hold, fits=Fits((state.hold.node,), {}))
        rejected[state.hold.node] = (*rejected.get(state.hold.node, ()), *reasons)
    if request.affinity is not None:
        return _waits(snapshot, rejected, NO_MATCH)
    if not node_fallback and any(state.hold.restricted for state in partial):
        return _waits(snapshot, rejected, RESTRICTED)
    beside = _on_a_node(request, snapshot, only, fullest)
    if beside.node or not request.ignores:
        return beside
    return _on_a_node(request, _unreserved(snapshot, ledger), only, fullest)


def _unreserved(snapshot: PlacementSnapshot, ledger: HoldLedger) -> PlacementSnapshot:
    """The nodes without the idle room of holds. Room of a deleted pod stays: it is that pod's alone."""
    partial = {id_ for id_, state in ledger.states.items() if state.hold.consumption is not Consumption.WHOLE}
    nodes = {ledger.states[id_].hold.node for id_ in partial} & snapshot.states.keys()
    idle = [pod for node in nodes for pod in snapshot.states[node].pods if pod.uid in partial]
    return snapshot.with_changes(gone=idle)


def _through(request: HoldRequest, state: HoldState, snapshot: PlacementSnapshot) -> tuple[str, ...]:
    """Why the pod cannot run through the hold; empty if it can. The filters see the node without the hold."""
    node = snapshot.states[state.hold.node]
    room = NodeRoom(capacity=node.node.allocatable, occupied={**node.requested, PODS: node.places})
    named = request.affinity is not None and bool(request.affinity.name)
    if reasons := lacks(request.requests, state, room, detailed=named):
        return reasons
    for pod in node.pods:
        if pod.uid == state.hold.id:
            snapshot = snapshot.without_pod(pod, node.node.name)
    return prepare(request.pod, snapshot).reasons(snapshot.states[node.node.name])


def _waits(snapshot: PlacementSnapshot, rejected: dict[str, tuple[str, ...]], reason: str) -> HoldDecision:
    reasons = {name: rejected.get(name, (reason,)) for name in snapshot.states}
    return HoldDecision(fits=Fits((), reasons), only_holds=True)


def _on_a_node(
    request: HoldRequest, snapshot: PlacementSnapshot, only: Collection[str] | None, fullest: bool
) -> HoldDecision:
    start = crc32(request.pod.uid.encode())
    fitting = fits(request.pod, snapshot, enough=ENOUGH, start=start, only=only)
    if not fitting.nodes:
        return HoldDecision(fits=fitting)
    states = (snapshot.states[name] for name in fitting.nodes)
    return HoldDecision(node=roomiest(request, states, fullest=fullest), fits=fitting)


def roomiest(request: HoldRequest, states: Iterable[NodeState], *, fullest: bool) -> str:
    """The node with the most room left after the pod, or the least if `fullest`; then the first by name.

    Source: kube-scheduler, noderesources/least_allocated.go.
    """

    cpu, memory = request.requests.get(CPU, 0), request.requests.get(MEMORY, 0)

    def rank(state: NodeState) -> tuple[int, str]:
        room, taken = state.node.allocatable, state.requested
        score = 0
        if capacity := room.get(CPU, 0):
            score += 100 * max(0, capacity - taken.get(CPU, 0) - cpu) // capacity
        if capacity := room.get(MEMORY, 0):
            score += 100 * max(0, capacity - taken.get(MEMORY, 0) - memory) // capacity
        return (score if fullest else -score // 2, state.node.name)

    return min(map(rank, states))[1]


def preferred(requests: Amounts, states: Iterable[HoldState]) -> tuple[HoldState, ...]:
    """The holds in the order in which a pod tries them.

    The lowest order above zero comes first, then the fullest hold, then the name: the choice is the same
    after every restart. Source: Koordinator, nominator.go and scoring.go.
    """

    def rank(state: HoldState) -> tuple[bool, int, int, str, str]:
        hold = state.hold
        return (hold.order <= 0, hold.order, -score(requests, state), hold.name, hold.id)

    return tuple(sorted(states, key=rank))
