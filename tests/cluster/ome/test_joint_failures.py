"""A joint decision that fails on one object of many leaves out that object, even if none of them is in
scope."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from broker.apis.core import Event
from broker.apis.ome import CapacityReservation
from broker.controllers.capacityreservation import facts
from broker.controllers.launch import planning
from broker.controllers.odcr import provisioner
from broker.controllers.slots import builder, controller
from broker.kube.isolation import REASON
from broker.quota import part
from tests.cluster.objects import ON_DEMAND
from tests.cluster.ome.bought import MANAGE
from tests.cluster.ome.dedicated import World
from tests.cluster.stack import Stack

QUEUE = "default--bad"


def of(reserved: Iterable[Any]) -> list[str]:
    return [item.reserved.queue for item in reserved]


# The place of the failure, the object that it is about, and the names among a call's arguments.
CASES: dict[str, tuple[Any, str, str, Callable[..., Sequence[str]]]] = {
    "quota": (controller, "decide", "bad-cluster", part.names),
    "slots": (builder, "entitlements", QUEUE, lambda seen: part.names(None, seen.state)),
    "purchases": (provisioner, "plan", QUEUE, lambda capacities, *_: of(capacities)),
    "reservations": (
        provisioner,
        "resolve_ownership",
        QUEUE,
        lambda _odcrs, _groups, capacities: of(capacities),
    ),
    "machines": (facts, "shares", QUEUE, lambda states, _machines: of(states)),
    "launches": (planning, "plan", "bad-claim", lambda claims, *_: [claim.name for claim in claims]),
}


@pytest.mark.covers("SAF-50")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.both_servers
def test_one_object_of_a_joint_decision_never_stops_the_others(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    where, function, bad, named = CASES[case]
    judge = getattr(where, function)
    hidden = {bad}  # in a set, which a search of the frame's texts misses

    def fails(*args: Any, **more: Any) -> Any:
        if not hidden.isdisjoint(named(*args)):
            raise ZeroDivisionError
        return judge(*args, **more)

    monkeypatch.setattr(where, function, fails)
    world = World(stack, 2, training=2, bad=1)
    world.reserve("training")
    stack.start()
    world.cluster("good", 1, "training")
    world.until("good", "ACTIVE")

    world.reserve("bad", annotations=MANAGE)
    world.cluster("bad-cluster", 4, "training")
    stack.claim("bad-claim", node_class="default", capacity=(ON_DEMAND,))
    kind, name = {
        "bad-cluster": ("DedicatedAICluster", "bad-cluster"),
        "bad-claim": ("NodeClaim", "bad-claim"),
        QUEUE: (CapacityReservation.KIND.kind, "bad"),
    }[bad]
    stack.until_event(name, REASON, kind=kind)

    world.cluster("next", 1, "training")
    world.until("next", "ACTIVE")
    stack.claim("beside", node_class="default", capacity=(ON_DEMAND,))
    stack.until_launched("beside")
    assert {event.involved_object.name for event in stack.all(Event) if event.reason == REASON} == {name}
