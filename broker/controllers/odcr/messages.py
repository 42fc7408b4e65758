"""Messages about purchases that are not allowed, and the group of a reservation."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from broker.reservations.desired import PurchaseSpec
from broker.reservations.reading import ParsedReservation
from broker.text import shortened
from providers.model import ReservationGroup


def not_offered(terms: PurchaseSpec, offers: Collection[tuple[str, str]]) -> Iterator[str]:
    """Why nothing is bought on these terms, if the operator does not allow them."""
    for option, value, allowed in (
        ("--buy-platforms", terms.platform, {platform for platform, _ in offers}),
        ("--buy-tenancies", terms.tenancy, {tenancy for _, tenancy in offers}),
    ):
        if value not in allowed:
            listed = ", ".join(sorted(allowed)) or "nothing"
            yield (
                f"{shortened(value)} may not be bought: the broker's {option} allows {listed}; correct the "
                f"annotation, or have {option} allow it"
            )


def group_arn_of(reading: ParsedReservation, groups: Mapping[str, ReservationGroup]) -> str:
    if reading.desired.group is not None:
        return reading.desired.group.arn
    return reading.claimant.group_arn if reading.claimant.group_arn in groups else ""
