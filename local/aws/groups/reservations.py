"""The connection of Resource Groups and EC2, in both directions.

Groups never import the EC2 part: it connects itself here. A group's members are reservations that its account
still sees (its own, or shared with it) in a state that can hold capacity; nothing about a reservation is
copied, so the two can't disagree.

States: EC2 API reference, CapacityReservationState. A reservation that has ended takes no launch and never
comes back, so it leaves its groups; its instances move to another reservation of the group where one has room
(EC2 User Guide, "Capacity Reservation groups").
"""

from datetime import UTC, datetime, timedelta
from typing import Protocol

ENDED_STATES = frozenset({"cancelled", "expired", "failed", "payment-failed", "unsupported"})


class ReservationSource(Protocol):
    """The EC2 part, seen from a group."""

    def reservation_state(self, account_id: str, region: str, arn: str) -> str | None:
        """The reservation's state as the account sees it; None if it is not its own nor shared with it."""

    def now(self) -> datetime: ...

    def grouping_time(self) -> timedelta:
        """The time for which a grouping is pending."""
        ...

    def membership_changed(self, account_id: str, region: str) -> None:
        """A group of this account gained or lost members: running instances may match anew."""


_sources: list[ReservationSource] = []


def connect(source: ReservationSource) -> None:
    """Registers this EC2 part with groups, in place of any earlier one."""
    _sources[:] = [source]


def region_of(arn: str) -> str | None:
    """The Region of an ODCR's ARN, or None where the ARN is another resource's."""
    parts = arn.split(":", 5)
    if len(parts) != 6 or parts[2] != "ec2" or not parts[5].startswith("capacity-reservation/"):
        return None
    return parts[3]


def can_be_member(account_id: str, region: str, arn: str) -> bool:
    """Whether a group of this account and Region can hold the reservation: visible there, and not ended."""
    states = [source.reservation_state(account_id, region, arn) for source in _sources]
    return any(state is not None and state not in ENDED_STATES for state in states)


def now() -> datetime:
    return _sources[0].now() if _sources else datetime.now(UTC)


def grouping_time() -> timedelta:
    return _sources[0].grouping_time() if _sources else timedelta()


def membership_changed(account_id: str, region: str) -> None:
    for source in _sources:
        source.membership_changed(account_id, region)
