"""Limits of NodePools, as replacements meet them."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.capacity.inventory import Inventory
from broker.controllers.disruption.machines import MachineFinder
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.kube.cache import Cache
from providers.model import Odcr
from tests.support.caches import claim_caches

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


@pytest.mark.covers("FUL-02")
@pytest.mark.parametrize(
    ("launcher", "ends", "stays"),
    [(names.BROKER, False, True), (names.BROKER, True, False), (names.KARPENTER_AWS, False, False)],
    ids=["launched since the listing", "ends", "Karpenter's, which is never listed"],
)
def test_node_stays_while_ec2_may_count_a_new_instance_in_its_slot(
    launcher: str, ends: bool, stays: bool
) -> None:
    odcr = Odcr(id="cr-1", instance_type="m5.large", zone="us-east-1a", total=1, available=0)
    labels = {
        names.INSTANCE_TYPE: odcr.instance_type,
        names.ZONE: odcr.zone,
        names.CAPACITY_TYPE: "on-demand",
    }
    leaving = {"deletionTimestamp": NOW.isoformat(), "finalizers": ["example.com/kept"]} if ends else {}
    claims = Cache(NodeClaim)
    claims.apply(
        "ADDED",
        {
            "metadata": {"name": "low", "uid": "low", "resourceVersion": "1", "labels": labels, **leaving},
            "spec": {"nodeClassRef": {"group": launcher, "name": "web"}},
            "status": {"providerID": "aws:///us-east-1a/i-low"},
        },
    )
    caches = claim_caches(claims, owns=lambda claim: claim.spec.node_class_ref.group == names.BROKER)
    sources: Any = SimpleNamespace(instances=dict)
    observed: Any = SimpleNamespace(inventory=Inventory(odcrs={odcr.id: odcr}))
    finder = MachineFinder(
        caches=caches, sources=sources, snapshot=DisruptionSnapshot(now=NOW), observed=observed
    )
    vars(finder)["catalog"] = SimpleNamespace(refusal=lambda *_: None)
    node = ManagedNode(claim=NodeClaim.decode({"metadata": {"name": "old"}}), pool=POOL)
    own: Any = SimpleNamespace(way=SimpleNamespace(odcr_id=odcr.id, borrows=False))
    claim: Any = None
    assert ("i-low" in finder._no_successor(node, own, claim, ())) == stays
