"""EventBridge's messages about instances and reservations, as one kind of value.

Invariant: a message is read, is of no interest (kind OTHER), or is a ValueError that names its fault; a
field that its type promises is never guessed. Shapes: EC2 user guide ("Spot Instance interruption notices",
"Rebalance recommendations", "Monitor Capacity Blocks using EventBridge", "Monitor interruptible Capacity
Reservations", "Monitor state changes for future-dated Capacity Reservations", "State change events for your
instances") and AWS Health user guide ("Health events schema"). The pages on Capacity Blocks print
`detail_type` and have changed the type's name; both are understood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from providers.notices import Notice, NoticeKind

Json = Mapping[str, Any]
_STATES = {
    "stopping": NoticeKind.STOPPED,
    "stopped": NoticeKind.STOPPED,
    "shutting-down": NoticeKind.TERMINATED,
    "terminated": NoticeKind.TERMINATED,
}


def parse(body: str) -> Notice:
    """The notice in a message. Raises ValueError."""
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")
    type_ = message.get("detail-type") or message.get("detail_type")
    source, detail = message.get("source"), message.get("detail")
    if not isinstance(type_, str) or not isinstance(source, str) or not isinstance(detail, dict):
        raise ValueError("no event of EventBridge: it needs detail-type, source and detail")
    read = TYPES.get((source, type_)) or _by_prefix(source, type_)
    about = read(detail) if read else {"kind": NoticeKind.OTHER}
    return Notice(type=type_, at=_time(message.get("time")), **about)


def _instance(kind: NoticeKind) -> Callable[[Json], dict[str, Any]]:
    def read(detail: Json) -> dict[str, Any]:
        return {"kind": kind, "instance_ids": (_named(detail, "instance-id", "i-"),)}

    return read


def _reservation(kind: NoticeKind) -> Callable[[Json], dict[str, Any]]:
    def read(detail: Json) -> dict[str, Any]:
        return {"kind": kind, "reservation_ids": (_named(detail, "capacity-reservation-id", "cr-"),)}

    return read


def _interruption(detail: Json) -> dict[str, Any]:
    """The end of an instance in a Capacity Block is that of the block, which may be extended."""
    about = _instance(NoticeKind.RESERVATION_INTERRUPTION)(detail)
    block = detail.get("instance-lifecycle") == "capacity-block"
    return about | {"kind": NoticeKind.BLOCK_EXPIRATION} if block else about


def _state(detail: Json) -> dict[str, Any]:
    """A change that is no end of anything is of no interest."""
    id_, state = _named(detail, "instance-id", "i-"), str(detail.get("state", "")).lower()
    return {"kind": _STATES.get(state, NoticeKind.OTHER), "instance_ids": (id_,)}


def _health(detail: Json) -> dict[str, Any]:
    """Selects, of Health's events, those that announce a change of instances at a set time."""
    if detail.get("service") != "EC2" or detail.get("eventTypeCategory") != "scheduledChange":
        return {"kind": NoticeKind.OTHER}
    affected = detail.get("affectedEntities")
    if not isinstance(affected, list):
        raise ValueError("detail.affectedEntities is not a list")
    values = [str(entity.get("entityValue", "")) for entity in affected if isinstance(entity, dict)]
    return {
        "kind": NoticeKind.SCHEDULED_CHANGE,
        "instance_ids": tuple(value for value in values if value.startswith("i-")),
        "code": str(detail.get("eventTypeCode", "")),
    }


TYPES: Mapping[tuple[str, str], Callable[[Json], dict[str, Any]]] = {
    ("aws.ec2", "EC2 Spot Instance Interruption Warning"): _instance(NoticeKind.SPOT_INTERRUPTION),
    ("aws.ec2", "EC2 Instance Rebalance Recommendation"): _instance(NoticeKind.REBALANCE),
    ("aws.ec2", "EC2 Instance State-change Notification"): _state,
    ("aws.health", "AWS Health Event"): _health,
    **{
        ("aws.ec2", f"EC2 {kind}Capacity Reservation Instance Interruption Warning"): _interruption
        for kind in ("", "Interruptible ")
    },
    **{
        ("aws.ec2", f"Capacity Block {word}Expiration Warning"): _reservation(NoticeKind.BLOCK_EXPIRATION)
        for word in ("", "Reservation ")
    },
    **{
        ("aws.ec2", f"Capacity Block {word}Delivered"): _reservation(NoticeKind.RESERVATION_CHANGED)
        for word in ("", "Reservation ")
    },
    **{
        ("aws.ec2", f"EC2 Capacity Reservation {state}"): _reservation(NoticeKind.RESERVATION_CHANGED)
        for state in ("Scheduled", "Active", "Delayed", "Unsupported", "Failed", "Expired")
    },
}


def _by_prefix(source: str, type_: str) -> Callable[[Json], dict[str, Any]] | None:
    """Reclaimed room of an interruptible reservation: both names that the user guide has had for it."""
    reclaimed = ("Allocation Reclamation Completed", "Interruptible Reclamation Complete")
    if source == "aws.ec2" and type_.endswith(reclaimed):
        return lambda _detail: {"kind": NoticeKind.RESERVATION_CHANGED}
    return None


def _named(detail: Json, field: str, prefix: str) -> str:
    value = detail.get(field)
    if not isinstance(value, str) or not value.startswith(prefix):
        raise ValueError(f"detail.{field} is {value!r}, not an id that begins with {prefix}")
    return value


def _time(text: object) -> datetime | None:
    try:
        parsed = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
