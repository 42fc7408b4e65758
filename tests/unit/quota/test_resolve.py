"""The reservation that a name resolves to."""

from __future__ import annotations

import pytest

from broker.quota.resolve import ReservationNames, UnresolvedName
from broker.quota.usage import ReservationKey

KNOWN = (
    ReservationKey("", "pool"),
    ReservationKey("a", "pool"),
    ReservationKey("a", "gpu"),
    ReservationKey("b", "gpu"),
    ReservationKey("a", "alone"),
)


@pytest.mark.covers("OME-074")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a/gpu", ReservationKey("a", "gpu")),
        ("b/gpu", ReservationKey("b", "gpu")),
        ("a/pool", ReservationKey("a", "pool")),
        ("pool", ReservationKey("", "pool")),  # the cluster's comes before a namespace's
        ("alone", ReservationKey("a", "alone")),
    ],
)
def test_name_resolves_to_one_reservation(given: str, expected: ReservationKey) -> None:
    assert ReservationNames(KNOWN).resolve(given) == expected


@pytest.mark.covers("OME-074")
@pytest.mark.parametrize(
    ("given", "reason", "text"),
    [
        ("gpu", "ReservationAmbiguous", "a/gpu or b/gpu"),
        ("c/gpu", "ReservationNotFound", "CapacityReservation gpu in namespace 'c'"),
        ("/pool", "ReservationNotFound", "in namespace ''"),
        ("other", "ReservationNotFound", "named other: make it, or name another"),
        ("a/gpus", "ReservationNotFound", "gpus in namespace 'a': write a/gpu if that is meant"),
        ("team-b/alone", "ReservationNotFound", "write a/alone if that is meant"),
        ("pol", "ReservationNotFound", "write pool if that is meant"),
        ("cpu", "ReservationNotFound", "named cpu: make it, or name another"),
        ("a/cpus", "ReservationNotFound", "cpus in namespace 'a': make it, or name another"),
        ("", "ReservationNotNamed", "write namespace/name"),
    ],
)
def test_unresolved_name_reports_the_reason(given: str, reason: str, text: str) -> None:
    resolution = ReservationNames(KNOWN).resolve(given)
    assert isinstance(resolution, UnresolvedName)
    assert resolution.reason == reason
    assert text in resolution.message
