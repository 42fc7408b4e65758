"""ResourceQuotas over reservations: the counted amounts, the order of room, and the refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.core import ResourceQuota
from broker.apis.ome import CapacityReservation
from broker.apis.ome_quotas import amounts, bounds, growth, over_quota
from broker.apis.units import units

GPU, MEMORY = "nvidia.com/gpu", "memory"
PAGE = {
    "ome.io/capacity-reservations": "5",
    "nvidia.com/gpu": "128",
    "requests.memory": "32Ti",
    "requests.cpu": "2048",
}


def quota(namespace: str = "team", name: str = "quota", **more: Any) -> ResourceQuota:
    spec = {"hard": more.pop("hard", PAGE), **more}
    return ResourceQuota.decode({"metadata": {"name": name, "namespace": namespace}, "spec": spec})


def reserved(name: str, *, day: int = 1, namespace: str = "team", **amounts_: Any) -> CapacityReservation:
    """`gpu`, `memory` and `cpu` of one flavor."""
    named = {GPU if key == "gpu" else key: value for key, value in amounts_.items()}
    flavors = [{"name": "h100", "resources": [{"name": n, "nominalQuota": v} for n, v in named.items()]}]
    created = f"2026-01-{day:02}T00:00:00Z"
    return CapacityReservation.decode(
        {
            "metadata": {"name": name, "namespace": namespace, "creationTimestamp": created},
            "spec": {"resourceGroups": [{"coveredResources": [*named], "flavors": flavors}]},
        }
    )


@pytest.mark.covers("OME-088")
def test_the_sixth_reservation_has_no_room() -> None:
    six = [reserved(f"r{n}", day=n, gpu=1) for n in range(1, 7)]
    (refusal,) = over_quota("team", reversed(six), [quota()]).items()
    assert refusal[0] == "r6"
    assert refusal[1][0].startswith(
        "ResourceQuota quota allows ome.io/capacity-reservations 5, of which 0 is free and 1 is requested: "
        "delete another reservation"
    )


@pytest.mark.covers("OME-089")
@pytest.mark.parametrize(
    ("hard", "requested", "message"),
    [
        ({"nvidia.com/gpu": "16"}, {"gpu": 17}, "nvidia.com/gpu 16, of which 16 is free and 17 is requested"),
        ({"requests.nvidia.com/gpu": "16"}, {"gpu": 17}, "requests.nvidia.com/gpu 16"),
        (
            {"requests.memory": "1Ti"},
            {"memory": "1025Gi"},
            "1Ti is free and 1025Gi is requested: reserve less",
        ),
        ({"requests.cpu": "2"}, {"cpu": "2001m"}, "2 is free and 2001m is requested"),
        ({"memory": "1Ti"}, {"memory": "2Ti"}, "memory 1Ti"),
        ({"nvidia.com/gpu": "16"}, {"gpu": 16}, ""),
        ({"requests.memory": "16Ti"}, {"memory": "16384Gi"}, ""),
        (
            {"limits.memory": "1Gi", "pods": "0", "count/capacityreservations.ome.io": "0"},
            {"memory": 2**40},
            "",
        ),
    ],
    ids=str,
)
def test_quota_bounds_a_reservation(hard: dict[str, str], requested: dict[str, Any], message: str) -> None:
    refusals = over_quota("team", [reserved("r", **requested)], [quota(hard=hard)])
    assert bool(refusals) == bool(message)
    assert message in " ".join(refusals.get("r", ()))


@pytest.mark.parametrize(
    "spec", [{"scopes": ["BestEffort"]}, {"scopeSelector": {"matchExpressions": []}}, {"namespace": "other"}]
)
def test_unrelated_quotas_have_no_effect(spec: dict[str, Any]) -> None:
    assert bounds("team", [quota(**spec)]) == ()
    assert over_quota("team", [reserved("r", gpu=1000)], [quota(**spec)]) == {}


def test_a_refused_reservation_uses_no_quota_of_later_ones() -> None:
    hard = {"nvidia.com/gpu": "16"}
    three = [reserved("a", day=1, gpu=8), reserved("b", day=2, gpu=16), reserved("c", day=3, gpu=8)]
    assert [*over_quota("team", three, [quota(hard=hard)])] == ["b"]


def test_the_namespace_s_flavors_are_added_up() -> None:
    spec = {
        "resourceGroups": [
            {
                "coveredResources": [GPU],
                "flavors": [
                    {"name": flavor, "resources": [{"name": GPU, "nominalQuota": 6}]} for flavor in ("a", "b")
                ],
            }
        ]
    }
    assert amounts(CapacityReservation.decode({"metadata": {"name": "r"}, "spec": spec}))[GPU] == 12


LIMITS = bounds("team", [quota(hard={"nvidia.com/gpu": "16", "ome.io/capacity-reservations": "2"})])


@pytest.mark.covers("OME-015", "OME-016")
@pytest.mark.parametrize(
    ("old", "new", "others", "count"),
    [
        (None, 8, (8,), 0),
        (None, 9, (8,), 1),
        (None, 1, (1, 1), 1),
        (None, 9, (8, 8), 2),
        # The quota was lowered below the present usage: only additions are refused.
        (12, 12, (8,), 0),
        (12, 10, (8,), 0),
        (12, 13, (8,), 1),
        (12, 13, (1, 1, 1), 0),
    ],
)
def test_only_growth_needs_room(old: int | None, new: int, others: tuple[int, ...], count: int) -> None:
    before = None if old is None else reserved("r", gpu=old)
    existing = [reserved(f"o{n}", gpu=gpu) for n, gpu in enumerate(others)]
    existing += [before] if before else []
    assert len(growth(before, reserved("r", gpu=new), existing, LIMITS)) == count


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 20), st.integers(0, 8))
def test_reservations_without_a_refusal_fit_together(requested: list[int], gpus: int, most: int) -> None:
    hard = {"nvidia.com/gpu": str(gpus), "ome.io/capacity-reservations": str(most)}
    all_ = [reserved(f"r{n}", day=n + 1, gpu=gpu) for n, gpu in enumerate(requested)]
    refusals = over_quota("team", all_, [quota(hard=hard)])
    fit = [reservation for reservation in all_ if reservation.name not in refusals]
    assert len(fit) <= most
    assert sum(amounts(reservation)[GPU] for reservation in fit) <= units(GPU, str(gpus))
    assert over_quota("team", fit, [quota(hard=hard)]) == {}
