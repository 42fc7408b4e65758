"""The deleted claims and the notices before the end of a reservation, as time passes."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.static_pools import ALL_RESERVED
from broker.kube.errors import Forbidden
from broker.oncall.metrics import REGISTRY
from broker.text import format_time
from providers.model import Odcr
from tests.unit.capacity.builders import minutes, odcr
from tests.unit.controllers.odcr.world import OUTSIDE, World, inside


def ending(world: World, left: float, id_: str = "cr-1", **more: Any) -> Odcr:
    return odcr(id_, end=world.clock.now() + minutes(left), **more)


def block(world: World, left: float, **more: Any) -> Odcr:
    return ending(world, left, reservation_type="capacity-block", **more)


def after(world: World, count: float) -> float | None:
    """Runs this many minutes later. Returns the minutes until the next requested run."""
    world.clock.advance(count * 60)
    again = world.endings.run()
    return None if again is None else round(again.requeue_after / 60, 1)


@pytest.mark.covers("KRP-29")
@pytest.mark.parametrize(("ultraserver", "drain"), [(False, 40), (True, 70)])
def test_the_claims_of_a_block_are_deleted_in_time(world: World, ultraserver: bool, drain: float) -> None:
    world.claim("in", labels=inside("cr-1"))
    world.claim("other", labels=inside("cr-2"))
    world.described(block(world, 180, ultraserver=ultraserver), odcr("cr-2"))
    requested = after(world, 0)
    assert requested is not None and 180 - drain - 0.1 <= requested <= 180 - drain
    after(world, requested - 0.2)
    assert world.api.writes == []
    after(world, 0.3)
    assert world.api.writes == [("delete", "nodeclaims", "in")]
    assert world.recorded.of("CapacityBlockEnding") == ["in"]
    after(world, 5)
    assert world.api.writes == [("delete", "nodeclaims", "in")]


@pytest.mark.covers("KRP-29")
def test_claims_that_ec2_does_not_show_are_drained_and_warned_with_their_reservation(world: World) -> None:
    world.claim("in", launched_into="cr-1")
    world.claim("shown-elsewhere", labels=OUTSIDE, launched_into="cr-1")
    world.claim("warned", launched_into="cr-2")
    world.described(block(world, 30), ending(world, 30, "cr-2"))
    after(world, 0)
    assert world.api.writes == [("delete", "nodeclaims", "in")]
    assert "warned" in world.recorded.of("ReservationEnding")
    assert "shown-elsewhere" not in world.recorded.of("ReservationEnding")


@pytest.mark.covers("KRP-29")
def test_a_claim_that_cannot_be_deleted_does_not_block_other_drains(world: World) -> None:
    for name in ("a", "b"):
        world.claim(name, labels=inside("cr-1"))
    world.described(block(world, 30))
    world.api.refusals = {"a": Forbidden(403, "Forbidden", "no")}
    with pytest.raises(Forbidden):
        world.endings.run()
    assert world.api.writes == [("delete", "nodeclaims", "b")]


@pytest.mark.covers("KRP-29")
def test_claims_and_classes_get_one_event_per_notice(world: World) -> None:
    world.claim("in", labels=inside("cr-1"))
    world.claim("other", labels=inside("cr-2"))
    world.node_class("gpu")
    world.node_class("web")
    world.users = {"cr-1": ["gpu", "deleted"]}
    world.described(ending(world, 90), ending(world, 3000, "cr-2"))
    assert after(world, 0) == 30
    assert world.recorded.events == []
    assert after(world, 30) == 50
    assert sorted(world.recorded.of("ReservationEnding")) == ["gpu", "in"]
    after(world, 1)
    assert len(world.recorded.events) == 2
    world.claim("new", labels=inside("cr-1"))
    after(world, 1)
    assert world.recorded.of("ReservationEnding")[2:] == ["new"]
    after(world, 50)
    assert sorted(world.recorded.of("ReservationEnding")[3:]) == ["gpu", "in", "new"]
    assert all("less than 10 minutes" in message for *_, message in world.recorded.events[3:])
    assert world.api.writes == []


@pytest.mark.covers("KRP-29")
def test_a_postponed_end_is_announced_again(world: World) -> None:
    world.claim("in", labels=inside("cr-1"))
    world.described(ending(world, 30))
    after(world, 0)
    world.described(ending(world, 600))
    after(world, 0)
    assert len(world.recorded.events) == 1
    after(world, 560)
    assert len(world.recorded.events) == 2


@pytest.mark.covers("KRP-29")
def test_the_event_names_the_consequence_of_the_end(world: World) -> None:
    world.claim("a", labels=inside("cr-1"))
    world.claim("b", labels=inside("cr-2"))
    world.described(ending(world, 30), ending(world, 30, "cr-2", interruptible=True))
    after(world, 0)
    messages = {name: message for name, _, message in world.recorded.events}
    assert "run on as On-Demand Instances" in messages["a"]
    assert "modify-capacity-reservation --capacity-reservation-id cr-1" in messages["a"]
    assert "EC2 terminates its instances" in messages["b"]


@pytest.mark.covers("FUL-31")
def test_the_event_names_the_nodepool_that_ends_its_nodes_before_the_reservation(world: World) -> None:
    """Others of the class run on."""
    for name, marks in (("every", {names.REPLICAS: ALL_RESERVED}), ("web", {})):
        ref = {"group": names.BROKER, "kind": "EC2NodeClass", "name": "gpu"}
        meta = {"name": name, "uid": name, "annotations": marks}
        pool = {"metadata": meta, "spec": {"template": {"spec": {"nodeClassRef": ref}}}}
        world.api.put(NodePool.KIND, pool)
        world.claim(f"{name}-1", labels={**inside("cr-1"), names.NODEPOOL: name})
    world.node_class("gpu")
    world.users = {"cr-1": ["gpu"]}
    at = format_time(world.clock.now() + minutes(20))
    world.described(ending(world, 30))
    after(world, 0)
    leaves = f"NodePool every (all-reserved) ends its nodes there at {at}"
    messages = {name: message for name, _, message in world.recorded.events}
    assert leaves in messages["gpu"] and "other instances run on as On-Demand" in messages["gpu"]
    assert leaves in messages["every-1"] and "every" not in messages["web-1"]


@pytest.mark.covers("KRP-29")
def test_the_seconds_to_the_end_are_a_metric_without_a_pass(world: World) -> None:
    def left(id_: str, type_: str = "default") -> float | None:
        labels = {
            "odcr": id_,
            "instance_type": "m5.xlarge",
            "zone": "us-east-1a",
            "reservation_type": type_,
        }
        return REGISTRY.get_sample_value("capacity_broker_odcr_end_seconds", labels)

    world.described(
        ending(world, 90),
        block(world, 30, id_="cr-block"),
        odcr("cr-endless"),
        ending(world, 5, "cr-over", state="cancelled"),
    )
    after(world, 0)
    assert left("cr-1") == 90 * 60 - 1
    assert left("cr-block", "capacity-block") == 30 * 60 - 1
    assert left("cr-endless") is None and left("cr-over") is None
    world.clock.advance(60)
    assert left("cr-1") == 89 * 60 - 1
    world.described()
    after(world, 0)
    assert left("cr-1") is None
