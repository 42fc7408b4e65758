"""Before the first claim each class's launch is tried: missing permissions of the broker's role are shown
on the class."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from tests.cluster.objects import ON_DEMAND, node_pool
from tests.cluster.stack import Stack

DRY = {"DryRun": True}
SAID = "You are not authorized to perform: ec2:RunInstances on resource: it, with an explicit deny"


def refuse(stack: Stack, action: str, missing: str, *, times: int = -1) -> None:
    """IAM's answer to a dry run, in its words."""
    message = (
        "You are not authorized to perform this operation. User: arn:aws:iam::123456789012:role/broker is "
        f"not authorized to perform: {missing} on resource: arn:aws:iam::123456789012:thing because no "
        "identity-based policy allows the action. Encoded authorization failure message: abc"
    )
    stack.control.fault(
        action=action, code="UnauthorizedOperation", status=403, message=message, match=DRY, times=times
    )


def tried(stack: Stack) -> int:
    """CreateFleets and RunInstances that were dry runs."""
    log = [*stack.control.log("CreateFleet"), *stack.control.log("RunInstances")]
    return len([call for call in log if call["params"].get("DryRun")])


@pytest.mark.covers("SAF-20")
@pytest.mark.parametrize(
    ("action", "missing"),
    [
        ("CreateFleet", "ec2:CreateFleet"),
        ("RunInstances", "ec2:RunInstances"),
        ("RunInstances", "iam:PassRole"),
        ("RunInstances", "ec2:CreateTags"),
    ],
)
def test_a_missing_permission_is_the_classs_condition_before_any_claim(
    stack: Stack, action: str, missing: str
) -> None:
    stack.node_class()
    stack.start()
    refuse(stack, action, missing)
    stack.until_class(names.LAUNCHABLE, "True")
    stack.advance(6)
    condition = stack.until_class(names.LAUNCHABLE, "False", reason="Unauthorized")
    assert condition.message.startswith(f"the broker's role lacks {missing}: ")
    stack.until_event("gpu", "Unauthorized", kind="EC2NodeClass", text=missing)
    # A claim reports the same, and makes no call to EC2.
    stack.claim(capacity=(ON_DEMAND,))
    assert missing in stack.until_waiting("c-0", "Unauthorized").message
    assert not [c for c in stack.control.log("CreateFleet") if not c["params"].get("DryRun")]
    assert not stack.aws.instances(own_only=False)

    stack.control.clear_faults()
    stack.until(lambda: stack.is_true("c-0", names.LAUNCHED), "launched once it may be", step=5.0)
    assert stack.class_condition(names.LAUNCHABLE).status == "True"  # type: ignore[union-attr]


@pytest.mark.covers("SAF-20")
def test_a_template_that_may_not_be_made_is_the_classs_condition(stack: Stack) -> None:
    stack.node_class()
    stack.start()
    stack.control.fault(
        action="CreateLaunchTemplate", code="UnauthorizedOperation", status=403, message="no", times=-1
    )
    stack.until_class(names.LAUNCHABLE, "True")
    stack.advance(6)
    condition = stack.until_class(names.LAUNCHABLE, "False", reason="Unauthorized")
    assert "ec2:CreateLaunchTemplate" in condition.message


@pytest.mark.covers("SAF-20")
def test_a_refused_trial_is_repeated_at_a_bounded_rate(stack: Stack) -> None:
    stack.node_class()
    stack.start()
    refuse(stack, "CreateFleet", "ec2:CreateFleet")
    stack.until_class(names.LAUNCHABLE, "True")
    stack.advance(6)
    stack.until_class(names.LAUNCHABLE, "False", reason="Unauthorized")
    for _ in range(60):
        stack.advance(10)
        stack.passes(1)
    # In ten minutes: after 30, 60, 120, 240, then every 300 seconds; three overrides each.
    assert 6 <= tried(stack) <= 18
    assert len(stack.events("gpu", kind="EC2NodeClass")) <= 2


@pytest.mark.covers("SAF-20")
def test_a_class_that_may_launch_is_tried_once_and_leaves_nothing(stack: Stack) -> None:
    stack.node_class()
    stack.start()
    stack.until_class(names.LAUNCHABLE, "True")
    stack.advance(6)
    stack.until(lambda: tried(stack) == 2 and not stack.aws.template_names(), "the class was tried")
    assert not stack.aws.instances(own_only=False)
    for _ in range(10):
        stack.advance(300)
        stack.passes(1)
    assert tried(stack) == 2
    assert stack.class_condition(names.LAUNCHABLE).status == "True"  # type: ignore[union-attr]
    stack.advance(700)
    stack.until(lambda: tried(stack) == 4, "an hour later it is tried again")


@pytest.mark.covers("SAF-20")
def test_claims_are_launched_without_a_trial_and_without_waiting_for_one(stack: Stack) -> None:
    stack.node_class()
    stack.start()
    names_ = stack.claims(5, capacity=(ON_DEMAND,))
    stack.until_launched(*names_)
    launched = stack.calls("CreateFleet")
    for _ in range(5):
        stack.advance(60)
        stack.passes(1)
    assert tried(stack) == 0
    assert stack.calls("CreateFleet") == launched


@pytest.mark.covers("SAF-20")
def test_an_edited_class_is_tried_anew_with_its_interfaces(stack: Stack) -> None:
    """EC2 then requires the subnet on the interfaces."""
    stack.node_class()
    stack.start()
    stack.until_class(names.LAUNCHABLE, "True")
    stack.advance(6)
    stack.until(lambda: tried(stack) == 2, "tried")
    stack.edit(EC2NodeClass, "gpu", {"spec": {"ipPrefixCount": 1}})
    stack.until(lambda: tried(stack) == 4, "tried anew", step=1.0)
    last = stack.control.log("RunInstances")[-1]["params"]
    assert last["NetworkInterfaces"][0]["SubnetId"].startswith("subnet-")
    assert stack.class_condition(names.LAUNCHABLE).status == "True"  # type: ignore[union-attr]


@pytest.mark.covers("SAF-20")
def test_class_with_a_full_reservation_is_tried_too(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.aws.rival(odcr)
    stack.node_class(id_=odcr)
    stack.start()
    refuse(stack, "RunInstances", "ec2:RunInstances")
    stack.until_class(names.LAUNCHABLE, "True")
    stack.advance(6)
    stack.until_class(names.LAUNCHABLE, "False", reason="Unauthorized")


@pytest.mark.covers("SAF-20")
@pytest.mark.both_servers
def test_a_reserved_launch_is_tried_into_its_reservation_and_takes_no_slot(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=1)
    stack.node_class(id_=odcr)
    stack.start()
    stack.until_class(names.LAUNCHABLE, "True")
    stack.advance(6)
    stack.until(lambda: tried(stack) == 2, "tried")
    target = stack.control.log("CreateLaunchTemplate")[-1]["params"]["LaunchTemplateData"]
    named = target["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert named == {"CapacityReservationId": odcr}
    assert stack.aws.free(odcr) == 1


def marked(stack: Stack) -> None:
    """A class with all launches denied."""
    stack.node_class()
    stack.start()
    refuse(stack, "RunInstances", "ec2:RunInstances")
    stack.until_class(names.LAUNCHABLE, "True")
    stack.advance(6)
    stack.until_class(names.LAUNCHABLE, "False", reason="Unauthorized")


def cleared(stack: Stack) -> None:
    def may_launch() -> bool:
        condition = stack.class_condition(names.LAUNCHABLE)
        return condition is not None and condition.status == "True"

    stack.until(may_launch, "the class may be launched from again", step=10.0)


def trials(stack: Stack, count: int = 1) -> None:
    """Returns when the class was tried this many times more, and has been processed."""
    before = len(stack.control.log("CreateLaunchTemplate"))
    stack.until(
        lambda: (
            len(stack.control.log("CreateLaunchTemplate")) >= before + count
            and not stack.aws.template_names()
        ),
        "tried again",
        step=10.0,
    )
    stack.passes()


@pytest.mark.covers("SAF-20")
@pytest.mark.parametrize("fact", ["InstanceType", "SubnetId"])
@pytest.mark.parametrize("action", ["RunInstances", "*"])
def test_a_class_is_not_marked_if_a_policy_denies_one_type_or_subnet(
    stack: Stack, fact: str, action: str
) -> None:
    stack.node_class()
    stack.start()
    stack.until_class(names.LAUNCHABLE, "True")
    stack.advance(6)
    stack.until(lambda: tried(stack) == 2, "tried")
    denied = stack.control.log("RunInstances")[-1]["params"][fact]
    stack.control.fault(
        action=action,
        code="UnauthorizedOperation",
        status=403,
        message=SAID,
        match={**DRY, fact: denied},
        times=-1,
    )
    stack.edit(EC2NodeClass, "gpu", {"spec": {"detailedMonitoring": True}})
    stack.until(lambda: tried(stack) >= 5 and not stack.aws.template_names(), "tried anew", step=1.0)
    stack.passes()
    assert stack.control.log("RunInstances")[-1]["params"][fact] != denied
    assert stack.class_condition(names.LAUNCHABLE).status == "True"  # type: ignore[union-attr]
    assert not stack.events("gpu", kind="EC2NodeClass")


@pytest.mark.covers("SAF-20")
def test_a_class_is_not_marked_if_another_pool_may_launch(stack: Stack) -> None:
    stack.node_class()
    of_type(stack, "a", "m5.large")
    of_type(stack, "b", "g6.12xlarge")
    stack.start()
    stack.control.fault(
        action="RunInstances",
        code="UnauthorizedOperation",
        status=403,
        message=SAID,
        match={**DRY, "InstanceType": "m5.large"},
        times=-1,
    )
    stack.until_class(names.LAUNCHABLE, "True")
    stack.advance(6)
    stack.until(
        lambda: "g6.12xlarge" in types_tried(stack) and not stack.aws.template_names(), "both", step=1.0
    )
    stack.passes()
    assert stack.class_condition(names.LAUNCHABLE).status == "True"  # type: ignore[union-attr]


def types_tried(stack: Stack) -> set[str]:
    return {call["params"].get("InstanceType") for call in stack.control.log("RunInstances")}


def of_type(stack: Stack, name: str, type_: str) -> None:
    body = node_pool(name, node_class="gpu")
    requirement = {"key": names.INSTANCE_TYPE, "operator": "In", "values": [type_]}
    body["spec"]["template"]["spec"]["requirements"].append(requirement)
    stack.client.create(NodePool.KIND, body)


@pytest.mark.covers("SAF-20")
@pytest.mark.parametrize(
    "code", ["ExpiredToken", "RequestExpired", "PendingVerification", "AuthFailure", "RequestLimitExceeded"]
)
def test_credentials_and_throttling_mark_no_class(stack: Stack, code: str) -> None:
    stack.node_class()
    stack.start()
    stack.control.fault(action="*", code=code, status=403, message="no", match=DRY, times=-1)
    stack.until_class(names.LAUNCHABLE, "True")
    stack.advance(6)
    trials(stack)
    assert stack.class_condition(names.LAUNCHABLE).status == "True"  # type: ignore[union-attr]
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_launched("c-0")


@pytest.mark.covers("SAF-20")
def test_expired_credentials_do_not_clear_a_mark(stack: Stack) -> None:
    marked(stack)
    stack.control.clear_faults()
    stack.control.fault(
        action="RunInstances", code="ExpiredToken", status=403, message="no", match=DRY, times=-1
    )
    trials(stack, 2)
    condition = stack.class_condition(names.LAUNCHABLE)
    assert condition is not None and (condition.status, condition.reason) == ("False", "Unauthorized")
    assert "ec2:RunInstances" in condition.message


@pytest.mark.covers("SAF-20")
def test_an_answer_that_is_no_denial_clears_a_mark(stack: Stack) -> None:
    marked(stack)
    stack.control.clear_faults()
    stack.control.fault(
        action="RunInstances", code="InvalidParameterValue", message="no", match=DRY, times=-1
    )
    cleared(stack)


@pytest.mark.covers("SAF-20")
def test_a_mark_is_cleared_if_nothing_can_be_launched(stack: Stack) -> None:
    marked(stack)
    of_type(stack, "a", "x9.none")
    cleared(stack)
