"""The input of one run of the scheduler: nodes, pods and holds at one moment, with assumptions.

Invariant: the snapshot always has the placeholders of the ledger, so that filters see kept room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from broker.placement.holds import Hold, HoldOwner, placeholder
from broker.placement.holds_ledger import HoldLedger, HoldLink
from broker.placement.holds_match import HoldRequest
from broker.placement.model import PodInfo
from broker.placement.snapshot import PlacementSnapshot
from broker.quota.elastic import ElasticTotals
from broker.quota.elastic_labels import ElasticPod
from broker.quota.elastic_reclaim import totals_with


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """Changes by `placed`, `reserved` and `without`, which return another state."""

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

    def placed(
        self, request: HoldRequest, node: str, hold: Hold | None, elastic: ElasticPod
    ) -> SchedulerState:
        """With a pod on a node, through a hold or beside all, and in its quota."""
        pod, totals = request.pod, totals_with(self.totals, (elastic,))
        if hold is None:
            return replace(self, snapshot=self.snapshot.with_pod(pod, node), totals=totals)
        ledger = self.ledger.assume(hold.id, HoldOwner(pod.uid, pod.requests, True))
        snapshot = _without_placeholder(self.snapshot, hold).with_pod(pod, node)
        if rest := placeholder(ledger.states[hold.id]):
            snapshot = snapshot.with_pod(rest, node)
        return SchedulerState(snapshot, ledger, totals)

    def without(
        self, pods: Mapping[str, str], kept: Iterable[Hold], elastic: Iterable[ElasticPod] = ()
    ) -> SchedulerState:
        """With the room that bound pods leave, by uid with their nodes: holds take their part of it back.

        `kept`: the holds that some of the pods leave behind. `elastic`: the pods as they count in quotas.
        """
        ledger = self.ledger.left(pods, kept)
        changed = [hold for hold in ledger.states if ledger.states[hold] is not self.ledger.states.get(hold)]
        gone = [
            pod
            for node in {*pods.values(), *(ledger.states[id_].hold.node for id_ in changed)}
            if node in self.snapshot.states
            for pod in self.snapshot.states[node].pods
            if pod.uid in pods or pod.uid in changed
        ]
        come = [pod for id_ in changed if (pod := placeholder(ledger.states[id_])) is not None]
        snapshot = self.snapshot.with_changes(gone=gone, come=come) if gone or come else self.snapshot
        return SchedulerState(snapshot, ledger, totals_with(self.totals, elastic, -1))

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
