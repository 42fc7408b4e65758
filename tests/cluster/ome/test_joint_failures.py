"""An object that cannot be translated for a joint decision is left out. A decision that fails by itself is
repeated, and stops no other loop."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.core import Event
from broker.apis.meta import Object
from broker.apis.ome import CapacityReservation
from broker.controllers.capacityreservation import facts
from broker.controllers.dedicatedaicluster import snapshot as clusters
from broker.controllers.launch import launcher, planning
from broker.controllers.odcr import provisioner
from broker.controllers.slots import builder, controller
from broker.kube.manager import REASON
from broker.kube.panics import PANICS
from broker.reservations.spec import JudgedSpecs
from tests.cluster.objects import ON_DEMAND
from tests.cluster.ome.bought import MANAGE
from tests.cluster.ome.dedicated import World
from tests.cluster.stack import Stack

RESERVATION = CapacityReservation.KIND.kind
# The translation that fails, and the object.
CASES: dict[str, tuple[Any, str, str, str]] = {
    "quota": (clusters, "cluster_demand", "DedicatedAICluster", "bad-cluster"),
    "slots": (builder, "priority_of", "NodeClaim", "bad-claim"),
    "purchases": (provisioner, "read", RESERVATION, "bad"),
    "reservations": (JudgedSpecs, "of", RESERVATION, "bad"),
    "machines": (facts, "_judgement", RESERVATION, "bad"),
    "launches": (launcher, "planned", "NodeClaim", "bad-claim"),
}


@pytest.mark.covers("SAF-50")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.both_servers
def test_one_object_of_a_joint_decision_never_stops_the_others(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    where, function, kind, bad = CASES[case]
    translate = getattr(where, function)

    def fails(*args: Any, **more: Any) -> Any:
        if any(isinstance(arg, Object) and arg.name == bad for arg in args):
            raise ZeroDivisionError
        return translate(*args, **more)

    monkeypatch.setattr(where, function, fails)
    world = World(stack, 2, training=2, bad=1)
    world.reserve("training")
    stack.start()
    world.cluster("good", 1, "training")
    world.until("good", "ACTIVE")

    world.reserve("bad", annotations=MANAGE)
    world.cluster("bad-cluster", 4, "training")
    stack.claim("bad-claim", node_class="default", capacity=(ON_DEMAND,))
    stack.until_event(bad, REASON, kind=kind)

    world.cluster("next", 1, "training")
    world.until("next", "ACTIVE")
    stack.claim("beside", node_class="default", capacity=(ON_DEMAND,))
    stack.until_launched("beside")
    assert {event.involved_object.name for event in stack.all(Event) if event.reason == REASON} == {bad}


@pytest.mark.covers("SAF-50")
@pytest.mark.parametrize(
    ("where", "function", "loop"),
    [(controller, "decide", "quota"), (facts, "shares", "reservation"), (planning, "plan", "launch")],
)
def test_a_joint_decision_that_fails_is_counted_and_repeated_and_stops_no_other_loop(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, where: Any, function: str, loop: str
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    def panics() -> float:
        return float(PANICS.labels(loop)._value.get())

    world, before = World(stack, 1, training=1), panics()
    with monkeypatch.context() as patch:
        patch.setattr(where, function, fails)
        world.reserve("training")
        stack.start()
        world.cluster("good", 1, "training")
        stack.claim("beside", node_class="default", capacity=(ON_DEMAND,))
        stack.until(lambda: panics() > before + 1, "it is counted and repeated", step=1.0)
        if loop != "launch":
            stack.until_launched("beside")
    world.until("good", "ACTIVE")
    stack.until_launched("beside")
    assert not [event for event in stack.all(Event) if event.reason == REASON]
