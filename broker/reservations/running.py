"""Running instances that a purchase of an open reservation absorbs, so that quota is bought where it runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from broker.apis.karpenter import NodeClaim
from broker.capacity.absorption import absorbs
from broker.quota.usage import ReservationKey
from broker.reservations.desired import DesiredCapacity, PurchaseSpec
from broker.reservations.drawing import DrawRights
from broker.reservations.purchases import Purchase
from providers.model import Instance, Odcr

Place = tuple[str, str]  # an instance type, and a zone or its id
Bought = Mapping[tuple[ReservationKey, Place], int]  # instances


def bought_at(purchases: Iterable[Purchase]) -> Bought:
    bought: Counter[tuple[ReservationKey, Place]] = Counter()
    for purchase in purchases:
        bought[purchase.reserved, (purchase.instance_type, purchase.zone)] += purchase.count
    return bought


def running_outside(
    claims: Iterable[NodeClaim], instances: Mapping[str, Instance], rights: DrawRights, bought: Bought
) -> Mapping[ReservationKey, tuple[Instance, ...]]:
    """The instances outside reservations of claims that draw from each reservation.

    `bought`: since the instances were listed. EC2 counts as many of them there by now.
    """
    outside: dict[ReservationKey, list[Instance]] = defaultdict(list)
    for claim in claims:
        instance = instances.get(claim.instance_id)
        if instance is None or instance.reservation_id or claim.deleting:
            continue
        reserved = rights.of_claim(claim)
        if isinstance(reserved, ReservationKey):
            outside[reserved].append(instance)
    return {reserved: tuple(_beyond(reserved, running, bought)) for reserved, running in outside.items()}


def _beyond(reserved: ReservationKey, running: Iterable[Instance], bought: Bought) -> Iterator[Instance]:
    """The instances that what was bought where they run did not absorb."""
    left = Counter(bought)
    for instance in running:
        zones = (instance.zone, instance.zone_id)
        keys = ((reserved, (instance.instance_type, zone)) for zone in zones)
        key = next((key for key in keys if left[key] > 0), None)
        if key is None:
            yield instance
        else:
            left[key] -= 1


def absorbed_by_purchase(
    desired: DesiredCapacity, places: Iterable[Place], owned: Sequence[Odcr]
) -> Iterator[tuple[Place, int]]:
    """The places where a purchase absorbs running instances, with their number, the most first.

    Those that free slots of its own reservations absorb are not counted again.
    """
    counts: dict[Place, int] = {}
    for place in places:
        running = sum(_absorbs(desired.terms, place, instance) for instance in desired.running)
        free = sum(
            odcr.available
            for odcr in owned
            if odcr.active
            and odcr.match_criteria == "open"
            and odcr.instance_type == place[0]
            and place[1] in (odcr.zone, odcr.zone_id)
        )
        if running > free:
            counts[place] = running - free
    yield from sorted(counts.items(), key=lambda item: -item[1])


def _absorbs(terms: PurchaseSpec, place: Place, instance: Instance) -> bool:
    name, zone = place
    if zone not in (instance.zone, instance.zone_id):
        return False
    bought = Odcr(
        id="",
        instance_type=name,
        zone=instance.zone,
        total=1,
        available=1,
        platform=terms.platform,
        tenancy=terms.tenancy,
        match_criteria=terms.match_criteria,
    )
    return absorbs(bought, instance, {})
