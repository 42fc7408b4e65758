"""Messages about purchases that are not allowed, and about shortages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from broker.reservations.desired import (
    FlavorCount,
    PurchaseSpec,
)
from broker.reservations.odcr_status import next_attempt
from broker.reservations.reading import ParsedReservation
from broker.text import counted, shortened
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


def shortage_detail(counts: Mapping[str, FlavorCount]) -> str:
    """The shortage of each flavor, in one line."""
    parts = []
    for name, count in counts.items():
        if count.obtained >= count.wanted:
            continue
        verb = "is" if 1 in (count.obtained, count.wanted) else "are"
        part = f"flavor {name}: {count.obtained} of {counted(count.wanted, 'instance')} {verb} reserved"
        if count.pending:
            part += f", {counted(count.pending, 'more is', 'more are')} pending"
        if count.code:
            part += f"; EC2 refused with {count.code}: {count.message}{next_attempt(count)}"
        parts.append(part)
    return "; ".join(parts)
