"""Local AWS and an embedded API server, as the commands find them: by a URL and a kubeconfig."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import boto3
import pytest
import structlog

from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace
from broker.commands.crds.install import install
from broker.kube.client import Client
from broker.settings import Settings
from local.aws import LocalAws
from local.in_process import InProcessTransport
from local.kube import ApiServer, Cluster
from tests.support.direct import local_aws_here

from .kit import REGION, World, node_class
from .town import Town

NAMES = {field.name for field in fields(Settings)}


@pytest.fixture(autouse=True)
def _caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One folder for all commands of a run, so that they fetch the instance types once; no cluster of the
    user.
    """
    monkeypatch.setenv("HOME", str(tmp_path_factory.getbasetemp() / "no-home"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "caches"))


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """Restores the level of logging, which a command sets for the whole process."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def _offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a command reads a setting that it does not offer: other fields are always their defaults."""

    def watched(**offered: Any) -> Settings:
        class Watched(Settings):
            def __getattribute__(self, name: str) -> Any:
                assert name not in NAMES or name in offered, f"{name} is read, and no option of this command"
                return super().__getattribute__(name)

        return Watched(**offered)

    monkeypatch.setattr("broker.options.Settings", watched)


@pytest.fixture(scope="session")
def aws() -> Iterator[LocalAws]:
    with local_aws_here() as server:
        yield server


@pytest.fixture(scope="session")
def image(aws: LocalAws) -> str:
    """The same after every reset: it comes with local AWS."""
    ec2 = boto3.client(
        "ec2",
        endpoint_url=aws.endpoint,
        region_name=REGION,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    reply = ec2.describe_images(Filters=[{"Name": "name", "Values": ["amzn2-ami-hvm*x86_64*"]}])
    return str(reply["Images"][0]["ImageId"])


@pytest.fixture
def world(aws: LocalAws, image: str) -> World:
    aws.reset()
    ec2 = boto3.client("ec2", endpoint_url=aws.endpoint, region_name=REGION)
    odcr = ec2.create_capacity_reservation(
        InstanceType="p5.48xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-east-1a",
        InstanceCount=2,
        InstanceMatchCriteria="targeted",
    )["CapacityReservation"]["CapacityReservationId"]
    return World(endpoint=aws.endpoint, odcr=odcr, image=image, ec2=ec2)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Client, str]]:
    with ApiServer(Cluster()) as server:
        path = tmp_path / "kubeconfig"
        path.write_text(server.kubeconfig())
        yield Client(InProcessTransport(server.cluster)), str(path)


@pytest.fixture
def town(world: World, cluster: tuple[Client, str]) -> Town:
    install(cluster[0])
    cluster[0].create(EC2NodeClass.KIND, node_class(world))
    cluster[0].create(Namespace.KIND, {"metadata": {"name": "ml"}})
    return Town(*cluster, world)
