"""Invalid, missing and forbidden input: the message for the user; nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.kube.errors import Invalid
from tests.cluster import objects
from tests.cluster.account import ACCOUNT, REGION, A, B, C
from tests.cluster.karpenter import NODECLASS_FINALIZER
from tests.cluster.objects import ON_DEMAND, PROFILE, RESERVED, Json
from tests.cluster.stack import Stack

UNKNOWN_ID = "cr-0123456789abcdef0"
NO_SUBNET = {"id": "subnet-0123456789abcdef0"}
UNKNOWN_GROUP = f"arn:aws:resource-groups:us-east-1:{ACCOUNT}:group/nobody"
BOTH = (RESERVED, ON_DEMAND)
RESOLVED = names.RESERVATIONS_RESOLVED


def nothing_launched(stack: Stack) -> bool:
    return not stack.aws.instances() and stack.calls("CreateFleet") == 0


# ---- reservations


@pytest.mark.covers("KRP-05", "KRP-09")
def test_an_unknown_reservation(stack: Stack) -> None:
    stack.node_class(id_=UNKNOWN_ID)
    stack.start()
    stack.claim()
    condition = stack.until_class(RESOLVED, "False", reason="ReservationNotFound")
    assert f"{UNKNOWN_ID} was not found, or is not shared with account {ACCOUNT}" in condition.message
    assert "InvalidCapacityReservationId.NotFound" in condition.message
    waits = stack.until_waiting("c-0", "NoUsableReservation")
    assert UNKNOWN_ID in waits.message
    stack.passes()
    assert nothing_launched(stack)


@pytest.mark.covers("KRP-06", "KRP-09", "FLT-53")
def test_an_unknown_group(stack: Stack) -> None:
    stack.node_class(group=UNKNOWN_GROUP)
    stack.start()
    stack.claim()
    condition = stack.until_class(RESOLVED, "False", reason="GroupNotFound")
    assert UNKNOWN_GROUP in condition.message and "NotFoundException" in condition.message
    waits = stack.until_waiting("c-0", "NoUsableReservation")
    assert UNKNOWN_GROUP in waits.message
    assert nothing_launched(stack)
    odcr = stack.aws.odcr()
    stack.aws.group(odcr, name="nobody")
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == odcr


@pytest.mark.covers("KRP-08")
def test_claim_of_an_empty_group_names_the_group(stack: Stack) -> None:
    stack.node_class(group=stack.aws.group(name="team"))
    stack.start()
    stack.claim()
    stack.until_class(RESOLVED, "False", reason="ReservationsNotFound")
    waits = stack.until_waiting("c-0", "NoUsableReservation")
    assert waits.message.endswith("; group team of EC2NodeClass gpu finds no reservation")


@pytest.mark.covers("KRP-08")
@pytest.mark.parametrize(
    ("reservation", "reason", "parts"),
    [
        ({"platform": "Windows"}, "PlatformMismatch", ("platform Windows", "Linux/UNIX")),
        ({"Tenancy": "dedicated"}, "TenancyMismatch", ("tenancy dedicated", "default")),
        ({"zone": C}, "ZoneMismatch", (f"zone {C}", A, B)),
    ],
)
def test_a_reservation_that_does_not_fit_the_class(
    stack: Stack, reservation: Json, reason: str, parts: tuple[str, ...]
) -> None:
    odcr = stack.aws.odcr(**reservation)
    stack.node_class(id_=odcr, zones=(A, B))
    stack.start()
    stack.claim()
    condition = stack.until_class(RESOLVED, "False", reason=reason)
    waits = stack.until_waiting("c-0", "NoUsableReservation")
    for message in (condition.message, waits.message):
        assert odcr in message and all(part in message for part in parts)
    stack.passes()
    assert nothing_launched(stack)


@pytest.mark.covers("KRP-08", "KRP-24")
@pytest.mark.both_servers
def test_a_reservation_of_a_type_that_the_claim_does_not_take(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.xlarge")
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim(types=("m5.large",))
    waits = stack.until_waiting("c-0", "NoUsableReservation")
    assert "m5.xlarge" in waits.message and names.INSTANCE_TYPE in waits.message
    assert nothing_launched(stack)


# ---- the class


@pytest.mark.parametrize(
    ("spec", "reason", "text"),
    [
        (
            {"subnetSelectorTerms": [NO_SUBNET]},
            "SubnetsNotFound",
            "subnetSelectorTerms",
        ),
        ({"subnetSelectorTerms": [{"tags": {"team": "nobody"}}]}, "SubnetsNotFound", '"team":"nobody"'),
        (
            {"securityGroupSelectorTerms": [{"id": "sg-0123456789abcdef0"}]},
            "SecurityGroupsNotFound",
            "securityGroupSelectorTerms",
        ),
        ({"amiSelectorTerms": [{"id": "ami-0123456789abcdef0"}]}, "AMINotFound", "amiSelectorTerms"),
        ({"instanceProfile": None, "role": "nobody"}, "InstanceProfileNotFound", "spec.role 'nobody'"),
        ({"tags": {f"team-{n}": "a" for n in range(46)}}, "TooManyTags", "remove 1"),
    ],
)
def test_class_that_cannot_launch_stops_no_other(stack: Stack, spec: Json, reason: str, text: str) -> None:
    odcr = stack.aws.odcr()
    stack.node_class("bad", id_=odcr, **spec)
    stack.node_class("good", id_=odcr)
    stack.start()
    stack.claim("c-0", node_class="bad", capacity=BOTH)
    condition = stack.until_class(names.LAUNCHABLE, "False", name="bad", reason=reason)
    assert text in condition.message
    waits = stack.until_waiting("c-0", condition.reason)
    assert text in waits.message
    stack.until_event("bad", condition.reason, kind="EC2NodeClass")
    stack.until_event("c-0", condition.reason)
    assert nothing_launched(stack)
    stack.claim("c-1", node_class="good")
    stack.until_launched("c-1")


def test_class_with_an_unknown_instance_profile_launches_nothing_until_iam_has_it(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr, instanceProfile="nobody")
    stack.start()
    stack.claim(capacity=BOTH)
    condition = stack.until_class(names.LAUNCHABLE, "False", reason="InstanceProfileNotFound")
    assert "spec.instanceProfile 'nobody'" in condition.message
    assert "create the instance profile or correct the name" in condition.message
    assert stack.until_waiting("c-0", "InstanceProfileNotFound").message == condition.message
    stack.until_event("gpu", "InstanceProfileNotFound", kind="EC2NodeClass")
    for _ in range(10):
        stack.advance(60)
        stack.passes()
    assert stack.calls("CreateFleet") == 1
    assert stack.aws.free(odcr) == 1
    iam = stack.aws.client("iam")
    iam.create_instance_profile(InstanceProfileName="nobody")
    iam.add_role_to_instance_profile(InstanceProfileName="nobody", RoleName=PROFILE)
    stack.until(lambda: stack.get(NodeClaim, "c-0").instance_id, "it launches", step=5.0)


def test_a_corrected_class_launches_at_once(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr, subnetSelectorTerms=[NO_SUBNET])
    stack.start()
    stack.claim()
    stack.until_waiting("c-0", "SubnetsNotFound")
    terms = [{"id": stack.aws.subnets[A]}]
    stack.edit(EC2NodeClass, "gpu", {"spec": {"subnetSelectorTerms": terms}})
    stack.until_launched("c-0")
    stack.until_class(names.LAUNCHABLE, "True")


def test_a_class_without_terms_is_refused_by_the_api_server(stack: Stack) -> None:
    for field in ("subnetSelectorTerms", "securityGroupSelectorTerms", "amiSelectorTerms"):
        with pytest.raises(Invalid) as refused:
            stack.node_class("gpu", spec=None, **{field: []})  # type: ignore[arg-type]
        assert field in refused.value.message


def test_a_class_in_use_that_loses_its_security_group(stack: Stack) -> None:
    """EC2 refuses a resolved resource of the class: the claim reports it, and the class is resolved anew."""
    ec2 = stack.aws.ec2
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    group = ec2.create_security_group(GroupName="short-lived", Description="x", VpcId=vpc)["GroupId"]
    stack.node_class(preference="none", securityGroupSelectorTerms=[{"id": group}])
    stack.start()
    stack.until_class(names.LAUNCHABLE, "True")
    ec2.delete_security_group(GroupId=group)
    stack.claim(capacity=(ON_DEMAND,))
    condition = stack.until_class(names.LAUNCHABLE, "False", reason="SecurityGroupsNotFound")
    assert group in condition.message
    assert group in stack.until_waiting("c-0", "SecurityGroupsNotFound").message
    assert not stack.aws.instances()


# ---- the claim


@pytest.mark.parametrize(
    ("claim", "reason", "text"),
    [
        (
            {"requirements": [{"key": names.INSTANCE_TYPE, "operator": "NotIn", "values": ["m5.large"]}]},
            "InvalidRequirements",
            names.INSTANCE_TYPE,
        ),
        (
            {"requirements": [{"key": "9" * 64, "operator": "In", "values": ["x"]}]},
            "InvalidRequirements",
            "at most 63 characters",
        ),
        ({"types": ("m5.huge",)}, "NoCompatibleInstanceTypes", names.INSTANCE_TYPE),
        ({"requests": {"cpu": "3000"}}, "NoCompatibleInstanceTypes", "cpu"),
        ({"requests": {"example.com/widget": "1"}}, "NoCompatibleInstanceTypes", "example.com/widget"),
        ({"zones": ("us-east-1z",)}, "NoCompatibleInstanceTypes", "us-east-1z"),
        ({"capacity": ("free",)}, "NoUsableReservation", ""),
        ({"annotations": {names.PRIORITY: "high"}}, "InvalidPriority", "'high': write a whole number"),
    ],
)
def test_a_claim_that_nothing_can_serve(stack: Stack, claim: dict[str, Any], reason: str, text: str) -> None:
    stack.node_class(preference="none")
    stack.start()
    stack.claim("bad", **{"capacity": (ON_DEMAND,), **claim})
    stack.claim("good", capacity=(ON_DEMAND,))
    waits = stack.until_waiting("bad", reason)
    assert text in waits.message
    stack.until_event("bad", reason)
    stack.until_launched("good")
    stack.passes()
    assert len(stack.aws.instances()) == 1


def test_a_corrected_priority_launches_at_once(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start()
    stack.claim(capacity=(ON_DEMAND,), annotations={names.PRIORITY: "high"})
    stack.until_waiting("c-0", "InvalidPriority")
    stack.edit(NodeClaim, "c-0", {"metadata": {"annotations": {names.PRIORITY: "100"}}})
    stack.until_launched("c-0")


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ({"nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": ""}}, "nodeClassRef.name"),
        ({"nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass"}}, "nodeClassRef.name"),
        ({"requirements": [{"key": names.ZONE, "operator": "In"}]}, "operator In needs"),
        ({"requirements": [{"key": "karpenter.sh/mine", "operator": "Exists"}]}, "karpenter.sh"),
        ({"requirements": [{"key": names.ZONE, "operator": "Near", "values": ["x"]}]}, "operator"),
        ({"resources": {"requests": {"cpu": "lots"}}}, "requests"),
    ],
)
def test_a_malformed_claim_is_refused_by_the_api_server(stack: Stack, broken: Json, text: str) -> None:
    body = objects.claim("c-0", node_class="gpu", types=("m5.large",), capacity=(RESERVED,))
    body["spec"] |= broken
    with pytest.raises(Invalid) as refused:
        stack.client.create(NodeClaim.KIND, body)
    assert text in refused.value.message
    assert stack.find(NodeClaim, "c-0") is None


def test_a_claim_that_names_an_unknown_class_waits_for_it(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.start()
    stack.claim(node_class="later")
    waits = stack.until_waiting("c-0", "NodeClassNotFound")
    assert "'later'" in waits.message and "create it or delete the claim" in waits.message
    stack.until_event("c-0", "NodeClassNotFound")
    assert nothing_launched(stack)
    stack.node_class("later", id_=odcr)
    stack.until_launched("c-0")


def test_a_claim_of_a_kind_that_is_no_class(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start()
    body = objects.claim("c-0", node_class="gpu", types=("m5.large",), capacity=(ON_DEMAND,))
    body["spec"]["nodeClassRef"]["kind"] = "GCENodeClass"
    stack.client.create(NodeClaim.KIND, body)
    waits = stack.until_waiting("c-0", "NodeClassKindUnknown")
    assert "'GCENodeClass'" in waits.message and "EC2NodeClass" in waits.message
    assert nothing_launched(stack)


def test_a_class_deleted_while_claims_wait(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.aws.rival(odcr)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim()
    stack.until_waiting("c-0", "AllReservationsFull")
    stack.delete(EC2NodeClass, "gpu")
    waits = stack.until_waiting("c-0", "NodeClassTerminating")
    assert "gpu is being deleted" in waits.message
    stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr, InstanceCount=2)
    stack.polls(2)
    stack.passes()
    assert nothing_launched(stack)
    stack.delete(NodeClaim, "c-0")
    stack.until_gone(EC2NodeClass, "gpu")
    stack.node_class(id_=odcr)
    stack.claim()
    stack.until_launched("c-0")


def test_a_class_that_is_being_deleted_launches_nothing_more(stack: Stack) -> None:
    """Karpenter's finalizer keeps the class; running instances stay."""
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    stack.edit(EC2NodeClass, "gpu", {"metadata": {"finalizers": [NODECLASS_FINALIZER]}})
    stack.start()
    stack.claim("c-0")
    stack.until_ready("c-0")
    stack.delete(EC2NodeClass, "gpu")
    stack.until(lambda: stack.get(EC2NodeClass, "gpu").deleting, "deleting")
    stack.claim("c-1")
    waits = stack.until_waiting("c-1", "NodeClassTerminating")
    assert "gpu is being deleted" in waits.message
    assert len(stack.aws.instances()) == 1
    stack.edit(EC2NodeClass, "gpu", {"metadata": {"finalizers": None}})
    stack.until_gone(EC2NodeClass, "gpu")


# ---- the account


@pytest.mark.covers("KRP-18", "KRP-24")
@pytest.mark.parametrize(
    "action",
    [
        "DescribeCapacityReservations",
        "DescribeSubnets",
        "DescribeImages",
        "DescribeInstances",
        "CreateLaunchTemplate",
        "CreateFleet",
    ],
)
def test_an_action_that_is_not_allowed(stack: Stack, action: str) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.control.fault(
        action=action, code="UnauthorizedOperation", message="You are not authorized", status=403, times=-1
    )
    stack.start()
    stack.claim(capacity=BOTH)
    waits = stack.until_waiting("c-0", "Unauthorized")
    assert "UnauthorizedOperation: You are not authorized" in waits.message
    event = stack.until_event("c-0", "Unauthorized")
    assert event.type == "Warning"
    assert stack.claim_condition("c-0", names.CAPACITY_RESERVATION) is None
    if action in ("DescribeCapacityReservations", "DescribeSubnets", "DescribeImages"):
        condition = stack.until_class(names.LAUNCHABLE, "False", reason="Unauthorized")
        assert action in condition.message
    stack.control.clear_faults()
    assert stack.aws.free(odcr) == 1
    stack.until(lambda: stack.is_true("c-0", names.LAUNCHED), "launched once it is allowed", step=2)
    assert stack.reservation_of("c-0") == odcr


@pytest.mark.covers("FLT-53")
@pytest.mark.parametrize(
    ("arn", "differs"),
    [
        (UNKNOWN_GROUP.replace(REGION, "eu-west-1"), f"Region eu-west-1, and this is {REGION}"),
        (UNKNOWN_GROUP.replace(ACCOUNT, "999999999999"), f"account 999999999999, and this is {ACCOUNT}"),
        (UNKNOWN_GROUP.replace("arn:aws:", "arn:aws-us-gov:"), "partition aws-us-gov, and this is aws"),
    ],
)
def test_a_group_of_another_region_or_account_is_refused_without_a_call(
    stack: Stack, arn: str, differs: str
) -> None:
    stack.node_class(group=arn)
    stack.start()
    condition = stack.until_class(RESOLVED, "False", reason="GroupNotFound")
    assert f"{arn} is of {differs}" in condition.message
    assert stack.calls("ListGroupResources") == 0


@pytest.mark.covers("KRP-18")
def test_a_group_that_may_not_be_read(stack: Stack) -> None:
    arn = stack.aws.group(stack.aws.odcr())
    stack.control.fault(
        action="ListGroupResources", code="ForbiddenException", message="not yours", status=403, times=-1
    )
    stack.node_class(group=arn)
    stack.start()
    stack.claim()
    condition = stack.until_class(RESOLVED, "False", reason="GroupNotFound")
    assert "could not be read: not yours" in condition.message and "ForbiddenException" in condition.message
    stack.until_waiting("c-0", "NoUsableReservation")
    assert nothing_launched(stack)
    stack.control.clear_faults()
    stack.until_launched("c-0")


@pytest.mark.covers("KRP-18", "KRP-24")
@pytest.mark.parametrize("code", ["RequestExpired", "ExpiredToken"])
def test_expired_credentials(stack: Stack, code: str) -> None:
    """Claims that run, wait and arrive each report it, none is lost, and new credentials are used."""
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim("c-0")
    stack.until_ready("c-0")
    stack.control.fault(action="*", code=code, message="Request has expired.", status=400, times=-1)
    stack.claim("c-1")
    waits = stack.until_waiting("c-1", "Unauthorized")
    assert "the AWS credentials have expired: renew them" in waits.message
    stack.until_event("c-1", "Unauthorized")
    assert stack.get(NodeClaim, "c-0").status.provider_id
    assert not stack.get(NodeClaim, "c-0").deleting
    stack.control.clear_faults()
    stack.until(lambda: stack.is_true("c-1", names.LAUNCHED), "launched with new credentials", step=2)
    assert {stack.reservation_of(name) for name in ("c-0", "c-1")} == {odcr}
    assert len(stack.aws.instances()) == 2


def test_one_broken_object_never_stops_the_others(stack: Stack) -> None:
    """Every kind of mistake at once, beside claims that none of them concerns."""
    odcr = stack.aws.odcr(count=3)  # enough for bad-data too, which would otherwise report that it is full
    stack.node_class("good", id_=odcr)
    stack.node_class("no-subnet", id_=odcr, subnetSelectorTerms=[NO_SUBNET])
    stack.node_class("bad-spec", annotations={names.RESERVATION_SPEC: "{"})
    stack.node_class("unknown-id", id_=UNKNOWN_ID)
    stack.node_class("unknown-group", group=UNKNOWN_GROUP)
    stack.node_class("bad-data", id_=odcr, userData="[[not toml", amiFamily="Bottlerocket")
    stack.claim("p-0", node_class="good", annotations={names.PRIORITY: "high"})
    for name in ("no-subnet", "bad-spec", "unknown-id", "unknown-group", "bad-data", "missing"):
        stack.claim(name, node_class=name, priority=100)
    stack.claim("ok-0", node_class="good")
    stack.start()
    stack.until_ready("ok-0")
    stack.claim("ok-1", node_class="good")
    stack.until_ready("ok-1")
    reasons = {
        "p-0": "InvalidPriority",
        "no-subnet": "SubnetsNotFound",
        "bad-spec": "InvalidCapacityReservationSpec",
        "unknown-id": "NoUsableReservation",
        "unknown-group": "NoUsableReservation",
        "bad-data": "InvalidLaunchConfiguration",
        "missing": "NodeClassNotFound",
    }
    for name, reason in reasons.items():
        stack.until_waiting(name, reason)
    assert "userData is not TOML" in stack.until_waiting("bad-data").message
    assert len(stack.aws.instances()) == 2
