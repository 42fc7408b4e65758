"""Slots that Karpenter frees to replace its own nodes are left to it for a bounded time, and a slot that is
kept for a certain node is free for no other, wherever a person looks.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.successors import HOLD
from broker.commands.explain.live import LIVE
from broker.commands.explain.reading import read
from broker.commands.plan.claims import rows
from broker.oncall.idle_matches import idle_matches
from broker.text import format_time
from broker.webpage.live import live_state
from tests.cluster.account import A
from tests.cluster.stack import Stack
from tests.cluster.test_page_details import dry_run, forecaster

pytestmark = pytest.mark.covers("FUL-06")
FINALIZER = "karpenter.sh/termination"


def karpenters(stack: Stack, name: str, odcr: str, *, pool: str = "theirs") -> str:
    """A claim of Karpenter with an instance, in the reservation if one is given. Returns the instance."""
    (id_,) = stack.aws.rival(odcr) if odcr else ("i-0123456789abcdef0",)
    labels = {names.RESERVATION_ID: odcr} if odcr else {}
    stack.claim(name, group=names.KARPENTER_AWS, pool=pool, labels=labels)
    stack.edit(NodeClaim, name, {"metadata": {"finalizers": [FINALIZER]}})
    show(stack, name, condition(names.LAUNCHED), providerID=f"aws:///{A}/{id_}")
    return id_


def condition(type_: str, reason: str = "") -> dict[str, Any]:
    at = format_time(datetime.now(UTC))  # the API server's clock is the machine's
    return {
        "type": type_,
        "status": "True",
        "reason": reason or type_,
        "message": "",
        "lastTransitionTime": at,
    }


def show(stack: Stack, name: str, *conditions: dict[str, Any], **fields: str) -> None:
    stack.edit(NodeClaim, name, {"status": {"conditions": [*conditions], **fields}}, subresource="status")


def disrupt(stack: Stack, name: str, reason: str) -> None:
    show(stack, name, condition(names.LAUNCHED), condition(names.DISRUPTION_REASON, reason))


def end(stack: Stack, name: str, instance: str) -> None:
    """Karpenter terminates the instance of a deleted claim, which goes."""
    stack.aws.ec2.terminate_instances(InstanceIds=[instance])
    stack.edit(NodeClaim, name, {"metadata": {"finalizers": []}})
    stack.until_gone(NodeClaim, name)


def freed(stack: Stack, *, slots: int = 1, reason: str = "Drifted") -> tuple[str, str]:
    """A reservation with a slot that a node of Karpenter left, and a claim of the broker that wants it."""
    odcr = stack.aws.odcr(count=slots)
    stack.node_class(id_=odcr, zones=(A,))
    instance = karpenters(stack, "old", odcr)
    for number in range(1, slots):
        karpenters(stack, f"other-{number}", odcr)
    stack.start()
    ours = stack.claim("ours")
    stack.until_waiting(ours, "AllReservationsFull")
    disrupt(stack, "old", reason)
    stack.delete(NodeClaim, "old")
    end(stack, "old", instance)
    return odcr, ours


def looks(stack: Stack) -> None:
    """The broker sees what EC2 shows, and plans again."""
    stack.polls(2)
    stack.passes()


@pytest.mark.parametrize("reason", ["Drifted", "Unhealthy"])
def test_slot_that_karpenter_frees_to_replace_its_node_is_left_to_it(stack: Stack, reason: str) -> None:
    odcr, ours = freed(stack, reason=reason)
    looks(stack)
    assert stack.aws.free(odcr) == 1
    message = stack.until_waiting(ours, "AllReservationsFull").message
    assert f"{odcr} 0 of 1 (1 kept for a node that replaces another)" in message
    karpenters(stack, "new", odcr)
    looks(stack)
    assert "kept for a node" not in stack.until_waiting(ours, "AllReservationsFull").message
    assert not [
        event for event in stack.events(ours) if event.type == "Warning" and "refused" in event.message
    ]


def test_slot_is_free_for_all_once_the_time_is_over(stack: Stack) -> None:
    odcr, ours = freed(stack)
    looks(stack)
    assert stack.aws.free(odcr) == 1
    stack.advance(601)
    stack.until_launched(ours)
    assert stack.reservation_of(ours) == odcr


def test_replacement_in_the_reservation_releases_other_slots(stack: Stack) -> None:
    odcr, ours = freed(stack, slots=2)
    karpenters(stack, "new", odcr)
    stack.aws.ec2.terminate_instances(
        InstanceIds=[stack.get(NodeClaim, "other-1").status.provider_id.rpartition("/")[2]]
    )
    stack.until_launched(ours)
    assert stack.reservation_of(ours) == odcr


def test_replacement_elsewhere_does_not_release_the_slot(stack: Stack) -> None:
    odcr, ours = freed(stack)
    karpenters(stack, "new", "")
    karpenters(stack, "of-another-pool", "", pool="others")
    looks(stack)
    assert stack.aws.free(odcr) == 1 and not stack.get(NodeClaim, ours).status.provider_id


@pytest.mark.parametrize("reason", ["Empty", "Underutilized"])
def test_slot_of_a_node_that_is_not_replaced_is_free_at_once(stack: Stack, reason: str) -> None:
    odcr, ours = freed(stack, reason=reason)
    stack.until_launched(ours)
    assert stack.reservation_of(ours) == odcr


def test_slot_is_free_at_once_if_the_replacement_was_there_before(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=1)
    stack.node_class(id_=odcr, zones=(A,))
    instance = karpenters(stack, "old", odcr)
    stack.start()
    ours = stack.claim("ours")
    stack.until_waiting(ours, "AllReservationsFull")
    disrupt(stack, "old", "Drifted")
    karpenters(stack, "new", "")
    stack.delete(NodeClaim, "old")
    end(stack, "old", instance)
    stack.until_launched(ours)
    assert stack.reservation_of(ours) == odcr


def test_new_process_leaves_the_slots_of_claims_that_still_end(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=1)
    stack.node_class(id_=odcr, zones=(A,))
    instance = karpenters(stack, "old", odcr)
    disrupt(stack, "old", "Drifted")
    stack.delete(NodeClaim, "old")
    stack.aws.ec2.terminate_instances(InstanceIds=[instance])
    stack.start()
    ours = stack.claim("ours")
    looks(stack)
    assert "1 kept for a node" in stack.until_waiting(ours, "AllReservationsFull").message
    stack.edit(NodeClaim, "old", {"metadata": {"finalizers": []}})
    stack.until_gone(NodeClaim, "old")
    looks(stack)
    assert stack.aws.free(odcr) == 1 and not stack.get(NodeClaim, ours).status.provider_id


def of_karpenter(stack: Stack, odcr: str) -> None:
    """A node of Karpenter ends to be replaced."""
    instance = karpenters(stack, "old", odcr)
    disrupt(stack, "old", "Drifted")
    stack.delete(NodeClaim, "old")
    stack.aws.ec2.terminate_instances(InstanceIds=[instance])


def of_broker(stack: Stack, odcr: str) -> None:
    """A successor of a node that is gone, with a class that cannot launch."""
    until = format_time(stack.clock.now() + HOLD)
    hold = {names.REPLACES: "gone/uid-gone", names.TAKES_SLOT: f"{odcr}/{until}"}
    stack.claim("next", node_class="missing", annotations=hold)


@pytest.mark.covers("ONC-05")
@pytest.mark.parametrize(("keep", "mark"), [(of_karpenter, "ending"), (of_broker, "held")])
def test_status_page_and_commands_agree_that_a_kept_slot_is_free_for_no_other(
    stack: Stack, keep: Callable[[Stack, str], None], mark: str
) -> None:
    odcr = stack.aws.odcr(count=1)
    stack.node_class(id_=odcr, zones=(A,))
    keep(stack, odcr)
    broker = stack.start()
    ours = stack.claim("ours")
    looks(stack)
    full = f"{odcr} 0 of 1 (1 kept for a node that replaces another)"
    assert full in stack.until_waiting(ours, "AllReservationsFull").message
    assert stack.aws.free(odcr) == 1
    stack.stop()  # its caches stay as they are
    now = stack.clock.now()
    page, seen = live_state(broker), read(stack.client, now)
    assert [slot.use for row in page.slots for slot in row.marks] == [mark]
    assert not [*idle_matches(page.waiters, page.idle_slots)] and not seen.matches
    claim = stack.get(NodeClaim, ours)
    shown, command = LIVE.claim(broker, ours), forecaster(stack, now).of(claim)
    assert shown is not None and command is not None
    assert full in shown["decision"] and shown["decision"] == command.decision
    planned = rows([*seen.classes, claim], stack.provider(), now=now, dry_run=dry_run(stack))[0]
    assert [row["decision"] for row in planned] == [command.decision]
