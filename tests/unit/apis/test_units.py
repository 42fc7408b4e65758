"""Quantities in the units of quota."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.units import LARGEST_AMOUNT, base, units, whole, written
from broker.quota.model import UNLIMITED


@pytest.mark.covers("OME-006")
@pytest.mark.parametrize(
    ("resource", "text", "value"),
    [
        ("cpu", "512", 512000),
        ("cpu", "100m", 100),
        ("cpu", "0.57", 570),
        ("cpu", "1u", 1),  # part of a unit is a whole one
        ("memory", "16Ti", 16 << 40),
        ("memory", "16384Gi", 16 << 40),
        ("memory", "1.5Gi", 3 << 29),
        ("memory", "100m", 1),
        ("nvidia.com/gpu", "32", 32),
        ("nvidia.com/gpu", "1e2", 100),
        ("nvidia.com/gpu", "500m", 1),
        ("memory", "1Ki", 1024),
        ("memory", "1k", 1000),
        ("memory", "1E", 10**18),
        ("memory", "-1.5", -1),
        # No quantity of Kubernetes is more than 64 bits hold.
        ("memory", "8Ei", LARGEST_AMOUNT),
        ("cpu", "8E", LARGEST_AMOUNT),
        ("memory", "1e5000", LARGEST_AMOUNT),
        ("memory", "-1e99999999", -LARGEST_AMOUNT),
        ("memory", "1e-99999999", 1),
    ],
)
def test_amounts_are_whole_units(resource: str, text: str, value: int) -> None:
    assert units(resource, text) == value


@pytest.mark.parametrize("text", ["8 Ti", "", "Gi", "1e", "1e3Ki", "1e2.5", "1e99999999999999999999"])
def test_invalid_quantities_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"not a quantity: '{text}'; write a number with a suffix"):
        units("memory", text)


@pytest.mark.parametrize(
    ("resource", "value", "text"),
    [
        ("cpu", 512000, "512"),
        ("cpu", 1500, "1500m"),
        ("memory", 8 << 40, "8Ti"),
        ("memory", 14 << 40, "14Ti"),
        ("memory", (8 << 40) + 1, "8796093022209"),
        ("memory", 0, "0"),
        ("nvidia.com/gpu", 1024, "1024"),
        ("nvidia.com/gpu", UNLIMITED, str(LARGEST_AMOUNT)),
    ],
)
def test_amounts_are_written_with_readable_suffixes(resource: str, value: int, text: str) -> None:
    assert written(resource, value) == text


@given(st.sampled_from(("cpu", "memory", "nvidia.com/gpu", "hugepages-2Mi")), st.integers(0, 1 << 60))
def test_written_quantities_read_back_equal(resource: str, value: int) -> None:
    assert units(resource, written(resource, value)) == value


def test_amounts_in_base_units_are_whole_units_of_quota() -> None:
    assert whole({"cpu": 1.5, "memory": 2.9}) == {"cpu": 1500, "memory": 2}
    assert base({"cpu": 1500, "memory": 2}) == {"cpu": 1.5, "memory": 2.0}
