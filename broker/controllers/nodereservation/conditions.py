"""The conditions of a Koordinator reservation, as its scheduler and its controller write them.

`Scheduled` reports the node, and `Ready` whether owners may come. The time of the last probe moves with each
write, that of the last transition only with the status. Source: Koordinator, pkg/util/reservation.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from broker.apis import koordinator as koord
from broker.apis.core import Pod
from broker.apis.meta import ConditionStatus, Json
from broker.text import format_time

Conditions = Iterable[koord.ReservationCondition]
EXPIRED: Final = "Expired"
INVALID: Final = "Invalid"  # no node helps it


def current_owners(pods: Iterable[Pod]) -> list[Json]:
    """The owners as a reservation's status records them."""
    return [{"namespace": pod.namespace, "name": pod.name, "uid": pod.uid} for pod in pods]


def placed_conditions(old: Conditions, now: datetime, note: str = "") -> list[Json]:
    """Reports that a reservation has its node. `note`: what its owners should know."""
    scheduled = _condition(old, koord.SCHEDULED, "True", koord.SCHEDULED, "", now)
    return [scheduled, _condition(old, koord.READY, "True", koord.AVAILABLE, note, now)]


def unplaced_conditions(old: Conditions, message: str, now: datetime, reason: str) -> list[Json]:
    """The condition of a reservation that no node can hold."""
    return [_condition(old, koord.SCHEDULED, "False", reason, message, now)]


def ended_conditions(old: Conditions, reason: str, message: str, now: datetime) -> list[Json]:
    """The condition of a reservation that takes no further owner: all others stay as they are."""
    kept = [_body(item) for item in old if item.type != koord.READY]
    return [*kept, _condition(old, koord.READY, "False", reason, message, now)]


def _condition(
    old: Conditions, type_: str, status: ConditionStatus, reason: str, message: str, now: datetime
) -> Json:
    before = next((item for item in old if item.type == type_), None)
    same = before is not None and before.status == status
    if before is not None and same and (before.reason, before.message) == (reason, message):
        return _body(before)
    since = before.last_transition_time if before is not None and same else None
    return _body(
        koord.ReservationCondition(
            type=type_,
            status=status,
            reason=reason,
            message=message,
            last_probe_time=now,
            last_transition_time=since or now,
        )
    )


def _body(condition: koord.ReservationCondition) -> Json:
    body: Json = {"type": condition.type, "status": condition.status, "reason": condition.reason}
    if condition.message:
        body["message"] = condition.message
    if condition.last_probe_time is not None:
        body["lastProbeTime"] = format_time(condition.last_probe_time)
    if condition.last_transition_time is not None:
        body["lastTransitionTime"] = format_time(condition.last_transition_time)
    return body
