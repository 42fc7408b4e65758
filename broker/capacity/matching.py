"""Resolves a class's selection to reservations, and finds those that a launch can use.

Invariant: every selected reservation is in exactly one of `usable`, `pending` and `misfits`. EC2 neither
refuses nor ends a launch into a usable one. EC2 matches on instance type, platform, zone and tenancy. A
reservation in a placement group or on an Outpost requires a launch into that.

Sources: EC2 User Guide, "Launch instances into Capacity Reservations in a group", "Using Capacity Reservation
in placement groups with a Capacity Reservation group", "Capacity Blocks".

Conditions of the claim (instance type, resources, labels) are checked in `options`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from broker.apis.names import INSTANCE_TENANCY
from broker.capacity.inventory import Inventory
from broker.capacity.model import Misfit, NodeClass, ReservationTerm, Resolved, Selection
from broker.text import format_time, plain
from providers.errors import ProviderError
from providers.model import Odcr

# EC2 begins to terminate a block's instances 30 minutes before its end, 60 for UltraServers. The drain begins
# DRAINED_WITHIN before that.
DRAINED_WITHIN: Final = timedelta(minutes=10)
BLOCK_DRAIN: Final = timedelta(minutes=30) + DRAINED_WITHIN
ULTRASERVER_DRAIN: Final = timedelta(minutes=60) + DRAINED_WITHIN
# So long before the end of a block EC2 accepts the payment of an extension (EC2 User Guide, "Extend Capacity
# Blocks"), and so long after it the broker has described one that was paid at the last moment.
LAST_PAYMENT: Final = timedelta(minutes=35)
DESCRIBED_WITHIN: Final = timedelta(minutes=1)

# A reservation counts no more so long before its end, after which EC2 bills its instances.
LEAVES_BEFORE: Final = timedelta(minutes=10)

# "pending: ... it can take up to 5 minutes" (EC2 API Reference, CapacityReservation, State).
PENDING_MOST: Final = timedelta(minutes=5)

NOT_FOUND: Final = "InvalidCapacityReservationId.NotFound"
WRONG_STATE: Final = "InvalidCapacityReservationState"
# The reasons of misfits that last until the class names another reservation or group.
NAME_ANOTHER: Final = frozenset(
    {
        "GroupNotFound",
        "ReservationCancelled",
        "ReservationExpired",
        "ReservationFailed",
        "ReservationNotFound",
        "ReservationUnavailable",
    }
)


def resolve(
    node_class: NodeClass,
    inventory: Inventory,
    *,
    account_id: str,
    now: datetime,
    platforms: Collection[str] | None = None,
) -> Resolved:
    """The current result of the selection of a class with known subnets, each list ordered by id.

    `platforms`: the PlatformDetails of its launches; None: those of its images.
    """
    selection = node_class.selection
    if platforms is None:
        platforms = {image.platform for image in node_class.images}
    named, gone = _selected(selection, inventory, account_id)
    usable: list[Odcr] = []
    pending: list[Odcr] = []
    misfits: list[Misfit] = list(gone)
    for odcr in sorted(named, key=lambda odcr: odcr.id):
        misfit = state_misfit(odcr, now) or _place_misfit(odcr, node_class, platforms)
        if misfit:
            misfits.append(replace(misfit, instance_type=odcr.instance_type, zone=odcr.zone))
        elif odcr.begins:
            pending.append(odcr)
        else:
            usable.append(odcr)
    return Resolved(
        usable=tuple(usable), pending=tuple(pending), misfits=tuple(sorted(misfits, key=lambda m: m.id))
    )


def selected(selection: Selection, inventory: Inventory) -> list[Odcr] | None:
    """The described reservations that are selected, usable or not; None if the group is not known."""
    if selection.group_arn and selection.group_arn not in inventory.groups:
        return None
    return _selected(selection, inventory, "")[0]


def ends_at(odcr: Odcr) -> datetime | None:
    """The last moment for launches into it: its end, or for a block the start of its drain.

    The drain of a block with an extension that is not paid yet begins when it cannot be paid any more, unless
    EC2 begins to terminate its instances before.
    """
    if odcr.end is None or not odcr.prepaid:
        return odcr.end
    drain = odcr.end - (ULTRASERVER_DRAIN if odcr.ultraserver else BLOCK_DRAIN)
    unpaid = odcr.end - LAST_PAYMENT + DESCRIBED_WITHIN
    return unpaid if odcr.extending and unpaid < drain + DRAINED_WITHIN else drain


def leaves_at(odcr: Odcr) -> datetime | None:
    """When it serves nothing new any more, and following pools leave it: a block as its drain begins."""
    if odcr.end is None or odcr.prepaid:
        return ends_at(odcr)
    return odcr.end - LEAVES_BEFORE


def expiring(odcr: Odcr, now: datetime) -> bool:
    """Whether that time is over."""
    return (at := leaves_at(odcr)) is not None and at <= now


def unread_group(arn: str, error: ProviderError) -> str:
    """Why the members of a group are unknown. A wrong ARN is named by the error itself."""
    text = plain(error.message)
    return text if arn in text else f"group {arn} could not be read: {text} ({error.code})"


def with_group_errors(resolved: Resolved, errors: Mapping[str, ProviderError]) -> Resolved:
    """The result with the error of each group (by ARN) that could not be read."""
    misfits = tuple(
        replace(
            misfit,
            code=error.code,
            message=unread_group(misfit.id, error),
            unreadable=error.class_.of_caller,
        )
        if (error := errors.get(misfit.id))
        else misfit
        for misfit in resolved.misfits
    )
    return replace(resolved, misfits=misfits)


def launchable(odcr: Odcr, now: datetime) -> bool:
    """Whether EC2 would launch into it now, apart from match and room."""
    return state_misfit(odcr, now) is None and not odcr.begins


def begins_by(odcr: Odcr, now: datetime) -> datetime | None:
    """The time until which a launch should wait for a reservation that is not launchable yet.

    EC2 makes it launchable within five minutes of its creation or start. None if that is further away,
    or past.
    """
    if odcr.active:
        return (
            now + PENDING_MOST
        )  # it became active after the class was resolved, which is resolved again now
    if not odcr.on_time:
        return None
    moments = [moment for moment in (odcr.created, odcr.start) if moment is not None]
    begins = max(moments, default=now)
    by = begins + PENDING_MOST
    return by if begins <= now + PENDING_MOST and by > now else None


def _selected(selection: Selection, inventory: Inventory, account_id: str) -> tuple[list[Odcr], list[Misfit]]:
    """The selected reservations, and those that are named but not visible."""
    if selection.reservation_id:
        return _by_ids([selection.reservation_id], inventory, account_id)
    if selection.group_arn:
        group = inventory.groups.get(selection.group_arn)
        if group is None:
            arn = selection.group_arn
            message = f"group {arn} was not found, or account {account_id} may not read it"
            return [], [
                Misfit(
                    id=selection.group_arn, reason="GroupNotFound", message=message, code="NotFoundException"
                )
            ]
        return _by_ids(group.member_ids, inventory, account_id)
    if selection.terms:
        return _by_terms(selection.terms, inventory, account_id)
    if selection.matches_openly:
        # These are not named one by one, so ended ones are not reported.
        return [o for o in inventory.odcrs.values() if o.match_criteria == "open" and not _over(o)], []
    return [], []


def _by_ids(ids: Iterable[str], inventory: Inventory, account_id: str) -> tuple[list[Odcr], list[Misfit]]:
    ordered = sorted(set(ids))
    odcrs = [inventory.odcrs[odcr_id] for odcr_id in ordered if odcr_id in inventory.odcrs]
    gone = [
        Misfit(
            id=odcr_id,
            reason="ReservationNotFound",
            message=f"reservation {odcr_id} was not found, or is not shared with account {account_id}",
            code=NOT_FOUND,
        )
        for odcr_id in ordered
        if odcr_id not in inventory.odcrs
    ]
    return odcrs, gone


def _by_terms(
    terms: Collection[ReservationTerm], inventory: Inventory, account_id: str
) -> tuple[list[Odcr], list[Misfit]]:
    named, gone = _by_ids((term.id for term in terms if term.id), inventory, account_id)
    chosen = {odcr.id: odcr for odcr in named}
    for odcr in inventory.odcrs.values():
        if not _over(odcr) and any(_satisfies(odcr, term) for term in terms if not term.id):
            chosen[odcr.id] = odcr
    return list(chosen.values()), gone


def _satisfies(odcr: Odcr, term: ReservationTerm) -> bool:
    if not (term.tags or term.owner_id or term.match_criteria):
        return False  # a term without a field selects nothing, not everything
    return (
        (not term.owner_id or odcr.owner_id == term.owner_id)
        and (not term.match_criteria or odcr.match_criteria == term.match_criteria)
        and all(
            key in odcr.tags and (value == "*" or odcr.tags[key] == value) for key, value in term.tags.items()
        )
    )


def _over(odcr: Odcr) -> bool:
    return odcr.over or odcr.phase == "unavailable"


def state_misfit(odcr: Odcr, now: datetime) -> Misfit | None:
    """Why EC2 launches nothing into it, apart from match, room and a begin that is to come."""
    if reason := odcr.state_misfit:
        message = f"reservation {odcr.id} is {odcr.state}, not active"
        return Misfit(id=odcr.id, reason=reason, message=message, code=WRONG_STATE)
    if odcr.end is not None and odcr.end <= now:
        message = f"reservation {odcr.id} ended at {format_time(odcr.end)}"
        return Misfit(id=odcr.id, reason="ReservationExpired", message=message, code=WRONG_STATE)
    if odcr.unlaunchable and odcr.active:
        message = (
            f"reservation {odcr.id} of an UltraServer is active, but its launch status is unlaunchable: "
            "nothing is launched into it until EC2 shows it launchable"
        )
        return Misfit(id=odcr.id, reason="ReservationNotLaunchable", message=message)
    last = ends_at(odcr)
    if odcr.end is not None and last is not None and last <= now:
        message = (
            f"capacity block {odcr.id} ends at {format_time(odcr.end)}; "
            f"nothing is launched into it after {format_time(last)}"
        )
        return Misfit(id=odcr.id, reason="CapacityBlockEnding", message=message)
    return None


def _place_misfit(odcr: Odcr, node_class: NodeClass, platforms: Collection[str]) -> Misfit | None:
    """Which property of the class's launches EC2 does not find in the reservation."""

    def misfit(reason: str, aspect: str, value: str, class_values: Collection[str], nothing: str) -> Misfit:
        have = "class has " + ", ".join(sorted(class_values)) if any(class_values) else nothing
        return Misfit(
            id=odcr.id, reason=reason, message=f"reservation {odcr.id} has {aspect} {value}; the {have}"
        )

    if odcr.platform not in platforms:
        return misfit("PlatformMismatch", "platform", odcr.platform, platforms, "class has no image")
    tenancy = node_class.tenancy or "default"
    if odcr.tenancy != tenancy:
        difference = misfit("TenancyMismatch", "tenancy", odcr.tenancy, [tenancy], "class has none")
        way = f"claims that require {INSTANCE_TENANCY} {odcr.tenancy} are launched into it"
        return replace(difference, message=f"{difference.message} unless a claim requires otherwise: {way}")
    outposts = {subnet.outpost_arn for subnet in node_class.subnets} - {""}
    zones = {subnet.zone for subnet in node_class.subnets if not subnet.outpost_arn}
    if odcr.outpost_arn:
        if odcr.outpost_arn not in outposts:
            nothing = "class has no subnet on an Outpost"
            return misfit("OutpostMismatch", "Outpost", odcr.outpost_arn, outposts, nothing)
    elif odcr.zone not in zones:
        return misfit("ZoneMismatch", "zone", odcr.zone, zones, "class has no subnet outside an Outpost")
    # A group may be launched into without naming its reservations' placement group; then EC2 uses it as well.
    own_group = node_class.placement_group_arn
    if odcr.placement_group_arn != own_group and (own_group or not node_class.selection.group_arn):
        return misfit(
            "PlacementGroupMismatch",
            "placement group",
            odcr.placement_group_arn or "(none)",
            [own_group],
            "class has no placement group",
        )
    return None
