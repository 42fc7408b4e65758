"""The needs of a launch towards the place where its instances run, and the reservations that it may use.

Source: EC2 API reference, CapacityReservationSpecification.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from local.aws.ec2 import errors
from local.aws.ec2.errors import Ec2Error

ID = re.compile(r"^cr-[0-9a-f]{8}(?:[0-9a-f]{9})?$")

ON_DEMAND = "on-demand"
SPOT = "spot"
ONLY = "capacity-reservations-only"
PREFERENCES = frozenset({ONLY, "open", "none"})
RESERVED_MARKETS = frozenset({"capacity-block", "interruptible-capacity-reservation"})
MARKETS = RESERVED_MARKETS | {ON_DEMAND, SPOT}


@dataclass(frozen=True, slots=True)
class CapacityTarget:
    """A CapacityReservationSpecification that holds only combinations EC2 accepts."""

    preference: str | None = None
    reservation_id: str | None = None
    group: str | None = None

    @property
    def spills(self) -> bool:
        """Whether a launch that finds no room in a reservation runs On-Demand."""
        return self.reservation_id is None and self.preference != ONLY

    @classmethod
    def of(cls, specification: Mapping[str, Any] | None, codes: Mapping[str, str]) -> CapacityTarget:
        specification = specification or {}
        preference = specification.get("CapacityReservationPreference") or None
        target = specification.get("CapacityReservationTarget") or {}
        reservation_id = target.get("CapacityReservationId") or None
        group = target.get("CapacityReservationResourceGroupArn") or None
        if preference is not None and preference not in PREFERENCES:
            raise errors.invalid(
                "CapacityReservationPreference",
                preference,
                f"Valid values: {', '.join(sorted(PREFERENCES))}.",
            )
        if reservation_id and group:
            raise errors.combination(
                "CapacityReservationTarget takes CapacityReservationId or "
                "CapacityReservationResourceGroupArn, not both"
            )
        if (reservation_id or group) and preference not in (None, ONLY):
            raise Ec2Error(
                codes["target-with-preference"],
                f"CapacityReservationPreference {preference} can't be specified together with a "
                f"CapacityReservationTarget; only {ONLY} can",
            )
        if reservation_id and not ID.match(reservation_id):
            raise errors.reservation_malformed(reservation_id)
        return cls(preference, reservation_id, group)

    def shown(self) -> dict[str, Any]:
        """The specification as DescribeInstances shows it; an instance without one shows `open`."""
        out: dict[str, Any] = {}
        if self.preference or not (self.reservation_id or self.group):
            out["CapacityReservationPreference"] = self.preference or "open"
        if self.reservation_id:
            out["CapacityReservationTarget"] = {"CapacityReservationId": self.reservation_id}
        if self.group:
            out["CapacityReservationTarget"] = {"CapacityReservationResourceGroupArn": self.group}
        return out


@dataclass(frozen=True, slots=True)
class LaunchNeeds:
    """The needs of an instance towards the place that it runs in."""

    account_id: str
    region: str
    instance_type: str
    zone: str
    platform: str
    tenancy: str = "default"
    placement_group_arn: str | None = None
    market: str = ON_DEMAND
    target: CapacityTarget = CapacityTarget()
