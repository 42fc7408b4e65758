"""Quota and limits of a flavor, counted in instances.

Invariant: a quota is as many slots as it buys instances (`sizing`). A limit is as many slots as it holds
whole instances, by the resource that decides the quota. So no part of an instance is borrowed beyond a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from broker.reservations.desired import FlavorDemand
from broker.reservations.sizing import size, supply
from providers.model import InstanceType


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotQuota:
    """The slot quota of one flavor; a limit that is None does not limit."""

    quota: int
    borrowing_limit: int | None = None
    lending_limit: int | None = None


def slot_quota(
    demand: FlavorDemand,
    types: Mapping[str, InstanceType],
    *,
    borrowing: Mapping[str, float | None],
    lending: Mapping[str, float | None],
) -> SlotQuota:
    """A flavor's quota and limits, each limit by resource, in base units."""
    sized = size(demand.flavor, demand.nominal, types, sizing=demand.sizing)
    by = sized.by
    if not by:  # no quota of its own: the borrowing limit decides
        given = {name: amount for name, amount in borrowing.items() if amount}
        by = size(demand.flavor, given, types, sizing=demand.sizing).by
    per_instance = supply(types[demand.flavor.instance_types[0]]).get(by, 0.0)
    return SlotQuota(
        quota=sized.count,
        borrowing_limit=_whole(borrowing.get(by), per_instance) if by else _unlimited(borrowing),
        lending_limit=_whole(lending.get(by), per_instance),
    )


def _whole(limit: float | None, per_instance: float) -> int | None:
    if limit is None:
        return None
    return int(Fraction(limit) / Fraction(per_instance)) if per_instance else 0


def _unlimited(limits: Mapping[str, float | None]) -> int | None:
    """The limit of a flavor without quota and without a limit above 0: 0; None if all are unlimited."""
    return None if limits and all(limit is None for limit in limits.values()) else 0
