"""The input of one run of the scheduler: nodes, pods and holds at one moment, with assumptions.

Invariant: the snapshot always has the placeholders of the ledger, so that filters see kept room. A pod that
is a hold itself is in it as its placeholder only, so that room which an owner uses counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from broker.placement.holds import Consumption, Hold, HoldOwner, placeholder
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
        added = [pod for pod in assumed if pod.uid not in ledger.states] + [*ledger.placeholders()]
        running = [s.hold for s in ledger.states.values() if s.hold.consumption is Consumption.TURNS]
        gone = [pod for hold in running for pod in _itself(snapshot, hold)]
        return cls(snapshot.with_changes(gone=gone, come=added) if added else snapshot, ledger, totals)

    def placed(
        self, request: HoldRequest, node: str, hold: Hold | None, elastic: ElasticPod
    ) -> SchedulerState:
        """Adds a pod on a node, through a hold or beside all, and in its quota."""
        pod = replace(request.pod, node_name=node)  # by which a later change finds it
        totals = totals_with(self.totals, (elastic,))
        if hold is None:
            return replace(self, snapshot=self.snapshot.with_pod(pod, node), totals=totals)
        ledger = self.ledger.assume(hold.id, HoldOwner(pod.uid, pod.requests, True))
        snapshot = _without_placeholder(self.snapshot, hold).with_pod(pod, node)
        rest = placeholder(ledger.states[hold.id])
        return SchedulerState(snapshot.with_pod(rest, node), ledger, totals)

    def lent(self, hold: Hold) -> SchedulerState:
        """Adds the hold that a pod of the snapshot is."""
        ledger = self.ledger.left((), (hold,))
        snapshot = _without_placeholder(self.snapshot, hold)
        rest = placeholder(ledger.states[hold.id])
        return replace(self, snapshot=snapshot.with_pod(rest, hold.node), ledger=ledger)

    def without(
        self, pods: Mapping[str, str], kept: Iterable[Hold], elastic: Iterable[ElasticPod] = ()
    ) -> SchedulerState:
        """Frees the room that bound pods leave, by uid with their nodes: holds take their part of it back.

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
        come = [placeholder(ledger.states[id_]) for id_ in changed]
        snapshot = self.snapshot.with_changes(gone=gone, come=come) if gone or come else self.snapshot
        return SchedulerState(snapshot, ledger, totals_with(self.totals, elastic, -1))

    def reserved(self, hold: Hold, now: datetime, owners: Sequence[PodInfo] = ()) -> SchedulerState:
        """Adds a new hold, and its owners if it takes the room of pods that run."""
        states = [state.hold for state in self.ledger.states.values()]
        links = [
            HoldLink(state.hold.id, state.hold.node, owner)
            for state in self.ledger.states.values()
            for owner in state.owners.values()
        ]
        links += [HoldLink(hold.id, hold.node, HoldOwner(pod.uid, pod.requests)) for pod in owners]
        ledger = HoldLedger.of((*states, hold), links, now)
        pods = [placeholder(ledger.states[hold.id])] if hold.id in ledger.states else []
        return replace(self, snapshot=self.snapshot.with_changes(come=pods), ledger=ledger)


def _without_placeholder(snapshot: PlacementSnapshot, hold: Hold) -> PlacementSnapshot:
    return snapshot.with_changes(gone=_itself(snapshot, hold))


def _itself(snapshot: PlacementSnapshot, hold: Hold) -> list[PodInfo]:
    """The pod on the node that stands for the hold: its placeholder, or the pod that is the hold."""
    state = snapshot.states.get(hold.node)
    return [] if state is None else [pod for pod in state.pods if pod.uid == hold.id]
