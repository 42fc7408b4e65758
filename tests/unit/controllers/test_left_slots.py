"""The slots that are left to other launchers, by claims that end and by their replacements."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.controllers.assumed import AssumptionStore
from broker.controllers.left_slots import LeftSlots, slots_of_claims
from broker.kube.cache import Cache
from broker.text import format_time
from tests.support.clock import FakeClock

pytestmark = pytest.mark.covers("FUL-06")


def ours(claim: NodeClaim) -> bool:
    return claim.spec.node_class_ref.group == names.BROKER


class World:
    """Claims of Karpenter and of the broker, and what is left of their slots."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.assumed = AssumptionStore(self.clock)
        self.claims = Cache(NodeClaim)
        self.released = 0
        self._versions = count(1)
        self._slots = LeftSlots(self.claims.list, self.assumed, owns=ours, released=self._release)
        self.claims.on_change(self._slots.observe)

    def _release(self) -> None:
        self.released += 1

    def at(self, seconds: float = 0) -> str:
        return format_time(self.clock.now() + timedelta(seconds=seconds))

    def body(
        self, name: str, odcr: str, *, pool: str = "a", group: str = names.KARPENTER_AWS
    ) -> dict[str, Any]:
        return {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "creationTimestamp": self.at(),
                "labels": {names.NODEPOOL: pool, **({names.RESERVATION_ID: odcr} if odcr else {})},
            },
            "spec": {
                "nodeClassRef": {"group": group, "kind": "EC2NodeClass", "name": "c"},
                "requirements": [],
            },
            "status": {"providerID": f"aws:///z/i-{name}", "conditions": []},
        }

    def put(self, body: dict[str, Any], event: str = "MODIFIED") -> dict[str, Any]:
        body["metadata"]["resourceVersion"] = str(next(self._versions))
        self.claims.apply(event, body)
        return body

    def condition(
        self, body: dict[str, Any], type_: str, reason: str = "Drifted", status: str = "True"
    ) -> None:
        added = {"type": type_, "status": status, "reason": reason, "lastTransitionTime": self.at()}
        body["status"]["conditions"].append(added)

    def ending(self, name: str, odcr: str = "cr-1", reason: str = "Drifted", **more: Any) -> dict[str, Any]:
        body = self.body(name, odcr, **more)
        self.condition(body, names.DISRUPTION_REASON, reason)
        self.clock.advance(30)
        body["metadata"]["deletionTimestamp"] = self.at()
        return self.put(body)

    @property
    def left(self) -> dict[str, int]:
        self.assumed.left.expire(self.clock.now())
        return dict(Counter(slot.odcr_id for slot in self.assumed.left.values().values()))


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("how", "left"),
    [
        ({}, {"cr-1": 1}),
        ({"reason": "Unhealthy"}, {"cr-1": 1}),
        ({"reason": "Empty"}, {}),
        ({"reason": "Underutilized"}, {}),
        ({"odcr": ""}, {}),
        ({"group": names.BROKER}, {}),
        ({"group": "eks.amazonaws.com"}, {"cr-1": 1}),
    ],
)
def test_claim_of_another_launcher_that_is_replaced_leaves_its_slot(
    world: World, how: Any, left: dict[str, int]
) -> None:
    world.ending("old", **how)
    assert world.left == left


def test_claim_that_only_is_deleted_or_disrupted_leaves_nothing(world: World) -> None:
    deleted = world.body("deleted", "cr-1")
    deleted["metadata"]["deletionTimestamp"] = world.at()
    world.put(deleted)
    disrupted = world.body("disrupted", "cr-1")
    world.condition(disrupted, names.DISRUPTION_REASON)
    world.put(disrupted)
    undone = world.body("undone", "cr-1")
    world.condition(undone, names.DISRUPTION_REASON, status="False")
    undone["metadata"]["deletionTimestamp"] = world.at()
    world.put(undone)
    assert world.left == {}


def test_slot_is_left_for_ten_minutes_from_the_termination(world: World) -> None:
    body = world.ending("old")
    world.clock.advance(599)
    assert world.left == {"cr-1": 1}
    world.clock.advance(1)
    assert world.left == {}, "a long drain keeps nothing"
    world.condition(body, names.INSTANCE_TERMINATING)
    world.put(body)
    world.clock.advance(599)
    assert world.left == {"cr-1": 1}
    world.put(body, "DELETED")
    world.clock.advance(1)
    assert world.left == {}


def test_slot_of_a_claim_that_is_gone_is_left_from_then_on(world: World) -> None:
    body = world.ending("old")
    world.clock.advance(500)
    world.put(body, "DELETED")
    world.clock.advance(599)
    assert world.left == {"cr-1": 1}


@pytest.mark.parametrize(
    ("odcr", "pool", "group", "left"),
    [
        ("cr-1", "a", names.KARPENTER_AWS, {}),
        ("cr-2", "a", names.KARPENTER_AWS, {"cr-1": 1}),
        ("", "a", names.KARPENTER_AWS, {"cr-1": 1}),
        ("cr-1", "b", names.KARPENTER_AWS, {"cr-1": 1}),
        ("cr-1", "a", names.BROKER, {"cr-1": 1}),
    ],
)
def test_launch_of_the_same_pool_into_the_reservation_releases_the_slot(
    world: World, odcr: str, pool: str, group: str, left: dict[str, int]
) -> None:
    old = world.ending("old")
    world.clock.advance(5)
    new = world.body("new", odcr, pool=pool, group=group)
    id_ = new["status"].pop("providerID")
    world.put(new)
    assert world.left == {"cr-1": 1}, "it has no instance"
    new["status"]["providerID"] = id_
    world.put(new)
    assert world.left == left and world.released == (not left)
    taken = {} if left else {"i-new": "cr-1"}
    assert world.assumed.debits.values() == taken, "EC2's last description may not show the launch"
    world.put(old, "DELETED")
    assert world.left == left


def test_replacement_before_the_deletion_keeps_nothing_wherever_it_is(world: World) -> None:
    body = world.body("old", "cr-1")
    world.put(world.body("older", "cr-1"))
    world.clock.advance(30)
    world.condition(body, names.DISRUPTION_REASON)
    world.put(body)
    world.put(world.body("new", ""))
    world.clock.advance(30)
    body["metadata"]["deletionTimestamp"] = world.at()
    world.put(body)
    assert world.left == {}


def test_replacement_is_one_for_one(world: World) -> None:
    bodies = [world.ending(f"old-{number}") for number in range(3)]
    assert world.left == {"cr-1": 3}
    for number, body in enumerate(bodies):
        world.put(world.body(f"new-{number}", "cr-1"))
        assert world.left.get("cr-1", 0) == 2 - number
        for _ in range(2):
            world.put(body)
        assert world.left.get("cr-1", 0) == 2 - number
    assert world.released == 3


def test_new_process_finds_the_claims_that_still_end(world: World) -> None:
    world.put(world.body("new", "cr-1"))
    world.clock.advance(10)
    world.ending("old")
    promises = slots_of_claims(world.claims.list(), world.clock.now(), owns=ours)
    assert promises.left == {"cr-1": 1} and promises.promised("cr-1") == 1
