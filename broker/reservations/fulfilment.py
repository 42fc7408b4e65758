"""Compares a flavor's quota with its ODCRs: enough, too little, too much, or misplaced.

Invariant: ODCRs are measured in shares of the quota, so that types of one flavor count alike whatever their
size. An ODCR of the broker with another type, zone, platform or tenancy than would be bought today is a
stray. A stray never counts, and stays until its replacement is active. An ODCR that others made counts as it
is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from broker.capacity.inventory import Inventory
from broker.reservations.desired import DesiredCapacity, FlavorCount, FlavorDemand, OdcrChange, PurchaseSpec
from broker.reservations.ownership import Ownership, made_here
from broker.reservations.sizing import needed, size
from providers.model import UNCHANGED, InstanceType, Odcr


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorFulfilment:
    """`share` of the quota is held, `active` of it usable now; 1 is enough. `needs`: instances by type."""

    needs: Mapping[str, Fraction]
    share: Fraction
    active: Fraction
    placed: tuple[Odcr, ...]  # the broker's own, of the right kind and place
    strays: tuple[Odcr, ...]  # the broker's own, out of place
    obtained: int
    pending: int
    unlike: tuple[Odcr, ...] = ()  # of the strays, those that a purchase would repeat unchanged

    @property
    def complete(self) -> bool:
        return self.active >= 1

    def more(self, instance_type: str) -> int:
        """Instances of the type that are still to be bought."""
        return max(0, math.ceil((1 - self.share) * self.needs[instance_type]))

    def counted(self, demand: FlavorDemand, wanted: int) -> FlavorCount:
        more = self.more(demand.flavor.instance_types[0])
        held = self.obtained + self.pending
        return FlavorCount(
            wanted=held + more if more else wanted,
            obtained=self.obtained,
            pending=self.pending,
            buying=self.pending > 0,
        )


def fulfilment_of(
    demand: FlavorDemand,
    terms: PurchaseSpec,
    held: Iterable[Odcr],
    *,
    types: Mapping[str, InstanceType],
    cluster: str,
) -> FlavorFulfilment:
    """The fulfilment of one flavor. `held` have not ended."""
    held = counted_once(held)
    kinds = {*demand.flavor.instance_types, *(odcr.instance_type for odcr in held)}
    needs = {
        name: needed(types[name], demand.nominal, sizing=demand.sizing) if name in types else Fraction(0)
        for name in kinds
    }
    first = needs[demand.flavor.instance_types[0]]
    if demand.released and first:
        share = max(Fraction(0), first - demand.released) / first
        needs = {name: count * share for name, count in needs.items()}
    own = [odcr for odcr in held if made_here(odcr, cluster)]
    strays = tuple(odcr for odcr in own if not (demand.flavor.admits(odcr) and _on(terms, odcr)))
    counted = [odcr for odcr in held if odcr not in strays and odcr.phase != "unavailable"]
    active = [odcr for odcr in counted if odcr.active]
    return FlavorFulfilment(
        needs=needs,
        share=_share(counted, needs),
        active=_share(active, needs),
        placed=tuple(odcr for odcr in own if odcr not in strays),
        strays=strays,
        obtained=sum(odcr.reserved for odcr in active),
        pending=sum(odcr.reserved for odcr in counted if not odcr.active),
        unlike=tuple(odcr for odcr in strays if _as_requested(odcr, demand, terms)),
    )


def observed(
    desired: DesiredCapacity, ownership: Ownership, *, types: Mapping[str, InstanceType]
) -> Mapping[str, FlavorCount]:
    """The number of existing instances of each flavor, for a reservation without purchases."""
    counts = {}
    for name, demand in desired.demands.items():
        sized = size(demand.flavor, demand.nominal, types, sizing=demand.sizing)
        held = ownership.of(desired.reserved).get(name, ())
        counts[name] = observed_count(held, sized.count)
    return counts


def observed_count(held: Sequence[Odcr], wanted: int) -> FlavorCount:
    """Counts all ODCRs of the flavor, including those that others made."""
    held = counted_once(held)
    active = sum(odcr.reserved for odcr in held if odcr.active)
    begins = sum(odcr.reserved for odcr in held if odcr.phase not in ("active", "unavailable"))
    return FlavorCount(wanted=wanted, obtained=active, pending=begins, buying=begins > 0)


def surplus(
    desired: DesiredCapacity, demand: FlavorDemand, fulfilment: FlavorFulfilment, inventory: Inventory
) -> list[OdcrChange]:
    """Changes that give back ODCRs beyond the quota, and correct end dates."""
    over, changes = fulfilment.active - 1, []
    for odcr in sorted(fulfilment.placed, key=lambda odcr: _release_order(odcr, demand), reverse=True):
        if not odcr.active:
            continue  # EC2 modifies no other
        needs = fulfilment.needs[odcr.instance_type]
        back = min(inventory.free(odcr.id), max(0, math.floor(over * needs)))
        if odcr.lent:  # at least one instance stays: what it lent returns to it
            back = min(back, max(0, odcr.total - 1))
        end = desired.terms.end if _second(odcr) != desired.terms.end else UNCHANGED
        if back:
            over -= back / needs
            why = f"{back} more than flavor {demand.flavor.name} needs"
        elif end is not UNCHANGED:
            why = "annotation capacity-broker.io/end-date differs"
        else:
            continue
        end = UNCHANGED if back == odcr.total else end
        changes.append(
            OdcrChange(
                reserved=desired.reserved,
                odcr_id=odcr.id,
                count=odcr.total - back,
                why=why,
                flavor=demand.flavor.name,
                end=end,
            )
        )
    return changes


def given_back(
    desired: DesiredCapacity,
    odcrs: Iterable[Odcr],
    inventory: Inventory,
    why: str,
    *,
    flavor: str = "",
    moved_to: str = "",
) -> list[OdcrChange]:
    """Reduces each ODCR to its running instances; cancels it if there are none. One that lends stays."""
    changes = []
    for odcr in odcrs:
        used = odcr.total - inventory.unused(odcr.id)
        if not odcr.lent and (used == 0 or (used < odcr.total and odcr.active)):
            changes.append(
                OdcrChange(
                    reserved=desired.reserved,
                    odcr_id=odcr.id,
                    count=used,
                    why=why,
                    flavor=flavor,
                    moved_to=moved_to,
                )
            )
    return changes


def counted_once(odcrs: Iterable[Odcr]) -> tuple[Odcr, ...]:
    """The ODCRs without the interruptible ones that another of them lends to: their instances count there."""
    odcrs = tuple(odcrs)
    lenders = {odcr.id for odcr in odcrs if odcr.lent}
    return tuple(odcr for odcr in odcrs if odcr.source_id not in lenders)


def _share(odcrs: Iterable[Odcr], needs: Mapping[str, Fraction]) -> Fraction:
    return sum(
        (odcr.reserved / needs[odcr.instance_type] for odcr in odcrs if needs[odcr.instance_type]),
        Fraction(0),
    )


def _as_requested(odcr: Odcr, demand: FlavorDemand, terms: PurchaseSpec) -> bool:
    """Whether a purchase would request the same again, though the flavor's labels differ."""
    return demand.flavor.has_place(odcr.instance_type, odcr.zone, odcr.zone_id) and _on(terms, odcr)


def _on(terms: PurchaseSpec, odcr: Odcr) -> bool:
    has = (odcr.match_criteria, odcr.platform, odcr.tenancy)
    return has == (terms.match_criteria, terms.platform, terms.tenancy)


def _release_order(odcr: Odcr, demand: FlavorDemand) -> tuple[int, int, int, str]:
    """Sort key: the greatest is released first, the last in order of purchase, of equals the smallest."""
    zones = demand.flavor.zones
    zone = zones.index(odcr.zone if odcr.zone in zones else odcr.zone_id)
    return demand.flavor.instance_types.index(odcr.instance_type), zone, -odcr.reserved, odcr.id


def _second(odcr: Odcr) -> object:
    return odcr.end.replace(microsecond=0) if odcr.end else None


def used_by_now(odcr_id: str, decided: Inventory, latest: Inventory) -> int:
    """Used slots of an ODCR after a decision was made: launches did not wait for it."""
    inventories = [replace(decided, debits=latest.debits, occupied=latest.occupied)]
    if latest.described and decided.described and latest.described > decided.described:
        inventories.append(latest)  # a newer description has launches that are debits no longer
    odcrs = [(inventory.odcrs.get(odcr_id), inventory) for inventory in inventories]
    return max((odcr.total - inventory.unused(odcr_id) for odcr, inventory in odcrs if odcr), default=0)
