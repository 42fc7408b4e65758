"""Quantities in the units of quota: whole numbers, cpu in milli, everything else in its base unit.

Invariant: amounts are rounded up: a fraction of a unit counts as a whole one, as in Kueue's
AmountFromQuantity (pkg/resources/amount.go) and resource.Quantity's Value and MilliValue. No amount
exceeds 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING
from functools import lru_cache
from typing import Final, TypeVar

from broker.text import SCALES, exact

K = TypeVar("K")

CPU: Final = "cpu"
LARGEST_AMOUNT: Final = 2**63 - 1
_BINARY: Final = tuple((suffix, int(SCALES[suffix])) for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"))
_SUFFIXED: Final = frozenset({"memory", "ephemeral-storage"})


@lru_cache(maxsize=4096)
def units(resource: str, text: str) -> int:
    """`512` cpu is 512000, `16Ti` of memory 17592186044416. Raises ValueError for an invalid quantity."""
    value = exact(text) * (1000 if resource == CPU else 1)
    return max(-LARGEST_AMOUNT, min(int(value.to_integral_value(ROUND_CEILING)), LARGEST_AMOUNT))


def units_or_zero(resource: str, text: str) -> int:
    """The same; 0 for an invalid quantity, where another check reports it."""
    try:
        return units(resource, text)
    except ValueError:
        return 0


def add(total: dict[K, int], more: Mapping[K, int]) -> None:
    """Adds the amounts to the total, name by name."""
    for key, value in more.items():
        total[key] = total.get(key, 0) + value


def whole(amounts: Mapping[str, float]) -> dict[str, int]:
    """Amounts in base units (cores, bytes, counts) as whole units of quota, rounded down."""
    return {name: int(value * 1000 if name == CPU else value) for name, value in amounts.items()}


def base(amounts: Mapping[str, int]) -> dict[str, float]:
    """Units of quota as amounts in base units."""
    return {name: value / 1000 if name == CPU else float(value) for name, value in amounts.items()}


def written(resource: str, value: int) -> str:
    """The usual notation: the shortest that is exactly this amount."""
    value = min(value, LARGEST_AMOUNT)  # an unlimited amount is written as the maximum
    if resource == CPU:
        return f"{value}m" if value % 1000 else str(value // 1000)
    if resource in _SUFFIXED or resource.startswith("hugepages-"):
        for suffix, size in _BINARY:
            if value and value % size == 0:
                return f"{value // size}{suffix}"
    return str(value)


def kept(old: str, resource: str, value: int) -> str:
    """The amount as it was written before, if it is the same."""
    return old if old and units(resource, old) == value else written(resource, value)
