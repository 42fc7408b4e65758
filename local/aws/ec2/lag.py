"""DescribeInstances as it was a while ago: EC2's describe calls are eventually consistent.

An instance younger than the lag is not there yet; states and reservations show as they were. Source: EC2 API
reference, "Eventual consistency in the Amazon EC2 API".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from moto.ec2.models.instances import InstanceState, Reservation

from local.aws.ec2.reservations import Glimpse, Occupant


class LaggedInstance:
    """An instance with an older state."""

    def __init__(self, instance: Any, seen: Glimpse):
        self._instance = instance
        self._state = InstanceState(seen.state, seen.code)
        self.state = seen.state
        self.state_code = seen.code
        self.instance_state = self._state
        self.capacity_reservation_id = seen.reservation_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instance, name)


LaggedInstance.__name__ = "Instance"  # moto's serializer knows the aliases of this name


def as_of(
    reservations: Iterable[Reservation], occupants: Mapping[str, Occupant], at: datetime
) -> list[Reservation]:
    out = []
    for reservation in reservations:
        older = Reservation(reservation.id, reservation.owner_id)
        older.groups = reservation.groups
        older.instances = [
            seen for seen in (_older(i, occupants.get(i.id), at) for i in reservation.instances) if seen
        ]
        if older.instances:
            out.append(older)
    return out


def _older(instance: Any, occupant: Occupant | None, at: datetime) -> Any:
    if occupant is None:
        return instance
    glimpse = next((seen for seen in reversed(occupant.history) if seen.at <= at), None)
    return LaggedInstance(instance, glimpse) if glimpse else None
