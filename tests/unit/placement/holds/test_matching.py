"""The holds that a pod may take: owners, affinity, taints, closure, exact requests, index."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.koordinator import ReservationOwnerObject
from broker.placement.holds import Consumption
from broker.placement.holds_match import (
    HoldAffinity,
    IndexMatcher,
    OwnerMatcher,
    OwnerTest,
)
from broker.placement.model import NodeTaint, NodeTerm, PodToleration
from broker.placement.selectors import equal
from tests.unit.placement.holds.builders import APP, hold, ledger, names, owner, request

TAINT = NodeTaint("team", "a", "NoSchedule")
TOLERATION = PodToleration("team", "Equal", "a", "NoSchedule")
CORDON = PodToleration("node.kubernetes.io/unschedulable", "Exists", "", "NoSchedule")
CPU = {"cpu": 1}


@pytest.mark.parametrize(
    ("items", "matches"),
    [
        ((), False),
        ((OwnerTest(),), True),
        ((APP,), True),
        ((OwnerTest(object=ReservationOwnerObject(name="p"), labels=equal({"app": "other"})),), False),
        ((OwnerTest(object=ReservationOwnerObject(name="q")), APP), True),
        ((OwnerTest(object=ReservationOwnerObject(namespace="other", name="p")),), False),
        ((OwnerTest(object=ReservationOwnerObject(uid="uid-p")),), True),
    ],
)
def test_owners_are_an_or_of_ands(items: tuple[OwnerTest, ...], matches: bool) -> None:
    holds = ledger(hold(cpu=2, matcher=OwnerMatcher(items)))
    assert names(holds.matching(request(requests=CPU))) == (["r"] if matches else [])


@pytest.mark.parametrize(
    ("affinity", "kept", "matches"),
    [
        (None, {}, True),
        (None, {"unschedulable": True}, False),
        (None, {"taints": (TAINT,)}, False),
        (HoldAffinity(tolerations=(TOLERATION,)), {"taints": (TAINT,)}, True),
        (HoldAffinity(tolerations=(CORDON,)), {"unschedulable": True}, True),
        (HoldAffinity(name="r"), {"taints": (TAINT,), "unschedulable": True}, True),
        (HoldAffinity(name="other"), {}, False),
        (HoldAffinity(selector=equal({"tier": "gold"})), {"labels": {"tier": "gold"}}, True),
        (HoldAffinity(selector=equal({"tier": "gold"})), {}, False),
        (HoldAffinity(terms=(NodeTerm(equal({"zone": "a"})),)), {"labels": {"zone": "a"}}, True),
        (HoldAffinity(terms=(NodeTerm(equal({"zone": "a"})),)), {"labels": {"zone": "b"}}, False),
    ],
)
def test_closure_taints_and_affinity(affinity: HoldAffinity | None, kept: Any, matches: bool) -> None:
    holds = ledger(hold(cpu=2, **kept))
    assert names(holds.matching(request(requests=CPU, affinity=affinity))) == (["r"] if matches else [])


def test_tolerations_of_the_pod_itself_do_not_count() -> None:
    """Koordinator reads the tolerations of the affinity annotation only."""
    candidate = request(requests=CPU)
    object.__setattr__(candidate.pod, "tolerations", (TOLERATION,))
    assert not ledger(hold(cpu=2, taints=(TAINT,))).matching(candidate)


@pytest.mark.parametrize(
    ("requests", "exact", "matches"),
    [
        ({"cpu": 2, "memory": 3}, ("cpu", "memory"), True),
        ({"cpu": 1, "memory": 3}, ("cpu",), False),
        ({"cpu": 2, "memory": 1}, ("cpu",), True),
        # The first name is absent on both sides; the comparison goes on.
        ({"cpu": 2, "memory": 1}, ("gpu", "memory"), False),
    ],
)
def test_exact_requests(requests: dict[str, int], exact: tuple[str, ...], matches: bool) -> None:
    holds = ledger(hold(amount={"cpu": 2, "memory": 3}))
    assert bool(holds.matching(request(requests=requests, exact=exact))) is matches


def test_a_pod_without_affinity_passes_holds_of_other_resources() -> None:
    holds = ledger(hold(amount={"memory": 3}))
    assert not holds.matching(request(requests=CPU))
    assert holds.matching(request(requests=CPU, affinity=HoldAffinity()))


@pytest.mark.parametrize(
    ("namespace", "index", "matches"),
    [("default", "web", True), ("other", "web", False), ("default", "db", False), ("default", "", False)],
)
def test_an_index_matches_in_its_namespace(namespace: str, index: str, matches: bool) -> None:
    kept = hold(cpu=2, matcher=IndexMatcher("default", "web"), consumption=Consumption.WHOLE)
    assert bool(ledger(kept).matching(request(namespace=namespace, index=index, labels={}))) is matches


def test_a_taken_hold_is_closed_unless_it_is_shared() -> None:
    holds = ledger(hold("once", cpu=2), hold("shared", cpu=2, consumption=Consumption.SHARED))
    for name in ("once", "shared"):
        holds = holds.assume(f"id-{name}", owner("first", assumed=True, cpu=1))
    assert names(holds.matching(request(requests=CPU))) == ["shared"]
