"""Reports the ODCRs that a deleted reservation leaves behind in EC2.

Invariant: one event names the ODCRs that stay, their cost and the command that ends them, before the object
goes. Nothing in Kubernetes names them afterwards. An ODCR costs whether instances run in it or not, until it
is cancelled (EC2 User Guide, "Capacity Reservation pricing and billing").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import structlog

from broker.apis import names
from broker.capacity.model import Inventory
from broker.kube.events import Recorder
from broker.reservations.ownership import Ownership, made_here
from broker.reservations.reading import ParsedReservation
from broker.reservations.spending import costs
from broker.text import abridged
from providers.model import InstanceType, Odcr

REASON: Final = "ReservationsKept"
MOST_NAMED: Final = 10  # an event holds 1,024 characters; the log has all of them

_log = structlog.get_logger("odcrs")


class DeletionNotices:
    """Publishes the notice of each deleted reservation once. One thread."""

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
        self._recorder.event(reading.reservation, "Warning", REASON, message)

    def forget(self, alive: Collection[str]) -> None:
        self._published &= {*alive}


def deletion_notice(kept: Sequence[Odcr], types: Mapping[str, InstanceType], *, region: str) -> str:
    named = abridged([f"{odcr.id} ({odcr.total} {odcr.instance_type})" for odcr in kept], MOST_NAMED)
    return (
        f"kept in EC2 and paid for until cancelled: {named}: {costs(kept, types)}; cancel each with: "
        f"aws ec2 cancel-capacity-reservation --region {region} --capacity-reservation-id {kept[0].id}; an "
        f"object of the same name takes them over; {names.DELETION_POLICY}: Cancel would have given them back"
    )
