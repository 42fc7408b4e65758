"""The conditions and stamps of claims that may drift."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.disruption.conditions import changes, consolidatable, stamps
from broker.controllers.disruption.snapshot import ManagedNode

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def managed(*conditions: str, after: str = "30s", **status: Any) -> ManagedNode:
    """A claim with these conditions that are true, in a pool that waits `after` for new pods."""
    spec = {
        "template": {"spec": {"nodeClassRef": {"name": "web"}}},
        "disruption": {"consolidateAfter": after},
    }
    written = [
        {"type": type_, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for type_ in conditions
    ]
    status["conditions"] = written
    return ManagedNode(
        claim=NodeClaim.decode({"metadata": {"name": "c-0"}, "spec": {}, "status": status}),
        pool=NodePool.decode({"metadata": {"name": "web"}, "spec": spec}),
    )


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(
    ("conditions", "cleared"),
    [
        # Nothing says that the node agrees with a class that cannot be read now.
        ((names.LAUNCHED, names.DRIFTED), False),
        ((names.DRIFTED,), True),
    ],
)
def test_drift_of_an_instance_stays_while_its_class_is_not_known(
    conditions: tuple[str, ...], cleared: bool
) -> None:
    _, clear = changes(managed(*conditions), None, None, None, quiet=False, now=NOW)
    assert (names.DRIFTED in clear) is cleared


@pytest.mark.covers("FLT-70")
def test_claim_that_drifted_gets_no_hash_that_would_hide_it() -> None:
    launched: dict[str, Any] = {"providerID": "aws:///us-east-1a/i-1"}
    assert names.NODEPOOL_HASH in stamps(managed(names.LAUNCHED, **launched), None)
    assert stamps(managed(names.LAUNCHED, names.DRIFTED, **launched), None) == {}


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(
    ("last", "quiet", "due"),
    [
        (None, True, None),
        (-60, True, None),
        (-30, True, None),
        # A pod came or went since the node was initialized: the wait begins anew.
        (-10, False, 20),
    ],
)
def test_node_is_consolidatable_once_no_pod_came_or_went_for_so_long(
    last: int | None, quiet: bool, due: int | None
) -> None:
    node, now = managed(names.INITIALIZED_CONDITION), NOW + timedelta(seconds=60)
    event = now + timedelta(seconds=last) if last is not None else None
    expected = now + timedelta(seconds=due) if due is not None else None
    assert consolidatable(node, event, now) == (quiet, expected)
    assert consolidatable(managed(names.INITIALIZED_CONDITION, after="Never"), event, now) == (False, None)
