"""Records of purchases with an unknown result, and of ODCRs that EC2 no longer describes.

Invariant: a purchase is recorded before it is sent, with all parameters of the call. The record stays until
EC2 shows the ODCR, refuses the call, or had UNSHOWN to show it. Until then the purchase counts as made, even
if its CapacityReservation is gone. An owned ODCR that is not described at all does not count as ended, since
EC2 describes ended ones for about an hour. It counts until EC2 describes it again, its end date passes, or an
operator removes its record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from broker.quota.usage import ReservationKey
from broker.reservations.ownership import Ownership, made_here, named_in
from providers.model import LINUX, MatchCriteria, Odcr, Tenancy

TAG_PURCHASE: Final = "capacity-broker.io/purchase"
LEDGER: Final = "capacity-broker-purchases"  # the ConfigMap that stores both, in kube-system
UNSHOWN: Final = timedelta(hours=1)  # EC2 shows a reservation for about as long after its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """More instances: a new EC2 reservation, or with `odcr_id` one that grows to `total`, with lent ones."""

    reserved: ReservationKey
    flavor: str
    instance_type: str
    zone: str
    count: int
    odcr_id: str = ""
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PurchaseIntent(Purchase):
    """A purchase that was sent, with its terms. In a plan it is sent again, since its result is unknown.

    `attempt_id` is the client token of the call and the value of TAG_PURCHASE on the new ODCR. `at` is when
    the call was last sent.
    """

    attempt_id: str
    at: datetime
    platform: str = LINUX
    tenancy: Tenancy = "default"
    match_criteria: MatchCriteria = "targeted"
    end: datetime | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def unshown(self, odcrs: Mapping[str, Odcr]) -> int:
        """Instances that it may have bought and that EC2 does not show."""
        if not self.odcr_id:
            shown = any(odcr.tags.get(TAG_PURCHASE) == self.attempt_id for odcr in odcrs.values())
            return 0 if shown else self.count
        odcr = odcrs.get(self.odcr_id)
        if odcr is None:
            return self.count
        return 0 if odcr.over else max(0, self.total - odcr.reserved)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRecord:
    """An EC2 reservation as it was last described. `bought`: this cluster's broker made it."""

    id: str
    reserved: ReservationKey
    flavor: str
    instance_type: str
    zone: str
    total: int
    zone_id: str = ""
    platform: str = LINUX
    tenancy: str = "default"
    bought: bool = False
    end: datetime | None = None


def still_open(
    intents: Iterable[PurchaseIntent], described: Mapping[str, Odcr], now: datetime
) -> tuple[PurchaseIntent, ...]:
    """The intents with a still unknown result, by EC2's descriptions."""
    return tuple(intent for intent in intents if intent.unshown(described) and now < intent.at + UNSHOWN)


def held_now(
    before: Mapping[str, HeldRecord],
    odcrs: Mapping[str, Odcr],
    ownership: Ownership,
    *,
    cluster: str,
    now: datetime,
) -> dict[str, HeldRecord]:
    """Records of all owned ODCRs, each as last described."""
    kept = {
        id_: record
        for id_, record in before.items()
        if id_ not in odcrs and not (record.end is not None and record.end <= now)
    }
    for odcr in odcrs.values():
        bought = made_here(odcr, cluster)
        reserved = ownership.owner.get(odcr.id) or (named_in(odcr) if bought else None)
        if reserved is None or odcr.over:
            continue
        kept[odcr.id] = HeldRecord(
            id=odcr.id,
            reserved=reserved,
            flavor=ownership.flavor.get(odcr.id, ""),
            instance_type=odcr.instance_type,
            zone=odcr.zone,
            zone_id=odcr.zone_id,
            total=odcr.reserved,
            platform=odcr.platform,
            tenancy=odcr.tenancy,
            bought=bought,
            end=odcr.end,
        )
    return kept


def missing(held: Mapping[str, HeldRecord], odcrs: Mapping[str, Odcr]) -> Sequence[HeldRecord]:
    """Owned ODCRs that EC2 does not describe, by id."""
    return [held[id_] for id_ in sorted(held.keys() - odcrs.keys())]
