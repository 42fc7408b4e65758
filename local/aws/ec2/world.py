"""The state that all accounts and Regions of local AWS share: clock, capacity, faults, calls, settings.

It is a moto backend, so that a reset of moto (`mock_aws`, POST /moto-api/reset) resets it too.
`LOCK` is the only lock: every EC2 action holds it, since moto's models have none.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta

from moto.core.base_backend import BackendDict, BaseBackend

from local.aws.calls import CallRecorder
from local.aws.clock import LocalClock
from local.aws.ec2.blocks import Blocks
from local.aws.ec2.errors import UNDOCUMENTED
from local.aws.ec2.health import HealthRecord
from local.aws.ec2.idempotency import Replies
from local.aws.ec2.ledger import CapacityLedger
from local.aws.ec2.quotas import VcpuQuotas
from local.aws.ec2.records import (
    BillingRequest,
    InterruptibleAllocation,
    ReservationFleet,
    ReservationQuote,
)
from local.aws.faults import InjectedFaults
from local.aws.notices import Notices

LOCK = threading.RLock()
SEES_NOW: ContextVar[bool] = ContextVar(
    "sees_now", default=False
)  # whether the call that is answered has no lag


@dataclass(slots=True)
class Knobs:
    """Settings of the control plane, by their names there; `_s` are seconds."""

    slot_release_s: float = 0.0
    pending_s: float = 0.0
    grouping_s: float = 0.0
    payment_s: float = 0.0
    assessment_s: float = 0.0
    assessment_outcome: str = "scheduled"
    check_offerings: bool = False
    # Whether a slot that comes free takes a running instance that matches. EC2's guide says that reservations
    # match "new instances and running instances", and not when.
    freed_slot_absorbs: bool = True


class AwsWorld(BaseBackend):
    def __init__(self, region_name: str, account_id: str):
        super().__init__(region_name, account_id)
        self.clock = LocalClock()
        self.codes = dict(UNDOCUMENTED)
        self.ledger = CapacityLedger(self.clock, self.codes)
        self.replies = Replies()
        self.faults = InjectedFaults()
        self.calls = CallRecorder()
        self.quotas = VcpuQuotas(self.ledger)
        self.notices = Notices(self.ledger.now)
        self._lag = timedelta()
        self.knobs = Knobs()
        self.blocks = Blocks()
        self.allocations: dict[str, InterruptibleAllocation] = {}
        self.reservation_fleets: dict[str, ReservationFleet] = {}
        self.billing: dict[str, BillingRequest] = {}  # by reservation
        self.quotes: dict[str, ReservationQuote] = {}
        self.health: dict[str, HealthRecord] = {}  # by instance

    def lag(self, seconds: float) -> None:
        self._lag = timedelta(seconds=seconds)
        self.ledger.keep = max(self.ledger.keep, self._lag)

    @property
    def describe_lag(self) -> timedelta:
        """The age of the state that describe calls show to the current caller."""
        return timedelta() if SEES_NOW.get() else self._lag

    def reset_knobs(self) -> None:
        """Sets all knobs of the control plane to their defaults; AWS's resources stay."""
        self.clock.reset()
        self.codes.clear()
        self.codes.update(UNDOCUMENTED)
        self.faults.clear()
        self.calls.clear()
        self.notices.clear()
        self.ledger.clear_limits()
        self.quotas.limits.clear()
        self.health.clear()
        self._lag = timedelta()
        self.knobs = Knobs()


_worlds: BackendDict[AwsWorld] = BackendDict(
    AwsWorld, "local", use_boto3_regions=False, additional_regions=["aws"]
)


def world() -> AwsWorld:
    return _worlds["everyone"]["aws"]
