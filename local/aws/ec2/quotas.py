"""vCPU quotas of an account and Region, by family and purchase option; without limit until one is set.

Invariant: usage is derived, never stored: the vCPUs of every instance that holds a place, and of every
reservation's unused slots, which count as if they ran. A Capacity Block does not count. An instance in a
reservation counts once, with the reservation's owner.

Sources: EC2 User Guide, "Amazon EC2 instance type quotas" (families, vCPUs); "Capacity Reservation limits"
(states that count, usage on the owner's quota). Codes: VcpuLimitExceeded for On-Demand,
MaxSpotInstanceCountExceeded for Spot; which code CreateCapacityReservation gets is not documented.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from moto.ec2.models.instance_types import INSTANCE_TYPES

from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.launch_needs import ON_DEMAND, SPOT, LaunchNeeds
from local.aws.ec2.ledger import CapacityLedger
from local.aws.ec2.reservations import Ec2Reservation

COUNTED = frozenset({"assessing", "scheduled", "pending", "active", "delayed"})
SPARE = "interruptible-capacity-reservation"


class Key(NamedTuple):
    account: str
    region: str
    code: str


@dataclass(frozen=True)
class VcpuQuota:
    code: str
    name: str
    market: str
    families: frozenset[str]


def _families(text: str) -> frozenset[str]:
    return frozenset(text.split())


STANDARD = _families("a c d h i im is m r t z")
QUOTAS: Mapping[str, VcpuQuota] = {
    quota.code: quota
    for quota in (
        VcpuQuota("L-1216C47A", "Running On-Demand Standard instances", ON_DEMAND, STANDARD),
        VcpuQuota("L-DB2E81BA", "Running On-Demand G and VT instances", ON_DEMAND, _families("g gr vt")),
        VcpuQuota("L-417A185B", "Running On-Demand P instances", ON_DEMAND, _families("p")),
        VcpuQuota("L-2C3B7624", "Running On-Demand Trn instances", ON_DEMAND, _families("trn")),
        VcpuQuota("L-1945791B", "Running On-Demand Inf instances", ON_DEMAND, _families("inf")),
        VcpuQuota("L-7295265B", "Running On-Demand X instances", ON_DEMAND, _families("x")),
        VcpuQuota("L-43DA4232", "Running On-Demand High Memory instances", ON_DEMAND, _families("u")),
        VcpuQuota("L-34B43A08", "All Standard Spot Instance Requests", SPOT, STANDARD),
        VcpuQuota("L-3819A6DF", "All G and VT Spot Instance Requests", SPOT, _families("g gr vt")),
        VcpuQuota("L-7212CCBC", "All P Spot Instance Requests", SPOT, _families("p")),
        VcpuQuota("L-6B0D517C", "All Trn Spot Instance Requests", SPOT, _families("trn")),
    )
}


def family_of(instance_type: str) -> str:
    match_ = re.match("[a-z]+", instance_type)
    return match_.group() if match_ else ""


def quota_of(instance_type: str, market: str) -> VcpuQuota | None:
    """The quota that a launch counts against; none for a Capacity Block."""
    kind = ON_DEMAND if market == SPARE else market
    family = family_of(instance_type)
    return next((q for q in QUOTAS.values() if q.market == kind and family in q.families), None)


def vcpus_of(instance_type: str) -> int:
    return int(INSTANCE_TYPES.get(instance_type, {}).get("VCpuInfo", {}).get("DefaultVCpus", 2))


class VcpuQuotas:
    def __init__(self, ledger: CapacityLedger) -> None:
        self._ledger = ledger
        self.limits: dict[Key, int] = {}

    def used(self, key: Key) -> int:
        quota = QUOTAS[key.code]
        scope = self._ledger.in_scope(key.account, key.region).values()
        own = (r for r in scope if r.owner_id == key.account and r.market in (ON_DEMAND, SPARE))
        return sum(
            vcpus_of(holder.instance_type) * count
            for holder, count in self._counted(key, own)
            if quota_of(holder.instance_type, holder.market) is quota
        )

    def _counted(
        self, key: Key, own: Iterable[Ec2Reservation]
    ) -> Iterable[tuple[Ec2Reservation | LaunchNeeds, int]]:
        """Each reservation with all its slots, each instance outside reservations with one."""
        for reservation in own:
            if reservation.state in COUNTED:
                yield reservation, max(reservation.total, reservation.used)
        for occupant in self._ledger.occupants.values():
            needs, where = occupant.needs, occupant.where
            if (
                (needs.account_id, needs.region) == (key.account, key.region)
                and where is not None
                and not isinstance(where, Ec2Reservation)
            ):
                yield needs, 1

    def left(self, account: str, region: str, instance_type: str, market: str) -> int | None:
        """The number of instances that a quota still allows; None without limit."""
        quota = quota_of(instance_type, market)
        key = Key(account, region, quota.code) if quota else None
        if key is None or key not in self.limits:
            return None
        return max(0, (self.limits[key] - self.used(key)) // vcpus_of(instance_type))

    def exceeded(self, needs: LaunchNeeds) -> Ec2Error:
        quota = quota_of(needs.instance_type, needs.market)
        assert quota is not None
        return _exceeded(quota, self.limits[Key(needs.account_id, needs.region, quota.code)])

    def check_reservation(self, reservation: Ec2Reservation, count: int, code: str) -> None:
        """Whether the owner may reserve so many more."""
        owner, kind = reservation.owner_id, reservation.instance_type
        left = self.left(owner, reservation.region, kind, ON_DEMAND)
        if left is not None and count > left:
            raise Ec2Error(
                code, f"Your quota allows {left} more {kind}, running or reserved; {count} were requested"
            )


def _exceeded(quota: VcpuQuota, limit: int) -> Ec2Error:
    if quota.market == SPOT:
        return Ec2Error("MaxSpotInstanceCountExceeded", f"Max spot instance count exceeded ({quota.name})")
    return Ec2Error(
        "VcpuLimitExceeded",
        f"You have requested more vCPU capacity than your current vCPU limit of {limit} allows for the "
        f"instance bucket that the specified instance type belongs to ({quota.name}, {quota.code}).",
    )
