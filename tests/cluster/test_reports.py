"""Reports to users: a reason for each class of refusal, events on claim and pods, LimitExceeded."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Object, condition
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack

LIMIT = names.CAPACITY_RESERVATION
REASONS = {
    "InsufficientInstanceCapacity": "InsufficientCapacity",
    "ReservationCapacityExceeded": "ReservationCapacityExceeded",
    "InvalidCapacityReservationId.NotFound": "ReservationNotUsable",
    "Unsupported": "InstanceTypeUnsupported",
    "InsufficientFreeAddressesInSubnet": "InsufficientFreeAddressesInSubnet",
    "VcpuLimitExceeded": "VCPULimitExceeded",
    "RequestLimitExceeded": "RequestLimitExceeded",
    "InternalError": "InternalError",
    "InvalidParameterValue": "InvalidLaunchConfiguration",
    "UnauthorizedOperation": "Unauthorized",
}


@pytest.mark.covers("KRP-24", "KRP-18")
@pytest.mark.parametrize("code", REASONS)
@pytest.mark.both_servers
def test_each_class_of_refusal_has_its_own_reason(stack: Stack, code: str) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr, zones=(A,))
    stack.start()
    stack.control.fault(action="CreateFleet", stage="launch", code=code, message="says EC2", times=-1)
    stack.claim()
    waits = stack.until_waiting("c-0", REASONS[code])
    assert waits.status == "Unknown"
    assert f"{code}: says EC2" in waits.message
    assert odcr in waits.message
    event = stack.until_event("c-0", REASONS[code], text="AWS request")
    assert event.type == "Warning" and code in event.message
    assert not stack.aws.instances()
    claim = stack.get(NodeClaim, "c-0").status
    launched, ready = (condition(claim.conditions, type_) for type_ in (names.LAUNCHED, names.READY))
    assert launched is not None and ready is not None
    assert (ready.status, ready.message) == ("Unknown", f"Launched: {launched.reason}")


@pytest.mark.covers("KRP-24")
def test_limit_exceeded_and_back_on_claim_class_and_pool(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.aws.rival(odcr)
    stack.node_class(id_=odcr)
    stack.node_pool("gpu")
    stack.start()
    stack.claim(pool="gpu")
    places: tuple[tuple[type[Object], str], ...] = (
        (NodeClaim, "c-0"),
        (EC2NodeClass, "gpu"),
        (NodePool, "gpu"),
    )

    def shows(model: type[Object], name: str, status: str, reason: str) -> bool:
        condition = stack.condition(model, name, LIMIT)
        return condition is not None and (condition.status, condition.reason) == (status, reason)

    stack.claim("c-1", pool="gpu", capacity=(RESERVED, ON_DEMAND))
    for model, name in places:
        stack.until(lambda m=model, n=name: shows(m, n, "False", "LimitExceeded"), f"{name} LimitExceeded")  # type: ignore[misc]
    condition = stack.claim_condition("c-0", LIMIT)
    assert condition is not None and odcr in condition.message
    turned = {name: stack.condition(model, name, LIMIT) for model, name in places}
    stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr, InstanceCount=2)
    stack.until_launched("c-0")
    for model, name in places:
        stack.until(lambda m=model, n=name: shows(m, n, "True", "Available"), f"{name} Available")  # type: ignore[misc]
        after, before = stack.condition(model, name, LIMIT), turned[name]
        assert before is not None and before.last_transition_time is not None
        assert after is not None and after.last_transition_time is not None
        assert after.last_transition_time >= before.last_transition_time


@pytest.mark.covers("KRP-24")
def test_a_pool_s_other_conditions_stay(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.node_pool("gpu")
    other_condition = {
        "type": "NodeClassReady",
        "status": "True",
        "reason": "NodeClassReady",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    stack.edit(NodePool, "gpu", {"status": {"conditions": [other_condition]}}, subresource="status")
    stack.start()
    stack.claim(pool="gpu")
    stack.until(lambda: stack.condition(NodePool, "gpu", LIMIT), "the pool has the condition")
    kept = stack.condition(NodePool, "gpu", "NodeClassReady")
    assert kept is not None and kept.status == "True"


@pytest.mark.covers("KRP-24")
def test_pods_of_a_waiting_claim_get_an_event_with_the_reason(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.aws.rival(odcr)
    stack.node_class(id_=odcr)
    stack.start()
    stack.pod("train-0")
    stack.pod("other")
    stack.until(lambda: stack.broker and stack.broker.read.pods.cache.find("default/train-0"), "the pod seen")
    stack.claim(pods=("default/train-0",))
    stack.until_waiting("c-0", "AllReservationsFull")
    event = stack.until_event("train-0", "AllReservationsFull", kind="Pod")
    assert event.type == "Warning"
    assert event.message.startswith("NodeClaim c-0: no free slot") and odcr in event.message
    assert not stack.events("other", kind="Pod")


@pytest.mark.covers("KRP-24")
def test_unschedulable_pods_get_an_event_about_a_claim_that_fits_them(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.aws.rival(odcr)
    stack.node_class(id_=odcr)
    stack.start()
    unschedulable = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
    }
    for name, pod_fields in (
        ("fits", {}),
        ("elsewhere", {"nodeSelector": {names.INSTANCE_TYPE: "p5.48xlarge"}}),
    ):
        stack.pod(name, **pod_fields)
        stack.client.patch(
            Pod.KIND, name, {"status": unschedulable}, namespace="default", subresource="status"
        )
    stack.until(
        lambda: stack.broker and stack.broker.read.pods.cache.find("default/elsewhere"), "the pods seen"
    )
    stack.claim()
    stack.until_event("fits", "AllReservationsFull", kind="Pod")
    assert not stack.events("elsewhere", kind="Pod")


@pytest.mark.covers("KRP-24")
def test_attempts_record_the_earlier_tries(stack: Stack) -> None:
    small, large = stack.aws.odcr("m5.large"), stack.aws.odcr("m5.xlarge")
    arn = stack.aws.group(small, large)
    stack.node_class(group=arn)
    stack.start(poll_seconds=600.0)
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    stack.aws.rival(small)
    stack.claim(types=("m5.large", "m5.xlarge"))
    stack.until_launched("c-0")
    attempts = stack.get(NodeClaim, "c-0").annotations["capacity-broker.io/attempts"]
    assert attempts.index("ReservationCapacityExceeded") < attempts.index('"Launched"')
