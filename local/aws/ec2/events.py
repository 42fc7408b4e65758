"""Events of EC2 and AWS Health: one function for each, with the documented fields.

Sources: EC2 User Guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations",
"Monitor Capacity Blocks using EventBridge", "Monitor interruptible Capacity Reservations with EventBridge and
CloudTrail", "Monitor state changes for future-dated Capacity Reservations", "State change events for your
instances"; AWS Health User Guide, "Reference: AWS Health events Amazon EventBridge schema". The pages show
`resources` of two events as plain text and `detail_type` with an underscore: EventBridge sends a list, and a
hyphen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from email.utils import format_datetime
from typing import Any

from local.aws.ec2.reservations import Ec2Reservation, Occupant
from local.aws.notices import Notices, format_time

Sent = dict[str, Any]

SPOT = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
STATE = "EC2 Instance State-change Notification"
INTERRUPTION = "EC2 Capacity Reservation Instance Interruption Warning"
DELIVERED = "Capacity Block Reservation Delivered"
EXPIRING = "Capacity Block Reservation Expiration Warning"
RECLAIMED = "EC2 Interruptible Capacity Reservation Allocation Reclamation Completed"
HEALTH = "AWS Health Event"


def spot_interruption(notices: Notices, instance: Any, queue: str | None = None) -> Sent:
    """Two minutes' notice, by the time of the event: this one names no time of its own."""
    zone = instance.availability_zone
    return notices.publish(
        SPOT,
        **_where(instance),
        resources=[f"arn:{_partition(instance)}:ec2:{zone}:instance/{instance.id}"],
        detail={"instance-id": instance.id, "instance-action": "terminate"},
        queue=queue,
    )


def rebalance(notices: Notices, instance: Any, queue: str | None = None) -> Sent:
    zone = instance.availability_zone
    return notices.publish(
        REBALANCE,
        **_where(instance),
        resources=[f"arn:{_partition(instance)}:ec2:{zone}:instance/{instance.id}"],
        detail={"instance-id": instance.id},
        queue=queue,
    )


def state_change(notices: Notices, instance: Any, state: str, queue: str | None = None) -> Sent:
    return notices.publish(
        STATE,
        **_where(instance),
        resources=[_arn(instance)],
        detail={"instance-id": instance.id, "state": state},
        queue=queue,
    )


def interruption(notices: Notices, occupant: Occupant, ends: datetime, queue: str | None = None) -> Sent:
    """Announces the end of an instance in an interruptible reservation or a Capacity Block."""
    instance = occupant.instance
    zone_id = instance.placement.availability_zone_id
    detail = {
        "instance-id": instance.id,
        "instance-action": "terminate",
        "instance-termination-time": format_time(ends),
    }
    if occupant.needs.market == "capacity-block":
        detail |= {"availability-zone-id": zone_id, "instance-lifecycle": "capacity-block"}
    else:
        detail["azId"] = zone_id
    return notices.publish(
        INTERRUPTION, **_where(instance), resources=[_arn(instance)], detail=detail, queue=queue
    )


def block_delivered(notices: Notices, block: Ec2Reservation, queue: str | None = None) -> Sent:
    return _block(DELIVERED, notices, block, queue)


def block_expiring(notices: Notices, block: Ec2Reservation, queue: str | None = None) -> Sent:
    return _block(EXPIRING, notices, block, queue)


def _block(kind: str, notices: Notices, block: Ec2Reservation, queue: str | None) -> Sent:
    return notices.publish(
        kind,
        account=block.owner_id,
        region=block.region,
        resources=[block.arn],
        detail={
            "capacity-reservation-id": block.id,
            "end-date": format_time(block.end_date) if block.end_date else None,
        },
        queue=queue,
    )


def reclaimed(notices: Notices, source: Ec2Reservation, *, count: int, target: int) -> Sent:
    return notices.publish(
        RECLAIMED,
        account=source.owner_id,
        region=source.region,
        resources=[source.arn],
        detail={
            "sourceCapacityReservationId": source.id,
            "instanceType": source.instance_type,
            "availabilityZoneId": source.zone_id,
            "TotalInstanceCount": source.total,
            "ReclaimedInstanceCount": count,
            "targetInstanceCount": target,
        },
    )


def reservation_state(notices: Notices, reservation: Ec2Reservation, queue: str | None = None) -> Sent:
    """Sends a future-dated reservation's event: Scheduled, Active, Delayed, Unsupported, Failed, Expired."""
    return notices.publish(
        f"EC2 Capacity Reservation {reservation.state.capitalize()}",
        account=reservation.owner_id,
        region=reservation.region,
        resources=[reservation.arn],
        detail={"capacity-reservation-id": reservation.id, "state": reservation.state},
        queue=queue,
    )


def health(
    notices: Notices,
    entity: str,
    *,
    account: str,
    region: str,
    code: str,
    category: str,
    starts: datetime,
    text: str,
    queue: str | None = None,
) -> Sent:
    service = "EC2"
    name = f"{code}_{entity}"
    return notices.publish(
        HEALTH,
        source="aws.health",
        account=account,
        region=region,
        resources=[entity],
        detail={
            "eventArn": f"arn:aws:health:{region}::event/{service}/{code}/{name}",
            "service": service,
            "eventTypeCode": code,
            "eventTypeCategory": category,
            "startTime": format_datetime(starts, usegmt=True),
            "eventDescription": [{"language": "en_US", "latestDescription": text}],
            "affectedEntities": [{"entityValue": entity, "tags": {}}],
        },
        queue=queue,
    )


def _where(instance: Any) -> Mapping[str, str]:
    return {"account": instance.ec2_backend.account_id, "region": instance.ec2_backend.region_name}


def _partition(instance: Any) -> str:
    return str(instance.ec2_backend.partition)


def _arn(instance: Any) -> str:
    backend = instance.ec2_backend
    return f"arn:{backend.partition}:ec2:{backend.region_name}:{backend.account_id}:instance/{instance.id}"


OF_INSTANCE: Mapping[str, Callable[[Notices, Any, str | None], Sent]] = {
    "spot-interruption": spot_interruption,
    "rebalance": rebalance,
}
OF_RESERVATION: Mapping[str, Callable[[Notices, Ec2Reservation, str | None], Sent]] = {
    "capacity-block-delivered": block_delivered,
    "capacity-block-expiring": block_expiring,
    "reservation-state": reservation_state,
}
