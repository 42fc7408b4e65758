"""Executes the calls of a procurement plan, and applies their results to the next one.

Invariant: a purchase is in the ledger before it is sent, with its token and all parameters. It stays there
until its result is known: EC2 describes it, or refused it and cannot have carried it out before. Until then
it counts as bought, and exactly that call is sent again if it is still wanted. A refusal about a place is
recorded for the place, any other one for the object. No call is sent after the Lease is lost, nor for an
object that has changed since it was read, or that names a flavor that has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, fields, replace
from datetime import datetime, timedelta
from typing import Final

import structlog
from prometheus_client import Counter

from broker.apis import names
from broker.capacity.inventory import Inventory
from broker.controllers.assumed import AssumptionStore
from broker.controllers.newest import unchanged
from broker.controllers.odcr.events import ChangeEvents
from broker.controllers.odcr.groups import Groups
from broker.controllers.odcr.ledger import PurchaseLedger, attempt_id
from broker.kube.client import Client
from broker.kube.events import Recorder
from broker.oncall.metrics import REGISTRY
from broker.quota.usage import ReservationKey
from broker.reservations.desired import GroupChange, OdcrChange
from broker.reservations.ownership import ReservationProblem
from broker.reservations.purchases import TAG_PURCHASE, Purchase, PurchaseIntent
from broker.reservations.reading import ParsedReservation
from broker.reservations.refusals import Refusals
from broker.text import format_time
from providers.base import ReservationChanges
from providers.errors import ErrorClass, ProviderError
from providers.model import UNCHANGED, Odcr, OdcrRequest

PAUSE: Final = timedelta(minutes=5)  # after a refusal that the same call would get again
# Each change in words for people, with the id of the EC2 reservation or the name of the object.
_STEP_TEXTS: Final[Mapping[str, str]] = {
    "cancel": "cancelling {}",
    "resize": "changing the size or end of {}",
    "regroup": "keeping the resource group of {}",
}

CHANGES = Counter(
    "capacity_broker_odcr_changes",
    "EC2 reservations made, resized and cancelled for CapacityReservations, by result.",
    ["change", "result"],
    registry=REGISTRY,
)
_log = structlog.get_logger("odcrs")


class ObjectChanged(Exception):
    """The object is deleted, or it or a flavor differs from the cached one: both are read again first."""


class OdcrExecutor:
    """Executes the steps of a plan, for one process, in one thread."""

    def __init__(
        self,
        client: Client,
        provider: ReservationChanges,
        groups: Groups,
        ledger: PurchaseLedger,
        assumed: AssumptionStore,
        *,
        recorder: Recorder,
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._provider = provider
        self._groups = groups
        self._assumed = assumed
        self._clock = assumed.clock
        self.events = ChangeEvents(recorder)
        self.refusals = Refusals()
        # Request -> end, reservation, reason.
        self._paused: dict[str, tuple[datetime, ReservationKey, str]] = {}

    # ---- inputs of the next plan

    def backoff_reason(self, reading: ParsedReservation, now: datetime) -> str:
        """Why nothing is bought for it during the back-off after EC2's refusal; empty otherwise."""
        until, _, why = self._paused.get(_request_key(reading), (now, None, ""))
        return why if until > now else ""

    def problems(self, reserved: ReservationKey, now: datetime) -> list[ReservationProblem]:
        """EC2's refusals of changes for it, which are reported nowhere else."""
        return [
            ReservationProblem(reason="ChangeRefused", message=why)
            for key, (until, owner, why) in sorted(self._paused.items())
            if owner == reserved and until > now and not key.startswith("buy ")
        ]

    # ---- steps

    def buy(self, purchase: Purchase, reading: ParsedReservation, known: Mapping[str, Odcr]) -> None:
        """Sends a purchase. `known`: all ODCRs that EC2 shows, by id.

        Raises ObjectChanged, ApiError, and ProviderError if it is transient. Other refusals are recorded.
        """
        if reading.reservation.deleting or not unchanged(self._client, reading.rules):
            raise ObjectChanged(reading.reservation.key)
        intent = self._record_intent(purchase, reading)
        self._client.check()
        change = "grow" if intent.odcr_id else "create"
        try:
            odcr = self._grow(intent, known) if intent.odcr_id else self._create(intent, reading, known)
        except ProviderError as error:
            CHANGES.labels(change, error.code).inc()
            self._refused(purchase, reading, intent, error)
            return
        if not odcr:
            return
        CHANGES.labels(change, "done").inc()
        self.refusals = self.refusals.succeeded(purchase.instance_type, purchase.zone, purchase.count)
        self.events.bought(purchase, reading, odcr)

    def change(self, change: OdcrChange, reading: ParsedReservation, odcr: Odcr) -> None:
        """Resizes or cancels an ODCR, unless its object or a flavor has changed: the next plan decides anew.

        `odcr`: as it is now. Raises ApiError, and ProviderError if it is transient.
        """
        if not unchanged(self._client, reading.rules):
            return

        def call() -> None:
            if change.count == 0:
                self._provider.cancel_reservation(change.odcr_id)
            else:
                self._provider.resize_reservation(change.odcr_id, count=change.count, end=change.end)

        kind = "cancel" if change.count == 0 else "resize"
        if not self._call(_step_key(change), change.reserved, kind, call):
            return
        self._assumed.changes.assume(change.odcr_id, (change.count, change.end))
        for intent in [
            intent for intent in self._ledger.intents.values() if intent.odcr_id == change.odcr_id
        ]:
            del self._ledger.intents[intent.attempt_id]  # the later change holds
        self.events.changed(change, reading, odcr)

    def regroup(self, step: GroupChange, reading: ParsedReservation, inventory: Inventory) -> None:
        """Changes a resource group. Raises like `change`. The desired capacity of `reading` has the group."""
        group = reading.desired.group
        if (step.drop or step.leave) and not unchanged(self._client, reading.rules):
            return

        def call() -> None:
            if step.make:
                tags = {names.TAG_RESERVATION: str(step.reserved)}
                created = self._provider.create_group(name=self._groups.name(step.reserved), tags=tags)
                self._groups.record(created, self._clock.now())
            elif group is not None:
                self._groups.forget(group.arn)
                if step.drop:
                    self._provider.delete_group(group.arn)
                if step.join:
                    self._provider.add_to_group(group.arn, _arns(step.join, inventory))
                if step.leave:
                    self._provider.remove_from_group(group.arn, _arns(step.leave, inventory))

        if self._call(_step_key(step), step.reserved, "regroup", call):
            _log.info("group kept", reservation=str(step.reserved), joined=step.join, left=step.leave)

    def release(self, reading: ParsedReservation, counts: Mapping[str, int]) -> None:
        """Records the number of instances to release. Raises ApiError."""
        self._ledger.release(reading.reservation.uid, reading.reservation.metadata.generation, counts)
        self._ledger.flush()
        listed = ", ".join(f"{count} of flavor {name}" for name, count in sorted(counts.items()) if count)
        self.events.publish(
            reading, "Normal", "IdleReleased", f"no longer kept for the reservation, since idle: {listed}"
        )

    # ---- calls

    def _record_intent(self, purchase: Purchase, reading: ParsedReservation) -> PurchaseIntent:
        """Records the purchase before it is sent. Raises ApiError."""
        now, reservation, terms = self._clock.now(), reading.reservation, reading.desired.terms
        if isinstance(purchase, PurchaseIntent):
            intent = replace(purchase, at=now)
        else:
            call = asdict(purchase) | {"terms": asdict(terms)}
            intent = PurchaseIntent(
                attempt_id=attempt_id(reservation.uid, reservation.metadata.generation, now, call),
                at=now,
                **{
                    field.name: getattr(part, field.name)
                    for part in (purchase, terms)
                    for field in fields(part)
                },
            )
        self._ledger.intents[intent.attempt_id] = intent
        self._ledger.flush()
        return intent

    def _create(self, intent: PurchaseIntent, reading: ParsedReservation, known: Collection[str]) -> str:
        """The id of the new ODCR; empty if EC2 returned an earlier one that has ended."""
        request = OdcrRequest(
            token=intent.attempt_id,
            instance_type=intent.instance_type,
            zone=intent.zone,
            count=intent.count,
            platform=intent.platform,
            tenancy=intent.tenancy,
            match_criteria=intent.match_criteria,
            end=intent.end,
            tags={**intent.tags, names.TAG_FLAVOR: intent.flavor, TAG_PURCHASE: intent.attempt_id},
        )
        odcr = self._provider.create_reservation(request)
        if odcr.id in known or odcr.phase in ("ending", "ended"):
            _log.info("EC2 returned an earlier purchase", reservation=str(reading.reserved), odcr=odcr.id)
            self._ledger.intents.pop(intent.attempt_id, None)
            return ""
        self._assumed.purchases.assume(odcr.id, odcr)
        if odcr.over:
            raise ProviderError(
                "ReservationFailed",
                f"EC2 made {odcr.id} and it is {odcr.state}",
                class_=ErrorClass.CAPACITY,
                operation="CreateCapacityReservation",
            )
        return odcr.id

    def _grow(self, intent: PurchaseIntent, known: Mapping[str, Odcr]) -> str:
        odcr = known.get(intent.odcr_id)
        count = intent.total - (odcr.lent if odcr is not None else 0)  # EC2's count is without lent ones
        self._provider.resize_reservation(intent.odcr_id, count=count)
        self._assumed.changes.assume(intent.odcr_id, (count, UNCHANGED))
        return intent.odcr_id

    def _call(self, key: str, reserved: ReservationKey, change: str, call: Callable[[], None]) -> bool:
        """Whether the call succeeded. A permanent refusal is recorded for a back-off."""
        self._client.check()
        try:
            call()
        except ProviderError as error:
            CHANGES.labels(change, error.code).inc()
            if error.class_.passes:
                raise
            self._pause(key, reserved, error, doing=_STEP_TEXTS[change].format(key.split()[1]))
            _log.warning("refused", step=key, reservation=str(reserved), error=str(error))
            return False
        CHANGES.labels(change, "done").inc()
        return True

    def _refused(
        self, purchase: Purchase, reading: ParsedReservation, intent: PurchaseIntent, error: ProviderError
    ) -> None:
        # EC2 replays the result of a call that it carried out before: a refused call made nothing.
        if error.class_.policy.purchase_remedy or not (error.lost or isinstance(purchase, PurchaseIntent)):
            self._ledger.intents.pop(intent.attempt_id, None)
        if error.class_.policy.purchase_remedy:
            self.refusals = self.refusals.record(
                purchase.instance_type, purchase.zone, purchase.count, error, self._clock.now()
            )
        else:
            if error.class_.passes:
                raise error
            self._pause(_request_key(reading), purchase.reserved, error)
        self.events.refused(purchase, reading, error)

    def _pause(self, key: str, reserved: ReservationKey, error: ProviderError, *, doing: str = "") -> None:
        until = self._clock.now() + PAUSE
        refused = f"{doing} was refused: {error}" if doing else str(error)
        self._paused[key] = (until, reserved, f"{refused}; the next attempt is at {format_time(until)}")

    def paused(self, step: OdcrChange | GroupChange, now: datetime) -> bool:
        """Whether EC2 refused exactly this step recently."""
        known = self._paused.get(_step_key(step))
        return known is not None and known[0] > now


def _request_key(reading: ParsedReservation) -> str:
    """Key of a refusal of the request itself: a changed object makes another request."""
    terms = replace(reading.desired.terms, tags={})
    return f"buy {reading.reservation.uid} {reading.reservation.metadata.generation} {terms}"


def _step_key(step: OdcrChange | GroupChange) -> str:
    if isinstance(step, OdcrChange):
        return f"change {step.odcr_id} {step.count} {step.end}"
    return f"regroup {step.reserved} {step.make} {step.drop} {step.join} {step.leave}"


def _arns(ids: tuple[str, ...], inventory: Inventory) -> list[str]:
    return [inventory.odcrs[id_].arn for id_ in ids]
