"""The reservation that a name resolves to."""

from __future__ import annotations

import pytest

from broker.quota.resolve import UnresolvedName, resolve
from broker.quota.usage import Reserved

KNOWN = (
    Reserved("", "pool"),
    Reserved("a", "pool"),
    Reserved("a", "gpu"),
    Reserved("b", "gpu"),
    Reserved("a", "alone"),
)


@pytest.mark.covers("OME-074")
@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("a/gpu", Reserved("a", "gpu")),
        ("b/gpu", Reserved("b", "gpu")),
        ("a/pool", Reserved("a", "pool")),
        ("pool", Reserved("", "pool")),  # the cluster's comes before a namespace's
        ("alone", Reserved("a", "alone")),
    ],
)
def test_a_name_means_one_reservation(given: str, found: Reserved) -> None:
    assert resolve(given, KNOWN) == found


@pytest.mark.covers("OME-074")
@pytest.mark.parametrize(
    ("given", "reason", "says"),
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
def test_unresolved_name_reports_the_reason(given: str, reason: str, says: str) -> None:
    found = resolve(given, KNOWN)
    assert isinstance(found, UnresolvedName)
    assert found.reason == reason
    assert says in found.message
