"""Control calls that make or change AWS's resources, and those that send AWS's events."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.utils import random_id
from moto.sqs.exceptions import QueueDoesNotExist

from local.aws.clock import aware
from local.aws.control_bodies import (
    BadControlCall,
    ControlCall,
    HealthBody,
    NoticeBody,
    OfferBody,
    ReservationBody,
    ReservationPatch,
    read,
)
from local.aws.ec2 import block_market, changes, events, health, zones
from local.aws.ec2.blocks import Offer
from local.aws.ec2.health import HealthRecord
from local.aws.ec2.reservations import STATES, Ec2Reservation, Occupant

INSTANCE_STATES = ("pending", "running", "stopping", "stopped", "shutting-down", "terminated")


def create_reservation(call: ControlCall) -> Any:
    settings = read(ReservationBody, call.body)
    _require_state(settings.state)
    owner = settings.owner_id or settings.account
    shared = frozenset(settings.shared_with) | (
        {settings.account} if owner != settings.account else frozenset()
    )
    special: dict[str, Any] = {
        "owner_id": owner,
        "shared_with": shared,
        "reservation_type": settings.reservation_type,
        "interruptible": settings.interruptible,
        "capacity_block_id": settings.capacity_block_id,
        "ultraserver_type": settings.ultraserver_type,
        "source_id": settings.source_id,
    }
    if settings.state:
        special["state"] = settings.state
    backend: Any = ec2_backends[settings.account][settings.region]
    reservation = changes.create(call.here, backend, settings.model_extra or {}, **special)
    tags = {str(k): str(v) for k, v in ((settings.model_extra or {}).get("Tags") or {}).items()}
    if tags:
        backend.create_tags([reservation.id], tags)
    return {
        "CapacityReservationId": reservation.id,
        "CapacityReservationArn": reservation.arn,
        "State": reservation.state,
    }


def patch_reservation(call: ControlCall) -> Any:
    patch = read(ReservationPatch, call.body)
    _require_state(patch.state)
    reservation = _reservation(call, call.rest, f"reservations/{call.rest}")
    if patch.shared_with is not None:
        call.here.ledger.share(reservation, patch.shared_with)
    if patch.state is not None:
        call.here.ledger.change(reservation, state=patch.state)
    if patch.launchable is not None:
        if not reservation.ultraserver_type:
            raise BadControlCall(
                f"launchable: {reservation.id} is no UltraServer's, and has no launch status"
            )
        call.here.ledger.change(reservation, launchable=patch.launchable)
    return {"CapacityReservationId": reservation.id, "State": reservation.state}


def offer_block(call: ControlCall) -> Any:
    """A Capacity Block that DescribeCapacityBlockOfferings lists as it is here, beside the usual ones."""
    settings = read(OfferBody, call.body)
    backend: Any = ec2_backends[settings.account][settings.region]
    zone = zones.of_request(backend, {"AvailabilityZone": settings.zone})
    start, end = aware(settings.start), aware(settings.end)
    if end <= start:
        raise BadControlCall(f"end: {end.isoformat()} is not after start, {start.isoformat()}")
    if settings.ultraserver_type and (not settings.ultraservers or settings.count % settings.ultraservers):
        raise BadControlCall(
            f"ultraservers: {settings.count} instances do not make {settings.ultraservers} UltraServers"
        )
    offer = Offer(
        id=random_id(prefix="cb"),
        account=settings.account,
        region=settings.region,
        instance_type=settings.instance_type,
        zone=zone.name,
        zone_id=zone.zone_id,
        count=settings.count,
        start=start,
        end=end,
        fee=block_market.fee(settings.instance_type, settings.count, end - start)
        if settings.fee is None
        else settings.fee,
        ultraserver_type=settings.ultraserver_type,
        ultraservers=settings.ultraservers if settings.ultraserver_type else 0,
    )
    call.here.blocks.scripted.append(offer)
    return {"CapacityBlockOfferingId": offer.id}


def _require_state(state: str | None) -> None:
    if state is not None and state not in STATES:
        raise BadControlCall(f"state: {state!r} is none of {', '.join(sorted(STATES))}")


def _reservation(call: ControlCall, reservation_id: str | None, field: str) -> Ec2Reservation:
    reservation = call.here.ledger.reservations.get(reservation_id or "")
    if reservation is None:
        raise BadControlCall(
            f"{field}: there is no reservation {reservation_id!r}; DescribeCapacityReservations lists them"
        )
    return reservation


# ---- health


def list_health(call: ControlCall) -> Any:
    return {
        instance_id: {
            "impaired": {check: since.isoformat() for check, since in record.impaired.items()},
            "events": [event.code for event in record.events],
            "reboots": [at.isoformat() for at in record.reboots],
        }
        for instance_id, record in call.here.health.items()
    }


def set_health(call: ControlCall) -> Any:
    settings = read(HealthBody, call.body)
    if settings.instance_id not in call.here.ledger.occupants:
        raise BadControlCall(
            f"instance_id: there is no instance {settings.instance_id!r}; DescribeInstances lists them"
        )
    if settings.event is not None and settings.event not in health.EVENT_CODES:
        raise BadControlCall(f"event: {settings.event!r} is none of {', '.join(health.EVENT_CODES)}")
    if (settings.check is None) == (settings.event is None):
        raise BadControlCall("check: give either a check or an event")
    record, now = call.here.health.setdefault(settings.instance_id, HealthRecord()), call.here.clock.now()
    if settings.check is not None and settings.over:
        record.impaired.pop(settings.check, None)
    elif settings.check is not None:
        record.impaired.setdefault(settings.check, now)
    elif settings.event is not None and settings.over:
        record.complete(settings.event)
    elif settings.event is not None:
        record.schedule(settings.event, now + timedelta(seconds=settings.in_s))
    return list_health(call)


# ---- notices


def list_notices(call: ControlCall) -> Any:
    return call.here.notices.list(call.query.get("detail_type"))


def send_notice(call: ControlCall) -> Any:
    """One event now; with `ends` the announced end happens `in_s` later."""
    notice = read(NoticeBody, call.body)
    send = KINDS.get(notice.kind)
    if send is None:
        raise BadControlCall(f"kind: {notice.kind!r} is none of {', '.join(KINDS)}")
    if notice.ends and notice.kind not in ENDS_INSTANCE:
        raise BadControlCall(
            f"ends: {notice.kind} ends no instance; only {' and '.join(sorted(ENDS_INSTANCE))} do"
        )
    try:
        event = send(call, notice)
    except QueueDoesNotExist as absent:
        raise BadControlCall(
            f"queue: {notice.queue!r} does not exist; make it with SQS CreateQueue"
        ) from absent
    if notice.ends:
        instance = _occupant(call, notice).instance
        call.here.ledger.after(notice.in_s, lambda: _end(instance))
    return event


def _end(instance: Any) -> None:
    instance.disable_api_termination = False
    instance.ec2_backend.terminate_instances([instance.id])


def _occupant(call: ControlCall, notice: NoticeBody) -> Occupant:
    occupant = call.here.ledger.occupants.get(notice.instance_id or "")
    if occupant is None:
        raise BadControlCall(
            f"instance_id: there is no instance {notice.instance_id!r}; a notice of kind "
            f"{notice.kind} is about one that was launched here"
        )
    return occupant


def _of_instance(kind: str) -> Callable[[ControlCall, NoticeBody], Any]:
    def send(call: ControlCall, notice: NoticeBody) -> Any:
        instance = _occupant(call, notice).instance
        return events.OF_INSTANCE[kind](call.here.notices, instance, notice.queue)

    return send


def _of_reservation(kind: str) -> Callable[[ControlCall, NoticeBody], Any]:
    def send(call: ControlCall, notice: NoticeBody) -> Any:
        reservation = _reservation(call, notice.reservation_id, "reservation_id")
        return events.OF_RESERVATION[kind](call.here.notices, reservation, notice.queue)

    return send


def _interruption(call: ControlCall, notice: NoticeBody) -> Any:
    ends = call.here.ledger.now() + timedelta(seconds=notice.in_s)
    return events.interruption(call.here.notices, _occupant(call, notice), ends, notice.queue)


def _instance_state(call: ControlCall, notice: NoticeBody) -> Any:
    instance = _occupant(call, notice).instance
    state = notice.state or instance.state
    if state not in INSTANCE_STATES:
        raise BadControlCall(f"state: {state!r} is none of {', '.join(INSTANCE_STATES)}")
    return events.state_change(call.here.notices, instance, state, notice.queue)


def _health(call: ControlCall, notice: NoticeBody) -> Any:
    if notice.reservation_id:
        reservation = _reservation(call, notice.reservation_id, "reservation_id")
        entity, account, region = reservation.id, reservation.owner_id, reservation.region
    else:
        instance = _occupant(call, notice).instance
        entity = instance.id
        account, region = instance.ec2_backend.account_id, instance.ec2_backend.region_name
    return events.health(
        call.here.notices,
        entity,
        account=account,
        region=region,
        code=notice.code,
        category=notice.category,
        starts=call.here.ledger.now() + timedelta(seconds=notice.in_s),
        text=f"{notice.code} for {entity}",
        queue=notice.queue,
    )


KINDS: dict[str, Callable[[ControlCall, NoticeBody], Any]] = {
    **{kind: _of_instance(kind) for kind in events.OF_INSTANCE},
    **{kind: _of_reservation(kind) for kind in events.OF_RESERVATION},
    "reservation-interruption": _interruption,
    "instance-state": _instance_state,
    "health": _health,
}
ENDS_INSTANCE = frozenset({"spot-interruption", "reservation-interruption"})
