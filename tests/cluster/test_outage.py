"""EC2 that cannot be read, as Kubernetes shows it."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.oncall.metrics import REGISTRY
from broker.text import format_time
from tests.cluster.account import A
from tests.cluster.stack import Stack
from tests.cluster.test_mirror import printed, until_mirrored, writes

UNREADABLE = "capacity_broker_inventory_unreadable"
POLL = 30.0


def refuse(stack: Stack) -> None:
    stack.control.fault(
        action="DescribeCapacityReservations",
        code="UnauthorizedOperation",
        status=403,
        message="You are not authorized to perform this operation.",
        times=-1,
    )


def described(stack: Stack, name: str) -> str:
    condition = stack.class_condition(names.RESERVATIONS_DESCRIBED, name)
    return condition.status if condition else ""


def until_described(stack: Stack, name: str) -> None:
    stack.until(lambda: described(stack, name) == "True", "EC2 can be read", step=1.0)


def poll(stack: Stack) -> None:
    before = stack.calls("DescribeCapacityReservations")
    stack.advance(POLL)
    stack.until(lambda: stack.calls("DescribeCapacityReservations") > before, "a poll")


@pytest.mark.covers("USR-03")
@pytest.mark.both_servers
def test_it_shows_within_three_polls_and_goes_when_ec2_answers_again(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large", A, 2)
    stack.node_class("gpu", id_=odcr)
    stack.node_class("plain")
    broker = stack.start(poll_seconds=POLL)
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    stack.until_class(names.RESERVATIONS_RESOLVED, "True", name="plain")
    until_mirrored(stack, odcr, total=2)
    assert (described(stack, "gpu"), printed(stack)[odcr]["Stale"]) == ("", None)
    last = broker.inventory.snapshot().described
    assert last is not None
    refuse(stack)
    for _ in range(3):
        poll(stack)
    for name in ("gpu", "plain"):
        condition = stack.until_class(names.RESERVATIONS_DESCRIBED, "False", name=name, reason="Unauthorized")
        assert format_time(last) in condition.message and "DescribeCapacityReservations" in condition.message
        assert stack.class_condition(names.RESERVATIONS_RESOLVED, name).status == "True"  # type: ignore[union-attr]
    until_mirrored(stack, odcr, staleSince=format_time(last))
    assert printed(stack)[odcr]["Stale"]  # an age, which moves on
    assert REGISTRY.get_sample_value(UNREADABLE) == 1
    stack.tap.forget()
    stack.advance(POLL)
    stack.wait_for_ec2()
    assert writes(stack) == []
    stack.control.clear_faults()
    for name in ("gpu", "plain"):
        until_described(stack, name)
    stack.until(lambda: printed(stack)[odcr]["Stale"] is None, "the object is current")
    assert REGISTRY.get_sample_value(UNREADABLE) == 0


@pytest.mark.covers("USR-03")
def test_a_new_broker_shows_it_too(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large", A, 2)
    stack.node_class("gpu", id_=odcr)
    stack.start(poll_seconds=POLL)
    until_mirrored(stack, odcr, total=2)
    stack.stop()
    refuse(stack)
    stack.start(poll_seconds=POLL)
    stack.until_class(names.RESERVATIONS_DESCRIBED, "False", reason="Unauthorized")
    stack.until(lambda: printed(stack)[odcr]["Stale"], "the object shows its age", step=1.0)
    assert printed(stack)[odcr]["Total"] == 2
    stack.stop()
    assert REGISTRY.get_sample_value(UNREADABLE) == 0
