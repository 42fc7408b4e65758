"""The status of an EC2NodeClass about its reservations: conditions, resolved reservations and misfits.

Invariant: conditions and list entries of other writers stay. Both lists are atomic in Karpenter's CRD, so
they are written whole, from the version that was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from broker.apis import names
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Condition, ConditionStatus, ConditionUpdate, condition
from broker.capacity.model import Misfit, Resolved, Selection
from broker.capacity.reasons import shown_selection
from broker.controllers.claim_status import OF_LAUNCHES
from broker.controllers.nodeclass.resolve import LaunchClass, Unresolved
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.conditions import condition_body, remove_condition, set_conditions
from broker.text import abridged, counted, format_time
from providers.errors import ProviderError
from providers.model import Odcr

INVALID_SPEC = "InvalidCapacityReservationSpec"
NOT_REQUESTED = "NotRequested"
# Karpenter's condition. If it exists, Karpenter rewrites the class's list of reservations each minute, and
# launches into that list. Then only the broker's condition reports the broker's result.
KARPENTERS_LIST = "CapacityReservationsReady"


def condition_updates(outcome: LaunchClass | Unresolved, *, slots: bool = False) -> list[ConditionUpdate]:
    """The class's conditions for its resolution, or for the reason that it has none.

    `slots`: the message names each reservation with its slots, as nothing else in the status does.
    """
    if isinstance(outcome, LaunchClass):
        around = outcome.surroundings
        zones = sorted({subnet.zone for subnet in around.subnets})
        text = (
            f"{around.family} images {abridged([i.id for i in around.images], 4)}; "
            f"{counted(len(around.subnets), 'subnet')} in {abridged(zones, 4)}; "
            f"{counted(len(around.security_groups), 'security group')}; "
            f"instance profile {around.instance_profile}"
        )
        if unapplied := outcome.kubelet_not_applied:
            text += f"; fields of spec.kubelet that {around.family} does not apply: {', '.join(unapplied)}"
        if unread := outcome.unread:
            text += f"; not read beside a field that selects alone: {', '.join(unread)}"
        return [
            ConditionUpdate(type=names.RESERVATION_SPEC_VALID, status="True", reason="Valid", message=""),
            _resolved(outcome.plan.selection, outcome.plan.resolved, slots=slots),
            ConditionUpdate(type=names.LAUNCHABLE, status="True", reason="Resolved", message=text),
        ]
    if outcome.reason == INVALID_SPEC:
        message = f"{outcome.message}. Nothing is launched from this class until it is corrected."
        return [
            ConditionUpdate(
                type=names.RESERVATION_SPEC_VALID, status="False", reason=INVALID_SPEC, message=message
            ),
            ConditionUpdate(
                type=names.RESERVATIONS_RESOLVED,
                status="False",
                reason=INVALID_SPEC,
                message="the reservation spec is invalid",
            ),
            ConditionUpdate(type=names.LAUNCHABLE, status="False", reason=INVALID_SPEC, message=message),
        ]
    launchable = outcome.resolved
    return [
        ConditionUpdate(type=names.RESERVATION_SPEC_VALID, status="True", reason="Valid", message=""),
        _resolved(launchable.plan.selection, launchable.plan.resolved, slots=slots)
        if launchable
        else ConditionUpdate(
            type=names.RESERVATIONS_RESOLVED,
            status="Unknown",
            reason=outcome.reason,
            message=f"not resolved, because the class cannot launch: {outcome.message}",
        ),
        ConditionUpdate(
            type=names.LAUNCHABLE, status="False", reason=outcome.reason, message=outcome.message
        ),
    ]


def described(
    node_class: EC2NodeClass, error: ProviderError | None, since: datetime | None
) -> ConditionUpdate | None:
    """The condition about an EC2 that cannot be read, or that can be read again; None if it always could."""
    if error is not None:
        last = f"since {format_time(since)}, so their slots may have changed" if since else "yet"
        return ConditionUpdate(
            type=names.RESERVATIONS_DESCRIBED,
            status="False",
            reason=error.class_.policy.read_reason,
            message=f"EC2 has not described the reservations {last}: {error}",
        )
    if condition(node_class.status.conditions, names.RESERVATIONS_DESCRIBED) is None:
        return None
    return ConditionUpdate(
        type=names.RESERVATIONS_DESCRIBED, status="True", reason="Described", message="EC2 can be read"
    )


def _resolved(selection: Selection, resolved: Resolved, *, slots: bool) -> ConditionUpdate:
    status: ConditionStatus = "False"
    starting = "; ".join(
        f"{odcr.id} is {odcr.state}" + (f" until {format_time(odcr.start)}" if odcr.start else "")
        for odcr in resolved.pending
    )
    if selection.preference == "none" or selection == Selection():
        status, reason, text = "True", NOT_REQUESTED, "the class requests no reservation"
    elif resolved.usable:
        free = sum(odcr.available for odcr in resolved.usable)
        total = sum(odcr.total for odcr in resolved.usable)
        status, reason = "True", "ReservationsFound"
        text = f"{len(resolved.usable)} usable with {free} of {counted(total, 'slot')} free"
        text += ": " + abridged([*map(_slots, resolved.usable)], 8) if slots else ""
        text += f"; {starting}" if starting else ""
    elif resolved.pending:
        reason, text = "ReservationsPending", starting
    elif resolved.misfits:
        reason, text = resolved.misfits[0].reason, "nothing usable"
    else:
        opened = "open " if selection.preference else ""
        reason, text = (
            "ReservationsNotFound",
            f"{shown_selection(selection)} finds no {opened}reservation in this region",
        )
    misfits = [_misfit_text(misfit) for misfit in resolved.misfits]
    shown = "; ".join([text, *misfits[:8], *([f"and {len(misfits) - 8} more"] if len(misfits) > 8 else [])])
    return ConditionUpdate(type=names.RESERVATIONS_RESOLVED, status=status, reason=reason, message=shown)


def requests_reservations(node_class: EC2NodeClass) -> bool:
    """False once the class was resolved without any."""
    resolved = condition(node_class.status.conditions, names.RESERVATIONS_RESOLVED)
    return resolved is None or resolved.reason != NOT_REQUESTED


def _misfit_text(misfit: Misfit) -> str:
    """The reservation or group, the reason and EC2's code, each once."""
    named = misfit.message if misfit.id in misfit.message else f"{misfit.id}: {misfit.message}"
    return named if misfit.code in named else f"{named} ({misfit.code})"


def status_patch(
    node_class: EC2NodeClass,
    outcome: LaunchClass | Unresolved,
    *,
    limit: ConditionUpdate | None,
    described: ConditionUpdate | None = None,
    now: datetime,
    keep: bool = False,
) -> dict[str, Any]:
    """The status fields that the broker writes; the caller compares them with the present status.

    `keep`: EC2 could not be called, so its previous description still counts.
    """
    conditions: tuple[Condition, ...] = node_class.status.conditions
    before = condition(conditions, names.CAPACITY_RESERVATION)
    karpenters = condition(conditions, KARPENTERS_LIST) is not None
    updates = condition_updates(outcome, slots=karpenters)
    limit = _outdated_limit(before, updates) or limit
    # The message names the latest claim; only a changed status or reason is worth a write.
    turned = limit and (before is None or (before.status, before.reason) != (limit.status, limit.reason))
    unrequested = any(update.reason == NOT_REQUESTED for update in updates)
    if before and not limit and (unrequested or before.reason not in OF_LAUNCHES):
        conditions = remove_condition(conditions, names.CAPACITY_RESERVATION)
    conditions = set_conditions(
        conditions,
        *updates,
        *([limit] if limit and turned else []),
        *([described] if described else []),
        now=now,
        observed_generation=node_class.metadata.generation,
    )
    status: dict[str, Any] = {"conditions": [condition_body(condition) for condition in conditions]}
    if keep or karpenters:
        return status
    launchable = outcome if isinstance(outcome, LaunchClass) else outcome.resolved
    resolved = launchable.plan.resolved if launchable else Resolved()
    rows = [_row(odcr) for odcr in (*resolved.usable, *resolved.pending)]
    own_ids = {row["id"] for row in rows} | {misfit.id for misfit in resolved.misfits}
    # Without selector terms Karpenter lists nothing, so any other entry is an old one of the broker.
    selects = node_class.spec.capacity_reservation_selector_terms
    foreign = node_class.status.capacity_reservations if selects else ()
    rows += [entry.wire() for entry in foreign if entry.id not in own_ids]
    return status | {
        "capacityReservations": sorted(rows, key=lambda row: str(row["id"])),
        "capacityReservationMisfits": [
            {"id": m.id, "reason": m.reason, "message": m.message} | ({"code": m.code} if m.code else {})
            for m in resolved.misfits
        ],
    }


def _outdated_limit(before: Condition | None, updates: Iterable[ConditionUpdate]) -> ConditionUpdate | None:
    """The condition about launches once no reservation is left; None before the first launch."""
    if before is None:
        return None
    return next(
        (
            replace(update, type=before.type)
            for update in updates
            if update.type == names.RESERVATIONS_RESOLVED and update.status == "False"
        ),
        None,
    )


def _row(odcr: Odcr) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": odcr.id,
        "availabilityZone": odcr.zone,
        "instanceType": odcr.instance_type,
        "instanceMatchCriteria": odcr.match_criteria,
        "ownerID": odcr.owner_id,
        "reservationType": odcr.reservation_type,
        "interruptible": odcr.interruptible,
        "state": "active" if odcr.active else "pending",
        "totalInstanceCount": odcr.total,
        "availableInstanceCount": odcr.available,
    }
    return row | ({"endTime": format_time(odcr.end)} if odcr.end else {})


def _slots(odcr: Odcr) -> str:
    ends = f" until {format_time(odcr.end)}" if odcr.end else ""
    return f"{odcr.id} {odcr.instance_type} {odcr.zone} {odcr.available}/{odcr.total}{ends}"


def patch_status(
    client: Client, classes: Cache[EC2NodeClass], node_class: EC2NodeClass, status: Mapping[str, Any]
) -> dict[str, Any]:
    """The class after the patch. Raises Conflict if it was changed meanwhile, NotFound if it is gone.

    The only writer of a class's status. Server-side apply would take over the whole list of conditions
    (https://kubernetes.io/docs/reference/using-api/server-side-apply/#merge-strategy).
    """
    body = {"metadata": {"resourceVersion": node_class.metadata.resource_version}, "status": status}
    answer = client.patch(EC2NodeClass.KIND, node_class.name, body, subresource="status")
    classes.observe(answer)
    return answer
