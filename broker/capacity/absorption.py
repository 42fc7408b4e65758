"""Where EC2 can count an instance in a reservation although it was launched outside.

EC2 counts a running instance in a reservation with a free slot if the instance's own preference allows it,
and instance type, platform, zone and tenancy are equal: one with preference `open` in open reservations, and
one that was launched with a group target and spilled in members of that group. It never counts one with the
preference `none` (EC2 User Guide, "Launch instances into an existing Capacity Reservation", "Work with
Capacity Reservation groups"). A reservation that takes a running instance is said to absorb it. A running
instance keeps its place: a reservation in a placement group takes those of that placement group alone, also
where a launch by a group of reservations could lead into it.

Invariant: an instance is launched so that EC2 can count it later only where its claim may use every
reservation that EC2 could choose: EC2 knows no owners, no holds and no selection of a class.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property

from broker.capacity.inventory import Inventory
from broker.capacity.model import NodeClass
from broker.capacity.supply import LaunchSupply
from broker.lists import lists_by_key
from providers.model import Instance, Odcr, ReservationGroup

Place = tuple[str, str]  # an instance type in a zone
NOWHERE: frozenset[Place] = frozenset()


def absorbing_places(node_class: NodeClass) -> frozenset[Place]:
    """The places with a reservation of the class that takes running instances."""
    return frozenset(place_of(odcr) for odcr in node_class.resolved.usable if takes(node_class, odcr))


def lets_absorb(node_class: NodeClass, place: Place) -> bool:
    """Whether instances of the class outside reservations are launched so that EC2 can count them later.

    A class that names reservations does so only beside them: elsewhere, open reservations are of others. EC2
    refuses a group that does not exist.
    """
    selection = node_class.selection
    if selection.preference == "open":
        return True
    if selection.group_arn:
        misfits = node_class.resolved.misfits
        return all(misfit.id != selection.group_arn or misfit.unreadable for misfit in misfits)
    return place in absorbing_places(node_class)


def absorbs(odcr: Odcr, instance: Instance, groups: Mapping[str, ReservationGroup]) -> bool:
    """Whether EC2 can count an instance, which is in no reservation, in a free slot of this one.

    One that was pending when EC2 described it may run by now.
    """
    if instance.reservation_id or instance.lifecycle or instance.state not in ("pending", "running"):
        return False
    alike = (instance.instance_type, instance.zone, instance.platform, instance.tenancy)
    if (odcr.instance_type, odcr.zone, odcr.platform, odcr.tenancy) != alike:
        return False
    if odcr.market != "on-demand" or not odcr.active:
        return False
    if odcr.placement_group_arn.rpartition("/")[2] != instance.placement_group:
        return False
    if instance.reservation_group:
        group = groups.get(instance.reservation_group)
        return group is not None and odcr.id in group.member_ids
    return instance.reservation_preference == "open" and odcr.match_criteria == "open"


class ClosedPlaces:
    """The places where an instance of one plan must match no reservation.

    `kept`: reservations with slots that are promised to others.
    """

    def __init__(self, kept: Collection[str], supply: LaunchSupply) -> None:
        self._kept = frozenset(kept)
        self._supply = supply
        self._barred: dict[str, frozenset[str]] = {}
        self._closed: dict[tuple[str, str, str], frozenset[Place]] = {}

    def of(self, node_class: NodeClass, queue: str) -> frozenset[Place]:
        """For claims of a class that draw from a queue."""
        key = (node_class.name, node_class.tenancy, queue)
        if key not in self._closed:
            self._closed[key] = self._places(node_class, queue)
        return self._closed[key]

    def _places(self, node_class: NodeClass, queue: str) -> frozenset[Place]:
        selection, inventory = node_class.selection, self._supply.inventory
        if selection.preference == "open":
            return open_places(self._barred_of(queue), inventory)
        if selection.group_arn:
            group = inventory.groups.get(selection.group_arn)
            members = self._barred_of(queue).intersection(group.member_ids if group else ())
            return frozenset(place_of(inventory.odcrs[id_]) for id_ in members if id_ in inventory.odcrs)
        usable = {odcr.id for odcr in node_class.resolved.usable} - self._barred_of(queue)
        return frozenset(
            place
            for place in absorbing_places(node_class)
            if any(odcr.id not in usable for odcr in self._open.get(place, ()))
        )

    def _barred_of(self, queue: str) -> frozenset[str]:
        """The reservations in which no claim of this queue may be counted later."""
        if queue not in self._barred:
            odcrs = self._supply.inventory.odcrs
            self._barred[queue] = frozenset(id_ for id_ in odcrs if not self._permitted(queue, id_))
        return self._barred[queue]

    def _permitted(self, queue: str, odcr_id: str) -> bool:
        """A slot of another owner is never offered to EC2: its owner lends it, and reclaims it.

        Own slots are, also beyond the quota of the moment: a slot that becomes free gives quota back.
        """
        if odcr_id in self._kept:
            return False
        entitlements = self._supply.entitlements
        right = entitlements.right(queue, odcr_id)
        if right != "own":
            return right == "free"
        over = entitlements.limit(queue, entitlements.slot_pools[odcr_id]) is not None
        return not over or not self._supply.inventory.free(odcr_id)

    @cached_property
    def _open(self) -> Mapping[Place, list[Odcr]]:
        matched = filter(_matched_openly, self._supply.inventory.odcrs.values())
        return lists_by_key((place_of(odcr), odcr) for odcr in matched)


def open_places(odcr_ids: Iterable[str], inventory: Inventory) -> frozenset[Place]:
    """The places in which EC2 would match one of these reservations without a target."""
    odcrs = (inventory.odcrs[odcr_id] for odcr_id in odcr_ids if odcr_id in inventory.odcrs)
    return frozenset(place_of(odcr) for odcr in odcrs if _matched_openly(odcr))


def takes(node_class: NodeClass, odcr: Odcr) -> bool:
    """Whether the reservation can take running instances of the class."""
    if odcr.market != "on-demand" or odcr.outpost_arn:
        return False
    if odcr.placement_group_arn != node_class.placement_group_arn:
        return False
    return bool(node_class.selection.group_arn) or odcr.match_criteria == "open"


def _matched_openly(odcr: Odcr) -> bool:
    return odcr.match_criteria == "open" and (odcr.active or odcr.on_time)


def place_of(odcr: Odcr) -> Place:
    return odcr.instance_type, odcr.zone
