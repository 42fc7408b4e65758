"""The images that AWS publishes for Kubernetes nodes: named by SSM, described and launched by EC2."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.ec2.models import EC2Backend

from local.aws import Control, install
from local.aws.ec2.lookups import QuickLookups
from tests.aws.local.kit import LINUX, Aws, run

AL2023 = "/aws/service/eks/optimized-ami/1.33/amazon-linux-2023"
BOTTLEROCKET = "/aws/service/bottlerocket/aws-k8s-1.33"


def value(aws: Aws, path: str, region: str = "us-east-1") -> str:
    return str(aws.client("ssm", region=region).get_parameter(Name=path)["Parameter"]["Value"])


def image(ec2: Any, image_id: str) -> Any:
    (description,) = ec2.describe_images(ImageIds=[image_id])["Images"]
    return description


@pytest.mark.parametrize(
    ("path", "name", "architecture"),
    [
        (f"{AL2023}/x86_64/standard/recommended", "amazon-eks-node-al2023-x86_64-standard-1.33-", "x86_64"),
        (f"{AL2023}/arm64/nvidia/recommended", "amazon-eks-node-al2023-arm64-nvidia-1.33-", "arm64"),
        (f"{BOTTLEROCKET}/arm64/latest", "bottlerocket-aws-k8s-1.33-arm64-v", "arm64"),
        (f"{BOTTLEROCKET}-nvidia/x86_64/1.20.3", "bottlerocket-aws-k8s-1.33-nvidia-x86_64-v1.20.3", "x86_64"),
    ],
)
def test_published_image_matches_its_path(
    aws: Aws, ec2: Any, path: str, name: str, architecture: str
) -> None:
    description = image(ec2, value(aws, f"{path}/image_id"))
    assert description["Name"].startswith(name)
    assert (description["Architecture"], description["State"], description["Public"]) == (
        architecture,
        "available",
        True,
    )
    assert description["PlatformDetails"] == "Linux/UNIX"


def test_it_can_be_launched_and_a_release_named(aws: Aws, ec2: Any) -> None:
    newest = value(aws, f"{AL2023}/x86_64/standard/recommended/image_id")
    name = image(ec2, newest)["Name"]
    assert value(aws, f"{AL2023}/x86_64/standard/{name}/image_id") == newest
    (instance,) = run(ec2, ImageId=newest)
    assert instance["ImageId"] == newest
    older = value(aws, f"{AL2023}/x86_64/standard/{name.rpartition('-')[0]}-v20250505/image_id")
    assert image(ec2, older)["CreationDate"] < image(ec2, newest)["CreationDate"]


def test_regions_have_ids_of_their_own_and_several_parameters_come_at_once(aws: Aws) -> None:
    path = f"{AL2023}/x86_64/standard/recommended/image_id"
    assert value(aws, path) != value(aws, path, "us-west-2")
    names = [path, f"{AL2023}/x86_64/neuron/recommended/image_id", f"{AL2023}/nothing"]
    answer = aws.client("ssm").get_parameters(Names=names)
    assert sorted(parameter["Name"] for parameter in answer["Parameters"]) == sorted(names[:2])
    assert answer["InvalidParameters"] == names[2:]


def test_unpublished_image_is_not_found(aws: Aws) -> None:
    with pytest.raises(ClientError, match="ParameterNotFound"):
        value(
            aws, "/aws/service/eks/optimized-ami/1.2/amazon-linux-2023/x86_64/standard/recommended/image_id"
        )


def test_images_appear_only_after_a_request(ec2: Any) -> None:
    names = [ami.get("Name", "") for ami in ec2.describe_images(Owners=["amazon"])["Images"]]
    assert not [name for name in names if "al2023-x86_64-standard" in name or name.startswith("bottlerocket")]


def test_change_of_an_image_is_not_seen_by_the_next_account() -> None:
    """moto would make all images anew; here they are copies."""
    install()
    for _ in range(2):
        with mock_aws():
            ec2 = Aws(None, Control()).client()
            description = image(ec2, LINUX)
            assert (description["Public"], description.get("Tags", [])) == (True, [])
            (snapshot,) = (mapping["Ebs"]["SnapshotId"] for mapping in description["BlockDeviceMappings"])
            assert ec2.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"][0]["VolumeSize"] == 15
            without_public = {"Remove": [{"Group": "all"}]}
            ec2.modify_image_attribute(ImageId=LINUX, LaunchPermission=without_public)
            ec2.create_tags(Resources=[LINUX, snapshot], Tags=[{"Key": "seen", "Value": "yes"}])
            ec2.modify_snapshot_attribute(
                SnapshotId=snapshot, OperationType="remove", CreateVolumePermission=without_public
            )
            assert image(ec2, LINUX)["Tags"] == [{"Key": "seen", "Value": "yes"}]
            assert not image(ec2, LINUX)["Public"]
            ec2.deregister_image(ImageId=LINUX)
            ec2.delete_snapshot(SnapshotId=snapshot)


def test_images_are_as_moto_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    install()
    with mock_aws():
        copies = Aws(None, Control()).client().describe_images()["Images"]
    monkeypatch.setattr(QuickLookups, "_load_amis", EC2Backend._load_amis)
    with mock_aws():
        motos = Aws(None, Control()).client().describe_images()["Images"]
    for ami in (*copies, *motos):
        del ami["CreationDate"]  # of most, when they were made here
        for mapping in ami["BlockDeviceMappings"]:
            assert mapping["Ebs"].pop("SnapshotId").startswith("snap-")
    assert copies == motos
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    with mock_aws():
        assert Aws(None, Control()).client().describe_images()["Images"] == []
