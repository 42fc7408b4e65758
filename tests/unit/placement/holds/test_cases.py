"""Koordinator's own tables of filter arithmetic and owners, as data."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.koordinator import ReservationOwnerController, ReservationOwnerObject
from broker.apis.meta import OwnerReference
from broker.placement.holds import HoldOwner, HoldState
from broker.placement.holds_fit import NodeRoom, lacks
from broker.placement.holds_match import OwnerMatcher, OwnerTest
from broker.placement.selectors import equal
from tests.cases import Case, cases
from tests.unit.placement.holds.builders import hold, request

GI = 2**30
NAMES = {"mem": "memory", "batch-cpu": "kubernetes.io/batch-cpu", "batch-mem": "kubernetes.io/batch-memory"}
UNITS = {"cpu": 1000, "mem": GI, "batch-mem": GI}
NODE = {"cpu": 32, "mem": 32, "batch-cpu": 7500, "batch-mem": 10, "pods": 110}


def amounts(row: Case | None) -> dict[str, int]:
    return {NAMES.get(name, name): value * UNITS.get(name, 1) for name, value in (row or {}).items()}


def less(amounts_: dict[str, int], gone: dict[str, int]) -> dict[str, int]:
    return {name: max(0, amount - gone.get(name, 0)) for name, amount in amounts_.items()}


def reservation(row: Case, gone: dict[str, int]) -> HoldState:
    """`gone`: what its evicted owners give back."""
    amount = amounts(row["a"])
    kept = hold(
        amount=amount,
        restricted=frozenset(amount) if row["p"] == "Restricted" else frozenset(),
        inner=amounts(row.get("inner")),
    )
    owners = row.get("npods", 1 if row.get("used") else 0) - gone.get("pods", 0)
    uids = [f"owner-{number}" for number in range(owners)]
    used = less(amounts(row.get("used")), gone)
    # The table has sums only: the first owner requests all.
    return HoldState(kept, {uid: HoldOwner(uid, used if uid == uids[0] else {}) for uid in uids})


def rejections(row: Case) -> list[str]:
    """The table's `requested` counts the room of owners twice, and `rAlloc` is that room. Pods that would be
    evicted are gone, as in the scheduler's own trial.
    """
    requested = less(amounts(row["requested"]), amounts(row["rAlloc"]))
    room = NodeRoom(capacity=amounts(NODE), occupied=less(requested, amounts(row.get("preN"))))
    (kept,) = row["R"]
    state = reservation(kept, amounts(row.get("preR")))
    reasons = lacks(amounts(row["pod"]), state, room, detailed=bool(row.get("named")))
    return [*reasons]


@pytest.mark.parametrize("row", cases("koordinator", "filter"), ids=lambda row: row["id"])
def test_a_pod_fits_through_a_reservation_as_in_koordinator(row: Case) -> None:
    assert rejections(row) == ([] if row["want"] == "ok" else row["want"])


def owner_test(item: dict[str, Any]) -> OwnerTest:
    object_, controller = item.get("object"), item.get("controller")
    return OwnerTest(
        object=object_
        and ReservationOwnerObject(name=object_.get("name", ""), namespace=object_.get("ns", "")),
        controller=controller
        and ReservationOwnerController(
            name=controller.get("name", ""),
            namespace=controller.get("ns", ""),
            controller=controller.get("controller"),
        ),
        labels=equal(item.get("labels", {})),
    )


@pytest.mark.parametrize("row", cases("koordinator", "owners"), ids=lambda row: row["id"])
def test_owners_match_as_in_koordinator(row: Case) -> None:
    pod = row["pod"]
    candidate = request(
        pod.get("name", ""),
        namespace=pod.get("ns", ""),
        labels=pod.get("labels", {}),
        controllers=tuple(
            OwnerReference(
                api_version=ref.get("apiVersion", ""),
                kind=ref["kind"],
                name=ref["name"],
                controller=ref["controller"],
            )
            for ref in pod.get("refs", ())
        ),
    )
    matcher = OwnerMatcher(tuple(map(owner_test, row["owners"] or ())))
    assert matcher.matches(candidate) == row["want"]
