"""The reaction to a refusal is limited to the scope that EC2 reports."""

from __future__ import annotations

import pytest

from broker.apis.core import Event
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND, Json
from tests.cluster.stack import Stack

LACKS = (
    "Your requested instance type (m5.large) is not supported in your requested Availability Zone "
    "(us-east-1a). Please retry your request by not specifying an Availability Zone or choosing us-east-1b."
)
NO_SUCH = "The requested configuration is currently not supported. Please check the documentation."
SPREAD = (
    "You've reached the limit of instances in this spread placement group. A spread placement group can have "
    "up to seven instances per Availability Zone."
)
PLAIN: Json = {"capacity": (ON_DEMAND,)}


@pytest.mark.covers("SAF-12")
def test_a_zone_that_lacks_the_type_is_left_out_for_hours_and_for_every_class(stack: Stack) -> None:
    stack.node_class("one", zones=(A,))
    stack.node_class("two", zones=(A,))
    stack.start()
    stack.control.fault(action="CreateFleet", stage="launch", code="Unsupported", message=LACKS)
    stack.claim("c-one", node_class="one", **PLAIN)
    assert LACKS in stack.until_waiting("c-one", "InstanceTypeNotOffered").message
    stack.claim("c-two", node_class="two", **PLAIN)
    stack.until_waiting("c-two", "InstanceTypeNotOffered")
    stack.advance(5 * 3600)
    stack.passes()
    assert stack.calls("CreateFleet") == 1
    stack.advance(3600)
    stack.until_launched("c-one", "c-two")


@pytest.mark.covers("SAF-12")
def test_any_other_unsupported_request_is_of_its_class_and_of_minutes(stack: Stack) -> None:
    stack.node_class("one", zones=(A,))
    stack.node_class("two", zones=(A,))
    stack.start()
    stack.control.fault(action="CreateFleet", stage="launch", code="Unsupported", message=NO_SUCH)
    stack.claim("c-one", node_class="one", **PLAIN)
    stack.until_waiting("c-one", "InstanceTypeUnsupported")
    stack.claim("c-two", node_class="two", **PLAIN)
    stack.until_launched("c-two")
    assert stack.calls("CreateFleet") == 2  # the refused class waits
    stack.advance(180)
    stack.until_launched("c-one")


@pytest.mark.covers("SAF-12")
@pytest.mark.both_servers
def test_an_unsupported_request_into_a_reservation_leaves_it_to_other_classes(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class("one", id_=odcr, zones=(A,))
    stack.node_class("two", id_=odcr, zones=(A,))
    stack.start()
    stack.control.fault(action="CreateFleet", stage="launch", code="Unsupported", message=NO_SUCH)
    stack.claim("c-one", node_class="one")
    stack.until_waiting("c-one", "InstanceTypeUnsupported")
    stack.claim("c-two", node_class="two")
    stack.until_launched("c-two")
    assert stack.reservation_of("c-two") == odcr


@pytest.mark.covers("SAF-13")
@pytest.mark.parametrize("stage", ["launch", "request"])
@pytest.mark.parametrize("code", ["MaxFleetCountExceeded", "VolumeLimitExceeded", "MaxIOPSLimitExceeded"])
def test_a_limit_that_is_no_vcpu_quota_marks_no_family(stack: Stack, stage: str, code: str) -> None:
    """The claim's reason is the code itself, and the next claim of the family is launched at once."""
    stack.node_class(zones=(A,))
    broker = stack.start()
    stack.control.fault(action="CreateFleet", stage=stage, code=code, message="at its limit")
    stack.claim("c-0", **PLAIN)
    assert f"{code}: at its limit" in stack.until_waiting("c-0", code).message
    assert not list(broker.launcher.shortages.lasting(stack.clock.now()))
    stack.claim("c-1", **PLAIN)
    stack.until_launched("c-1")
    stack.advance(10)
    stack.until_launched("c-0")


@pytest.mark.covers("SAF-13")
def test_the_limit_of_templates_starts_the_sweep_of_unused_ones(stack: Stack) -> None:
    stack.node_class("old")
    stack.node_class("new")
    stack.start()
    stack.claim("c-old", node_class="old", **PLAIN)
    stack.until_launched("c-old")
    old = set(stack.aws.template_names())
    assert len(old) == 1
    stack.advance(900)
    stack.passes()
    assert old <= set(stack.aws.template_names())  # within a day
    code = "MaxTemplateLimitExceeded"
    stack.control.fault(action="CreateLaunchTemplate", code=code, message="5000 is the limit")
    stack.claim("c-new", node_class="new", **PLAIN)
    stack.until_waiting("c-new", code)
    stack.until(lambda: not old & set(stack.aws.template_names()), "the unused template deleted")
    stack.advance(10)
    stack.until_launched("c-new")


def test_a_denied_sweep_of_profiles_does_not_repeat_the_sweep_at_the_limit(stack: Stack) -> None:
    stack.control.fault(action="ListInstanceProfiles", code="AccessDenied", status=403, times=-1)
    stack.node_class()
    stack.start()
    code = "MaxTemplateLimitExceeded"
    stack.control.fault(action="CreateLaunchTemplate", code=code, message="5000 is the limit")
    stack.claim("c-0", **PLAIN)
    stack.until_waiting("c-0", code)
    stack.advance(10)
    stack.until_launched("c-0")
    used = set(stack.aws.template_names())
    for _ in range(12):
        sweeps, denied = stack.calls("DescribeLaunchTemplates"), stack.calls("ListInstanceProfiles")
        stack.advance(61)
        stack.until(
            lambda n=sweeps, m=denied: (  # type: ignore[misc]
                stack.calls("DescribeLaunchTemplates") > n and stack.calls("ListInstanceProfiles") > m
            ),
            "both swept",
        )
    assert used <= set(stack.aws.template_names())  # within a day


@pytest.mark.covers("SAF-14")
def test_a_fresh_instance_profile_is_waited_for_without_a_word_against_the_class(stack: Stack) -> None:
    stack.node_class()
    stack.start()
    stack.until_class("Launchable", "True")
    message = (
        "Value (blue_1) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
    )
    code = "InvalidParameterValue"
    fault = stack.control.fault(action="CreateFleet", stage="launch", code=code, message=message, times=-1)
    stack.claim("c-0", **PLAIN)
    waits = stack.until_waiting("c-0", "InstanceProfileNotReady")
    assert message in waits.message
    stack.until(lambda: stack.calls("CreateFleet") >= 3, "the launch tried again", step=0.5)
    launchable = stack.class_condition("Launchable")
    assert launchable is not None and launchable.status == "True"
    assert not [e for e in stack.events("c-0") if e.type == "Warning"]
    assert not [
        e for e in stack.all(Event) if e.involved_object.kind == "EC2NodeClass" and e.type == "Warning"
    ]
    stack.control.clear_faults(fault)
    stack.until(lambda: stack.claim_condition("c-0").status == "True", "launched", step=1.0)  # type: ignore[union-attr]
    assert len(stack.aws.instances()) == 1


@pytest.mark.covers("SAF-15")
def test_a_full_spread_group_leaves_the_zone_out_for_every_type(stack: Stack) -> None:
    stack.aws.ec2.create_placement_group(GroupName="seven", Strategy="spread")
    stack.node_class(placementGroupSelector={"name": "seven"})
    stack.node_class("plain", zones=(A,))
    stack.start()
    stack.control.fault(
        action="CreateFleet",
        stage="launch",
        code="InsufficientInstanceCapacity",
        message=SPREAD,
        match={"AvailabilityZone": A},
        times=-1,
    )
    stack.claim("c-0", types=("m5.large",), zones=(A,), **PLAIN)
    stack.until_waiting("c-0", "SpreadPlacementGroupFull")
    calls = stack.calls("CreateFleet")
    stack.claim("c-1", types=("c5.large",), zones=(A,), **PLAIN)
    assert SPREAD in stack.until_waiting("c-1", "SpreadPlacementGroupFull").message
    assert stack.calls("CreateFleet") == calls  # another type of the same zone is not requested
    stack.claim("c-2", types=("c5.large",), zones=(A, B), **PLAIN)
    stack.until_launched("c-2")
    assert stack.instance("c-2")["Placement"]["AvailabilityZone"] == B
    stack.control.clear_faults()
    stack.claim("c-3", node_class="plain", types=("m5.large",), zones=(A,), **PLAIN)
    stack.until_launched("c-3")
