"""Limits of NodePools, as replacements meet them."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.disruption.machines import MachineFinder
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.kube.cache import Cache

NOW = datetime(2026, 11, 23, tzinfo=UTC)
POOL = NodePool.decode(
    {
        "metadata": {"name": "web"},
        "spec": {"limits": {"nodes": "1"}, "template": {"spec": {"nodeClassRef": {"name": "web"}}}},
    }
)


@pytest.mark.covers("FLT-61")
@pytest.mark.parametrize("ends", [True, False])
def test_node_that_ends_already_leaves_no_room_within_limits_once_more(ends: bool) -> None:
    """A claim that ends counts no more, so another one may have its room by now."""
    claims = Cache(NodeClaim)
    leaving = {"deletionTimestamp": NOW.isoformat(), "finalizers": ["example.com/kept"]} if ends else {}
    for name in ("old", "other") if ends else ("old",):
        meta = {"name": name, "uid": name, "resourceVersion": "1", "labels": {names.NODEPOOL: "web"}}
        more = leaving if name == "old" else {}
        claims.apply("ADDED", {"metadata": {**meta, **more}})
    old = claims.get("old")
    assert old is not None
    caches: Any = SimpleNamespace(claims=claims, nodes=Cache(Node))
    sources: Any = SimpleNamespace(nodeclasses=SimpleNamespace(plan=lambda _: None))
    finder = MachineFinder(
        caches=caches,
        sources=sources,
        snapshot=DisruptionSnapshot(now=NOW, pools={"web": POOL}),
        observed=SimpleNamespace(types={}),  # type: ignore[arg-type]
    )
    assert bool(finder.over_limits([ManagedNode(claim=old, pool=POOL)])) is ends
