"""The value of a node: the price that `explain` shows; in a Local Zone, that of the Region."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.disruption.prices import NodeValues
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.placement.node_prices import node_price
from tests.unit.capacity.builders import NOW, type_

ZONES = ("us-east-1a", "us-east-1-bos-1a")
TYPES = {"m5.large": type_("m5.large", price=0.096, zones=ZONES)}
POOL = NodePool.decode(
    {"metadata": {"name": "web"}, "spec": {"template": {"spec": {"nodeClassRef": {"name": "web"}}}}}
)


@pytest.mark.parametrize(("zone", "usd_hour"), [("us-east-1a", 0.096), ("us-east-1-bos-1a", None)])
def test_a_node_saves_its_price(zone: str, usd_hour: float | None) -> None:
    labels = {
        names.CAPACITY_TYPE: "on-demand",
        names.INSTANCE_TYPE: "m5.large",
        names.ZONE: zone,
        names.OS: "linux",
    }
    claim = NodeClaim.decode({"metadata": {"name": "c", "uid": "c", "labels": labels}})
    node = Node.decode({"metadata": {"name": "n", "labels": labels}})
    ready = SimpleNamespace(plan=SimpleNamespace(images=()))
    sources: Any = SimpleNamespace(launch_class=lambda _: ready)
    snapshot = DisruptionSnapshot(
        now=NOW, nodes=(ManagedNode(claim=claim, pool=POOL, node=node),), occupancy=cast(Any, None)
    )
    value = NodeValues(sources=sources, types=TYPES, snapshot=snapshot).by_uid["c"]
    assert node_price(TYPES, {}, {}, node) == usd_hour
    assert (value.price, value.bought) == (0.096, True)
