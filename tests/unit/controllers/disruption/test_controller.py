"""A claim on which the loop fails stops no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.disruption.controller import DisruptionController
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.controllers.snapshot import Snapshot
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.context import ControllerContext
from broker.kube.events import Recorder
from broker.placement.storage import Storage
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.support.clock import FakeClock


def test_a_claim_that_fails_is_left_out_and_the_others_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    claims: Cache[NodeClaim] = Cache(NodeClaim)
    for number, name in enumerate(("bad", "good"), start=1):
        claims.observe({"metadata": {"name": name, "uid": name, "resourceVersion": str(number)}})
    caches = ClaimCaches(
        claims=claims, nodes=Cache(Node), pods=Cache(Pod), pools=Cache(NodePool), owns=lambda _: True
    )
    client, clock = Client(InProcessTransport(Cluster())), FakeClock()
    context = ControllerContext(client=client, recorder=Recorder(client, "test", clock), clock=clock)
    sources = SimpleNamespace(
        budgets=Cache(NodePool),
        disrupts=lambda _: True,
        reads=SimpleNamespace(storage=Storage),
        instances=dict,
        slots=SimpleNamespace(snapshot=lambda: Snapshot(version=1, reservations={})),
        launch_class=lambda _: None,
    )
    monkeypatch.setattr(
        "broker.controllers.disruption.controller.DisruptionMethods", lambda *_: SimpleNamespace()
    )
    controller = DisruptionController(context, caches, cast(Any, sources))
    written: list[str] = []

    def write(node: ManagedNode, *_: object) -> None:
        if node.claim.name == "bad":
            raise ZeroDivisionError("poison")
        written.append(node.claim.name)

    monkeypatch.setattr(controller, "_write", write)
    monkeypatch.setattr(controller, "_labelled", lambda node, *_: node)
    pool = NodePool.decode({"metadata": {"name": "web"}, "spec": {}})
    nodes = tuple(ManagedNode(claim=claim, pool=pool) for claim in claims.list())
    controller._write_conditions(DisruptionSnapshot(now=clock.now(), nodes=nodes))
    assert (written, [*claims.broken]) == (["good"], ["bad"])
