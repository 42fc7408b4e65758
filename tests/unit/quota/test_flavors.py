"""Which flavors a pod set may run in."""

from __future__ import annotations

import pytest

from broker.quota.flavors import Expression, Flavor, PodSet, Taint, Toleration, misfit

SPOT = Taint(key="instance", value="spot")
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
    assert misfit(PodSet(tolerations=(toleration,)), flavor) == (
        "" if fits else "untolerated taint instance=spot:NoSchedule in flavor f"
    )
    assert misfit(PodSet(), Flavor(name="f", taints=(SPOT,), tolerations=(toleration,))) == misfit(
        PodSet(tolerations=(toleration,)), flavor
    )


@pytest.mark.parametrize(
    ("operator", "value", "fits"),
    [("Gt", "4", True), ("Gt", "5", False), ("Lt", "6", True), ("Lt", "5", False), ("Lt", "few", False)],
)
def test_a_taint_of_a_number_is_compared_with_the_toleration_s(operator: str, value: str, fits: bool) -> None:
    flavor = Flavor(name="f", taints=(Taint(key="failures", value="5"),))
    toleration = Toleration(key="failures", operator=operator, value=value)
    assert (misfit(PodSet(tolerations=(toleration,)), flavor) == "") is fits


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_hard_taint_keeps_out_who_does_not_tolerate_it(effect: str) -> None:
    assert misfit(PodSet(), Flavor(name="f", taints=(Taint(key="k", effect=effect),)))


def test_a_taint_that_only_prefers_keeps_nobody_out() -> None:
    assert misfit(PodSet(), Flavor(name="f", taints=(Taint(key="k", effect="PreferNoSchedule"),))) == ""


@pytest.mark.parametrize(
    ("selector", "fits"),
    [({"type": "one"}, True), ({"type": "two"}, False), ({"unknown": "x"}, True), ({}, True)],
)
def test_a_selector_speaks_only_of_the_flavor_s_own_labels(selector: dict[str, str], fits: bool) -> None:
    assert (misfit(PodSet(selector=selector), Flavor(name="f", labels=LABELS)) == "") is fits


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
        # Of terms any will do; one that says nothing of the flavor's labels does.
        ([[Expression("type", "In", ("two",))], [Expression("size", "In", ("8",))]], True),
        ([[Expression("type", "In", ("two",))], [Expression("zone", "In", ("a",))]], True),
        ([[Expression("type", "In", ("two",)), Expression("zone", "In", ("a",))]], False),
    ],
)
def test_required_affinity(terms: list[list[Expression]], fits: bool) -> None:
    pods = PodSet(affinity=tuple(tuple(term) for term in terms))
    assert (misfit(pods, Flavor(name="f", labels=LABELS)) == "") is fits


def test_an_unknown_operator_is_named() -> None:
    with pytest.raises(ValueError, match="node affinity type: operator Near is unknown; use In, NotIn"):
        misfit(PodSet(affinity=((Expression("type", "Near"),),)), Flavor(name="f", labels=LABELS))
