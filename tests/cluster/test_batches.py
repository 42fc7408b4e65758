"""Claims that wait at one moment: planned together, one call for equal claims, higher priority first."""

from __future__ import annotations

import pytest

from broker.apis.karpenter import NodeClaim
from tests.cluster.account import A, B, pools
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack


@pytest.mark.covers("KRP-21")
def test_equal_claims_share_one_call(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=20)
    stack.node_class(id_=odcr)
    claims = stack.claims(20)
    stack.start()
    stack.until_launched(*claims)
    # One call, however often a slow server made the SDK send it.
    assert len({fleet["ClientToken"] for fleet in stack.aws.fleets()}) == 1
    fleet = stack.aws.fleets()[0]
    assert int(fleet["TargetCapacitySpecification"]["TotalTargetCapacity"]) == 20
    ids = {stack.get(NodeClaim, name).status.provider_id for name in claims}
    assert len(ids) == 20
    assert len(stack.aws.instances()) == 20


@pytest.mark.covers("KRP-21")
def test_no_call_holds_two_pools_of_one_type_and_zone(stack: Stack) -> None:
    """Two reservations of one type and zone are two calls; a fallback may name many pools, each once."""
    first, second = stack.aws.odcr(count=2), stack.aws.odcr(count=2)
    stack.node_class(capacityReservationSelectorTerms=[{"id": first}, {"id": second}], zones=(A, B))
    claims = stack.claims(6, types=("m5.large", "m5.xlarge"), capacity=(RESERVED, ON_DEMAND))
    stack.start()
    stack.until_launched(*claims)
    held = [stack.reservation_of(name) for name in claims]
    assert (held.count(first), held.count(second), held.count("")) == (2, 2, 2)
    for fleet in stack.aws.fleets():
        pools_of_call = [(p["InstanceType"], p["AvailabilityZone"]) for p in pools(fleet)]
        assert len(pools_of_call) == len(set(pools_of_call))
    assert stack.calls("CreateFleet") == 3


@pytest.mark.covers("KRP-21", "KRP-20")
def test_when_ec2_gives_fewer_the_more_important_claims_get_them(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=3)
    stack.node_class(id_=odcr)
    for n in range(3):
        stack.claim(f"c-{n}", capacity=(RESERVED, ON_DEMAND), priority=n)
    # After the description and before the launch, another user takes two of the slots.
    stack.before_launch(lambda: stack.aws.rival(odcr, 2))
    stack.start(poll_seconds=600.0)
    stack.until_launched("c-0", "c-1", "c-2")
    assert [stack.reservation_of(f"c-{n}") for n in range(3)] == ["", "", odcr]
    assert stack.calls("CreateFleet") == 2
    assert len(stack.aws.instances()) == 3


@pytest.mark.covers("KRP-20")
@pytest.mark.both_servers
def test_too_few_slots_go_to_the_more_important(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    for n in range(4):
        stack.claim(f"c-{n}", priority=n)
    stack.start()
    stack.until_launched("c-2", "c-3")
    stack.until_waiting("c-0", "AllReservationsFull")
    stack.until_waiting("c-1", "AllReservationsFull")
    assert len(stack.aws.instances()) == 2


@pytest.mark.covers("KRP-20")
def test_every_reserved_slot_is_used_that_any_assignment_could_use(stack: Stack) -> None:
    """The claim that can use both slots leaves the other claim its only slot."""
    small, large = stack.aws.odcr("m5.large"), stack.aws.odcr("m5.xlarge")
    arn = stack.aws.group(small, large)
    stack.node_class(group=arn)
    stack.claim("both", types=("m5.large", "m5.xlarge"), priority=10)
    stack.claim("small", types=("m5.large",))
    stack.start()
    stack.until_launched("both", "small")
    assert (stack.reservation_of("both"), stack.reservation_of("small")) == (large, small)


@pytest.mark.covers("KRP-20", "KRP-30")
def test_freed_slot_goes_to_a_waiting_claim(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim("c-0")
    stack.until_launched("c-0")
    stack.claim("c-1")
    stack.until_waiting("c-1", "AllReservationsFull")
    stack.delete(NodeClaim, "c-0")
    stack.until_launched("c-1")
    assert stack.reservation_of("c-1") == odcr
