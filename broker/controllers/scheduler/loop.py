"""Places the pods and reservations that wait for one of the broker's scheduler names.

One run reads the changes since the last one, tries each in turn, and writes each decision before the next is
made. Pods of other schedulers count as used room. Only back-off and assumptions are not in the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from broker.apis import koordinator as koord
from broker.apis.core import UNSCHEDULABLE, Node, Pod
from broker.controllers.elasticquota.reading import ElasticPods
from broker.controllers.nodereservation.conditions import INVALID
from broker.controllers.nodereservation.godel_reading import GodelAnnotations, godel_holds
from broker.controllers.occupancy import koordinator_holds
from broker.controllers.scheduler.assumed import AssumedPlacements, AssumedPod
from broker.controllers.scheduler.binder import (
    INVALID_ANNOTATION,
    QUOTA_EXCEEDED,
    RESERVATION_REQUIRED,
    OutcomeUnknown,
    PlacementWriter,
)
from broker.controllers.scheduler.elastic import ElasticReclaim, rejection, totals_of, with_pod
from broker.controllers.scheduler.kept_room import KeptRoom
from broker.controllers.scheduler.preallocation import pre_allocated
from broker.controllers.scheduler.queue import (
    SchedulingBackoff,
    UnfitPods,
    Waiting,
    in_turn,
    reservation_waits,
    waits,
)
from broker.controllers.scheduler.reads import SchedulerReads
from broker.controllers.scheduler.state import SchedulerState
from broker.controllers.scheduler.view import SchedulerView
from broker.kube.cache import Cache
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.errors import ApiError, Unavailable
from broker.placement.filters import Fits
from broker.placement.holds import Hold
from broker.placement.holds_decide import HoldDecision, decide
from broker.placement.holds_ledger import HoldLedger
from broker.placement.holds_match import HoldRequest
from broker.placement.holds_reading import deadline, hold_request, koordinator_hold, reserve_pod
from broker.placement.model import PodInfo
from broker.placement.reading import pod_info
from broker.placement.selectors import Labels
from broker.settings import Settings

log = structlog.get_logger(__name__)
# Placements of one run: then the queue is read again, so that no pod waits for the end of a long one.
AT_ONCE: Final = 128


class PodScheduler:
    """`run` is one pass over all that wait; the loop that calls it is the only one."""

    def __init__(
        self,
        context: ControllerContext,
        reads: SchedulerReads,
        *,
        pods: Cache[Pod],
        nodes: Cache[Node],
        namespaces: Callable[[], dict[str, Labels]],
        settings: Settings,
    ) -> None:
        self._clock = context.clock
        self._reads, self._pods, self._namespaces, self._settings = reads, pods, namespaces, settings
        self._view = SchedulerView(pods, nodes, reads.named.values(), context.clock)
        self._unfit = UnfitPods()
        self._elastic = ElasticPods(nodes, gpu_gb=settings.gpu_memory_gb)
        self._godel = GodelAnnotations(
            reads.deployments.cache, reads.replica_sets.cache, ttl=settings.reservation_ttl
        )
        self._reclaim = ElasticReclaim(context.client, context.clock, self._elastic)
        self._writer = PlacementWriter(context)
        self._assumed = AssumedPlacements()
        self._kept = KeptRoom(context.client, reads.godel, context.clock)
        self._backoff = SchedulingBackoff()
        self._blocked: dict[str, frozenset[str]] = {}  # by uid, the reported pods that a budget protects
        self._unknown: dict[str, AssumedPod | koord.KoordinatorReservation] = {}  # by uid, without an answer

    def run(self, _items: Sequence[str]) -> Result | None:
        now = self._clock.monotonic()
        self._view.update()
        reservations = {item.uid: item for item in self._reads.koordinator.cache.list()}
        gone = [*self._view.take_gone(), *self._assumed.confirm(self._view.pods.get, reservations)]
        self._kept.pods_gone(pod.uid for pod in gone if self._godel.may_leave_room(pod))
        self._read_unknown_placements()
        waiting = self._waiting(self._view.unbound.values(), reservations.values())
        uids = {item.uid for item in waiting}
        self._backoff.keep(uids)
        self._unfit.keep(uids)
        self._blocked = {uid: pods for uid, pods in self._blocked.items() if uid in uids}
        if not waiting:
            return None
        state = self._state(reservations.values())
        delays: list[float] = []
        placed = 0
        for item in waiting:
            if wait := self._backoff.wait(item.uid, now):
                delays.append(wait)
                continue
            if isinstance(item, Pod) and self._unfit.still(item, self._view.freed):
                continue
            try:
                state = self._placed(item, state)
            except OutcomeUnknown:
                raise  # room that may be taken is not given away
            except ApiError as error:
                log.warning("not placed", object=item.key, error=str(error))
                self._backoff.failed(item.uid, now)
                delays.append(self._backoff.wait(item.uid, now))
            placed += item.uid in self._assumed
            if placed >= AT_ONCE:
                return Result(0.0)  # with the pods that came meanwhile
        return Result(min(delays)) if delays else None

    def _read_unknown_placements(self) -> None:
        """Reads the placements without an answer. Raises Unavailable while the API server does not answer.

        A refusal about one of them stops no other object: the caches will show whether it was placed.
        """
        for uid, item in [*self._unknown.items()]:
            try:
                self._read_unknown_placement(item)
            except Unavailable:
                raise
            except ApiError as error:
                log.warning("placement not looked up", uid=uid, error=str(error))
            del self._unknown[uid]

    def _read_unknown_placement(self, item: AssumedPod | koord.KoordinatorReservation) -> None:
        if isinstance(item, AssumedPod):
            node = self._writer.bound_to(item.pod)
            if node:
                self._assumed.assume_pod(item.pod, node, item.hold if node == item.node else "")
        else:
            placed = self._writer.present(item)
            if placed is not None and placed.status.node_name:
                self._assumed.assume_reservation(placed)

    def _state(self, reservations: Iterable[koord.KoordinatorReservation]) -> SchedulerState:
        view, assumed = self._view, [*self._assumed.pods.values()]
        shown = (item for item in reservations if item.uid not in self._assumed)
        holds = [
            *koordinator_holds((*shown, *self._assumed.reservations)),
            *godel_holds(self._kept.reservations(), view.uids, self._settings.reservation_ttl),
        ]
        ledger = HoldLedger()
        if holds:
            links = [*view.links.values(), *(link for item in assumed if (link := item.link))]
            ledger = HoldLedger.of(holds, links, self._clock.now())
        totals = totals_of(
            self._reads.all_quotas(),
            (*view.holding.values(), *(item.pod for item in assumed)),
            self._elastic,
            absent_is_zero=self._settings.quota_absent_is_zero,
        )
        snapshot = replace(view.snapshot, namespaces=self._namespaces())
        return SchedulerState.of(snapshot, ledger, totals, [item.info for item in assumed])

    def _waiting(
        self, pods: Iterable[Pod], reservations: Iterable[koord.KoordinatorReservation]
    ) -> list[Waiting]:
        names = self._reads.served_names()
        candidates: list[Waiting] = [pod for pod in pods if waits(pod, names)]
        candidates += [item for item in reservations if reservation_waits(item, names)]
        return in_turn(item for item in candidates if item.uid not in self._assumed)

    def _placed(self, item: Waiting, state: SchedulerState) -> SchedulerState:
        if isinstance(item, Pod):
            return self._place_pod(item, state)
        return self._place_reservation(item, state)

    def _place_pod(self, pod: Pod, state: SchedulerState) -> SchedulerState:
        try:
            request = hold_request(pod, self._godel.index(pod))
        except ValueError as error:
            self._writer.reject(pod, str(error), INVALID_ANNOTATION)
            return state
        elastic = self._elastic.read(pod)
        refusal = rejection(state.totals, elastic)
        if refusal is not None:
            reason = QUOTA_EXCEEDED
            rejected = dict.fromkeys(state.snapshot.states, (refusal,))
            decision = HoldDecision(fits=Fits((), rejected, refusal))
        else:
            fallback = self._settings.restricted_node_fallback
            decision = decide(request, state.snapshot, state.ledger, node_fallback=fallback)
            reason = RESERVATION_REQUIRED if decision.only_holds else UNSCHEDULABLE
        if not decision.node:
            self._writer.reject(pod, decision.message, reason)
            info = request.pod  # its terms about other pods may be met by a pod that comes
            if not (info.affinity or info.spread or state.totals.share_of(pod.namespace)):
                self._unfit.rejected(pod, self._view.freed)
            return self._reclaimed(pod, request, state)
        hold = decision.hold
        try:
            self._writer.bind(pod, decision.node, hold)
        except OutcomeUnknown:
            self._unknown[pod.uid] = AssumedPod.of(pod, decision.node, hold.id if hold else "")
            raise
        self._assumed.assume_pod(pod, decision.node, hold.id if hold else "")
        self._backoff.succeeded(pod.uid)
        placed = state.placed(request, decision.node, hold)
        return replace(placed, totals=with_pod(state.totals, elastic))

    def _reclaimed(self, pod: Pod, request: HoldRequest, state: SchedulerState) -> SchedulerState:
        """Evicts pods that borrow the guarantee of the pod's namespace, and keeps their room for it.

        While victims of an earlier run end, no other pod is evicted.
        """
        if pod.spec.preemption_policy == "Never" or state.totals.share_of(pod.namespace) is None:
            self._writer.unnominate(pod)
            return state
        nominated = pod.status.nominated_node_name
        elastic, bound = self._elastic.read(pod), self._view.on_nodes()
        if not (nominated in state.snapshot.states and any(o.deleting for o in bound.get(nominated, ()))):
            choice = self._reclaim.choose(request, elastic, state.totals, state.snapshot, bound)
            if choice is None:
                self._writer.unnominate(pod)
                return state
            nominated, chosen = choice
            if kept := self._reclaim.evict(chosen):
                self._report_blocked(pod, kept)
                self._backoff.failed(pod.uid, self._clock.monotonic())
                return state
            self._writer.nominate(pod, nominated, chosen)
        placed = state.placed(request, nominated, None)
        return replace(placed, totals=with_pod(state.totals, elastic))

    def _report_blocked(self, pod: Pod, kept: Sequence[Pod]) -> None:
        """Reports each protected pod once, since the tries go on for as long as the budget lasts."""
        uids, known = {other.uid for other in kept}, self._blocked.get(pod.uid, frozenset())
        if not uids <= known:
            self._blocked[pod.uid] = known | uids
            self._writer.protected(pod, kept)

    def _place_reservation(
        self, reservation: koord.KoordinatorReservation, state: SchedulerState
    ) -> SchedulerState:
        now = self._clock.now()
        spec = reservation.spec
        owners: tuple[Pod, ...] = ()
        try:
            ends = deadline(reservation.metadata.creation_timestamp, spec.ttl, spec.expires)
            pod = reserve_pod(reservation)
            hold = koordinator_hold(reservation, "", pod.requests)  # its annotations can be read
            decision, owners = self._node_for(reservation, pod, hold, state)
        except ValueError as error:
            self._writer.reject_reservation(reservation, str(error), INVALID)
            return state
        if ends is not None and ends <= now:
            return state  # its controller marks it Failed
        if not decision.node:
            self._writer.reject_reservation(reservation, decision.message)
            return state
        try:
            placed = self._writer.reserve(reservation, decision.node, pod.requests, owners)
        except OutcomeUnknown:
            self._unknown[reservation.uid] = reservation
            raise
        self._assumed.assume_reservation(placed)
        self._backoff.succeeded(reservation.uid)
        hold = koordinator_hold(placed, decision.node, pod.requests)
        return state.reserved(hold, now, [pod_info(owner) for owner in owners])

    def _node_for(
        self, reservation: koord.KoordinatorReservation, pod: PodInfo, hold: Hold, state: SchedulerState
    ) -> tuple[HoldDecision, tuple[Pod, ...]]:
        """The node of a reservation, and the running pods that give it room there. Raises ValueError."""
        if reservation.spec.pre_allocation:
            placed = {item.uid for item in self._reads.koordinator.cache.list() if item.status.node_name}
            decision, owners = pre_allocated(reservation, pod, hold, self._pods.list(), state, placed)
            if owners or reservation.needs_running_pod:
                return decision, owners
        return decide(HoldRequest(pod=pod, owners=False), state.snapshot, state.ledger), ()
