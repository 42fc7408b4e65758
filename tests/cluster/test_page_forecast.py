"""The forecast of a page beside that of the command, while many claims wait."""

from __future__ import annotations

import pytest

from broker.apis.karpenter import NodeClaim
from broker.commands.explain.live import LIVE, LiveForecaster
from tests.cluster import objects
from tests.cluster.account import A
from tests.cluster.stack import Stack
from tests.cluster.test_page_details import forecaster

MANY = 4000  # unlike claims: a plan of them takes long beside a page


@pytest.mark.covers("ONC-05")
def test_page_forecasts_the_last_of_many_claims_as_the_command_does(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large", A, 1)
    stack.node_class(id_=odcr)
    broker = stack.start()
    stack.claim("c-0")
    stack.until_ready("c-0")
    stack.until(lambda: broker.inventory.described, "EC2 is described")
    stack.stop()
    waiting = [_waiting(number) for number in range(MANY)]
    now = stack.clock.now()
    shown = LiveForecaster(broker=broker, now=now).among(waiting[-1], waiting)
    assert shown.decision == forecaster(stack, now).among(waiting[-1], waiting).decision
    assert "AllReservationsFull" in shown.decision


def _waiting(number: int) -> NodeClaim:
    """A claim with requests that no other has."""
    body = objects.claim(
        f"w-{number:04}",
        node_class="gpu",
        types=("m5.large",),
        capacity=(objects.RESERVED,),
        requests={"memory": f"{number + 1000}Ki"},
    )
    body["metadata"]["uid"] = f"uid-{number:04}"
    return NodeClaim.decode(body)


@pytest.mark.covers("ONC-05")
def test_page_names_the_reason_of_a_class_that_launches_nothing(stack: Stack) -> None:
    broker = stack.start()
    stack.until(lambda: broker.inventory.described, "EC2 is described")
    stack.claim("c-0", node_class="absent")
    stack.until(lambda: broker.read.claims.cache.find("c-0"), "the caches have the claim")
    now = stack.clock.now()
    shown = LIVE.claim(broker, "c-0")
    command = forecaster(stack, now).of(stack.get(NodeClaim, "c-0"))
    assert shown is not None and command is not None
    assert "NodeClassNotFound" in shown["decision"] and "NodeClassNotFound" in command.decision
