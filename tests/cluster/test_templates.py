"""A launch's parameters: the launch template as EC2 shows it, and its lifetime."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from providers.names import TAG_NODECLASS
from tests.cluster.account import CLUSTER, A, tags
from tests.cluster.objects import ON_DEMAND, PROFILE, RESERVED
from tests.cluster.stack import Stack

ONLY = "capacity-reservations-only"


def spoken(stack: Stack) -> Any:
    """The reservation part of the only template."""
    [template] = stack.aws.templates()
    return template["Data"]["CapacityReservationSpecification"]


def test_by_id_it_is_the_target_together_with_reservations_only(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim(capacity=(RESERVED, ON_DEMAND))
    stack.until_launched("c-0")
    assert spoken(stack) == {
        "CapacityReservationPreference": ONLY,
        "CapacityReservationTarget": {"CapacityReservationId": odcr},
    }


def test_by_group_it_is_the_group_together_with_reservations_only(stack: Stack) -> None:
    arn = stack.aws.group(stack.aws.odcr())
    stack.node_class(group=arn)
    stack.start()
    stack.claim(capacity=(RESERVED, ON_DEMAND))
    stack.until_launched("c-0")
    assert spoken(stack) == {
        "CapacityReservationPreference": ONLY,
        "CapacityReservationTarget": {"CapacityReservationResourceGroupArn": arn},
    }


@pytest.mark.parametrize(
    ("preference", "capacity", "expected"),
    [
        ("open", (RESERVED, ON_DEMAND), "open"),
        ("open", (RESERVED,), ONLY),
        ("none", (RESERVED, ON_DEMAND), "none"),
        ("None", (ON_DEMAND,), "none"),
        (ONLY, (RESERVED, ON_DEMAND), ONLY),
    ],
)
@pytest.mark.both_servers
def test_preference_is_set_without_a_target(
    stack: Stack, preference: str, capacity: tuple[str, ...], expected: str
) -> None:
    stack.aws.odcr(criteria="open")
    stack.node_class(preference=preference)
    stack.start()
    stack.claim(capacity=capacity)
    stack.until_launched("c-0")
    assert spoken(stack) == {"CapacityReservationPreference": expected}


@pytest.mark.covers("KRP-14")
def test_instance_shows_every_field_of_the_class(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(
        id_=odcr,
        tags={"team": "training", "cost-center": "7"},
        detailedMonitoring=True,
        metadataOptions={"httpTokens": "required", "httpPutResponseHopLimit": 2},
        blockDeviceMappings=[
            {
                "deviceName": "/dev/xvda",
                "ebs": {"volumeSize": "123Gi", "volumeType": "gp3", "encrypted": True},
            }
        ],
    )
    stack.start()
    stack.claim(
        labels={"example.com/team": "training"},
        taints=[{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}],
    )
    stack.until_launched("c-0")
    instance = stack.instance("c-0")
    assert instance["ImageId"] == stack.aws.image
    assert instance["SubnetId"] == stack.aws.subnets[A]
    assert [group["GroupId"] for group in instance["SecurityGroups"]] == [stack.aws.security_group]
    assert instance["IamInstanceProfile"]["Arn"].endswith(f"/{PROFILE}")
    assert instance["Monitoring"]["State"] == "enabled"
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert instance["MetadataOptions"]["HttpPutResponseHopLimit"] == 2
    shown = tags(instance)
    assert (shown["team"], shown["cost-center"]) == ("training", "7")
    [template] = stack.aws.templates()
    [device] = template["Data"]["BlockDeviceMappings"]
    assert (device["DeviceName"], device["Ebs"]["VolumeSize"]) == ("/dev/xvda", 123)
    user_data = base64.b64decode(template["Data"]["UserData"]).decode()
    assert CLUSTER in user_data and "https://blue.example" in user_data
    assert "example.com/team=training" in user_data
    assert "nvidia.com/gpu" in user_data and "NoSchedule" in user_data
    assert names.UNREGISTERED_TAINT in user_data


@pytest.mark.covers("KRP-13")
def test_equal_content_is_one_template(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=4)
    stack.node_class(id_=odcr)
    stack.claims(2)
    stack.start()
    stack.until_launched("c-0", "c-1")
    stack.stop()
    stack.claims(2, 4)
    stack.start()
    stack.until_launched("c-2", "c-3")
    assert stack.calls("CreateFleet") == 2
    assert len(stack.aws.templates()) == 1


@pytest.mark.covers("KRP-13")
def test_a_change_makes_a_new_template_and_leaves_the_old(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim("c-0")
    stack.until_launched("c-0")
    [before] = stack.aws.templates()
    stack.edit(EC2NodeClass, "gpu", {"spec": {"detailedMonitoring": True}})
    stack.until_class(names.LAUNCHABLE, "True")
    stack.until(
        lambda: (s := stack.class_condition(names.LAUNCHABLE)) and s.observed_generation == 2,
        "the new class seen",
    )
    stack.claim("c-1")
    stack.until_launched("c-1")
    after = {t["LaunchTemplateName"]: t["Data"] for t in stack.aws.templates()}
    assert len(after) == 2
    assert after.pop(before["LaunchTemplateName"]) == before["Data"]
    [new] = after.values()
    assert new["Monitoring"] == {"Enabled": True}


@pytest.mark.covers("KRP-13")
def test_templates_of_a_deleted_class_go_at_once_and_nothing_foreign_goes(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    stack.node_class("gpu", id_=odcr)
    stack.node_class("other", id_=odcr, detailedMonitoring=True)
    stack.aws.ec2.create_launch_template(
        LaunchTemplateName="somebody-else-s", LaunchTemplateData={"InstanceType": "m5.large"}
    )
    marks = [{"Key": "eks:eks-cluster-name", "Value": CLUSTER}]
    stack.aws.ec2.create_launch_template(
        LaunchTemplateName="karpenter.k8s.aws/1",
        LaunchTemplateData={"InstanceType": "m5.large"},
        TagSpecifications=[{"ResourceType": "launch-template", "Tags": marks}],
    )
    stack.start()
    stack.claim("c-0")
    stack.claim("c-1", node_class="other")
    stack.until_launched("c-0", "c-1")
    assert len(stack.aws.templates()) == 4
    stack.delete(EC2NodeClass, "gpu")
    stack.delete(NodeClaim, "c-0")  # the last claim of its class
    stack.until_gone(EC2NodeClass, "gpu")
    stack.until(lambda: len(stack.aws.template_names()) == 3, "the class's template deleted")
    left = {t["LaunchTemplateName"]: tags(t).get(TAG_NODECLASS) for t in stack.aws.templates()}
    assert {"somebody-else-s", "karpenter.k8s.aws/1"} < {*left}
    assert "other" in left.values() and "gpu" not in left.values()


@pytest.mark.covers("KRP-13")
def test_a_template_goes_after_a_day_without_use(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim("c-0")
    stack.until_launched("c-0")
    (template,) = stack.aws.template_names()
    stack.advance(23 * 3600)
    stack.claim("c-1")
    stack.until_launched("c-1")
    stack.advance(23 * 3600)
    stack.passes()
    assert template in stack.aws.template_names()
    stack.advance(2 * 3600)
    stack.until(lambda: template not in stack.aws.template_names(), "the unused template deleted")


@pytest.mark.covers("KRP-13")
def test_deleted_template_is_created_again(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim("c-0")
    stack.until_launched("c-0")
    [template] = stack.aws.templates()
    stack.aws.ec2.delete_launch_template(LaunchTemplateName=template["LaunchTemplateName"])
    stack.claim("c-1")
    stack.until_launched("c-1")
    [again] = stack.aws.templates()
    assert again["LaunchTemplateName"] == template["LaunchTemplateName"]
    assert again["Data"] == template["Data"]


@pytest.mark.covers("KRP-15")
def test_a_capacity_block_is_launched_with_its_own_market(stack: Stack) -> None:
    block = stack.aws.capacity_block()
    stack.node_class(id_=block)
    stack.start()
    stack.claim(types=("p5.48xlarge",))
    stack.until_launched("c-0")
    stack.until_shown("c-0")
    [template] = stack.aws.templates()
    assert template["Data"]["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert template["Data"]["CapacityReservationSpecification"]["CapacityReservationTarget"] == {
        "CapacityReservationId": block
    }
    [fleet] = stack.aws.fleets()
    assert fleet["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "capacity-block"
    assert stack.instance("c-0")["InstanceLifecycle"] == "capacity-block"
    labels = stack.client.get(EC2NodeClass.KIND, "gpu")["status"]["capacityReservations"][0]
    assert labels["reservationType"] == "capacity-block"
    shown = stack.get(NodeClaim, "c-0").labels
    assert shown[names.RESERVATION_TYPE] == "capacity-block"
    assert shown[names.RESERVATION_ID] == block
    assert shown[names.CAPACITY_TYPE] == RESERVED


@pytest.mark.covers("KRP-15")
def test_kinds_of_reservation_never_share_a_call(stack: Stack) -> None:
    interruptible = stack.control.reservation(
        InstanceType="m5.large",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=A,
        InstanceCount=1,
        InstanceMatchCriteria="targeted",
        interruptible=True,
    )["CapacityReservationId"]
    block = stack.aws.capacity_block()
    plain = stack.aws.odcr("m5.xlarge")
    arn = stack.aws.group(interruptible, block, plain)
    stack.node_class(group=arn)
    stack.start()
    stack.claims(3, types=("m5.large", "m5.xlarge", "p5.48xlarge"))
    stack.until_launched("c-0", "c-1", "c-2")
    assert {stack.reservation_of(f"c-{n}") for n in range(3)} == {interruptible, block, plain}
    markets = {
        o["InstanceType"]: f["TargetCapacitySpecification"]["DefaultTargetCapacityType"]
        for f in stack.aws.fleets()
        for c in f["LaunchTemplateConfigs"]
        for o in c["Overrides"]
    }
    assert stack.calls("CreateFleet") == 3
    assert markets["p5.48xlarge"] == "capacity-block"
    assert markets["m5.xlarge"] == "on-demand"
    assert markets["m5.large"] not in ("capacity-block", "on-demand")
