"""EC2's notices about instances and reservations, and the messages that carry them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class NoticeKind(StrEnum):
    """The kinds of EC2's notices about instances and reservations."""

    SPOT_INTERRUPTION = "spot-interruption"  # two minutes before it takes a spot instance
    REBALANCE = "rebalance-recommendation"  # a spot instance is at risk
    RESERVATION_INTERRUPTION = "reservation-interruption"  # two minutes before, in an interruptible one
    BLOCK_EXPIRATION = "block-expiration"  # of a capacity block, or of an instance in it
    SCHEDULED_CHANGE = "scheduled-change"  # maintenance or retirement, by AWS Health
    STOPPED = "instance-stopped"
    TERMINATED = "instance-terminated"
    RESERVATION_CHANGED = "reservation-changed"  # began, was delayed, got room back
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One announcement. `type` is EC2's own name of it, `code` AWS Health's."""

    kind: NoticeKind
    type: str = ""
    code: str = ""
    instance_ids: tuple[str, ...] = ()
    reservation_ids: tuple[str, ...] = ()
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMessage:
    """A message that was received, to be handled and deleted: a notice, or the problem with its body."""

    receipt: str
    body: str = ""
    notice: Notice | None = None
    problem: str = ""
