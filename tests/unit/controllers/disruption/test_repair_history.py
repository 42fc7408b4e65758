"""The nodes of a pool that count as broken: those that are, and those that ended by repair lately."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import ConditionUpdate
from broker.controllers.disruption.repair_history import BrokenCount, broken_count, recent_repairs
from broker.controllers.disruption.snapshot import ManagedNode
from broker.kube.conditions import condition_body, set_conditions
from broker.placement.repair import Diagnosis, diagnose
from broker.placement.repair_policies import DEFAULT
from broker.text import format_time

NOW = datetime(2026, 11, 23, 3, 0, tzinfo=UTC)


def ago(minutes: float) -> str:
    return format_time(NOW - timedelta(minutes=minutes))


def pool(message: str = "") -> NodePool:
    update = ConditionUpdate(
        type=names.RECENT_REPAIRS, status="True", reason="RecentRepairs", message=message
    )
    conditions = [condition_body(item) for item in set_conditions((), update, now=NOW)] if message else []
    return NodePool.decode({"metadata": {"name": "web"}, "status": {"conditions": conditions}})


def claim(name: str, replaced: str = "", *, deleting: bool = False) -> NodeClaim:
    annotations = {names.REPLACES: f"{replaced}/uid-{replaced}"} if replaced else {}
    ending = {"deletionTimestamp": ago(1)} if deleting else {}
    metadata = {"name": name, "uid": f"uid-{name}", "annotations": annotations, **ending}
    initialized = {"type": names.INITIALIZED_CONDITION, "status": "True", "lastTransitionTime": ago(600)}
    return NodeClaim.decode({"metadata": metadata, "status": {"conditions": [initialized]}})


def managed(name: str, replaced: str = "", sign: str = "") -> ManagedNode:
    broken: dict[str, Any] = {"type": sign, "status": "False", "reason": "X", "lastTransitionTime": ago(5)}
    node = Node.decode({"metadata": {"name": name}, "status": {"conditions": [broken] if sign else []}})
    return ManagedNode(claim=claim(name, replaced), pool=pool(), node=node)


def diagnoses(nodes: list[ManagedNode]) -> dict[str, Diagnosis]:
    known = {item.claim.uid: diagnose(item.node, item.claim, DEFAULT, NOW) for item in nodes if item.node}
    return {uid: item for uid, item in known.items() if item is not None}


@pytest.mark.covers("FUL-21")
@pytest.mark.parametrize(
    ("message", "claims", "expected"),
    [
        ("", ["a"], set()),
        (f"2 nodes: NodeClaim a at {ago(59)}, NodeClaim b at {ago(61)}", [], {"a"}),
        (f"NodeClaim b at {ago(300)}", ["b-deleting"], {"b"}),  # while it is there
        (f"NodeClaim b at {ago(300)}", ["b"], set()),  # it did not end
        (f"NodeClaim b at noon, NodeClaim a at {ago(1)}", [], {"a"}),  # changed by hand
    ],
)
def test_repair_counts_while_its_node_is_there_and_for_an_hour(
    message: str, claims: list[str], expected: set[str]
) -> None:
    known = [claim(name.partition("-")[0], deleting=name.endswith("deleting")) for name in claims]
    assert {*recent_repairs(pool(message), known, NOW)} == expected


@pytest.mark.covers("FUL-21")
@pytest.mark.parametrize(
    ("nodes", "repaired", "expected"),
    [
        ([("a", "", "")], [], (0, 0, 1)),
        ([("a", "", "KernelReady"), ("b", "", "")], [], (1, 0, 2)),
        ([("b", "", "KernelReady")], ["a"], (1, 1, 2)),  # it ends, or is gone without a successor
        ([("b", "", "KernelReady"), ("c", "a", "")], ["a"], (1, 1, 2)),  # its successor is in its place
        ([("c", "a", "KernelReady")], ["a"], (1, 1, 1)),  # the successor broke as well
        ([("a", "", "KernelReady")], ["a"], (1, 0, 1)),  # once
    ],
)
def test_broken_and_recently_repaired_nodes_are_counted_once(
    nodes: list[tuple[str, str, str]], repaired: list[str], expected: tuple[int, int, int]
) -> None:
    known = [managed(*item) for item in nodes]
    broken, ended, total = expected
    assert broken_count(known, diagnoses(known), repaired) == BrokenCount(
        broken=broken, repaired=ended, nodes=total
    )
