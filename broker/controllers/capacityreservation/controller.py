"""Writes the status of all reservations in one pass: supply, usage and lifecycle state.

Invariant: everything is decided from one snapshot, since reservations that name one flavor share its
hardware. An object is written only if its status differs; one with unchanged facts is skipped. A deleted
reservation goes once everything that was made for it has gone: until then our finalizer holds it, and its
status lists the rest. Each state is written before the next follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from broker.apis import names
from broker.apis.meta import condition
from broker.apis.ome import CapacityReservation
from broker.controllers.capacityreservation import status
from broker.controllers.capacityreservation.look import Cloud, ReservationSnapshot, ReservationSnapshotBuilder
from broker.controllers.capacityreservation.marks import CohortLabels
from broker.controllers.capacityreservation.metrics import METRICS, Shown
from broker.controllers.capacityreservation.sources import Sources
from broker.controllers.ome.reads import OmeReads
from broker.controllers.reservations.each import each
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.conditions import remove_finalizer
from broker.kube.controller import Result
from broker.kube.errors import Conflict
from broker.kube.events import Recorder
from broker.quota.lifecycle import Limits, State, advance, patience
from broker.reservations import conditions as verdicts
from broker.reservations.conditions import ReservationFacts
from broker.reservations.spec import Reservation, reserved_of

SOON = 1.0  # shortest wait in seconds, since Kubernetes' times are whole seconds

_log = structlog.get_logger("reservation")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciledReservation:
    """Inputs of a reservation's last reconcile, and until when they hold (monotonic)."""

    one: Reservation
    facts: ReservationFacts
    cloud: Cloud
    group_arn: str
    until: float


class ReservationController:
    """`run` is one pass; its result requests the next pass when time alone may change a state."""

    def __init__(
        self,
        client: Client,
        reads: OmeReads,
        look: ReservationSnapshotBuilder,
        sources: Sources,
        *,
        clock: Clock,
        recorder: Recorder,
        limits: Limits,
    ) -> None:
        self._client = client
        self._reads = reads
        self._look = look
        self._sources = sources
        self._clock = clock
        self._recorder = recorder
        self._limits = limits
        self._known: dict[str, ReconciledReservation] = {}  # by uid
        self._marks = CohortLabels(client)

    def run(self) -> Result | None:
        """Raises ApiError, after every reservation had its turn unless the API server is unavailable."""
        moment = self._clock.monotonic()
        reservations = self._all()
        if not reservations:
            # Without reservations the metrics of earlier ones are removed, and no machine is read.
            self._forget(())
            METRICS.show({})
            return None
        view = self._look.take(reservations, self._clock.now(), moment)
        self._forget(reservations)
        due = [view.until]
        try:
            each(reservations, lambda one: due.append(self._turn(one, view, moment)))
        finally:
            self._measure(view)
        until = min(due)
        return Result(requeue_after=max(until - moment, 0.0)) if until < float("inf") else None

    def _all(self) -> list[Reservation]:
        return list(self._reads.snapshot().reservations.values())

    def _turn(self, one: Reservation, view: ReservationSnapshot, moment: float) -> float:
        """Reconciles one reservation; returns until when it cannot change by time alone (monotonic)."""
        reserved = reserved_of(one)
        facts, cloud = view.facts[reserved], view.cloud[reserved]
        group_arn = self._sources.group_arn(reserved)
        known = self._known.get(one.uid)
        if (
            known is not None
            and known.one is one
            and moment < known.until
            and (known.facts, known.cloud, known.group_arn) == (facts, cloud, group_arn)
        ):
            return known.until
        deleting = one.deleting  # as in the facts: the response to a write may be newer
        marked = self._marks.keep(one, facts.judged.spec.cohort)
        one = self._cached(one, marked)
        before = one.status.capacity_reservation_lifecycle_state
        one, left = self._say(one, facts, cloud, group_arn)
        if deleting and not facts.left:
            self._release(one)
        if one.status.capacity_reservation_lifecycle_state != before or one.deleting != deleting:
            self._known.pop(one.uid, None)
            return moment  # the next pass reconciles the new state
        until = moment + max(left, SOON)
        self._known[one.uid] = ReconciledReservation(
            one=one, facts=facts, cloud=cloud, group_arn=group_arn, until=until
        )
        return until

    def _say(
        self, one: Reservation, facts: ReservationFacts, cloud: Cloud, group_arn: str
    ) -> tuple[Reservation, float]:
        """Writes the status if it differs. Returns the object, and the seconds until its state may change
        by time alone.
        """
        now, told = self._clock.now(), one.status
        before = told.capacity_reservation_lifecycle_state
        obstacle = next(verdicts.obstacles(facts), None)
        ready = condition(told.conditions, verdicts.READY)
        lacking = condition(told.conditions, verdicts.PROVISIONED)
        since = lacking.last_transition_time if lacking is not None and lacking.status != "True" else None
        lasted = (now - since).total_seconds() if since is not None else 0.0
        state = advance(
            before,
            obstacle,
            deleting=one.deleting,
            changed=ready is not None and ready.observed_generation != one.metadata.generation,
            lasted=lasted,
            limits=self._limits,
        )
        first = before is None and not one.deleting
        was_ready = ready is not None and ready.status == "True"
        anew = before == "Failed" and state == "Updating"
        said = verdicts.condition_updates(facts, state, obstacle, first=first, was_ready=was_ready, anew=anew)
        detail = state if first else verdicts.detail(state, obstacle, said, facts)
        made = status.body(
            told,
            one.metadata.generation,
            state,
            said,
            detail,
            facts,
            cloud,
            group_arn,
            known=not first,
            now=now,
        )
        if not status.same(told, made):
            one = self._write(one, made)
            if state != before:
                self._tell(one, before, state, detail)
        left = float("inf") if state in ("Failed", "Deleting") else patience(state, obstacle, self._limits)
        return one, left - lasted

    def _write(self, one: Reservation, made: dict[str, Any]) -> Reservation:
        patch = {"metadata": {"uid": one.uid}, "status": status.patch(one.status, made)}
        answer = self._client.patch(
            one.KIND, one.name, patch, namespace=one.namespace or None, subresource="status"
        )
        return self._cached(one, answer)

    def _cached(self, one: Reservation, answer: Mapping[str, Any] | None) -> Reservation:
        """The object after a write of ours, as every reader sees it from now on."""
        if answer is None:
            return one
        cache: Cache[Any] = (
            self._reads.reservations.cache
            if isinstance(one, CapacityReservation)
            else self._reads.cluster_reservations.cache
        )
        cache.observe(answer)
        found: Reservation | None = cache.find(one.key)
        return found if found is not None and found.uid == one.uid else type(one).decode(answer)

    def _release(self, one: Reservation) -> None:
        patch = remove_finalizer(one, names.RESERVED_FINALIZER)
        if patch is None:
            return
        _log.info("reservation released", reservation=one.key)
        try:
            answer = self._client.patch(one.KIND, one.name, patch, namespace=one.namespace or None)
        except Conflict:
            _log.info("reservation changed meanwhile, looked at again", reservation=one.key)
            return
        self._cached(one, answer)

    def _tell(self, one: Reservation, before: State | None, state: State, detail: str) -> None:
        """Reports a transition, as `kubectl describe` shows it."""
        _log.info("reservation", reservation=one.key, state=state, before=before, why=detail)
        self._recorder.event(one, "Warning" if state == "Failed" else "Normal", state, detail)

    def _forget(self, reservations: Sequence[Reservation]) -> None:
        alive = {one.uid for one in reservations}
        self._known = {uid: known for uid, known in self._known.items() if uid in alive}
        self._look.forget(alive)
        self._marks.forget(alive)

    def _measure(self, view: ReservationSnapshot) -> None:
        shown = {}
        for one in self._all():
            facts = view.facts.get(reserved_of(one))
            if facts is not None:
                state = one.status.capacity_reservation_lifecycle_state
                shown[reserved_of(one)] = Shown(state=state, total=facts.nominal, used=facts.used)
        METRICS.show(shown, view.unattributed)
