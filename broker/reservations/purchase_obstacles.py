"""Messages about flavors for which nothing is bought or released.

Invariant: a purchase that would not serve its flavor, or that an existing ODCR may make superfluous, has an
obstacle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from broker.apis import names
from broker.capacity.inventory import Inventory
from broker.reservations.desired import DesiredCapacity, FlavorDemand, PurchaseSpec
from broker.reservations.fulfilment import FlavorFulfilment
from broker.reservations.ownership import Ownership, ReservationProblem
from broker.reservations.purchases import LEDGER, HeldRecord
from broker.reservations.spending import costs
from broker.text import counted, shortened
from providers.model import InstanceType, Odcr

RESULT_UNKNOWN: Final = (
    "EC2 may have made a purchase without a response: nothing is bought until EC2 would show it"
)
UNDESCRIBED: Final = (
    "was held and EC2 does not describe it at all, not even as ended: it counts as held until EC2 does, or "
    f"until an operator removes its key from ConfigMap kube-system/{LEDGER}"
)


def misfit(desired: DesiredCapacity, demand: FlavorDemand, fulfilment: FlavorFulfilment) -> str:
    """Why no purchase would be of the flavor: it would be repeated for ever."""
    mend = "in the nodeLabels of its ResourceFlavor"
    if labels := demand.flavor.never_bought:
        return (
            f"nothing that is bought has {' and '.join(labels)}: leave that out {mend}, or reserve it in EC2"
        )
    tenancy = demand.flavor.labels.get(names.INSTANCE_TENANCY, desired.terms.tenancy)
    if tenancy != desired.terms.tenancy:
        return (
            f"it would have tenancy {desired.terms.tenancy}, and {names.INSTANCE_TENANCY} of the flavor is "
            f"{tenancy}: nothing could use it, correct one of them"
        )
    if fulfilment.unlike:
        ids = ", ".join(sorted(odcr.id for odcr in fulfilment.unlike))
        return f"{ids} was bought for it and differs from its labels (another zone id?): correct them {mend}"
    return ""


def not_adopted(
    desired: DesiredCapacity, demand: FlavorDemand, ownership: Ownership, inventory: Inventory
) -> str:
    """Why nothing is bought for the flavor while the object names ODCRs that would serve it."""
    for id_, claims in sorted(ownership.refused.items()):
        odcr = inventory.odcrs[id_]
        if desired.reserved in claims and (
            odcr.tags.get(names.TAG_FLAVOR) == demand.flavor.name or demand.flavor.admits(odcr)
        ):
            return f"{id_} would serve it, and is not adopted although the reservation names it"
    return ""


def undescribed(demand: FlavorDemand, lost: Iterable[HeldRecord]) -> str:
    """Why nothing is bought for the flavor while an owned ODCR is not described: it may exist."""
    flavor = demand.flavor
    ids = [
        record.id
        for record in lost
        if record.flavor == flavor.name or flavor.has_place(record.instance_type, record.zone, record.zone_id)
    ]
    return f"{', '.join(ids)} {UNDESCRIBED}" if ids else ""


def retained(odcrs: Sequence[Odcr], types: Mapping[str, InstanceType]) -> ReservationProblem:
    """The problem of ODCRs that are no longer wanted, and kept by the reservation's policy."""
    named = ", ".join(sorted(f"{odcr.id} ({odcr.total} {odcr.instance_type})" for odcr in odcrs))
    return ReservationProblem(
        reason="Retained",
        message=f"{named}: {costs(odcrs, types)}: no longer wanted, and kept since annotation "
        f"{names.DELETION_POLICY} is Retain: cancel it in EC2, or set the annotation to Cancel",
    )


def lent_text(odcr: Odcr) -> str:
    """The instances that an ODCR lends, the borrower, and the way to get them back."""
    borrower = odcr.lent_to or "an interruptible reservation"
    return (
        f"{odcr.id} lends {counted(odcr.lent, 'instance')} to {borrower}: "
        "lower the target of its interruptible allocation to get them back"
    )


def running(ids: Iterable[str]) -> str:
    """Why the ODCRs of a deleted reservation are not released yet."""
    return (
        f"instances still run in {', '.join(sorted(ids))}: they are given back when those have ended; drain "
        "their nodes to end them sooner"
    )


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
