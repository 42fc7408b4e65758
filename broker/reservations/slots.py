"""The slots of reservations: their quota, owners and holders, and the entitlements that follow for a plan.

Invariant: a slot is usable only in an ODCR that can be launched into, and unattributed slots are not usable.
A reservation entitles to nothing, with a reason, if its spec is invalid, it is being deleted, or a
ResourceQuota refuses it. It owns its slots until it is gone. An ODCR with a tag that ownership does not
contain yet is entitled to no queue meanwhile.

A slot pool (`SlotPool`) is the slots of one flavor that one reservation owns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction

from broker.apis.ome import FlavorQuotas
from broker.apis.ome_rules import JudgedSpec
from broker.by_version import ByVersion
from broker.capacity.entitlement import (
    Borrower,
    Entitlements,
    SlotAvailability,
    SlotPool,
)
from broker.capacity.inventory import Inventory
from broker.capacity.matching import launchable
from broker.quota.joint import SlotState
from broker.quota.model import Quota
from broker.quota.slot_model import CLAIM, Member, OwnedSlots, SlotHolder
from broker.quota.slots import SlotTree
from broker.quota.usage import ReservationKey
from broker.reservations.desired import FlavorDemand
from broker.reservations.flavors import FlavorCatalog, Flavors
from broker.reservations.ownership import Ownership, named_in, of_other_cluster
from broker.reservations.queues import preemption
from broker.reservations.reading import read
from broker.reservations.sizing import size, supply
from broker.reservations.spec import Reservation, reserved_of
from broker.text import quantity
from providers.model import InstanceType, Odcr


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationSlots:
    """One reservation. `flavors`: slot quota by name. `barred`: the reason if it entitles to nothing."""

    reserved: ReservationKey
    member: Member
    flavors: Mapping[str, Quota] = field(default_factory=dict)
    barred: str = ""


@dataclass(frozen=True, kw_only=True)
class SlotSnapshot:
    """All slots, as of one moment.

    `slot_pools`: the pool of each owned ODCR. `freed`: slots that ended claims leave, by ODCR. `missing`:
    owners that tags name, and that do not exist yet. `holding`: the dedicated clusters that hold quota.
    `stuck`: claims (by name) that terminate for too long to wait for.
    """

    state: SlotState
    reservations: Sequence[ReservationSlots]
    slot_pools: Mapping[str, SlotPool]
    freed: Mapping[str, int]
    missing: Collection[ReservationKey]
    holding: Collection[str]
    stuck: Collection[str]


class SlotQuotaReader:
    """Reads the slot quota of each reservation, and caches it by version."""

    def __init__(self) -> None:
        self._known: ByVersion[ReservationKey, ReservationSlots] = ByVersion()
        self._inputs: tuple[object, object] = (None, None)

    def read(
        self,
        reservations: Mapping[ReservationKey, Reservation],
        judged: Callable[[Reservation], JudgedSpec],
        barred: Mapping[ReservationKey, str],
        catalog: FlavorCatalog,
        types: Mapping[str, InstanceType],
        zones: Sequence[str],
    ) -> list[ReservationSlots]:
        """The slot quota of all reservations. `barred`: why some grant nothing (`why_barred`)."""
        if self._inputs[0] is not catalog or self._inputs[1] is not types:
            self._inputs, self._known = (catalog, types), ByVersion()
        flavors = catalog.instances(types, zones)
        slots: list[ReservationSlots] = []
        for reserved, reservation in reservations.items():
            if why := barred.get(reserved):
                slots.append(
                    ReservationSlots(reserved=reserved, member=Member(name=reserved.queue), barred=why)
                )
                continue
            version = reservation.uid, reservation.metadata.resource_version
            spec = judged(reservation)
            slots.append(
                self._known.of(reserved, version, reservation_slots, reservation, spec, flavors, types)
            )
        self._known.keep(reservations)
        return slots


def why_barred(reservation: Reservation, problems: Sequence[str], refusals: Sequence[str]) -> str:
    """Why a reservation grants nothing new; empty if it may.

    `problems`: those of its spec. `refusals`: those by the ResourceQuotas of its namespace.
    """
    if reservation.deleting:
        return "it is being deleted"
    if problems:
        return f"its spec is not valid: {'; '.join(problems)}"
    return f"its namespace has no room for it: {'; '.join(refusals)}" if refusals else ""


def reservation_slots(
    reservation: Reservation, judged: JudgedSpec, flavors: Flavors, types: Mapping[str, InstanceType]
) -> ReservationSlots:
    """The slot quota and the limits of one reservation that is not barred."""
    spec, reserved = judged.spec, reserved_of(reservation)
    demand = read(reservation, judged, flavors).desired.demands
    slots = {
        quotas.name: slot_quota(
            demand[quotas.name],
            types,
            borrowing=_limits(quotas, "borrowing"),
            lending=_limits(quotas, "lending"),
        )
        for group in spec.resource_groups
        for quotas in group.flavors
        if quotas.name in demand
    }
    borrows = spec.allow_borrowing and bool(spec.cohort)
    member = Member(
        name=reserved.queue,
        cohort=spec.cohort,
        borrowing_limit={name: quota.borrowing_limit for name, quota in slots.items()} if borrows else {},
        preemption=preemption(spec),
    )
    return ReservationSlots(reserved=reserved, member=member, flavors=slots)


def _limits(quotas: FlavorQuotas, kind: str) -> dict[str, float | None]:
    texts = {
        resource.name: resource.borrowing_limit if kind == "borrowing" else resource.lending_limit
        for resource in quotas.resources
    }
    return {name: None if text is None else quantity(text) for name, text in texts.items()}


# ---- owners and holders


def slot_pools_of(
    ownership: Ownership, inventory: Inventory, known: Collection[ReservationKey], *, cluster: str
) -> dict[str, SlotPool]:
    """The slot pool of each owned ODCR. `known`: all reservations, and those that are waited for.

    An ODCR with a tag that ownership does not contain yet has no flavor, so that no claim takes its slots.
    """
    slot_pools = {
        odcr_id: SlotPool(reserved.queue, ownership.flavor.get(odcr_id, ""))
        for odcr_id, reserved in ownership.owner.items()
    }
    for odcr in inventory.odcrs.values():
        if odcr.id not in slot_pools:
            reserved = tagged_owner(odcr, cluster)
            if reserved is not None and reserved in known:
                slot_pools[odcr.id] = SlotPool(reserved.queue, "")
    return slot_pools


def tagged_owner(odcr: Odcr, cluster: str) -> ReservationKey | None:
    """The reservation of this cluster that the ODCR's own tag names, whether it exists or not."""
    return None if of_other_cluster(odcr, cluster) else named_in(odcr)


def owned_slots(
    reservations: Iterable[ReservationSlots],
    slot_pools: Mapping[str, SlotPool],
    inventory: Inventory,
    unattributed: Mapping[str, int],
    now: datetime,
) -> list[OwnedSlots]:
    """The usable slots of each reservation's flavors, with its quota."""
    usable: dict[SlotPool, dict[str, int]] = {}
    for odcr_id, slot_pool in slot_pools.items():
        odcr = inventory.odcrs.get(odcr_id)
        if odcr is not None and launchable(odcr, now):
            usable.setdefault(slot_pool, {})[odcr_id] = max(0, odcr.total - unattributed.get(odcr_id, 0))
    return [
        OwnedSlots(
            owner=slots.reserved.queue,
            flavor=flavor,
            slots=usable.get(SlotPool(slots.reserved.queue, flavor), {}),
            quota=quota.nominal,
            lending_limit=quota.lending_limit,
        )
        for slots in reservations
        for flavor, quota in slots.flavors.items()
    ]


def without_ended(holders: Iterable[SlotHolder], inventory: Inventory) -> list[SlotHolder]:
    """The holders, without terminating ones in slots that EC2 counts as free: their claims end soon."""
    held = list(holders)
    over = Counter(holder.odcr_id for holder in held)
    for odcr_id in over:
        odcr = inventory.odcrs.get(odcr_id)
        over[odcr_id] += inventory.unused(odcr_id) - odcr.total if odcr is not None else 0
    kept = []
    for holder in held:
        if holder.terminating and over[holder.odcr_id] > 0:
            over[holder.odcr_id] -= 1
        else:
            kept.append(holder)
    return kept


def unheld(slot_pools: Iterable[str], holders: Iterable[SlotHolder], inventory: Inventory) -> dict[str, int]:
    """The slots of owned ODCRs that EC2 counts as used and that no holder has."""
    held = Counter(holder.odcr_id for holder in holders)
    return {
        odcr_id: odcr.total - inventory.unused(odcr_id) - held[odcr_id]
        for odcr_id in slot_pools
        if (odcr := inventory.odcrs.get(odcr_id)) is not None
    }


def unnamed(ownership: Ownership, known: Mapping[str, int]) -> dict[str, int]:
    """The slots of owned ODCRs that EC2 counts as used by instances of other clusters.

    `known`: the instances that are Nodes of this cluster or about to be, by ODCR. An open ODCR takes any
    instance that matches it (EC2 User Guide, "Capacity Reservation usage").
    """
    return {
        odcr.id: odcr.used - known.get(odcr.id, 0)
        for owned in ownership.odcrs.values()
        for odcrs in owned.values()
        for odcr in odcrs
        if odcr.active and odcr.used > 0
    }


# ---- entitlements


def entitlements(slots: SlotSnapshot) -> Entitlements:
    """The entitlements of queues, without those of single claims."""
    tree = slots.state.slots()
    return Entitlements(
        slot_pools=slots.slot_pools,
        availability={
            SlotPool(*key): _availability(tree, slot_pool, slots)
            for key, slot_pool in tree.owned_slots.items()
        },
        borrow={
            SlotPool(reservation.reserved.queue, flavor): tree.borrowable(reservation.reserved.queue, flavor)
            for reservation in slots.reservations
            for flavor in reservation.member.borrowing_limit
        },
        peers={
            reservation.reserved.queue: peers
            for reservation in slots.reservations
            if (peers := tree.peers(reservation.reserved.queue))
        },
        names={reservation.reserved.queue: str(reservation.reserved) for reservation in slots.reservations},
        barred={
            reservation.reserved.queue: reservation.barred
            for reservation in slots.reservations
            if reservation.barred
        }
        | dict(tree.inactive),
        rules={reservation.member.name: reservation.member.preemption for reservation in slots.reservations},
    )


def _availability(tree: SlotTree, slot_pool: OwnedSlots, slots: SlotSnapshot) -> SlotAvailability:
    freed = [
        Borrower(id_, 0, terminating=True) for id_ in slot_pool.slots for _ in range(slots.freed.get(id_, 0))
    ]
    borrowers = [
        Borrower(
            holder.odcr_id,
            holder.priority,
            terminating=holder.terminating,
            queue=holder.queue,
            evicted_for=holder.evicted_for.removeprefix(CLAIM)
            if holder.evicted_for.startswith(CLAIM)
            else "",
        )
        for holder in tree.victim_candidates(slot_pool)
        if not (holder.terminating and holder.name in slots.stuck)
    ]
    return SlotAvailability(
        quota=tree.quota(slot_pool),
        room=tree.room(slot_pool),
        lendable=tree.lendable(slot_pool),
        scarce=slot_pool.quota > slot_pool.nominal,
        unreturned=tree.unreturned(slot_pool),
        borrowers=(*freed, *borrowers),
    )


def slot_quota(
    demand: FlavorDemand,
    types: Mapping[str, InstanceType],
    *,
    borrowing: Mapping[str, float | None],
    lending: Mapping[str, float | None],
) -> Quota:
    """A flavor's quota and limits in slots; those given are by resource, in base units."""
    sized = size(demand.flavor, demand.nominal, types, sizing=demand.sizing)
    by = sized.by
    if not by:  # no quota of its own: the borrowing limit decides
        given = {name: amount for name, amount in borrowing.items() if amount}
        by = size(demand.flavor, given, types, sizing=demand.sizing).by
    per_instance = supply(types[demand.flavor.instance_types[0]]).get(by, 0.0)
    return Quota(
        nominal=sized.count,
        borrowing_limit=_whole(borrowing.get(by), per_instance) if by else _unlimited(borrowing),
        lending_limit=_whole(lending.get(by), per_instance),
    )


def _whole(limit: float | None, per_instance: float) -> int | None:
    if limit is None:
        return None
    return int(Fraction(limit) / Fraction(per_instance)) if per_instance else 0


def _unlimited(limits: Mapping[str, float | None]) -> int | None:
    """The limit of a flavor without quota and without a limit above 0: 0; None if all are unlimited."""
    return None if limits and all(limit is None for limit in limits.values()) else 0
