"""Claims that count in the limits of their NodePool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.provisioning.usage import NODES, pool_limits, pool_usage

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [names.TERMINATION_FINALIZER]}
TERMINATES = [{"type": names.INSTANCE_TERMINATING, "status": "True", "reason": "InstanceTerminating"}]
POOL = NodePool.decode(
    {
        "metadata": {"name": "web"},
        "spec": {
            "limits": {"cpu": "8", "nodes": "3"},
            "template": {"spec": {"nodeClassRef": {"name": "web"}}},
        },
    }
)


def claim(metadata: Json, status: Json) -> NodeClaim:
    return NodeClaim.decode(
        {
            "metadata": {"name": "c", "labels": {names.NODEPOOL: "web"}, **metadata},
            "spec": {"resources": {"requests": {"cpu": "2"}}},
            "status": status,
        }
    )


def largest(_: NodeClaim) -> Mapping[str, int]:
    return {"cpu": 4000}


RUNS = {"providerID": "aws:///us-east-1a/i-1", "capacity": {"cpu": "4"}}


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(
    ("metadata", "status", "nodes"),
    [
        ({}, RUNS, 1),
        (DELETED, RUNS, 0),
        ({}, {**RUNS, "conditions": TERMINATES}, 0),
        ({"labels": {names.NODEPOOL: "other"}}, RUNS, 0),
        ({"labels": {}}, RUNS, 0),
    ],
)
def test_claim_that_ends_leaves_its_share_of_the_limits(metadata: Json, status: Json, nodes: int) -> None:
    """As in Karpenter: the successor of a node that ends is not refused for it."""
    counted = claim(metadata, status)
    limits = pool_limits([POOL], [counted], [], largest)["web"]
    assert (limits["cpu"], limits[NODES]) == (8000 - 4000 * nodes, 3 - nodes)
    assert pool_usage([counted], []).get("web", Counter())[NODES] == nodes


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(("metadata", "nodes"), [({}, 1), (DELETED, 0)])
def test_claim_without_an_instance_counts_until_it_is_deleted(metadata: Json, nodes: int) -> None:
    assert pool_limits([POOL], [claim(metadata, {})], [], largest)["web"][NODES] == 3 - nodes


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(
    ("initialized", "reported", "expected"),
    [
        (False, {"cpu": "4"}, 8),
        (False, {"cpu": "4", GPU: "0"}, 8),  # the device plugin has not counted them yet
        (True, {"cpu": "4", GPU: "7"}, 7),  # one of them is broken
    ],
)
def test_gpus_that_a_new_node_does_not_report_yet_count(
    initialized: bool, reported: Json, expected: int
) -> None:
    """Otherwise the pool would get machines beyond its limit while nodes start."""
    conditions = [{"type": names.INITIALIZED_CONDITION, "status": str(initialized), "reason": "x"}]
    runs = {**RUNS, "capacity": {"cpu": "4", GPU: "8"}, "conditions": conditions}
    node = Node.decode(
        {
            "metadata": {"name": "n"},
            "spec": {"providerID": RUNS["providerID"]},
            "status": {"capacity": reported},
        }
    )
    assert pool_usage([claim({}, runs)], [node])["web"][GPU] == expected
