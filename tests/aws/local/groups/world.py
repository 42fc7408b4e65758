"""A stand-in for the EC2 part: its reservations, and the calls that groups made to it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

ACCOUNT = "123456789012"
REGION = "us-east-1"


@dataclass
class FakeEc2:
    states: dict[str, str] = field(default_factory=dict)
    changes: list[tuple[str, str]] = field(default_factory=list)

    def reservation_state(self, account_id: str, region: str, arn: str) -> str | None:
        return self.states.get(arn)

    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC)

    def grouping_time(self) -> timedelta:
        return timedelta()

    def membership_changed(self, account_id: str, region: str) -> None:
        self.changes.append((account_id, region))

    def reserve(self, reservation_id: str, state: str = "active") -> str:
        self.states[arn(reservation_id)] = state
        return arn(reservation_id)


def arn(reservation_id: str, *, region: str = REGION, account: str = ACCOUNT) -> str:
    return f"arn:aws:ec2:{region}:{account}:capacity-reservation/{reservation_id}"
