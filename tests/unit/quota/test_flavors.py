"""The flavors that a pod set may run in."""

from __future__ import annotations

import pytest

from broker.apis.core import Taint, Toleration
from broker.quota.flavors import Expression, Flavor, FlavorRequest, misfit

SPOT = Taint(key="instance", value="spot", effect="NoSchedule")
LABELS = {"type": "one", "size": "8"}


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        (Toleration(key="instance", value="spot", effect="NoSchedule"), True),
        (Toleration(key="instance", value="spot"), True),
        (Toleration(key="instance", operator="Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration(key="instance", value="other"), False),
        (Toleration(key="instance", value="spot", effect="NoExecute"), False),
        (Toleration(value="spot"), True),
        (Toleration(value="other"), False),
        (Toleration(key="other", value="spot"), False),
        (Toleration(), False),
    ],
)
def test_taints_are_tolerated_as_the_scheduler_tolerates_them(toleration: Toleration, fits: bool) -> None:
    flavor = Flavor(name="f", taints=(SPOT,))
    assert misfit(FlavorRequest(tolerations=(toleration,)), flavor) == (
        "" if fits else "untolerated taint instance=spot:NoSchedule in flavor f"
    )
    assert misfit(FlavorRequest(), Flavor(name="f", taints=(SPOT,), tolerations=(toleration,))) == misfit(
        FlavorRequest(tolerations=(toleration,)), flavor
    )


@pytest.mark.parametrize(
    ("operator", "value", "fits"),
    [("Gt", "4", True), ("Gt", "5", False), ("Lt", "6", True), ("Lt", "5", False), ("Lt", "few", False)],
)
def test_a_taint_of_a_number_is_compared_with_the_toleration_s(operator: str, value: str, fits: bool) -> None:
    flavor = Flavor(name="f", taints=(Taint(key="failures", value="5", effect="NoSchedule"),))
    toleration = Toleration(key="failures", operator=operator, value=value)
    assert (misfit(FlavorRequest(tolerations=(toleration,)), flavor) == "") is fits


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_hard_taint_excludes_pods_without_a_toleration(effect: str) -> None:
    assert misfit(FlavorRequest(), Flavor(name="f", taints=(Taint(key="k", effect=effect),)))


def test_prefer_no_schedule_taint_excludes_no_pod() -> None:
    assert (
        misfit(FlavorRequest(), Flavor(name="f", taints=(Taint(key="k", effect="PreferNoSchedule"),))) == ""
    )


@pytest.mark.parametrize(
    ("selector", "fits"),
    [({"type": "one"}, True), ({"type": "two"}, False), ({"unknown": "x"}, True), ({}, True)],
)
def test_selector_applies_only_to_the_flavors_own_labels(selector: dict[str, str], fits: bool) -> None:
    assert (misfit(FlavorRequest(selector=selector), Flavor(name="f", labels=LABELS)) == "") is fits


@pytest.mark.parametrize(
    ("terms", "fits"),
    [
        ([[Expression("type", "In", ("one", "two"))]], True),
        ([[Expression("type", "NotIn", ("one",))]], False),
        ([[Expression("type", "Exists")]], True),
        ([[Expression("type", "DoesNotExist")]], False),
        ([[Expression("size", "Gt", ("7",))]], True),
        ([[Expression("size", "Lt", ("7",))]], False),
        ([[Expression("size", "Gt", ("8",))]], False),
        ([[Expression("size", "Lt", ("8",))]], False),
        ([[Expression("size", "Gt", ("many",))]], False),
        # One term suffices; a term without the flavor's labels matches.
        ([[Expression("type", "In", ("two",))], [Expression("size", "In", ("8",))]], True),
        ([[Expression("type", "In", ("two",))], [Expression("zone", "In", ("a",))]], True),
        ([[Expression("type", "In", ("two",)), Expression("zone", "In", ("a",))]], False),
    ],
)
def test_required_affinity(terms: list[list[Expression]], fits: bool) -> None:
    pods = FlavorRequest(affinity=tuple(tuple(term) for term in terms))
    assert (misfit(pods, Flavor(name="f", labels=LABELS)) == "") is fits


def test_an_unknown_operator_is_named() -> None:
    with pytest.raises(ValueError, match="node affinity type: operator Near is unknown; use In, NotIn"):
        misfit(FlavorRequest(affinity=((Expression("type", "Near"),),)), Flavor(name="f", labels=LABELS))
