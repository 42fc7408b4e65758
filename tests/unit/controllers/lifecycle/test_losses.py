"""Claims that were missing together stay until all are listed again or deleted, for any later counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import ConditionUpdate, condition
from broker.controllers.claim_caches import BY_INSTANCE, BY_SIGN, by_instance, signs
from broker.controllers.claim_status import write
from broker.controllers.instances import Missing
from broker.controllers.lifecycle.losses import FEW, MASS_LOSS, LossDetector
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.context import ControllerContext
from broker.kube.events import Recorder
from local.in_process import InProcessTransport
from tests.cluster.objects import ON_DEMAND, claim
from tests.cluster.taps import Tap, status_of
from tests.support.caches import claim_caches
from tests.support.clock import FakeClock
from tests.support.definitions import defined

REGISTERED = 39  # 4 of 39 are too many, 4 of 41 are not
MISSING = ("c-0", "c-1", "c-2", "c-3")


class World:
    """Registered claims without Nodes; a listing lacks some of them."""

    def __init__(self) -> None:
        self.tap = Tap(InProcessTransport(defined()))
        self.client, self.clock = Client(self.tap), FakeClock()
        self.claims: Cache[NodeClaim] = Cache(NodeClaim, indexes={BY_SIGN: signs})
        self.nodes: Cache[Node] = Cache(Node, indexes={BY_INSTANCE: by_instance})
        self.ended: set[str] = set()
        self.count = 0
        self.losses = self.process()
        self.join(REGISTERED)

    def process(self) -> LossDetector:
        recorder = Recorder(self.client, "test", self.clock)
        return LossDetector(
            ControllerContext(client=self.client, recorder=recorder, clock=self.clock),
            claim_caches(self.claims, self.nodes),
            end=lambda claim_, _: self.ended.add(claim_.name),
        )

    def join(self, count: int) -> None:
        registered = ConditionUpdate(type=names.REGISTERED_CONDITION, status="True", reason="Registered")
        for number in range(self.count, self.count + count):
            body = claim(f"c-{number}", node_class="gpu", types=("m5.large",), capacity=(ON_DEMAND,))
            created = NodeClaim.decode(self.client.create(NodeClaim.KIND, body))
            self.claims.observe(self.client.get(NodeClaim.KIND, created.name))
            fields = {"providerID": f"aws:///us-east-1a/i-{number}"}
            write(self.client, self.claims, created, registered, now=self.clock.now(), fields=fields)
        self.count += count

    def delete(self, name: str) -> None:
        self.client.delete(NodeClaim.KIND, name)
        gone = self.claims.get(name)
        assert gone is not None
        self.claims.apply("DELETED", {**gone.wire(), "kind": "NodeClaim"})

    def list_instances(self, *missing: str, recent: tuple[str, ...] = ()) -> None:
        """One listing without these; `recent` are missing for less time than EC2 may need to list an
        instance."""
        claims = self.claims.list()
        self.losses.end_lost(
            Missing(
                unlisted=tuple(c for c in claims if c.name in missing),
                recent=tuple(c for c in claims if c.name in recent),
                listed=frozenset(c.instance_id for c in claims if c.name not in {*missing, *recent}),
            )
        )

    def kept(self) -> set[str]:
        conditions = {
            c.name: condition(c.status.conditions, names.INSTANCE_LISTED) for c in self.claims.list()
        }
        return {
            name for name, listed in conditions.items() if listed is not None and listed.reason == MASS_LOSS
        }


@pytest.fixture
def world() -> Iterator[World]:
    environment = World()
    yield environment
    environment.losses.close()


def test_new_claims_do_not_end_claims_that_were_missing_together(world: World) -> None:
    world.list_instances(*MISSING)
    assert world.kept() == {*MISSING}
    world.join(3)
    world.list_instances(*MISSING)
    assert world.kept() == {*MISSING} and not world.ended
    world.losses = world.process()
    world.list_instances(recent=MISSING)
    world.list_instances(*MISSING)
    assert world.kept() == {*MISSING} and not world.ended


def test_the_stop_ends_when_all_claims_are_listed_again_or_deleted(world: World) -> None:
    world.list_instances(*MISSING)
    world.delete("c-0")
    world.list_instances(*MISSING[1:], "c-9")  # a claim that is missing meanwhile is judged with the others
    assert world.kept() == {*MISSING[1:], "c-9"}
    world.list_instances("c-9")
    assert world.kept() == {"c-9"} and not world.ended
    world.list_instances()
    assert not world.kept() and not world.ended
    world.list_instances("c-9")
    assert world.ended == {"c-9"}


def test_the_stop_holds_while_its_condition_cannot_be_written(world: World) -> None:
    world.tap.lose(status_of("nodeclaims"))
    world.list_instances(*MISSING)
    assert not world.kept()
    world.tap.heal()
    world.list_instances(*MISSING[:FEW])
    assert world.kept() == {*MISSING[:FEW]} and not world.ended


def test_recently_missing_claims_count_as_missing(world: World) -> None:
    world.list_instances(*MISSING[:FEW], recent=("c-9",))
    assert world.kept() == {*MISSING[:FEW], "c-9"} and not world.ended
