"""NodeName and NodeAffinity."""

from __future__ import annotations

from typing import Any

import pytest

from broker.placement.filters import fits
from broker.placement.message import message
from tests.unit.placement.builders import node, node_affinity, on_one, pod, world

REJECTED = ["node(s) didn't match Pod's node affinity/selector"]
LABELS = {"disk": "ssd", "gen": "5", "odd": "five"}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("requirement", "matches"),
    [
        (expression("disk", "In", "hdd", "ssd"), True),
        (expression("disk", "In", "hdd"), False),
        (expression("none", "In", "x"), False),
        (expression("disk", "NotIn", "ssd"), False),
        (expression("none", "NotIn", "x"), True),
        (expression("disk", "Exists"), True),
        (expression("none", "Exists"), False),
        (expression("disk", "DoesNotExist"), False),
        (expression("none", "DoesNotExist"), True),
        (expression("gen", "Gt", "4"), True),
        (expression("gen", "Gt", "5"), False),
        (expression("gen", "Gt", "-6"), True),
        (expression("gen", "Lt", "6"), True),
        (expression("gen", "Lt", "5"), False),
        (expression("none", "Lt", "5"), False),
        (expression("odd", "Gt", "1"), False),
        # A value that cannot be parsed matches no node.
        (expression("gen", "Gt", "four"), False),
        (expression("gen", "Gt", "1", "2"), False),
        (expression("disk", "In"), False),
        (expression("disk", "Exists", "ssd"), False),
        (expression("disk", "Like", "ssd"), False),
    ],
)
def test_operator_decides_on_the_label(requirement: dict[str, Any], matches: bool) -> None:
    candidate = pod(affinity=node_affinity({"matchExpressions": [requirement]}))
    assert on_one(candidate, node(labels=LABELS)) == ([] if matches else REJECTED)


@pytest.mark.parametrize(
    ("terms", "matches"),
    [
        ([], False),
        ([{}], False),
        ([{}, {"matchExpressions": [expression("disk", "Exists")]}], True),
        (
            [
                {"matchExpressions": [expression("disk", "In", "hdd")]},
                {"matchExpressions": [expression("gen", "Exists")]},
            ],
            True,
        ),
        ([{"matchExpressions": [expression("disk", "In", "hdd"), expression("gen", "Exists")]}], False),
        (
            [
                {"matchExpressions": [expression("x", "Like")]},
                {"matchExpressions": [expression("gen", "Exists")]},
            ],
            True,
        ),
        ([{"matchFields": [expression("metadata.name", "In", "n")]}], True),
        ([{"matchFields": [expression("metadata.name", "NotIn", "n")]}], False),
        ([{"matchFields": [expression("metadata.name", "NotIn", "m")]}], True),
        ([{"matchFields": [expression("metadata.uid", "NotIn", "m")]}], True),
        ([{"matchFields": [expression("metadata.name", "In", "n", "m")]}], False),
        (
            [
                {
                    "matchFields": [expression("metadata.name", "In", "n")],
                    "matchExpressions": [expression("disk", "In", "hdd")],
                }
            ],
            False,
        ),
    ],
)
def test_one_term_has_to_match_as_a_whole(terms: list[dict[str, Any]], matches: bool) -> None:
    assert on_one(pod(affinity=node_affinity(*terms)), node(labels=LABELS)) == ([] if matches else REJECTED)


def test_node_selector_and_affinity_both_have_to_match() -> None:
    affinity = node_affinity({"matchExpressions": [expression("gen", "Exists")]})
    assert on_one(pod(nodeSelector={"disk": "ssd"}, affinity=affinity), node(labels=LABELS)) == []
    assert on_one(pod(nodeSelector={"disk": "hdd"}, affinity=affinity), node(labels=LABELS)) == REJECTED
    assert on_one(pod(nodeSelector={"disk": "ssd", "none": ""}), node(labels=LABELS)) == REJECTED


def test_nodes_that_affinity_does_not_name_are_not_checked() -> None:
    cluster = world([node("a"), node("b", unschedulable=True), node("c")])
    named = pod(affinity=node_affinity({"matchFields": [expression("metadata.name", "In", "b")]}))
    assert message(fits(named, cluster)) == (
        "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't satisfy plugin(s) "
        "[NodeAffinity]."
    )


def test_terms_that_name_different_nodes_conflict() -> None:
    fields = [expression("metadata.name", "In", "a"), expression("metadata.name", "In", "b")]
    outcome = fits(pod(affinity=node_affinity({"matchFields": fields})), world([node("a"), node("b")]))
    assert outcome.nodes == ()
    assert message(outcome) == "0/2 nodes are available: pod affinity terms conflict."


def test_pod_that_names_its_node_fits_no_other() -> None:
    assert fits(pod(on="b"), world([node("a"), node("b")])).nodes == ("b",)
    assert on_one(pod(on="b"), node("a")) == ["node(s) didn't match the requested node name"]
