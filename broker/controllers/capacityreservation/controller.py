"""Writes the status of all reservations in one pass: supply, usage and lifecycle state.

Invariant: everything is decided from one snapshot, since reservations that name one flavor share its
hardware. An object is written only if its status differs; one with unchanged facts is skipped. A deleted
reservation is released once everything that was made for it is gone: until then the broker's finalizer holds
it, and its status lists the rest. Each state is written before the next follows from it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from broker.apis import names
from broker.apis.meta import condition
from broker.controllers.capacityreservation import status
from broker.controllers.capacityreservation.facts import JointFacts, JointFactsBuilder
from broker.controllers.capacityreservation.metrics import ReservationMetrics, show
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.owned_metadata import OwnedMetadata
from broker.kube.controller import Result
from broker.kube.for_each import for_each
from broker.kube.refusals import tell_refusal
from broker.quota.lifecycle import Limits, State, advance, patience
from broker.reservations import conditions
from broker.reservations.conditions import ReservationFacts
from broker.reservations.kueue_objects import short
from broker.reservations.spec import Reservation, reserved_of

SOON = 1.0  # shortest wait in seconds, since Kubernetes' times are whole seconds

_log = structlog.get_logger("reservation")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciledReservation:
    """Inputs of a reservation's last reconcile, and until when they hold (monotonic)."""

    reservation: Reservation
    facts: ReservationFacts
    until: float


class ReservationController:
    """`run` is one pass; its result requests the next pass when time alone may change a state."""

    def __init__(self, shared: ReservationDependencies, facts_builder: JointFactsBuilder) -> None:
        self._client, self._clock, self._recorder = shared.client, shared.clock, shared.recorder
        self._reads = shared.reads
        self._facts_builder = facts_builder
        settings = shared.settings
        self._limits = Limits(
            creating=settings.reservation_creating_seconds, updating=settings.reservation_updating_seconds
        )
        self._known: dict[str, ReconciledReservation] = {}  # by uid
        self._metadata = OwnedMetadata(shared.client, names.COHORT_LABEL)

    def run(self) -> Result | None:
        """Raises ApiError, after every reservation had its turn unless the API server is unavailable."""
        moment = self._clock.monotonic()
        reservations = self._all()
        if not reservations:
            # Without reservations the metrics of earlier ones are removed, and no machine is read.
            self._forget(())
            show({})
            return None
        joint = self._facts_builder.build(reservations, self._clock.now(), moment)
        self._forget(reservations)
        reservations = [item for item in reservations if reserved_of(item) in joint.facts]
        due = [joint.until]
        try:
            for_each(
                reservations,
                lambda reservation: due.append(self._reconcile(reservation, joint, moment)),
                refused=lambda reservation, error: tell_refusal(self._recorder, reservation, error),
            )
        finally:
            self._measure(joint)
        until = min(due)
        return Result(requeue_after=max(until - moment, 0.0)) if until < float("inf") else None

    def _all(self) -> list[Reservation]:
        return list(self._reads.snapshot().reservations.values())

    def _reconcile(self, reservation: Reservation, joint: JointFacts, moment: float) -> float:
        """Reconciles one reservation; returns until when it cannot change by time alone (monotonic)."""
        reserved = reserved_of(reservation)
        facts = joint.facts[reserved]
        known = self._known.get(reservation.uid)
        if (
            known is not None
            and known.reservation is reservation
            and moment < known.until
            and known.facts == facts
        ):
            return known.until
        deleting = reservation.deleting  # as in the facts: the response to a write may be newer
        cache = self._reads.cache_of(reserved)
        reservation = self._metadata.apply(cache, reservation, short(facts.judged.spec.cohort))
        before = reservation.status.capacity_reservation_lifecycle_state
        reservation, left = self._write_status(reservation, facts)
        if deleting and not facts.remaining:
            self._metadata.release(cache, reservation)
        if (
            reservation.status.capacity_reservation_lifecycle_state != before
            or reservation.deleting != deleting
        ):
            self._known.pop(reservation.uid, None)
            return moment  # the next pass reconciles the new state
        until = moment + max(left, SOON)
        self._known[reservation.uid] = ReconciledReservation(
            reservation=reservation, facts=facts, until=until
        )
        return until

    def _write_status(self, reservation: Reservation, facts: ReservationFacts) -> tuple[Reservation, float]:
        """Writes the status if it differs. Returns the object, and the seconds until its state may change
        by time alone.
        """
        now, current = self._clock.now(), reservation.status
        before = current.capacity_reservation_lifecycle_state
        obstacle = next(conditions.obstacles(facts), None)
        ready = condition(current.conditions, conditions.READY)
        lacking = condition(current.conditions, conditions.PROVISIONED)
        since = lacking.last_transition_time if lacking is not None and lacking.status != "True" else None
        # Not below 0: a wall clock that is behind for a while must not delay the next look by as much.
        lasted = max(0.0, (now - since).total_seconds()) if since is not None else 0.0
        state = advance(
            before,
            obstacle,
            deleting=reservation.deleting,
            changed=ready is not None and ready.observed_generation != reservation.metadata.generation,
            lasted=lasted,
            limits=self._limits,
        )
        first = before is None and not reservation.deleting
        was_ready = ready is not None and ready.status == "True"
        anew = before == "Failed" and state == "Updating"
        updates = conditions.condition_updates(
            facts, state, obstacle, first=first, was_ready=was_ready, anew=anew
        )
        detail = state if first else conditions.detail(state, obstacle, updates, facts)
        body = status.body(
            current,
            reservation.metadata.generation,
            state,
            updates,
            detail,
            facts,
            known=not first,
            now=now,
        )
        if not status.same(current, body):
            reservation = self._write(reservation, body)
            if state != before:
                self._report(reservation, before, state, conditions.transition(state, obstacle, detail))
        left = float("inf") if state in ("Failed", "Deleting") else patience(state, obstacle, self._limits)
        return reservation, left - lasted

    def _write(self, reservation: Reservation, body: dict[str, Any]) -> Reservation:
        patch = {"metadata": {"uid": reservation.uid}, "status": status.patch(reservation.status, body)}
        answer = self._client.patch(
            reservation.KIND,
            reservation.name,
            patch,
            namespace=reservation.namespace or None,
            subresource="status",
        )
        after: Reservation = self._reads.cache_of(reserved_of(reservation)).written(answer)
        return after

    def _report(self, reservation: Reservation, before: State | None, state: State, detail: str) -> None:
        """Reports a transition, as `kubectl describe` shows it."""
        _log.info("reservation", reservation=reservation.key, state=state, before=before, why=detail)
        self._recorder.event(reservation, "Warning" if state == "Failed" else "Normal", state, detail)

    def _forget(self, reservations: Sequence[Reservation]) -> None:
        alive = {reservation.uid for reservation in reservations}
        self._known = {uid: known for uid, known in self._known.items() if uid in alive}
        self._facts_builder.forget(alive)
        self._metadata.forget(alive)

    def _measure(self, joint: JointFacts) -> None:
        shown = {}
        for reservation in self._all():
            facts = joint.facts.get(reserved_of(reservation))
            if facts is not None:
                state = reservation.status.capacity_reservation_lifecycle_state
                shown[reserved_of(reservation)] = ReservationMetrics(
                    state=state, total=facts.nominal, used=facts.used
                )
        show(shown, joint.unattributed)


class UsageThrottle:
    """Runs at once when the use of quota changes, and then at most once in `EVERY` seconds.

    With many workloads a second, a pass for each would cost more than admitting them. A second
    change right after a first must reach the status within one second, including the pass and the API
    server's answer.
    """

    EVERY: Final = 0.5

    def __init__(self, run: Callable[[], Result | None]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._changed = self._due = False  # since the last pass; whether a pass is scheduled

    def changed(self) -> bool:
        """Notes a change; returns whether a pass must be requested for it."""
        with self._lock:
            self._changed, due = True, self._due
            self._due = True
            return not due

    def run(self) -> Result | None:
        with self._lock:
            self._due, self._changed = self._changed, False
            due = self._due
        result = self._run()
        if not due:
            return result
        return Result(requeue_after=min(self.EVERY, result.requeue_after if result else self.EVERY))
