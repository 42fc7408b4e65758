"""Two loops write to one claim: no change of either is lost, in any order."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import ConditionUpdate, condition
from broker.controllers.claim_status import write
from broker.kube.cache import Cache
from broker.kube.client import Client
from local.in_process import InProcessTransport
from tests.cluster.objects import RESERVED, claim
from tests.cluster.taps import Tap, status_of
from tests.support.definitions import defined

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ID = "aws:///us-east-1a/i-1"
RECLAIMS = ConditionUpdate(
    type=names.RECLAIMING, status="True", reason="InCohortReclamation", message="waits for b"
)
LIMITED = ConditionUpdate(
    type=names.CAPACITY_RESERVATION, status="False", reason="LimitExceeded", message="full"
)


class World:
    """One claim, and a cache without a watch."""

    def __init__(self) -> None:
        self.tap = Tap(InProcessTransport(defined()))
        self.client = Client(self.tap)
        body = claim("c-0", node_class="gpu", types=("m5.large",), capacity=(RESERVED,))
        self.claims: Cache[NodeClaim] = Cache(NodeClaim)
        self.first = NodeClaim.decode(self.client.create(NodeClaim.KIND, body))
        self.claims.observe(self.client.get(NodeClaim.KIND, "c-0"))

    def write(self, change: ConditionUpdate, fields: dict[str, Any] | None = None) -> None:
        """Writes from the first copy of the claim, however old it is."""
        write(self.client, self.claims, self.first, change, now=NOW, fields=fields)

    def agrees(self) -> None:
        now = NodeClaim.decode(self.client.get(NodeClaim.KIND, "c-0"))
        for change in (RECLAIMS, LIMITED):
            written = condition(now.status.conditions, change.type)
            assert written is not None, f"{change.type} was taken away again"
            assert (written.status, written.reason) == (change.status, change.reason)
        assert now.status.provider_id == ID


@pytest.fixture
def world() -> World:
    return World()


def test_a_write_from_an_older_copy_removes_no_condition(world: World) -> None:
    world.write(LIMITED, {"providerID": ID})
    world.write(RECLAIMS)
    world.agrees()


def test_concurrent_writes_are_serialized(world: World) -> None:
    other = threading.Thread(target=world.write, args=(RECLAIMS,))
    sent = threading.Event()

    def meanwhile(_: object) -> None:
        world.tap.on(status_of("nodeclaims", "c-0"), lambda _: sent.set())
        other.start()
        sent.wait(0.2)  # it does not come before this reply, so a longer wait is useless

    world.tap.on(status_of("nodeclaims", "c-0"), meanwhile)
    world.write(LIMITED, {"providerID": ID})
    other.join(60)
    assert sent.is_set()
    world.agrees()
