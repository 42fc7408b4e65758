"""The counts of now as the record has them: EC2's slots and instances, and the claims that wait, by pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.class_catalog import image_for
from broker.capacity.model import NodeClass, Pool
from broker.capacity.requirements import Requirements
from broker.controllers.launch.report import FULL
from broker.history.demand import CapacityPlace, UseLevel
from broker.history.entries import is_shortage, pools
from broker.oncall.journal import recorded
from broker.oncall.outside import runs_outside
from broker.oncall.state import launch_state
from broker.placement.reading import claim_requirements
from broker.reservations.idle import pays_idle
from providers.model import LINUX, Instance, InstanceType, Odcr
from providers.prices import usd_hour

_DEFAULT: Final = "default"
# Reasons of a claim for which no slot is free: no attempt is made for it.
_WITHOUT_SLOT: Final = FULL | {"AllReservationsFull"}
_Subject = tuple[str, CapacityPlace]


class WaitingDemand(NamedTuple):
    """What equal waiting claims ask for: their class, the pools that lacked room for them, and what they
    need if no slot was free for them.
    """

    node_class: str
    tried: frozenset[Pool]
    needs: Requirements | None


class OutsideCounts:
    """Counts the instances in no reservation; anew once one of them has changed."""

    def __init__(self) -> None:
        self._known: tuple[Mapping[str, Instance], Mapping[_Subject, int]] = {}, {}

    def __call__(self, instances: Mapping[str, Instance]) -> Mapping[_Subject, int]:
        if instances != self._known[0]:
            shown = (i for i in instances.values() if runs_outside(i) and i.tenancy == _DEFAULT)
            self._known = instances, Counter(("", place_of(instance)) for instance in shown)
        return self._known[1]


def demands(waiting: Iterable[NodeClaim]) -> Mapping[WaitingDemand, int]:
    """The waiting claims, counted by what they ask for."""
    return Counter(map(_demand, waiting))


def levels(
    odcrs: Mapping[str, Odcr],
    outside: Mapping[_Subject, int],
    waiting: Mapping[WaitingDemand, int],
    classes: Iterable[EC2NodeClass],
    types: Mapping[str, InstanceType],
    node_class: Callable[[str], NodeClass | None],
    account: str,
) -> Iterator[UseLevel]:
    """The counts now. A reservation has no slots while it is not active. Other tenancies are left out.

    `outside`: instances in no reservation (see `OutsideCounts`). `waiting`: see `demands`.
    `node_class`: a class with its images, by name; None while it is not resolved.
    """
    slots = {
        (odcr.id, place_of(odcr)): (odcr.total, odcr.used) if odcr.active else (0, 0)
        for odcr in odcrs.values()
        if odcr.tenancy == _DEFAULT
    }
    selected = {
        class_.name: [odcrs[r.id] for r in class_.status.capacity_reservations if r.id in odcrs]
        for class_ in classes
    }

    def platform(class_name: str, instance_type: str) -> str:
        resolved, type_ = node_class(class_name), types.get(instance_type)
        image = image_for(resolved, type_) if resolved is not None and type_ is not None else None
        return image.platform if image is not None else LINUX

    waits: Counter[_Subject] = Counter()
    for demand, count in waiting.items():
        usable = selected.get(demand.node_class, ())
        waits.update(dict.fromkeys(_subjects(demand, odcrs, usable, platform), count))
    for reservation, place in dict.fromkeys((*slots, *outside, *waits)):
        subject = (reservation, place)
        total, used = slots.get(subject, (0, outside.get(subject, 0)))
        price = round(1_000_000 * (usd_hour(types, place.product) or 0))
        if reservation and not pays_idle(odcrs[reservation], account=account):
            price = -price
        yield UseLevel(0, reservation, *place, total, used, waits[subject], price)


def place_of(item: Odcr | Instance) -> CapacityPlace:
    return CapacityPlace(item.instance_type, item.zone, item.platform)


def _demand(claim: NodeClaim) -> WaitingDemand:
    tried = (pool for attempt in recorded(claim) if _lacked_room(attempt) for pool in pools(attempt))
    return WaitingDemand(
        node_class=claim.spec.node_class_ref.name,
        tried=frozenset(pool for pool in tried if pool.capacity_type != "spot"),
        needs=claim_requirements(claim) if launch_state(claim)[0] in _WITHOUT_SLOT else None,
    )


def _subjects(
    demand: WaitingDemand,
    odcrs: Mapping[str, Odcr],
    selected: Iterable[Odcr],
    platform: Callable[[str, str], str],
) -> set[_Subject]:
    """The reservations and pools that would serve a claim if they had room: each once, and a pool only
    without a reservation in it."""
    named = {(odcr.id, place_of(odcr)) for pool in demand.tried if (odcr := odcrs.get(pool.reservation))}
    if (needs := demand.needs) is not None:
        named |= {
            (odcr.id, place_of(odcr))
            for odcr in selected
            if needs.allows(names.INSTANCE_TYPE, odcr.instance_type)
            if needs.allows(names.ZONE, odcr.zone) and needs.allows(names.CAPACITY_TYPE, "reserved")
        }
    # In a pool, no demand counts twice.
    named = {
        (id_, place) for place, id_ in {place: id_ for id_, place in sorted(named, reverse=True)}.items()
    }
    served = {(place.instance_type, place.zone) for _, place in named}
    others = {
        ("", CapacityPlace(pool.instance_type, pool.zone, platform(demand.node_class, pool.instance_type)))
        for pool in demand.tried
        if (pool.instance_type, pool.zone) not in served
    }
    return named | others


def _lacked_room(attempt: Attempt) -> bool:
    return is_shortage(attempt) or (attempt.outcome is Outcome.SKIPPED and attempt.code in FULL)
