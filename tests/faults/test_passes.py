"""The launch loop between two passes over its claims: which claims it launches, and when it does nothing.

Invariant of each: a slot is used before anything is launched on demand. No call is forgotten while a claim
waits for its instances, and nothing is planned while nothing has changed.
"""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.kube.errors import Unavailable
from broker.oncall.metrics import REGISTRY
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.faults.walk import Process, World, held, records

BOTH = (RESERVED, ON_DEMAND)


def started(world: World) -> Process:
    process = world.start()
    process.until(lambda: process.broker.inventory.described, "EC2 is described")
    process.turn()
    return process


def whole(world: World) -> bool:
    claims = world.all_claims()
    running = sorted(i["InstanceId"] for i in world.instances())
    return len(held(claims)) == len(claims) and sorted(held(claims).values()) == running


def claim(world: World, name: str) -> NodeClaim:
    return next(claim_ for claim_ in world.all_claims() if claim_.name == name)


def plans() -> float:
    """Plans that this test process has made so far."""
    return sum(
        sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == "capacity_broker_plan_solve_seconds_count"
    )


@pytest.mark.covers("KRP-17", "KRP-20")
def test_slots_that_a_refused_call_leaves_are_used_before_anything_is_on_demand(world: World) -> None:
    """The only slot is planned for a claim with a forbidden call; the next has it in the same pass."""
    odcr = world.aws.odcr(count=1)
    group = world.aws.group(odcr, name=world.settings.cluster_name)
    for name in ("forbidden", "gpu"):
        world.node_class(name, group=group)
    process = started(world)
    world.control.fault(action="CreateFleet", code="UnauthorizedOperation", status=403)
    world.claim("first", node_class="forbidden", capacity=BOTH, priority=9)
    world.claim("second", capacity=BOTH)
    process.until(lambda: bool(held(world.all_claims())), "one is launched")
    assert set(held(world.all_claims())) == {"second"}
    assert claim(world, "second").labels[names.RESERVATION_ID] == odcr


@pytest.mark.covers("KRP-26")
def test_owner_of_a_claim_is_read_again_before_the_call_to_ec2(world: World) -> None:
    """Karpenter comes back in the middle of a pass: the claims that were taken over are its own again."""
    world.node_class(id_=world.aws.odcr(count=1))
    process = started(world)
    executor = vars(vars(process.broker.launcher)["_executor"])
    world.claim("c-0")
    world.tick(90.0)  # EC2's instances are read again before anything is planned
    process.gate.at("DescribeInstances", lambda: executor.update(_owns=lambda _: False))
    process.run(30.0)
    assert not world.instances()
    assert names.LAUNCH not in claim(world, "c-0").annotations


@pytest.mark.covers("KRP-25")
def test_a_claim_that_goes_on_keeps_the_call_that_another_still_waits_for(world: World) -> None:
    """One call for two gives one; its claim cannot be written, and EC2 does not list the instance yet."""
    odcr = world.aws.odcr(count=2)
    world.node_class(group=world.aws.group(odcr, name=world.settings.cluster_name))
    world.tick(240.0)
    process = started(world)
    process.gate.at("CreateFleet", lambda: world.aws.rival(odcr, 1))
    world.late(120.0)
    world.claim("first", capacity=BOTH, priority=9)
    world.claim("second", capacity=BOTH)

    def away() -> None:
        raise Unavailable(0, "Away", "no answer, as ordered by the test")

    path = "PATCH /apis/karpenter.sh/v1/nodeclaims/first"
    process.gate.at(path, lambda: None, away)  # it is marked, and cannot be given its instance
    process.until(lambda: not process.gate.hooks[path], "the instance is there")
    first, second = claim(world, "first"), claim(world, "second")
    assert not first.status.provider_id
    assert [*records(world)] == [first.annotations[names.LAUNCH]]
    assert second.annotations[names.LAUNCH] not in records(world)
    process = world.start()
    process.until(lambda: whole(world), "the next process launches all")
    assert len(world.instances(ended=True)) == 2


@pytest.mark.covers("KRP-19")
def test_nothing_is_planned_while_nothing_changes(world: World) -> None:
    odcr = world.aws.odcr(count=1)
    world.node_class(id_=odcr)
    process = started(world)
    world.claims(2)
    process.until(lambda: len(held(world.all_claims())) == 1, "one is launched")
    process.run(150.0)
    before = plans()
    process.run(300.0)
    assert plans() - before <= 1
    (taken,) = held(world.all_claims())
    world.delete(taken)
    process.until(lambda: taken not in held(world.all_claims()) and whole(world), "the other has the slot")
    before = plans()
    world.claim("new", priority=9)
    process.turn()
    assert plans() > before


@pytest.mark.covers("KRP-11")
def test_a_change_among_a_thousand_reservations_shows_within_a_minute_by_one_call_a_poll(
    world: World,
) -> None:
    odcrs = [world.aws.odcr(criteria="open") for _ in range(1000)]
    world.node_class(preference="open")
    process = started(world)

    def totals() -> dict[str, int | None]:
        (raw,) = world.client.list(EC2NodeClass.KIND)[0]
        return {
            row.id: row.total_instance_count for row in EC2NodeClass.decode(raw).status.capacity_reservations
        }

    process.until(lambda: len(totals()) == 1000, "all of them show")
    process.run(60.0)
    world.control.clear_calls()
    changed = odcrs[700]
    world.aws.ec2.modify_capacity_reservation(CapacityReservationId=changed, InstanceCount=5)
    process.until(lambda: totals()[changed] == 5, "the change shows", seconds=60.0)
    calls = world.control.calls()
    assert calls.pop("ModifyCapacityReservation") == 1
    # Polls are half a minute apart.
    assert calls["DescribeCapacityReservations"] <= 3
    assert sum(calls.values()) <= 12, calls
