"""EC2's refusals: each class of error has its own reaction, and marks only its own scope."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from tests.cluster.account import A, B, pools
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack

LIMITED = names.CAPACITY_RESERVATION
BOTH = (RESERVED, ON_DEMAND)


def limited(stack: Stack, name: str = "c-0") -> str:
    condition = stack.claim_condition(name, LIMITED)
    return condition.reason if condition else ""


@pytest.mark.covers("KRP-18")
@pytest.mark.parametrize("stage", ["launch", "request"])
def test_a_quota_never_marks_the_reservation(stack: Stack, stage: str) -> None:
    """A quota error has the same effect for a pool and for the whole call. Types under another limit are
    tried, and the reservation is requested again by the next permitted claim."""
    odcr = stack.aws.odcr("p5.48xlarge")
    stack.node_class(id_=odcr)
    stack.start()
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    stack.control.fault(
        action="CreateFleet", stage=stage, code="VcpuLimitExceeded", message="P is at its limit"
    )
    stack.claim(types=("p5.48xlarge", "m5.large"), capacity=BOTH)
    stack.until_launched("c-0")
    assert stack.instance("c-0")["InstanceType"] == "m5.large"
    assert limited(stack) == ""
    assert stack.class_condition(LIMITED) is None
    attempts = stack.get(NodeClaim, "c-0").annotations["capacity-broker.io/attempts"]
    assert "VcpuLimitExceeded" in attempts
    assert stack.aws.free(odcr) == 1
    resolved = stack.class_condition(names.RESERVATIONS_RESOLVED)
    assert resolved is not None and resolved.message == "1 usable with 1 of 1 slot free"


@pytest.mark.covers("KRP-18", "KRP-24")
def test_claim_under_a_quota_waits_and_names_the_quota(stack: Stack) -> None:
    odcr = stack.aws.odcr("p5.48xlarge")
    stack.node_class(id_=odcr)
    stack.start()
    stack.control.fault(
        action="CreateFleet", stage="launch", code="VcpuLimitExceeded", message="P is at its limit", times=-1
    )
    stack.claim(types=("p5.48xlarge",))
    waits = stack.until_waiting("c-0", "VCPULimitExceeded")
    assert "VcpuLimitExceeded: P is at its limit" in waits.message
    stack.passes()
    assert stack.calls("CreateFleet") == 1
    assert limited(stack) == ""


@pytest.mark.covers("KRP-18")
@pytest.mark.parametrize("stage", ["launch", "request"])
def test_a_subnet_without_addresses_never_marks_the_reservation(stack: Stack, stage: str) -> None:
    """Another subnet of the zone is tried, for the same reservation."""
    ec2 = stack.aws.ec2
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    second = ec2.create_subnet(VpcId=vpc, CidrBlock="172.31.128.0/24", AvailabilityZone=A)["Subnet"][
        "SubnetId"
    ]
    first = stack.aws.subnets[A]
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr, subnetSelectorTerms=[{"id": first}, {"id": second}])
    stack.start()
    stack.control.fault(
        action="CreateFleet",
        stage=stage,
        code="InsufficientFreeAddressesInSubnet",
        message="no free addresses",
        match={"SubnetId": first},
        times=-1,
    )
    stack.claim()
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == odcr
    assert stack.instance("c-0")["SubnetId"] == second
    assert stack.calls("CreateFleet") == 2
    assert limited(stack) == "Available"


@pytest.mark.covers("KRP-18", "KRP-34")
def test_throttling_inside_an_answer_marks_nothing_and_is_retried(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.start()
    stack.control.fault(
        action="CreateFleet", stage="launch", code="RequestLimitExceeded", message="slow down"
    )
    stack.claim(capacity=BOTH)
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == odcr
    assert stack.calls("CreateFleet") == 2
    stack.until_event("c-0", "RequestLimitExceeded")
    assert limited(stack) == "Available"
    history = [e.reason for e in stack.events("c-0")]
    assert "LimitExceeded" not in history


@pytest.mark.covers("KRP-18", "KRP-34")
@pytest.mark.both_servers
def test_throttled_call_marks_nothing_and_is_retried(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.start()
    stack.control.fault(action="CreateFleet", code="RequestLimitExceeded", status=503, times=2)
    stack.claim(capacity=BOTH)
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == odcr


@pytest.mark.covers("KRP-34", "KRP-19")
def test_insufficient_capacity_is_tried_once(stack: Stack) -> None:
    """EC2 returns it as a server error, and claims keep arriving; the pool is still requested only once."""
    stack.node_class(preference="none", zones=(A,))
    stack.start()
    stack.control.fault(
        action="CreateFleet",
        code="InsufficientInstanceCapacity",
        message="none left",
        status=500,
        times=-1,
    )
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_waiting("c-0")
    assert stack.calls("CreateFleet") == 1
    stack.claim("c-1", capacity=(ON_DEMAND,))
    waits = stack.until_waiting("c-1", "InsufficientCapacity")
    assert "InsufficientInstanceCapacity" in waits.message
    stack.passes()
    assert stack.calls("CreateFleet") == 1
    stack.control.clear_faults()
    stack.advance(4 * 60)
    stack.until_launched("c-0", "c-1")


@pytest.mark.covers("KRP-18", "KRP-19")
def test_dry_pool_is_left_for_the_next_zone_and_not_tried_again(stack: Stack) -> None:
    stack.control.pool(instance_type="m5.large", zone=A, size=0)
    stack.node_class(preference="none", zones=(A, B))
    stack.start()
    stack.claim("c-0", capacity=(ON_DEMAND,), zones=(A,))
    stack.until_waiting("c-0")
    stack.claim("c-1", capacity=(ON_DEMAND,))
    stack.until_launched("c-1")
    assert stack.instance("c-1")["Placement"]["AvailabilityZone"] == B
    zones = [pool["AvailabilityZone"] for fleet in stack.aws.fleets() for pool in pools(fleet)]
    assert zones == [A, B]


@pytest.mark.covers("KRP-18")
def test_a_reservation_that_is_gone_is_looked_up_anew(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.start(poll_seconds=600.0)
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=odcr)
    stack.wait_for_ec2()
    stack.claim(capacity=BOTH)
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == ""
    condition = stack.until_class(names.RESERVATIONS_RESOLVED, "False", reason="ReservationCancelled")
    assert odcr in condition.message


@pytest.mark.covers("KRP-18")
def test_a_wrong_request_stops_only_its_claims(stack: Stack) -> None:
    stack.node_class("good", preference="none")
    stack.node_class("bad", preference="none", detailedMonitoring=True)
    stack.start()
    stack.control.fault(
        action="CreateLaunchTemplate",
        code="InvalidParameterValue",
        message="that is no good",
        match={"Enabled": True},
        times=-1,
    )
    stack.claim("c-0", node_class="bad", capacity=(ON_DEMAND,))
    waits = stack.until_waiting("c-0", "InvalidLaunchConfiguration")
    assert "InvalidParameterValue: that is no good" in waits.message
    stack.claim("c-1", node_class="good", capacity=(ON_DEMAND,))
    stack.until_launched("c-1")
    assert stack.calls("CreateFleet") == 1


@pytest.mark.covers("KRP-18")
def test_a_corrected_class_is_tried_at_once(stack: Stack) -> None:
    """The number of earlier refusals, and so the length of the claims' wait, does not matter."""
    stack.node_class(preference="none", detailedMonitoring=True)
    stack.start()
    stack.control.fault(
        action="CreateLaunchTemplate",
        code="InvalidParameterValue",
        message="that is no good",
        match={"Enabled": True},
        times=-1,
    )
    stack.claim(capacity=(ON_DEMAND,))
    stack.until(lambda: stack.calls("CreateLaunchTemplate") >= 5, "it is tried again and again", step=5)
    stack.until_waiting("c-0", "InvalidLaunchConfiguration")
    stack.edit(EC2NodeClass, "gpu", {"spec": {"detailedMonitoring": False}})
    stack.until_launched("c-0")


@pytest.mark.covers("KRP-18")
def test_trouble_of_ec2_s_own_is_repeated_with_the_same_token(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    stack.control.fault(action="CreateFleet", code="InternalError", status=500, times=2)
    stack.claims(2)
    stack.start()
    stack.until_launched("c-0", "c-1")
    tokens = {fleet["ClientToken"] for fleet in stack.aws.fleets()}
    assert len(tokens) == 1
    assert len(stack.aws.instances()) == 2
