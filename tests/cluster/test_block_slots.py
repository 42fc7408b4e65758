"""Slots of Capacity Blocks and of reservations that have not begun, as `explain` and the page show them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.text import format_time
from broker.webpage.live import live_state
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.cluster.taps import status_of
from tests.cluster.test_page_details import by_command, details
from tests.cluster.test_provisioning import bound, pods, pool, start

MINUTE = timedelta(minutes=1)
SIZE = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["p5.48xlarge"]}
KINDS = {"key": names.CAPACITY_TYPE, "operator": "In", "values": [RESERVED, ON_DEMAND]}


def page(stack: Stack, key: str) -> dict[str, Any]:
    return by_command(stack, key, stack.clock.now())


@pytest.mark.covers("KRP-29", "ONC-01")
@pytest.mark.parametrize(("ultraserver", "minutes"), [("", 40), ("u-p6e-gb200x72", 70)])
@pytest.mark.parametrize("deadline", [None, 10 * 86400], ids=["no-deadline", "later-deadline"])
def test_pod_in_a_block_leaves_at_the_drain_and_not_at_the_end(
    stack: Stack, ultraserver: str, minutes: int, deadline: int | None
) -> None:
    more: dict[str, Any] = {"ultraserver_type": ultraserver} if ultraserver else {}
    block = stack.aws.capacity_block(ends=timedelta(hours=9), **more)
    stack.node_class(id_=block)
    pool(stack, template={"requirements": [SIZE, KINDS]}, disruption={"consolidateAfter": "Never"})
    (pod,) = pods(stack, 1, spec={"activeDeadlineSeconds": deadline} if deadline else {})
    start(stack)
    stack.until(lambda: bound(stack, [pod]), "it runs in the block", step=0.2)
    (claim,) = stack.all(NodeClaim)
    key = f"default/{pod}"
    end = stack.aws.reservation(block)["EndDate"]
    drain = format_time(end - minutes * MINUTE)

    def row() -> dict[str, Any]:
        placed: dict[str, Any] = page(stack, key)["placed"][0]
        return placed

    stack.until(lambda: page(stack, key)["placed"], "its claim has the node")
    stack.until(lambda: row()["reservation"] == block and row()["until"], "its slot is known", step=1.0)
    assert (row()["until"], row()["why_until"]) == (
        drain,
        f"its node drains before Capacity Block {block} ends",
    )
    (step,) = page(stack, key)["next"]
    assert step == (
        f"its node drains from {drain} on, before Capacity Block {block} ends at {format_time(end)}"
    )
    broker = stack.broker
    assert broker is not None and stack.current is not None

    def shown() -> Any:
        return (details(broker).pod(key) or {}).get("placed")

    (place,) = stack.until(shown, "the page has its slot")
    assert place["until"] == drain
    stack.until(lambda: any(row.marks for row in live_state(broker).slots), "the page has the slot's user")
    (slots,) = live_state(broker).slots
    (mark,) = slots.marks
    assert mark.use == "own" and mark.user is not None
    assert (mark.user.claim, mark.user.until) == (claim.name, end - minutes * MINUTE)


@pytest.mark.covers("ONC-04", "CAP-08")
@pytest.mark.parametrize("state", ["scheduled", "payment-failed"])
def test_block_that_has_not_begun_has_no_slot_of_another_account(stack: Stack, state: str) -> None:
    block = stack.aws.capacity_block(starts=timedelta(hours=5), ends=timedelta(hours=29), state=state)
    stack.node_class(id_=block)
    live = stack.aws.odcr()
    broker = stack.start()
    shown = {live, block} if state == "scheduled" else {live}
    stack.until(lambda: {row.id for row in live_state(broker).slots} >= shown, "the page has the slots")
    rows = [row for row in live_state(broker).slots if row.id == block]
    assert [(row.id, row.state, row.marks) for row in rows] == (
        [(block, "scheduled", ())] if state == "scheduled" else []
    )


@pytest.mark.covers("ONC-04")
def test_reservation_is_shown_once_it_is_described(stack: Stack) -> None:
    """Its object exists before its status: a row without type, zone and state says nothing."""
    described = stack.aws.odcr()
    broker = stack.start()

    def shown() -> list[tuple[str, str]]:
        return [(row.id, row.state) for row in live_state(broker).slots]

    stack.until(shown, "the page has the reservation")
    stack.tap.lose(status_of("ondemandcapacityreservations"))
    new = stack.aws.odcr()
    stack.until(lambda: stack.tap.lost, "only its status is missing", step=1.0)
    assert shown() == [(described, "active")]
    stack.tap.heal()
    both = sorted([(described, "active"), (new, "active")])
    stack.until(lambda: sorted(shown()) == both, "both are shown", step=1.0)
