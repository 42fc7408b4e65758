"""NodeUnschedulable and TaintToleration."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.placement.builders import node, on_one, pod

REJECTED = ["node(s) had untolerated taint(s)"]
TAINT = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}, True),
        ({"key": "dedicated", "value": "ml"}, True),
        ({"key": "dedicated", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "dedicated", "value": "web"}, False),
        ({"key": "dedicated", "value": "ml", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "dedicated", "operator": "Gt", "value": "1"}, False),
        ({"key": "", "operator": "Equal", "value": "ml"}, True),
    ],
)
def test_toleration_matches_key_value_and_effect(toleration: dict[str, str], tolerated: bool) -> None:
    assert on_one(pod(tolerations=[toleration]), node(taints=[TAINT])) == ([] if tolerated else REJECTED)


@pytest.mark.parametrize(("operator", "value", "tolerated"), [("Gt", "90", True), ("Lt", "90", False)])
def test_toleration_compares_numbers(operator: str, value: str, tolerated: bool) -> None:
    """Gt: the taint's number is larger (KEP-5471)."""
    toleration = {"key": "sla", "operator": operator, "value": value}
    taint = {"key": "sla", "value": "95", "effect": "NoSchedule"}
    assert on_one(pod(tolerations=[toleration]), node(taints=[taint])) == ([] if tolerated else REJECTED)


@pytest.mark.parametrize(
    ("effect", "rejects"), [("NoSchedule", True), ("NoExecute", True), ("PreferNoSchedule", False)]
)
def test_only_hard_taints_reject_pods(effect: str, rejects: bool) -> None:
    assert bool(on_one(pod(), node(taints=[{"key": "k", "effect": effect}]))) == rejects


def test_every_taint_needs_a_toleration() -> None:
    two = node(taints=[TAINT, {"key": "gpu", "effect": "NoExecute"}])
    ml = {"key": "dedicated", "operator": "Exists"}
    assert on_one(pod(tolerations=[ml]), two) == REJECTED
    assert on_one(pod(tolerations=[ml, {"key": "gpu", "operator": "Exists"}]), two) == []


@pytest.mark.parametrize(
    ("tolerations", "messages"),
    [
        ([], ["node(s) were unschedulable"]),
        ([{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}], []),
        ([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}], []),
        (
            [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoExecute"}],
            ["node(s) were unschedulable"],
        ),
    ],
)
def test_cordoned_node_rejects_pods_without_the_toleration(tolerations: Any, messages: list[str]) -> None:
    assert on_one(pod(tolerations=tolerations), node(unschedulable=True)) == messages
