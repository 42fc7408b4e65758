"""Control calls that make or change AWS's resources, and those that send AWS's events."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.utils import random_id
from moto.sqs.exceptions import QueueDoesNotExist

from providers.local.clock import aware
from providers.local.control_bodies import (
    BadControlCall,
    ControlCall,
    NoticeBody,
    OfferBody,
    ReservationBody,
    ReservationPatch,
    read,
)
from providers.local.ec2 import block_market, changes, events, zones
from providers.local.ec2.blocks import Offer
from providers.local.ec2.reservations import STATES, Ec2Reservation, Occupant

INSTANCE_STATES = ("pending", "running", "stopping", "stopped", "shutting-down", "terminated")


def create_reservation(call: ControlCall) -> Any:
    asked = read(ReservationBody, call.body)
    _require_state(asked.state)
    owner = asked.owner_id or asked.account
    shared = frozenset(asked.shared_with) | ({asked.account} if owner != asked.account else frozenset())
    special: dict[str, Any] = {
        "owner_id": owner,
        "shared_with": shared,
        "reservation_type": asked.reservation_type,
        "interruptible": asked.interruptible,
        "capacity_block_id": asked.capacity_block_id,
        "ultraserver_type": asked.ultraserver_type,
        "source_id": asked.source_id,
    }
    if asked.state:
        special["state"] = asked.state
    backend: Any = ec2_backends[asked.account][asked.region]
    made = changes.create(call.here, backend, asked.model_extra or {}, **special)
    tags = {str(k): str(v) for k, v in ((asked.model_extra or {}).get("Tags") or {}).items()}
    if tags:
        backend.create_tags([made.id], tags)
    return {"CapacityReservationId": made.id, "CapacityReservationArn": made.arn, "State": made.state}


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
    asked = read(OfferBody, call.body)
    backend: Any = ec2_backends[asked.account][asked.region]
    zone = zones.of_request(backend, {"AvailabilityZone": asked.zone})
    start, end = aware(asked.start), aware(asked.end)
    if end <= start:
        raise BadControlCall(f"end: {end.isoformat()} is not after start, {start.isoformat()}")
    if asked.ultraserver_type and (not asked.ultraservers or asked.count % asked.ultraservers):
        raise BadControlCall(
            f"ultraservers: {asked.count} instances do not make {asked.ultraservers} UltraServers"
        )
    offer = Offer(
        id=random_id(prefix="cb"),
        account=asked.account,
        region=asked.region,
        instance_type=asked.instance_type,
        zone=zone.name,
        zone_id=zone.zone_id,
        count=asked.count,
        start=start,
        end=end,
        fee=block_market.fee(asked.instance_type, asked.count, end - start)
        if asked.fee is None
        else asked.fee,
        ultraserver_type=asked.ultraserver_type,
        ultraservers=asked.ultraservers if asked.ultraserver_type else 0,
    )
    call.here.blocks.scripted.append(offer)
    return {"CapacityBlockOfferingId": offer.id}


def _require_state(state: str | None) -> None:
    if state is not None and state not in STATES:
        raise BadControlCall(f"state: {state!r} is none of {', '.join(sorted(STATES))}")


def _reservation(call: ControlCall, reservation_id: str | None, field: str) -> Ec2Reservation:
    found = call.here.ledger.reservations.get(reservation_id or "")
    if found is None:
        raise BadControlCall(
            f"{field}: there is no reservation {reservation_id!r}; DescribeCapacityReservations lists them"
        )
    return found


# ---- notices


def list_notices(call: ControlCall) -> Any:
    return call.here.notices.list(call.query.get("detail_type"))


def send_notice(call: ControlCall) -> Any:
    """One event now; with `ends` the announced end happens `in_s` later."""
    asked = read(NoticeBody, call.body)
    send = KINDS.get(asked.kind)
    if send is None:
        raise BadControlCall(f"kind: {asked.kind!r} is none of {', '.join(KINDS)}")
    if asked.ends and asked.kind not in ENDS_INSTANCE:
        raise BadControlCall(
            f"ends: {asked.kind} ends no instance; only {' and '.join(sorted(ENDS_INSTANCE))} do"
        )
    try:
        event = send(call, asked)
    except QueueDoesNotExist as absent:
        raise BadControlCall(
            f"queue: {asked.queue!r} does not exist; make it with SQS CreateQueue"
        ) from absent
    if asked.ends:
        instance = _occupant(call, asked).instance
        call.here.ledger.after(asked.in_s, lambda: _end(instance))
    return event


def _end(instance: Any) -> None:
    instance.disable_api_termination = False
    instance.ec2_backend.terminate_instances([instance.id])


def _occupant(call: ControlCall, asked: NoticeBody) -> Occupant:
    found = call.here.ledger.occupants.get(asked.instance_id or "")
    if found is None:
        raise BadControlCall(
            f"instance_id: there is no instance {asked.instance_id!r}; a notice of kind "
            f"{asked.kind} is about one that was launched here"
        )
    return found


def _of_instance(kind: str) -> Callable[[ControlCall, NoticeBody], Any]:
    def send(call: ControlCall, asked: NoticeBody) -> Any:
        instance = _occupant(call, asked).instance
        return events.OF_INSTANCE[kind](call.here.notices, instance, asked.queue)

    return send


def _of_reservation(kind: str) -> Callable[[ControlCall, NoticeBody], Any]:
    def send(call: ControlCall, asked: NoticeBody) -> Any:
        reservation = _reservation(call, asked.reservation_id, "reservation_id")
        return events.OF_RESERVATION[kind](call.here.notices, reservation, asked.queue)

    return send


def _interruption(call: ControlCall, asked: NoticeBody) -> Any:
    ends = call.here.ledger.now() + timedelta(seconds=asked.in_s)
    return events.interruption(call.here.notices, _occupant(call, asked), ends, asked.queue)


def _instance_state(call: ControlCall, asked: NoticeBody) -> Any:
    instance = _occupant(call, asked).instance
    state = asked.state or instance.state
    if state not in INSTANCE_STATES:
        raise BadControlCall(f"state: {state!r} is none of {', '.join(INSTANCE_STATES)}")
    return events.state_change(call.here.notices, instance, state, asked.queue)


def _health(call: ControlCall, asked: NoticeBody) -> Any:
    if asked.reservation_id:
        reservation = _reservation(call, asked.reservation_id, "reservation_id")
        entity, account, region = reservation.id, reservation.owner_id, reservation.region
    else:
        instance = _occupant(call, asked).instance
        entity = instance.id
        account, region = instance.ec2_backend.account_id, instance.ec2_backend.region_name
    return events.health(
        call.here.notices,
        entity,
        account=account,
        region=region,
        code=asked.code,
        category=asked.category,
        starts=call.here.ledger.now() + timedelta(seconds=asked.in_s),
        text=f"{asked.code} for {entity}",
        queue=asked.queue,
    )


KINDS: dict[str, Callable[[ControlCall, NoticeBody], Any]] = {
    **{kind: _of_instance(kind) for kind in events.OF_INSTANCE},
    **{kind: _of_reservation(kind) for kind in events.OF_RESERVATION},
    "reservation-interruption": _interruption,
    "instance-state": _instance_state,
    "health": _health,
}
ENDS_INSTANCE = frozenset({"spot-interruption", "reservation-interruption"})
