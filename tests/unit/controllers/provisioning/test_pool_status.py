"""A NodePool whose status cannot be written stops no other."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.provisioning.pool_status import AGAIN, PoolStatusController
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.errors import Conflict
from broker.kube.events import Recorder
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.support.clock import FakeClock


@pytest.mark.parametrize("error", [ZeroDivisionError("poison"), Conflict(409, "Conflict", "changed")])
def test_a_pool_that_fails_stops_no_other_and_is_tried_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: Cache[NodePool] = Cache(NodePool)
    for name in ("bad", "good"):
        pools.observe({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}})
    caches = ClaimCaches(
        claims=Cache(NodeClaim), nodes=Cache(Node), pods=Cache(Pod), pools=pools, owns=lambda _: True
    )
    client, clock = Client(InProcessTransport(Cluster())), FakeClock()
    controller = PoolStatusController(
        ControllerContext(client=client, recorder=Recorder(client, "test", clock), clock=clock),
        caches,
        Cache(EC2NodeClass),
        lambda _: None,
        rights=lambda: None,
        counts=lambda _: True,
    )
    written: list[str] = []

    def write(pool: NodePool, *_: Any) -> NodePool:
        if pool.name == "bad":
            raise error
        return pool

    for step in ("resources", "limits", "use", "health"):
        monkeypatch.setattr(controller, f"_write_{step}", write)
    monkeypatch.setattr(controller, "_write_drawing", lambda pool, _: written.append(pool.name))
    assert controller.run(()) == Result(requeue_after=AGAIN)
    assert written == ["good"] and pools.broken == {}
