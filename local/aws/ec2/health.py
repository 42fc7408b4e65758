"""The health of instances: status checks that fail, scheduled events, and reboots.

Sources: EC2 API Reference, DescribeInstanceStatus and InstanceStatusEvent; EC2 User Guide, "Status checks for
Amazon EC2 instances" and "Scheduled events for Amazon EC2 instances". An event that is over stays for a week
with `[Completed]` before its description. A reboot mends nothing here; the control plane does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from moto.ec2.utils import random_id

from local.aws.ec2 import pages

CHECKS: Final = ("instance", "system")
EVENT_CODES: Final = (
    "instance-reboot",
    "system-reboot",
    "system-maintenance",
    "instance-retirement",
    "instance-stop",
)
OVER: Final = "[Completed] "


@dataclass(slots=True, kw_only=True)
class ScheduledEvent:
    id: str
    code: str
    description: str
    not_before: datetime


@dataclass(slots=True)
class HealthRecord:
    """The health of one instance: since when each check fails, its events, and when it was rebooted."""

    impaired: dict[str, datetime] = field(default_factory=dict)
    events: list[ScheduledEvent] = field(default_factory=list)
    reboots: list[datetime] = field(default_factory=list)

    def schedule(self, code: str, at: datetime) -> ScheduledEvent:
        event = ScheduledEvent(
            id=random_id(prefix="instance-event"),
            code=code,
            description="The instance is running on degraded hardware",
            not_before=at,
        )
        self.events.append(event)
        return event

    def complete(self, code: str) -> None:
        for event in self.events:
            if event.code == code and not event.description.startswith(OVER):
                event.description = OVER + event.description


@dataclass(frozen=True, slots=True)
class StatusRow:
    """An instance with its record."""

    instance: Any
    record: HealthRecord

    def status(self, check: str) -> str:
        if self.instance.state != "running":
            return "not-applicable"
        return "impaired" if check in self.record.impaired else "ok"

    def reachability(self, check: str) -> str:
        return {"impaired": "failed", "ok": "passed"}.get(self.status(check), "insufficient-data")


FILTERS: dict[str, pages.Value[StatusRow]] = {
    "availability-zone": lambda row: row.instance.placement.zone,
    "event.code": lambda row: [event.code for event in row.record.events],
    "event.description": lambda row: [event.description for event in row.record.events],
    "event.instance-event-id": lambda row: [event.id for event in row.record.events],
    "instance-state-code": lambda row: row.instance.state_code,
    "instance-state-name": lambda row: row.instance.state,
    "instance-status.status": lambda row: row.status("instance"),
    "instance-status.reachability": lambda row: row.reachability("instance"),
    "system-status.status": lambda row: row.status("system"),
    "system-status.reachability": lambda row: row.reachability("system"),
}


def rows(
    instances: Iterable[Any], health: Mapping[str, HealthRecord], *, every_state: bool
) -> list[StatusRow]:
    """Without `every_state` only the running ones, as EC2 by default."""
    shown = (instance for instance in instances if every_state or instance.state == "running")
    return [StatusRow(instance, health.get(instance.id) or HealthRecord()) for instance in shown]


def describe(row: StatusRow) -> dict[str, Any]:
    instance = row.instance
    shown: dict[str, Any] = {
        "AvailabilityZone": instance.placement.zone,
        "InstanceId": instance.id,
        "InstanceState": {"Code": instance.state_code, "Name": instance.state},
        "InstanceStatus": _check(row, "instance"),
        "SystemStatus": _check(row, "system"),
    }
    if row.record.events:
        shown["Events"] = [_event(event) for event in row.record.events]
    return shown


def _check(row: StatusRow, check: str) -> dict[str, Any]:
    detail: dict[str, Any] = {"Name": "reachability", "Status": row.reachability(check)}
    if row.status(check) == "impaired":
        detail["ImpairedSince"] = row.record.impaired[check]
    return {"Status": row.status(check), "Details": [detail]}


def _event(event: ScheduledEvent) -> dict[str, Any]:
    return {
        "InstanceEventId": event.id,
        "Code": event.code,
        "Description": event.description,
        "NotBefore": event.not_before,
        "NotAfter": event.not_before + timedelta(hours=2),
    }
