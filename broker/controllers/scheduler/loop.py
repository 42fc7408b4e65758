"""Places the pods and reservations that wait for one of the broker's scheduler names.

One run reads the changes since the last one, tries each in turn, and writes each decision before the next is
made. Pods of other schedulers count as used room. Only back-off and assumptions are not in the caches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import structlog

from broker.apis import koordinator as koord
from broker.apis.core import Node, Pod
from broker.apis.kueue import Namespace
from broker.apis.meta import Object
from broker.capacity.reasons import GANG_INCOMPLETE
from broker.controllers.elasticquota.reading import ElasticPods, declaration
from broker.controllers.elasticquota.use import ElasticUse
from broker.controllers.nodereservation.conditions import INVALID
from broker.controllers.nodereservation.godel_reading import GodelAnnotations
from broker.controllers.nodereservation.node_holds import node_holds
from broker.controllers.nodereservation.reads import SchedulerReads
from broker.controllers.scheduler.assumed import AssumedPlacements, AssumedPod
from broker.controllers.scheduler.binder import OutcomeUnknown, PlacementWriter
from broker.controllers.scheduler.gangs import PlacementUnit, units_in_turn, whole_or_not
from broker.controllers.scheduler.kept_room import KeptRoom
from broker.controllers.scheduler.preallocation import pre_allocated
from broker.controllers.scheduler.queue import (
    SchedulingBackoff,
    UnfitPods,
    Waiting,
    waits,
)
from broker.controllers.scheduler.reclaim import BlockedEvictions, ElasticReclaim, Reclaim
from broker.controllers.scheduler.state import SchedulerState
from broker.controllers.scheduler.trial import (
    FoundPlace,
    NoPlace,
    QueuedPod,
    TrialRules,
    strictest,
    try_gang,
)
from broker.controllers.scheduler.view import SchedulerView
from broker.kube.cache import Cache
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.errors import ApiError, Conflict, Unavailable
from broker.placement.holds import Hold
from broker.placement.holds_decide import HoldDecision, decide
from broker.placement.holds_ledger import HoldLedger
from broker.placement.holds_match import HoldRequest
from broker.placement.holds_reading import (
    hold_request,
    koordinator_hold,
    operating_hold,
    reservation_end,
    reservation_waits,
    reserve_pod,
)
from broker.placement.message import message
from broker.placement.model import PodInfo
from broker.placement.reading import namespace_labels, pod_info
from broker.reservations.annotations import INVALID_ANNOTATION
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
        namespaces: Cache[Namespace],
        settings: Settings,
    ) -> None:
        self._client, self._clock = context.client, context.clock
        self._reads, self._pods, self._namespaces, self._settings = reads, pods, namespaces, settings
        self._rules = reads.rules(settings.room_bounds, namespaces)
        self._view = SchedulerView(pods, nodes, reads.named.values(), context.clock)
        self._unfit = UnfitPods()
        self._elastic = ElasticPods(nodes, gpu_gb=settings.gpu_memory_gb)
        self._godel = GodelAnnotations(reads.deployments.cache, reads.replica_sets.cache, rules=self._rules)
        self._use = ElasticUse()
        self._rooms: Sequence[Object] = ()  # the reservations that were read
        self._as_read: bool | None = None  # whether all is so in this run, if the API server was asked
        self._trial_rules = TrialRules(settings.restricted_node_fallback, settings.gpu_memory_gb)
        self._reclaim = ElasticReclaim(
            context.client,
            context.clock,
            godel=self._godel,
            keeps_room=lambda: reads.godel.served,
            rules=self._trial_rules,
        )
        self._writer = PlacementWriter(context)
        self._assumed = AssumedPlacements()
        self._kept = KeptRoom(context.client, reads.godel, context.clock)
        self._backoff = SchedulingBackoff()
        self._blocked: dict[str, frozenset[str]] = {}  # by uid, the reported pods that a budget protects
        self._unknown: dict[str, AssumedPod | koord.KoordinatorReservation] = {}  # by uid, without an answer

    def run(self, _items: Sequence[str]) -> Result | None:
        now = self._clock.monotonic()
        self._view.update()
        self._as_read = None
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
        units = units_in_turn(waiting, self._view.pods.values(), self._reads.groups.size, self._assumed)
        for unit in units:
            if wait := self._wait(unit, now):
                delays.append(wait)
                state = self._kept_for(unit, state)
                continue
            if unit.pods and all(self._unfit.still(pod, self._view.freed) for pod in unit.pods):
                continue
            try:
                state = self._placed(unit, state)
            except OutcomeUnknown:
                raise  # room that may be taken is not given away
            except ApiError as error:
                log.warning("not placed", object=unit.items[0].key, error=str(error))
                self._backoff.failed(unit.items[0].uid, now)
                state = self._kept_for(unit, state)
            if wait := self._wait(unit, now):
                delays.append(wait)
            placed += sum(item.uid in self._assumed for item in unit.items)
            if placed >= AT_ONCE:
                return Result(0.0)  # with the pods that came meanwhile
        return Result(min(delays)) if delays else None

    def _wait(self, unit: PlacementUnit, now: float) -> float:
        """Seconds until the unit is tried again."""
        return max(self._backoff.wait(item.uid, now) for item in unit.items)

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
        placed = [*shown, *self._assumed.reservations]
        lending = (*view.lending.values(), *(item.bound for item in assumed))
        kept = self._kept.reservations()
        self._rooms = (*placed, *kept)
        holds = node_holds(placed, kept, lending, view.by_uid(), self._rules, self._reads.guard)
        ledger = HoldLedger()
        if holds:
            links = [*view.links.values(), *(link for item in assumed if (link := item.link))]
            ledger = HoldLedger.of(holds, links, self._clock.now())
        self._use = ElasticUse.of(
            self._reads.all_quotas(declaration),
            (
                *((pod, pod.spec.node_name) for pod in view.holding.values()),
                *((item.pod, item.node) for item in assumed),
            ),
            self._elastic,
            absent_is_zero=self._settings.quota_absent_is_zero,
        )
        snapshot = replace(view.snapshot, namespaces=namespace_labels(self._namespaces.list()))
        return SchedulerState.of(snapshot, ledger, self._use.totals, [item.info for item in assumed])

    def _waiting(
        self, pods: Iterable[Pod], reservations: Iterable[koord.KoordinatorReservation]
    ) -> list[Waiting]:
        names = self._reads.served_names()
        candidates: list[Waiting] = [pod for pod in pods if waits(pod, names)]
        candidates += [item for item in reservations if reservation_waits(item, names)]
        return [item for item in candidates if item.uid not in self._assumed]

    def _placed(self, unit: PlacementUnit, state: SchedulerState) -> SchedulerState:
        if unit.pods:
            return self._place_pods(unit, state)
        for item in unit.items:
            if not isinstance(item, Pod):
                with self._reads.guard(item):
                    state = self._place_reservation(item, state)
        return state

    def _place_pods(self, unit: PlacementUnit, state: SchedulerState) -> SchedulerState:
        """Binds as many of the pods as the unit needs, or none."""
        if unit.obstacle:
            self._reject_all(unit.pods, unit.obstacle, GANG_INCOMPLETE)
            self._unnominate(unit.pods)
            return state
        queued = [item for pod in unit.pods if (item := self._queued(pod)) is not None]
        if len(queued) < unit.needed:
            others = [item.pod for item in queued]
            self._reject_all(others, whole_or_not(unit, len(unit.items) - len(queued)), INVALID_ANNOTATION)
            self._unnominate(unit.pods)
            return state
        trial = try_gang(queued, unit.needed, state, self._trial_rules)
        if len(trial.placed) >= unit.needed:
            self._bind_all(trial.placed)
            for rejected in trial.rejected:
                self._reject(rejected, state)
            return trial.state
        for rejected in trial.rejected:
            self._reject(rejected, state)
        text, reason = whole_or_not(unit, len(trial.rejected)), strictest(trial.rejected)
        self._reject_all([place.queued.pod for place in trial.placed], text, reason)
        return self._reclaimed(queued[: unit.needed], state)

    def _kept_for(self, unit: PlacementUnit, state: SchedulerState) -> SchedulerState:
        """The state without the room that a gang in part needs, or that others leave for these pods.

        They are tried again in a moment.
        """
        queued: list[QueuedPod] = []
        for pod in unit.pods:
            with suppress(ValueError):  # reported when it is tried
                queued.append(self._read(pod))
        if unit.started:
            return try_gang(queued, unit.needed, state, self._trial_rules).state if queued else state
        for pod, request, elastic in queued:
            if (node := pod.status.nominated_node_name) in state.snapshot.states:
                state = state.placed(request, node, None, elastic)
        return state

    def _reject_all(self, pods: Iterable[Pod], text: str, reason: str) -> None:
        for pod in pods:
            self._writer.reject(pod, text, reason)

    def _unnominate(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            self._writer.nominate(pod, "")

    def _bind_all(self, places: Sequence[FoundPlace]) -> None:
        """Raises ApiError if the first pod is not bound. Others that are not are tried again soon.

        Several are tried as a dry run first: the API server refuses the gang, not the rest of it.
        """
        for queued, node, hold in places if len(places) > 1 else ():
            self._writer.try_bind(queued.pod, node, hold)
        for place in places:
            try:
                self._bind(place)
            except OutcomeUnknown:
                raise
            except ApiError as error:
                if place is places[0]:
                    raise
                log.warning("not placed", object=place.queued.pod.key, error=str(error))
                self._backoff.failed(place.queued.pod.uid, self._clock.monotonic())

    def _read(self, pod: Pod) -> QueuedPod:
        """Raises ValueError for annotations that cannot be read."""
        operating_hold(pod)
        return QueuedPod(pod, hold_request(pod, self._godel.index(pod)), self._elastic.read(pod))

    def _queued(self, pod: Pod) -> QueuedPod | None:
        """None for a pod that is rejected for its annotations."""
        invalid = ""
        with self._pods.guard(pod):
            try:
                return self._read(pod)
            except ValueError as error:
                invalid = str(error)
        if invalid:
            self._writer.reject(pod, invalid, INVALID_ANNOTATION)
        return None

    def _reject(self, place: NoPlace, state: SchedulerState) -> None:
        pod, info = place.queued.pod, place.queued.request.pod
        self._writer.reject(pod, message(place.fits), place.reason)
        # its terms about other pods may be met by a pod that comes
        if not (info.affinity or info.spread or state.totals.share_of(pod.namespace)):
            self._unfit.rejected(pod, self._view.freed)

    def _bind(self, place: FoundPlace) -> None:
        pod, hold = place.queued.pod, place.hold
        try:
            self._writer.bind(pod, place.node, hold)
        except OutcomeUnknown:
            self._unknown[pod.uid] = AssumedPod.of(pod, place.node, hold.id if hold else "")
            raise
        self._assumed.assume_pod(pod, place.node, hold.id if hold else "")
        if operating_hold(pod) is not None:
            self._view.freed += 1  # its owners may fit now
        self._backoff.succeeded(pod.uid)

    def _reclaimed(self, queued: Sequence[QueuedPod], state: SchedulerState) -> SchedulerState:
        """Evicts pods that borrow the guarantee of the pods' namespace, and keeps their room for these pods.

        While pods end that leave enough, no other pod is evicted. Raises ApiError.
        """
        reclaim = self._chosen(queued, state)
        if reclaim and reclaim.victims and self._as_read is None:
            self._look_again()
            reclaim = self._chosen(queued, state)
        if reclaim is None:
            self._unnominate(item.pod for item in queued)
            return state
        if reclaim.victims and not self._as_read:
            raise Conflict(409, Conflict.__name__, "nodes, rooms or quotas have changed since they were read")
        blocked = self._reclaim.blocked(reclaim.victims)
        for place in () if blocked else reclaim.places:  # first: no cache shows the room without its owner
            self._writer.nominate(place.queued.pod, place.node)
        if blocked := blocked or self._reclaim.evict(reclaim.victims):
            for item in queued:
                self._report_blocked(item.pod, blocked)
                self._backoff.failed(item.pod.uid, self._clock.monotonic())
            self._unnominate(item.pod for item in queued)
            return state
        for (_, request, elastic), node, hold in reclaim.places:
            there = hold if hold is not None and hold.id in state.ledger.states else None
            state = state.placed(request, node, there, elastic)
        first = reclaim.places[0]
        self._writer.preempted(reclaim.victims, by=first.queued.pod, node=first.node)
        return state

    def _look_again(self) -> None:
        """Asks the API server what watches may show late: an eviction cannot be taken back."""
        self._reclaim.assume_ending(self._view.ending(self._client))
        self._as_read = self._view.nodes_unchanged(self._client) and self._reads.rooms_unchanged(
            (*self._rooms, *self._use.quotas)
        )

    def _chosen(self, queued: Sequence[QueuedPod], state: SchedulerState) -> Reclaim | None:
        if any(
            item.pod.spec.preemption_policy == "Never" or state.totals.share_of(item.pod.namespace) is None
            for item in queued
        ):
            return None
        bound, names = self._view.by_uid(), self._reads.served_names()
        return self._reclaim.choose(queued, state, self._use, bound, names)

    def _report_blocked(self, pod: Pod, blocked: BlockedEvictions) -> None:
        """Reports each blocked pod once, since the tries go on for as long as its budget lasts."""
        uids, known = {other.uid for other in blocked.pods}, self._blocked.get(pod.uid, frozenset())
        if not uids <= known:
            self._blocked[pod.uid] = known | uids
            self._writer.blocked(pod, blocked.pods, blocked.why)

    def _place_reservation(
        self, reservation: koord.KoordinatorReservation, state: SchedulerState
    ) -> SchedulerState:
        now = self._clock.now()
        owners: tuple[Pod, ...] = ()
        try:
            ends = reservation_end(reservation, self._rules.bounds)
            pod = reserve_pod(reservation)
            # Its annotations can be read.
            hold = koordinator_hold(reservation, "", pod.requests, self._rules.bounds)
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
        hold = koordinator_hold(placed, decision.node, pod.requests, self._rules.bounds)
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
