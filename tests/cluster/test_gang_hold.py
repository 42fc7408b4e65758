"""A gang that outranks singles: the slots that become free are held for it, until its window ends."""

from __future__ import annotations

import pytest

from broker.apis import names
from tests.cluster.stack import Stack


@pytest.mark.covers("KRP-39")
@pytest.mark.both_servers
def test_free_slots_wait_for_the_gang_and_are_free_for_all_after_its_window(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=3)
    first, second, third = stack.aws.rival(odcr, 3)
    stack.node_class(id_=odcr)
    stack.start(gang_hold_seconds=300.0)
    gang = {names.GANG: "train", names.GANG_SIZE: "2", names.PRIORITY: "1000"}
    for name in ("train-0", "train-1"):
        stack.claim(name, annotations=gang)
    stack.claim("single")
    stack.until_waiting("single", "AllReservationsFull")
    stack.aws.ec2.terminate_instances(InstanceIds=[first])
    held = stack.until_waiting("single", "HeldForGang").message
    assert f"(1 of {odcr})" in held and "gang train of priority 1000, which needs 2" in held
    assert "are held until" in stack.until_waiting("train-0", "GangIncomplete").message
    stack.stop()
    stack.start(gang_hold_seconds=300.0)  # the window is the claims' own, and survives a restart
    stack.passes()
    stack.until_waiting("single", "HeldForGang")
    assert stack.calls("CreateFleet") == 0
    stack.aws.ec2.terminate_instances(InstanceIds=[second])
    stack.until_launched("train-0", "train-1")
    for name in ("late-0", "late-1"):
        stack.claim(name, annotations={**gang, names.GANG: "late"})
    stack.until_waiting("late-0")
    stack.aws.ec2.terminate_instances(InstanceIds=[third])
    stack.until(lambda: "gang late" in stack.until_waiting("single").message, "the slot is held again")
    stack.advance(301.0)
    stack.until_launched("single")
    assert stack.reservation_of("single") == odcr
