"""The images that AWS publishes for Kubernetes nodes, under the SSM parameters that name them.

Invariant: a parameter and its image appear together, at the first request to SSM in that Region for one of
them, so that an alias resolves to an id that can be described and launched. moto publishes
Amazon Linux and ECS in the same way, and nothing for EKS.

Sources: Amazon EKS User Guide, "Retrieve recommended Amazon Linux AMI IDs" (path, `recommended` and a name
with a date); Bottlerocket, "Quickstart with Amazon EKS" (path, `latest` and a version). The ids are made up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ssm.models import Parameter, ParameterDict

from local.aws.ec2.world import LOCK

ROOTS = ("/aws/service/eks/optimized-ami", "/aws/service/bottlerocket")
KUBERNETES = tuple(f"1.{minor}" for minor in range(28, 37))
AMAZON_LINUX = (
    ("x86_64", "standard"),
    ("arm64", "standard"),
    ("x86_64", "nvidia"),
    ("arm64", "nvidia"),
    ("x86_64", "neuron"),
)
BOTTLEROCKET = (("x86_64", ""), ("arm64", ""), ("x86_64", "-nvidia"), ("arm64", "-nvidia"))
AL2023_RELEASES = ("v20250505", "v20251112")  # the last one is recommended
BOTTLEROCKET_RELEASES = ("1.20.3", "1.50.0")
OLDER, NEWEST = datetime(2025, 5, 5), datetime(2025, 11, 12)
OWNERS = {"amazon-eks-node": "602401143452", "bottlerocket-aws": "092701018921"}


class PublishedImage(NamedTuple):
    name: str
    architecture: str
    parameters: tuple[str, ...]  # the parameters that name it
    root_device: str


def published() -> Iterator[PublishedImage]:
    for kubernetes in KUBERNETES:
        yield from _amazon_linux(kubernetes)
        yield from _bottlerocket(kubernetes)


def _amazon_linux(kubernetes: str) -> Iterator[PublishedImage]:
    for architecture, variant in AMAZON_LINUX:
        folder = f"{ROOTS[0]}/{kubernetes}/amazon-linux-2023/{architecture}/{variant}"
        for release in AL2023_RELEASES:
            name = f"amazon-eks-node-al2023-{architecture}-{variant}-{kubernetes}-{release}"
            versions = [name, *(["recommended"] if release == AL2023_RELEASES[-1] else [])]
            paths = tuple(f"{folder}/{version}/image_id" for version in versions)
            yield PublishedImage(name, architecture, paths, "/dev/xvda")


def _bottlerocket(kubernetes: str) -> Iterator[PublishedImage]:
    for architecture, variant in BOTTLEROCKET:
        folder = f"{ROOTS[1]}/aws-k8s-{kubernetes}{variant}/{architecture}"
        for release in BOTTLEROCKET_RELEASES:
            name = f"bottlerocket-aws-k8s-{kubernetes}{variant}-{architecture}-v{release}"
            versions = [release, *(["latest"] if release == BOTTLEROCKET_RELEASES[-1] else [])]
            yield PublishedImage(
                name, architecture, tuple(f"{folder}/{version}/image_id" for version in versions), "/dev/xvda"
            )


def with_published(stock: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    """moto's hook before a parameter is read, which loads the published images as well."""

    def check(parameters: ParameterDict, key: str) -> None:
        stock(parameters, key)
        if str(key or "").startswith(ROOTS) and not getattr(parameters, "kubernetes_loaded", False):
            parameters.kubernetes_loaded = True  # type: ignore[attr-defined]
            _load(parameters)

    return check


def _load(parameters: ParameterDict) -> None:
    account, region = parameters.account_id, parameters.region_name
    with LOCK:
        backend: Any = ec2_backends[account][region]
        for image in published():
            ami = _register(backend, image)
            for path in image.parameters:
                dict.setdefault(parameters, path, []).append(_parameter(account, path, ami.id))


def _register(backend: Any, image: PublishedImage) -> Ami:
    digest = hashlib.sha256(f"{backend.region_name}/{image.name}".encode()).hexdigest()
    release = image.name.rpartition("-v")[2]
    newest = release in (AL2023_RELEASES[-1].removeprefix("v"), BOTTLEROCKET_RELEASES[-1])
    ami = Ami(
        backend,
        f"ami-{digest[:17]}",
        name=image.name,
        description="Kubernetes node image of local AWS",
        owner_id=next(owner for start, owner in OWNERS.items() if image.name.startswith(start)),
        owner_alias="amazon",
        public=True,
        virtualization_type="hvm",
        architecture=image.architecture,
        creation_date=NEWEST if newest else OLDER,
        image_location=f"amazon/{image.name}",
        hypervisor="xen",
        root_device_type="ebs",
        root_device_name=image.root_device,
        region_name=backend.region_name,
    )
    backend.amis[ami.id] = ami
    return ami


def _parameter(account: str, path: str, image_id: str) -> Any:
    parameter_class: Any = Parameter  # abstract by its types, made like this by moto as well
    return parameter_class(
        account_id=account,
        name=path,
        value=image_id,
        parameter_type="String",
        description=None,
        allowed_pattern=None,
        keyid=None,
        last_modified_date=NEWEST.timestamp(),
        version=1,
        data_type="text",
    )
