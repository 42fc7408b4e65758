"""A condition of a NodePool is written without loss of the others, whatever the definition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.apis import names
from broker.apis.crds import KIND as CRD
from broker.apis.karpenter import NodeClaim, NodePool
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.model import Pool
from broker.controllers.launch.report import Reporter
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.context import ControllerContext
from broker.kube.events import Recorder
from local.in_process import InProcessTransport
from providers.errors import ErrorClass
from tests.cluster.objects import claim, node_pool
from tests.support.caches import claim_caches
from tests.support.clock import EPOCH, FakeClock
from tests.support.definitions import defined

FULL = Attempt(
    claim="c-0",
    node_class="gpu",
    pool=Pool(capacity_type="reserved", instance_type="m5.large", zone="a", reservation="cr-1"),
    outcome=Outcome.REFUSED,
    class_=ErrorClass.RESERVATION_FULL,
    at=EPOCH,
)


def server(*, atomic: bool) -> Client:
    """With a NodePool; `atomic`: its conditions are one list, as in Karpenter 1.6."""
    client = Client(
        InProcessTransport(defined("karpenter.sh_nodepools.yaml", "karpenter.sh_nodeclaims.yaml"))
    )
    if atomic:
        definition = client.get(CRD, "nodepools.karpenter.sh")
        for version in definition["spec"]["versions"]:
            properties = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
            del properties["conditions"]["x-kubernetes-list-type"]
            del properties["conditions"]["x-kubernetes-list-map-keys"]
        client.update(CRD, definition)
    client.create(NodePool.KIND, node_pool("gpu", node_class="gpu"))
    return client


def set_ready(client: Client) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "Ready", "message": ""}
    body = {"status": {"conditions": [{**ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}
    client.patch(NodePool.KIND, "gpu", body, subresource="status")


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.covers("KRP-24")
def test_limit_of_reservations_keeps_the_conditions_of_others(*, atomic: bool, stale: bool) -> None:
    client, pools, clock = server(atomic=atomic), Cache(NodePool), FakeClock()
    context = ControllerContext(client=client, recorder=Recorder(client, "test", clock), clock=clock)
    claims: Cache[NodeClaim] = Cache(NodeClaim)
    claims.observe(
        client.create(NodeClaim.KIND, claim("c-0", node_class="gpu", types=(), capacity=(), pool="gpu"))
    )
    nodeclasses: Any = SimpleNamespace(limit=lambda *_: None)
    reporter = Reporter(context, claim_caches(claims, pools=pools), nodeclasses, dict)
    if stale:
        pools.observe(client.get(NodePool.KIND, "gpu"))
    set_ready(client)
    if not stale:
        pools.observe(client.get(NodePool.KIND, "gpu"))
    reporter.limit(FULL)
    written = NodePool.decode(client.get(NodePool.KIND, "gpu")).status.conditions
    assert {item.type: item.status for item in written} == {
        "Ready": "True",
        names.CAPACITY_RESERVATION: "False",
    }
