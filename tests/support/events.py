"""EventBridge's messages, in the shapes that AWS's user guides print."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

AT = datetime(2026, 1, 1, 3, 0, tzinfo=UTC)
ACCOUNT = "123456789012"
RETIREMENT = "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED"


def event(type_: str, detail: Any, *, source: str = "aws.ec2", at: datetime = AT, **more: Any) -> str:
    return json.dumps(
        {
            "version": "0",
            "id": "12345678-1234-1234-1234-123456789012",
            "detail-type": type_,
            "source": source,
            "account": ACCOUNT,
            "time": f"{at:%Y-%m-%dT%H:%M:%SZ}",
            "region": "us-east-1",
            "resources": [],
            "detail": detail,
            **more,
        }
    )


def spot_interruption(instance: str) -> str:
    return event(
        "EC2 Spot Instance Interruption Warning", {"instance-id": instance, "instance-action": "terminate"}
    )


def rebalance(instance: str) -> str:
    return event("EC2 Instance Rebalance Recommendation", {"instance-id": instance})


def reservation_interruption(instance: str, *, word: str = "") -> str:
    return event(
        f"EC2 {word}Capacity Reservation Instance Interruption Warning",
        {
            "instance-id": instance,
            "instance-action": "terminate",
            "instance-termination-time": "2026-01-01T03:02:00Z",
            "azId": "use1-az1",
        },
        resources=f"arn:aws:ec2:us-east-1:{ACCOUNT}:instance/{instance}",
    )


def block_interruption(instance: str) -> str:
    """The warning of one instance in a Capacity Block."""
    return event(
        "EC2 Capacity Reservation Instance Interruption Warning",
        {
            "instance-id": instance,
            "instance-action": "terminate",
            "instance-termination-time": "2026-01-01T03:30:00Z",
            "availability-zone-id": "use1-az1",
            "instance-lifecycle": "capacity-block",
        },
    )


def block_expiration(reservation: str, *, word: str = "Reservation ") -> str:
    """The user guide prints this one with an underscore, and without version and id."""
    return json.dumps(
        {
            "customer_event_id": f"{reservation}-approaching-expiry",
            "detail_type": f"Capacity Block {word}Expiration Warning",
            "source": "aws.ec2",
            "account": ACCOUNT,
            "time": "2026-01-01T03:00:00Z",
            "resources": [f"arn:aws:ec2:us-east-1:{ACCOUNT}:capacity-reservation/{reservation}"],
            "detail": {"capacity-reservation-id": reservation, "end-date": "2026-01-01T03:40:00Z"},
        }
    )


def state_change(instance: str, state: str) -> str:
    return event("EC2 Instance State-change Notification", {"instance-id": instance, "state": state})


def health(*entities: str, category: str = "scheduledChange", service: str = "EC2") -> str:
    return event(
        "AWS Health Event",
        {
            "eventArn": f"arn:aws:health:us-east-1::event/EC2/{RETIREMENT}/{ACCOUNT}",
            "service": service,
            "eventTypeCode": RETIREMENT,
            "eventTypeCategory": category,
            "startTime": "Sat, 05 Jun 2026 15:10:09 GMT",
            "eventDescription": [{"language": "en_US", "latestDescription": "retirement"}],
            "affectedEntities": [{"entityValue": entity, "tags": {}} for entity in entities],
        },
        source="aws.health",
    )
