"""The input of one run of the scheduler: nodes, pods and holds at one moment, with assumptions.

Invariant: the snapshot always has the placeholders of the ledger, so that filters see kept room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from broker.placement.holds import Hold, HoldOwner, placeholder
from broker.placement.holds_ledger import HoldLedger, HoldLink
from broker.placement.holds_match import HoldRequest
from broker.placement.model import PodInfo
from broker.placement.snapshot import PlacementSnapshot
from broker.quota.elastic import ElasticTotals


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """Changes by `placed` and `reserved`, which return another state."""

    snapshot: PlacementSnapshot
    ledger: HoldLedger
    totals: ElasticTotals

    @classmethod
    def of(
        cls,
        snapshot: PlacementSnapshot,
        ledger: HoldLedger,
        totals: ElasticTotals,
        assumed: Iterable[PodInfo],
    ) -> SchedulerState:
        """`snapshot`: nodes and the pods that the caches show on them."""
        added = [*assumed, *ledger.placeholders()]
        return cls(snapshot.with_changes(come=added) if added else snapshot, ledger, totals)

    def placed(self, request: HoldRequest, node: str, hold: Hold | None) -> SchedulerState:
        """With a pod on a node, through a hold or beside all."""
        pod = request.pod
        if hold is None:
            return replace(self, snapshot=self.snapshot.with_pod(pod, node))
        ledger = self.ledger.assume(hold.id, HoldOwner(pod.uid, pod.requests, True))
        snapshot = _without_placeholder(self.snapshot, hold).with_pod(pod, node)
        if rest := placeholder(ledger.states[hold.id]):
            snapshot = snapshot.with_pod(rest, node)
        return replace(self, snapshot=snapshot, ledger=ledger)

    def reserved(self, hold: Hold, now: datetime, owners: Sequence[PodInfo] = ()) -> SchedulerState:
        """With a new hold, and its owners if it takes the room of pods that run."""
        states = [state.hold for state in self.ledger.states.values()]
        links = [
            HoldLink(state.hold.id, state.hold.node, owner)
            for state in self.ledger.states.values()
            for owner in state.owners.values()
        ]
        links += [HoldLink(hold.id, hold.node, HoldOwner(pod.uid, pod.requests)) for pod in owners]
        ledger = HoldLedger.of((*states, hold), links, now)
        pod = placeholder(ledger.states[hold.id]) if hold.id in ledger.states else None
        snapshot = self.snapshot if pod is None else self.snapshot.with_pod(pod, hold.node)
        return replace(self, snapshot=snapshot, ledger=ledger)


def _without_placeholder(snapshot: PlacementSnapshot, hold: Hold) -> PlacementSnapshot:
    for pod in snapshot.states[hold.node].pods:
        if pod.uid == hold.id:
            return snapshot.without_pod(pod, hold.node)
    return snapshot
