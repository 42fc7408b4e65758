"""What Resource Groups has to know of EC2, and what EC2 has to hear from Resource Groups.

Groups never import the EC2 part: it connects itself here. A group's members are reservations that EC2 still
has in a state that can hold capacity; nothing about a reservation is copied, so the two can't disagree.

States: EC2 API reference, CapacityReservationState. A reservation that has ended takes no launch and never
comes back, so it leaves its groups; its instances move to another reservation of the group where one has room
(EC2 User Guide, "Capacity Reservation groups").
"""

from typing import NamedTuple, Protocol

ENDED_STATES = frozenset({"cancelled", "expired", "failed", "payment-failed", "unsupported"})


class ReservationSource(Protocol):
    """The EC2 part, seen from a group."""

    def reservation_state(self, account_id: str, region: str, reservation_id: str) -> str | None:
        """The reservation's state as DescribeCapacityReservations shows it; None if EC2 does not have it."""

    def membership_changed(self, account_id: str, region: str) -> None:
        """A group of this account gained or lost members: running instances may match anew."""


class ReservationArn(NamedTuple):
    region: str
    account_id: str
    reservation_id: str


_sources: list[ReservationSource] = []


def connect(source: ReservationSource) -> None:
    """Let groups ask this EC2 part from now on, in place of any earlier one."""
    _sources[:] = [source]


def parse(arn: str) -> ReservationArn | None:
    """The parts of an ODCR's ARN, or None where the ARN is another resource's."""
    parts = arn.split(":", 5)
    if len(parts) != 6 or parts[0] != "arn" or parts[2] != "ec2":
        return None
    kind, _, reservation_id = parts[5].partition("/")
    return ReservationArn(parts[3], parts[4], reservation_id) if kind == "capacity-reservation" else None


def can_be_member(arn: str) -> bool:
    """Whether EC2 has this reservation in a state that has not ended."""
    reservation = parse(arn)
    if reservation is None or not _sources:
        return False
    state = _sources[0].reservation_state(
        reservation.account_id, reservation.region, reservation.reservation_id
    )
    return state is not None and state not in ENDED_STATES


def membership_changed(account_id: str, region: str) -> None:
    for source in _sources:
        source.membership_changed(account_id, region)
