"""Under just the policy that Terraform renders: the broker can do all of its work, and nothing to others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from broker.apis import names
from broker.apis.karpenter_aws import EC2NodeClass
from local.aws import LocalAws
from providers.aws import AwsProvider, clients
from providers.errors import ProviderError
from providers.launch import Override, Template
from providers.model import Selector, owned_prefix
from tests.aws import iam
from tests.aws.iam import ACCOUNT, CLUSTER, REGION, Guard
from tests.cluster.account import A
from tests.cluster.account import Account as Owner
from tests.cluster.objects import PROFILE, RESERVED
from tests.cluster.ome.bought import CANCEL, P5
from tests.faults import walk
from tests.faults.test_odcr_life import RESERVED as TRAINING
from tests.faults.test_odcr_life import Team
from tests.faults.walk import account

OWN_TAGS = {"capacity-broker.io/cluster": CLUSTER}
THEIRS = {"capacity-broker.io/cluster": "elsewhere"}
LOOPS = (
    *("inventory", "nodeclass", "finalizer", "templates", "profiles", "launch", "nodeclaim"),
    *("terminations", "odcrs", "reservation"),
)


@pytest.fixture
def owner(local_aws: LocalAws) -> Iterator[Owner]:
    owner_ = account(local_aws, fresh=True)
    owner_.client("iam").create_role(RoleName="nodes", AssumeRolePolicyDocument="{}")
    yield owner_
    local_aws.control.reset()


@pytest.fixture
def guard(owner: Owner) -> Guard:
    return Guard(iam.Account(owner.client))


def limited(guard: Guard, endpoint: str) -> Callable[[str], Any]:
    """Clients with the broker's permissions."""
    session = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local", region_name=REGION)

    def client(service: str, **options: Any) -> Any:
        new_client: Any = session.client(service, **{"endpoint_url": endpoint, **options})  # type: ignore[call-overload]
        return guard.before(new_client)

    return client


@pytest.mark.covers("CAP-12", "FLT-08")
def test_all_that_the_broker_does_is_allowed(
    local_aws: LocalAws, owner: Owner, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = limited(guard, local_aws.endpoint)
    session = SimpleNamespace(client=client)
    monkeypatch.setattr(clients, "boto3", SimpleNamespace(Session=lambda **_: session))
    monkeypatch.setattr(walk, "LOOPS", LOOPS)
    team = Team(local_aws, 0)
    team.settings = replace(team.settings, cluster_name=CLUSTER, release_idle_seconds=120.0)
    process = team.start()

    # A reservation is bought, grouped, resized; claims are launched into its group.
    team.create_reservation(2, annotations=CANCEL)
    process.until(lambda: team.quiet({A: 2}) and len(team.grouped()) == 1, "it is bought")
    team.change_quota(3)
    process.until(lambda: team.quiet({A: 3}), "it has grown")
    arn = process.broker.reads.snapshot().odcrs.status(TRAINING).group_arn
    team.node_class(group=arn)
    as_role = {"spec": {"role": "nodes", "instanceProfile": None, "tags": {"team": "blue"}}}
    team.client.patch(EC2NodeClass.KIND, "gpu", as_role)
    team.claim("c-0", types=(P5,), capacity=(RESERVED,), annotations={names.DRAWS_FROM: "default/training"})
    process.until(lambda: len(team.instances()) == 1, "it is launched")
    assert all(tags.get("team") == "blue" for tags in tags_of_the_class(owner))
    team.change_quota(2)
    process.until(lambda: team.held() == {A: 2}, "it has shrunk")

    # A slot is idle for long; then the claim goes, the class with its templates, and the reservation.
    process.until(lambda: team.held() == {A: 1}, "the idle instances are released")
    team.delete("c-0")
    process.until(lambda: not team.instances(), "its instance ends")
    team.client.delete(EC2NodeClass.KIND, "gpu")
    process.until(lambda: not owner.ec2.describe_launch_templates()["LaunchTemplates"], "its templates go")
    process.until(lambda: not created_profiles(owner), "its instance profile goes")
    team.end()
    process.until(lambda: team.object() is None, "the object is gone")
    assert team.held() == {} and team.grouped() == []

    # Requests of other classes, and of Karpenter's.
    provider = AwsProvider(cluster=CLUSTER, region=REGION, endpoint_url=local_aws.endpoint)
    odcr = team.others[0]
    provider.tag([odcr], {f"capacity-broker.io/advised/{CLUSTER}/gpu": "true"})
    provider.untag([odcr], [f"capacity-broker.io/advised/{CLUSTER}/gpu"])
    provider.images([Selector(alias="al2023@latest")])
    with pytest.raises(ProviderError, match="ResourceNotFound"):
        provider.cluster_facts()
    provider.try_launch(
        Template(image_id=owner.image, tags={"team": "blue"}),
        owner="gpu",
        overrides=[Override(instance_type="m5.large", zone=A, subnet_id=owner.subnets[A])],
        market="on-demand",
        tags=OWN_TAGS,
    )
    assert guard.refused == []
    never = {statement["Sid"] for statement in guard.statements} - guard.used
    assert never == {"TagOwnInstances", "LaunchFromGroups", "ReadPrices"}


def tags_of_the_class(owner: Owner) -> list[dict[str, str]]:
    """The tags of each template, profile, instance and volume that was made."""
    templates = owner.ec2.describe_launch_templates()["LaunchTemplates"]
    iam_client = owner.client("iam")
    profiles = [
        iam_client.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        for name in created_profiles(owner)
    ]
    instances = [i for r in owner.ec2.describe_instances()["Reservations"] for i in r["Instances"]]
    volumes = owner.ec2.describe_volumes()["Volumes"]
    assert templates and profiles and instances and volumes
    created = (*templates, *profiles, *instances, *volumes)
    return [{tag["Key"]: tag["Value"] for tag in item.get("Tags", [])} for item in created]


def created_profiles(owner: Owner) -> list[str]:
    listed = owner.client("iam").list_instance_profiles()["InstanceProfiles"]
    return [
        p["InstanceProfileName"] for p in listed if p["InstanceProfileName"].startswith(owned_prefix(CLUSTER))
    ]


@pytest.mark.covers("CAP-12")
def test_no_call_on_resources_of_others_is_allowed(local_aws: LocalAws, owner: Owner, guard: Guard) -> None:
    other = Other(owner)
    client = limited(guard, local_aws.endpoint)
    ec2, groups, profiles = client("ec2"), client("resource-groups"), client("iam")
    bought = {"InstanceType": P5, "InstancePlatform": "Linux/UNIX", "AvailabilityZone": A, "InstanceCount": 1}
    fleet = other.fleet
    calls: dict[str, Callable[[], Any]] = {
        "CancelCapacityReservation": lambda: ec2.cancel_capacity_reservation(
            CapacityReservationId=other.odcr
        ),
        "ModifyCapacityReservation": lambda: ec2.modify_capacity_reservation(
            CapacityReservationId=other.odcr, InstanceCount=2
        ),
        "untagged reservation": lambda: ec2.create_capacity_reservation(**bought),
        "reservation tagged for another": lambda: ec2.create_capacity_reservation(
            **bought, TagSpecifications=specified("capacity-reservation", THEIRS)
        ),
        "RebootInstances": lambda: ec2.reboot_instances(InstanceIds=[other.instance]),
        "TerminateInstances": lambda: ec2.terminate_instances(InstanceIds=[other.instance]),
        "TerminateInstances, one of ours with it": lambda: ec2.terminate_instances(
            InstanceIds=[other.own_instance, other.instance]
        ),
        "tags of an instance": lambda: ec2.create_tags(Resources=[other.instance], Tags=pairs({"a": "b"})),
        "an instance made ours": lambda: ec2.create_tags(Resources=[other.instance], Tags=pairs(OWN_TAGS)),
        "an instance of ours made theirs": lambda: ec2.create_tags(
            Resources=[other.own_instance], Tags=pairs(THEIRS)
        ),
        "tags of an interface": lambda: ec2.create_tags(Resources=["eni-1"], Tags=pairs({"a": "b"})),
        "a reservation made ours": lambda: ec2.create_tags(Resources=[other.odcr], Tags=pairs(OWN_TAGS)),
        "marks of another cluster": lambda: ec2.delete_tags(
            Resources=[other.odcr], Tags=[{"Key": "capacity-broker.io/advised/elsewhere/gpu"}]
        ),
        "all tags of a reservation": lambda: ec2.delete_tags(Resources=[other.odcr]),
        "DeleteLaunchTemplate": lambda: ec2.delete_launch_template(LaunchTemplateName="theirs"),
        "untagged template": lambda: ec2.create_launch_template(
            LaunchTemplateName="x", LaunchTemplateData={"ImageId": owner.image}
        ),
        "launch by their template": lambda: ec2.create_fleet(**fleet("theirs", OWN_TAGS)),
        "launch untagged": lambda: ec2.create_fleet(**fleet("ours", {})),
        "launch tagged for another": lambda: ec2.create_fleet(**fleet("ours", THEIRS)),
        "launch with another role": lambda: ec2.create_fleet(**fleet("ours-with-their-role", OWN_TAGS)),
        "launch into their group": lambda: ec2.create_fleet(**fleet("ours-into-their-group", OWN_TAGS)),
        "members into their group": lambda: groups.group_resources(Group="theirs", ResourceArns=[other.arn]),
        "members out of their group": lambda: groups.ungroup_resources(
            Group="theirs", ResourceArns=[other.arn]
        ),
        "configuration of their group": lambda: groups.put_group_configuration(
            Group="theirs", Configuration=[]
        ),
        "DeleteGroup": lambda: groups.delete_group(Group="theirs"),
        "untagged group": lambda: groups.create_group(Name="x", Configuration=[]),
        "another role in a profile of ours": lambda: profiles.add_role_to_instance_profile(
            InstanceProfileName=OUR_PROFILE, RoleName=PROFILE
        ),
        "our role in their profile": lambda: profiles.add_role_to_instance_profile(
            InstanceProfileName=PROFILE, RoleName="nodes"
        ),
        "their profile made ours": lambda: profiles.tag_instance_profile(
            InstanceProfileName=PROFILE, Tags=pairs(OWN_TAGS)
        ),
        "their group made ours": lambda: groups.tag(Arn=other.group, Tags=OWN_TAGS),
        "untagged profile": lambda: profiles.create_instance_profile(InstanceProfileName="x"),
    }
    done = []
    for name, call in calls.items():
        try:
            call()
        except ClientError as error:
            if error.response["Error"]["Code"] != "UnauthorizedOperation":
                raise
        else:
            done.append(name)
    assert done == []
    # The same with own resources succeeds: ownership was the cause of the refusals.
    ec2.create_fleet(**fleet("ours", OWN_TAGS))
    ec2.create_fleet(**fleet("ours-into-a-named-group", OWN_TAGS))
    ec2.create_tags(Resources=[other.own_instance], Tags=pairs({"a": "b"}))
    ec2.terminate_instances(InstanceIds=[other.own_instance])
    profiles.add_role_to_instance_profile(InstanceProfileName=OUR_PROFILE, RoleName="nodes")
    assert {"LaunchFromGroups", "TagOwnInstances"} <= guard.used


OUR_PROFILE = f"{owned_prefix('demo')}nodes"
NODES = f"arn:aws:iam::{ACCOUNT}:role/nodes"
TO_EC2 = {"iam:PassedToService": ("ec2.amazonaws.com",)}
IMAGES = "parameter/aws/service/eks/optimized-ami/1.34/image_id"


@pytest.mark.covers("CAP-12", "FLT-65")
@pytest.mark.parametrize(
    ("action", "resource", "context", "allowed"),
    [
        ("iam:PassRole", NODES, TO_EC2, True),
        ("iam:PassRole", NODES, {"iam:PassedToService": ("lambda.amazonaws.com",)}, False),
        ("iam:PassRole", NODES, {}, False),
        ("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/admin", TO_EC2, False),
        ("ssm:GetParameters", f"arn:aws:ssm:{REGION}::{IMAGES}", {}, True),
        ("ssm:GetParameters", f"arn:aws:ssm:{REGION}:222222222222:parameter/secret", {}, False),
        ("ssm:GetParameters", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/secret", {}, False),
        ("ec2:DescribeInstances", "*", {"aws:RequestedRegion": ("eu-west-1",)}, False),
        ("ec2:RunInstances", f"arn:aws:ec2:{REGION}:222222222222:capacity-reservation/cr-1", {}, True),
        ("ec2:RunInstances", f"arn:aws:ec2:{REGION}:222222222222:launch-template/lt-1", {}, False),
        ("ec2:PurchaseCapacityBlock", "*", {}, False),
    ],
)
def test_permissions_that_no_call_of_the_broker_shows(
    action: str, resource: str, context: dict[str, tuple[str, ...]], allowed: bool
) -> None:
    statements = [statement for policy in iam.POLICY.values() for statement in policy["Statement"]]
    assert bool(iam.allowing(statements, iam.Permission(action, resource, context))) is allowed


PROFILES = f"arn:aws:iam::{ACCOUNT}:instance-profile"
GROUPS = f"arn:aws:resource-groups:{REGION}:{ACCOUNT}:group"
TAGGED = {"aws:ResourceTag/capacity-broker.io/cluster": ("demo",)}
TAGGING = {"aws:RequestTag/capacity-broker.io/cluster": ("demo",)}
CHANGES = (
    ("iam:CreateInstanceProfile", PROFILES, TAGGING),
    ("iam:TagInstanceProfile", PROFILES, TAGGING),
    ("iam:AddRoleToInstanceProfile", PROFILES, TAGGED),
    ("iam:RemoveRoleFromInstanceProfile", PROFILES, TAGGED),
    ("iam:DeleteInstanceProfile", PROFILES, TAGGED),
    ("resource-groups:Tag", GROUPS, TAGGING),
    ("resource-groups:GroupResources", GROUPS, TAGGED),
    ("resource-groups:UngroupResources", GROUPS, TAGGED),
    ("resource-groups:PutGroupConfiguration", GROUPS, TAGGED),
    ("resource-groups:DeleteGroup", GROUPS, TAGGED),
)


@pytest.mark.covers("SAF-61")
@pytest.mark.parametrize(("action", "where", "context"), CHANGES)
@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        (f"{owned_prefix('demo')}research--gpus", True),
        (f"{owned_prefix('demo-eu')}research--gpus", False),
        ("capacity-broker-demo-research--gpus", False),
        ("training", False),
    ],
)
def test_groups_and_profiles_change_under_the_clusters_own_prefix_only(
    action: str, where: str, context: dict[str, tuple[str, ...]], name: str, allowed: bool
) -> None:
    statements = [statement for policy in iam.POLICY.values() for statement in policy["Statement"]]
    assert bool(iam.allowing(statements, iam.Permission(action, f"{where}/{name}", context))) is allowed


@pytest.mark.covers("SAF-61")
def test_every_change_of_groups_and_profiles_is_in_the_table() -> None:
    changing = {
        action
        for policy in iam.POLICY.values()
        for statement in policy["Statement"]
        for action in statement["Action"]
        if action.startswith(("iam:", "resource-groups:"))
        and not action.partition(":")[2].startswith(("Get", "List", "Pass"))
    }
    # CreateGroup has no resource: a new group takes its name from the broker.
    assert changing - {"resource-groups:CreateGroup"} == {action for action, _, _ in CHANGES}


@pytest.mark.covers("CAP-12")
def test_without_manage_reservations_nothing_is_reserved(local_aws: LocalAws, owner: Owner) -> None:
    guard = Guard(iam.Account(owner.client), ("always",))
    ec2 = limited(guard, local_aws.endpoint)("ec2")
    bought = {"InstanceType": P5, "InstancePlatform": "Linux/UNIX", "AvailabilityZone": A, "InstanceCount": 1}
    with pytest.raises(ClientError, match="ec2:CreateCapacityReservation"):
        ec2.create_capacity_reservation(
            **bought, TagSpecifications=specified("capacity-reservation", OWN_TAGS)
        )


class Other:
    """Resources of others in the account, and the broker's own that look the same."""

    def __init__(self, owner: Owner) -> None:
        self._owner, ec2, profiles = owner, owner.ec2, owner.client("iam")
        self.odcr = owner.odcr(P5, A, 1, TagSpecifications=specified("capacity-reservation", THEIRS))
        self.arn = owner.reservation(self.odcr)["CapacityReservationArn"]
        made_group = owner.groups.create_group(Name="theirs", Configuration=[], Tags=THEIRS)
        self.group = made_group["Group"]["GroupArn"]
        # The policy names `training`: Terraform made it beside the role.
        owner.groups.create_group(Name="training", Configuration=[], Tags=THEIRS)
        instance_ids = [
            ec2.run_instances(
                ImageId=owner.image,
                InstanceType="m5.large",
                MinCount=1,
                MaxCount=1,
                TagSpecifications=specified("instance", tags),
            )["Instances"][0]["InstanceId"]
            for tags in (THEIRS, OWN_TAGS)
        ]
        self.instance, self.own_instance = instance_ids
        profiles.create_instance_profile(InstanceProfileName=OUR_PROFILE, Tags=pairs(OWN_TAGS))
        plain = {"ImageId": owner.image}
        for name, tags, data in (
            ("theirs", THEIRS, plain),
            ("ours", OWN_TAGS, plain),
            ("ours-with-their-role", OWN_TAGS, plain | {"IamInstanceProfile": {"Name": PROFILE}}),
            ("ours-into-their-group", OWN_TAGS, plain | into("theirs")),
            ("ours-into-a-named-group", OWN_TAGS, plain | into("training")),
        ):
            ec2.create_launch_template(
                LaunchTemplateName=name,
                LaunchTemplateData=data,
                TagSpecifications=specified("launch-template", tags),
            )

    def fleet(self, template: str, tags: dict[str, str]) -> dict[str, Any]:
        chosen = {"LaunchTemplateName": template, "Version": "$Latest"}
        override = {"InstanceType": "m5.large", "SubnetId": self._owner.subnets[A]}
        config = {"LaunchTemplateSpecification": chosen, "Overrides": [override]}
        return {
            "Type": "instant",
            "LaunchTemplateConfigs": [config],
            "TargetCapacitySpecification": {
                "TotalTargetCapacity": 1,
                "DefaultTargetCapacityType": "on-demand",
            },
            "TagSpecifications": [
                specification
                for kind in ("instance", "volume", "fleet")
                if tags
                for specification in specified(kind, tags)
            ],
        }


def into(group: str) -> dict[str, Any]:
    arn = f"arn:aws:resource-groups:{REGION}:{ACCOUNT}:group/{group}"
    target = {"CapacityReservationResourceGroupArn": arn}
    return {"CapacityReservationSpecification": {"CapacityReservationTarget": target}}


def specified(kind: str, tags: dict[str, str]) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": pairs(tags)}]


def pairs(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
