"""Events about the ODCRs of a CapacityReservation: changes, EC2's refusals, stops, and ODCRs that stay.

Invariant: a purchase that EC2 refuses is one event, however many zones and counts are tried for it. While it
is refused with the same code the event's text stays, so the recorder counts the repeats. The status has the
time of the next attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

import structlog

from broker.apis import names
from broker.capacity.inventory import Inventory
from broker.kube.events import Recorder
from broker.quota.usage import ReservationKey
from broker.reservations import moves
from broker.reservations.annotations import INVALID_ANNOTATION
from broker.reservations.desired import OdcrChange
from broker.reservations.ownership import Ownership, ReservationProblem, made_here
from broker.reservations.purchases import Purchase
from broker.reservations.reading import ParsedReservation
from broker.reservations.spec import Reservation
from broker.reservations.spending import costs, odcr_text
from broker.text import abridged, counted, format_time
from providers.errors import ProviderError
from providers.model import InstanceType, Odcr, Unchanged

RESERVED: Final = "InstancesReserved"
GROWN: Final = "ReservationGrown"
SHRUNK: Final = "ReservationShrunk"
MOVED: Final = "ReservationMoved"
END_CHANGED: Final = "ReservationEndChanged"
RETURNED: Final = "ReservationGivenBack"
KEPT: Final = "ReservationsKept"
STOPPING: Final = frozenset(
    {
        "SpendingCapReached",
        "PriceUnknown",
        "PurchaseSkipped",
        moves.MOVED,
        INVALID_ANNOTATION,
        # Adoptions that an annotation requests, and that are not possible.
        "AdoptionNotAllowed",
        "GroupNotFound",
        "ReservationDisputed",
        "ReservationNotFound",
    }
)
MOST_NAMED: Final = 10  # an event holds 1,024 characters; the log has all of them

_log = structlog.get_logger("odcrs")


@dataclass(slots=True)
class _Refusals:
    """EC2's refusals of one purchase in one pass; the first is of the preferred place and the full count."""

    reading: ParsedReservation
    tried: list[tuple[Purchase, ProviderError]] = field(default_factory=list)


class ChangeEvents:
    """Publishes changes of ODCRs. `end_pass` publishes the refused purchases. One thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._refused: dict[tuple[ReservationKey, str], _Refusals] = {}
        # By reservation and flavor: the object and EC2 code of the published refusal, and its text.
        self._published: dict[tuple[ReservationKey, str], tuple[tuple[str, int, str], str]] = {}

    def publish(
        self,
        reading: ParsedReservation,
        type_: Literal["Normal", "Warning"],
        reason: str,
        message: str,
        *,
        request_id: str = "",
    ) -> None:
        """Logs and records an event. The id of AWS's request is beside the text, which repeats keep."""
        logged = {"aws_request_id": request_id} if request_id else {}
        _log.info(message, reservation=str(reading.reserved), reason=reason, **logged)
        marks = {names.AWS_REQUESTS: request_id} if request_id else {}
        self._recorder.event(reading.reservation, type_, reason, message, annotations=marks)

    def bought(self, purchase: Purchase, reading: ParsedReservation, odcr_id: str) -> None:
        self._published.pop((purchase.reserved, purchase.flavor), None)
        flavor, where = purchase.flavor, f"{purchase.instance_type} in {purchase.zone}"
        if purchase.odcr_id:
            before = purchase.total - purchase.count
            text = f"{odcr_id} grew from {before} to {purchase.total} {where} for flavor {flavor}"
            self.publish(reading, "Normal", GROWN, text)
        else:
            text = f"reserved {purchase.count} {where} for flavor {flavor}: {odcr_id}"
            self.publish(reading, "Normal", RESERVED, text)

    def changed(self, change: OdcrChange, reading: ParsedReservation, odcr: Odcr) -> None:
        """`odcr`: as it was before the change."""
        self.publish(reading, "Normal", *change_text(change, odcr))

    def refused(self, purchase: Purchase, reading: ParsedReservation, error: ProviderError) -> None:
        key = (purchase.reserved, purchase.flavor)
        self._refused.setdefault(key, _Refusals(reading)).tried.append((purchase, error))

    def end_pass(self, known: Container[ReservationKey]) -> None:
        """`known`: the existing reservations."""
        refusals, self._refused = self._refused, {}
        self._published = {key: published for key, published in self._published.items() if key[0] in known}
        for key, refused in refusals.items():
            metadata, code = refused.reading.reservation.metadata, refused.tried[0][1].code
            version = (metadata.uid, metadata.generation, code)
            before, text = self._published.get(key, (None, ""))
            if before != version:
                text = refusal_text(refused.tried)
                self._published[key] = (version, text)
            self.publish(refused.reading, "Warning", code, text, request_id=refused.tried[0][1].request_id)


def change_text(change: OdcrChange, odcr: Odcr) -> tuple[str, str]:
    """Reason and message of the event for a change of this ODCR."""
    place = odcr_text(odcr).partition(" ")[2]
    if change.moved_to:
        text = f"flavor {change.flavor} moved from {odcr_text(odcr)} ({odcr.id}) to {change.moved_to}"
        if change.count:
            text += f"; {odcr.id} keeps the {change.count} with running instances until they end"
        return MOVED, text
    if change.count == 0:
        return RETURNED, f"gave back {odcr_text(odcr)} ({odcr.id}): {change.why}"
    if change.count != odcr.total:
        text = f"{odcr.id} shrank from {odcr.total} to {change.count} {place}: {change.why}"
        return SHRUNK, text
    return END_CHANGED, f"the end of {odcr.id} changed from {_end(odcr.end)} to {_end(change.end)}"


def refusal_text(tried: list[tuple[Purchase, ProviderError]]) -> str:
    """EC2's answer to the first request for a purchase, and the other requests of the pass."""
    (first, error), others = tried[0], [purchase for purchase, _ in tried[1:]]
    text = f"EC2 refused {first.count} {first.instance_type} in {first.zone}: {error.message}"
    if not others:
        return text
    places = sorted({f"{purchase.instance_type} in {purchase.zone}" for purchase in others})
    least = min(purchase.count for purchase in others)
    fewer = f", down to {least}" if least < first.count else ""
    more = counted(len(others), "other request was", "other requests were")
    return f"{text}; {more} refused ({', '.join(places)}{fewer})"


def _end(end: datetime | Unchanged | None) -> str:
    return format_time(end) if isinstance(end, datetime) else "never"


class StopEvents:
    """Reports each problem that stops buying or an adoption once. One process, one thread. `end_pass`
    forgets problems that were not reported in the pass.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._before: dict[str, frozenset[ReservationProblem]] = {}  # by uid, of the last pass
        self._now: dict[str, frozenset[ReservationProblem]] = {}

    def report(self, reservation: Reservation, problems: Sequence[ReservationProblem]) -> None:
        stops = [problem for problem in dict.fromkeys(problems) if problem.reason in STOPPING]
        self._now[reservation.uid] = frozenset(stops)
        for problem in stops:
            if problem not in self._before.get(reservation.uid, ()):
                self._recorder.event(reservation, "Warning", problem.reason, problem.message)

    def end_pass(self) -> None:
        self._before, self._now = self._now, {}


class DeletionNotices:
    """Reports the ODCRs that a deleted reservation leaves behind in EC2, once each. One thread.

    Invariant: the event names the ODCRs that stay, their cost and the command that ends them, before the
    object goes. Nothing in Kubernetes names them afterwards. An ODCR costs whether instances run in it or
    not, until it is cancelled (EC2 User Guide, "Capacity Reservation pricing and billing").
    """

    def __init__(self, recorder: Recorder, *, region: str, cluster: str) -> None:
        self._recorder = recorder
        self._region, self._cluster = region, cluster
        self._published: set[str] = set()  # by uid

    def publish(
        self,
        reading: ParsedReservation,
        inventory: Inventory,
        ownership: Ownership,
        types: Mapping[str, InstanceType],
    ) -> None:
        """Publishes the event of a deleted reservation that goes now."""
        kept = [
            odcr
            for id_, owner in sorted(ownership.owner.items())
            if owner == reading.reserved
            and made_here(odcr := inventory.odcrs[id_], self._cluster)
            and not odcr.over
        ]
        if not kept or reading.reservation.uid in self._published:
            return
        self._published.add(reading.reservation.uid)
        message = deletion_notice(kept, types, region=self._region)
        _log.warning(
            "reservations kept of a deleted one",
            reservation=str(reading.reserved),
            odcrs=[odcr.id for odcr in kept],
            costs=costs(kept, types),
        )
        self._recorder.event(reading.reservation, "Warning", KEPT, message)

    def forget(self, alive: Collection[str]) -> None:
        self._published &= {*alive}


def deletion_notice(kept: Sequence[Odcr], types: Mapping[str, InstanceType], *, region: str) -> str:
    named = abridged([f"{odcr.id} ({odcr.total} {odcr.instance_type})" for odcr in kept], MOST_NAMED)
    return (
        f"kept in EC2 and paid for until cancelled: {named}: {costs(kept, types)}; cancel each with: "
        f"aws ec2 cancel-capacity-reservation --region {region} --capacity-reservation-id {kept[0].id}; an "
        f"object of the same name takes them over; {names.DELETION_POLICY}: Cancel would have given them back"
    )
