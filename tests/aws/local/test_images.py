"""The images that AWS publishes for Kubernetes nodes: named by SSM, described and launched by EC2."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.ec2.models import EC2Backend

from providers.local import Control, install
from providers.local.ec2.lookups import QuickLookups
from tests.aws.local.kit import LINUX, Aws, run

AL2023 = "/aws/service/eks/optimized-ami/1.33/amazon-linux-2023"
BOTTLEROCKET = "/aws/service/bottlerocket/aws-k8s-1.33"


def value(aws: Aws, path: str, region: str = "us-east-1") -> str:
    return str(aws.client("ssm", region=region).get_parameter(Name=path)["Parameter"]["Value"])


def image(ec2: Any, image_id: str) -> Any:
    (found,) = ec2.describe_images(ImageIds=[image_id])["Images"]
    return found


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
    found = image(ec2, value(aws, f"{path}/image_id"))
    assert found["Name"].startswith(name)
    assert (found["Architecture"], found["State"], found["Public"]) == (architecture, "available", True)
    assert found["PlatformDetails"] == "Linux/UNIX"


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
    names = [found.get("Name", "") for found in ec2.describe_images(Owners=["amazon"])["Images"]]
    assert not [name for name in names if "al2023-x86_64-standard" in name or name.startswith("bottlerocket")]


def test_change_of_an_image_is_not_seen_by_the_next_account() -> None:
    """moto would make all images anew; here they are copies."""
    install()
    for _ in range(2):
        with mock_aws():
            ec2 = Aws(None, Control()).client()
            found = image(ec2, LINUX)
            assert (found["Public"], found.get("Tags", [])) == (True, [])
            (snapshot,) = (each["Ebs"]["SnapshotId"] for each in found["BlockDeviceMappings"])
            assert ec2.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"][0]["VolumeSize"] == 15
            everybody = {"Remove": [{"Group": "all"}]}
            ec2.modify_image_attribute(ImageId=LINUX, LaunchPermission=everybody)
            ec2.create_tags(Resources=[LINUX, snapshot], Tags=[{"Key": "seen", "Value": "yes"}])
            ec2.modify_snapshot_attribute(
                SnapshotId=snapshot, OperationType="remove", CreateVolumePermission=everybody
            )
            assert image(ec2, LINUX)["Tags"] == [{"Key": "seen", "Value": "yes"}]
            assert not image(ec2, LINUX)["Public"]
            ec2.deregister_image(ImageId=LINUX)
            ec2.delete_snapshot(SnapshotId=snapshot)


def test_images_are_as_moto_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    install()
    with mock_aws():
        ours = Aws(None, Control()).client().describe_images()["Images"]
    monkeypatch.setattr(QuickLookups, "_load_amis", EC2Backend._load_amis)
    with mock_aws():
        motos = Aws(None, Control()).client().describe_images()["Images"]
    for each in (*ours, *motos):
        del each["CreationDate"]  # of most, when they were made here
        for mapping in each["BlockDeviceMappings"]:
            assert mapping["Ebs"].pop("SnapshotId").startswith("snap-")
    assert ours == motos
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    with mock_aws():
        assert Aws(None, Control()).client().describe_images()["Images"] == []
