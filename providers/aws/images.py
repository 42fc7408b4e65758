"""Machine images that selector terms choose, newest first.

Invariant: a term with a name and no owner searches the account's own and Amazon's images only, so that a
stranger's public image is never launched by its name. Deprecated images are found, and come after all
others.

An alias is a family and a version (`al2023@latest`, `bottlerocket@v1.20.3`). It stands for one image for
each architecture and accelerator. AWS publishes their ids as SSM parameters (Amazon EKS user guide,
"Retrieve recommended Amazon Linux AMI IDs"; Bottlerocket, "Retrieve recommended Bottlerocket AMI IDs").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from providers.aws import errors, filters
from providers.aws.account import AwsAccount
from providers.aws.cache import TtlCache
from providers.aws.clients import Aws
from providers.aws.tags import Owner
from providers.errors import ErrorClass, ProviderError
from providers.model import LINUX, Accelerator, Image, Selector

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, ImageTypeDef

PAGE = 1000
# The image's PlatformDetails (EC2 User Guide, "AMI billing information fields") where the platform of its
# Capacity Reservation is named otherwise (EC2 API Reference, CapacityReservationInstancePlatform). With a
# Red Hat license of one's own it is Linux/UNIX.
_RESERVED_AS = {
    "Red Hat BYOL Linux": LINUX,
    "Red Hat Enterprise Linux with HA": "RHEL with HA",
    "Red Hat Enterprise Linux with SQL Server Enterprise": "RHEL with SQL Server Enterprise",
    "Red Hat Enterprise Linux with SQL Server Enterprise and HA": "RHEL with HA and SQL Server Enterprise",
    "Red Hat Enterprise Linux with SQL Server Standard": "RHEL with SQL Server Standard",
    "Red Hat Enterprise Linux with SQL Server Standard and HA": "RHEL with HA and SQL Server Standard",
    "Red Hat Enterprise Linux with SQL Server Web": "RHEL with SQL Server Web",
    "SQL Server Enterprise": "Linux with SQL Server Enterprise",
    "SQL Server Standard": "Linux with SQL Server Standard",
    "SQL Server Web": "Linux with SQL Server Web",
}


class Published(NamedTuple):
    """One image of an alias: where its id is published, and for which instances it is built."""

    parameter: str
    accelerator: Accelerator


_AL2023: tuple[tuple[str, str, Accelerator], ...] = (
    ("x86_64", "standard", "none"),
    ("arm64", "standard", "none"),
    ("x86_64", "nvidia", "nvidia"),
    ("arm64", "nvidia", "nvidia"),
    ("x86_64", "neuron", "neuron"),
)
_BOTTLEROCKET: tuple[tuple[str, str, Accelerator], ...] = (
    # The driver for Neuron is in the image without NVIDIA's (bottlerocket, "packages: add neuron kmod").
    ("x86_64", "", "none-or-neuron"),
    ("arm64", "", "none"),
    ("x86_64", "-nvidia", "nvidia"),
    ("arm64", "-nvidia", "nvidia"),
)


def published(alias: str, *, kubernetes_version: str) -> tuple[Published, ...]:
    """The SSM parameters of an alias."""
    family, _, version = alias.partition("@")
    if not version:
        raise _bad_alias(alias, "it names no version")
    if family == "al2023":
        return tuple(
            Published(_al2023(arch, variant, version, kubernetes_version), accelerator)
            for arch, variant, accelerator in _AL2023
        )
    if family == "bottlerocket":
        release = version.removeprefix("v")
        return tuple(
            Published(
                f"/aws/service/bottlerocket/aws-k8s-{kubernetes_version}{variant}/{arch}/{release}/image_id",
                accelerator,
            )
            for arch, variant, accelerator in _BOTTLEROCKET
        )
    raise _bad_alias(alias, f"the family {family!r} is not known")


def _al2023(arch: str, variant: str, version: str, kubernetes_version: str) -> str:
    name = (
        "recommended"
        if version == "latest"
        else f"amazon-eks-node-al2023-{arch}-{variant}-{kubernetes_version}-{version}"
    )
    folder = f"/aws/service/eks/optimized-ami/{kubernetes_version}/amazon-linux-2023"
    return f"{folder}/{arch}/{variant}/{name}/image_id"


def _bad_alias(alias: str, why: str) -> ProviderError:
    return errors.misconfigured(
        "InvalidAlias",
        f"amiSelectorTerms alias {alias!r}: {why}; write al2023@latest, al2023@v20250505, "
        "bottlerocket@latest or bottlerocket@v1.20.3, or select by id, name, tags or ssmParameter",
        operation="images",
    )


class Images(AwsAccount):
    """Finds images; ids that SSM publishes are remembered, for an hour where they may change.

    `_version`, that of Kubernetes, is read each time: the cluster may have been upgraded.
    """

    _version: Callable[[], str]

    def __init__(self, aws: Aws, owner: Owner) -> None:
        super().__init__(aws, owner)
        self._parameters: TtlCache[tuple[str, ...], dict[str, str]] = TtlCache(
            ttl=3600, monotonic=aws.clock.monotonic
        )

    def images(self, terms: Sequence[Selector]) -> list[Image]:
        """Images that any term selects: those in use first, then newest first."""
        selected: dict[str, Image] = {}
        plain: list[Selector] = []
        for term in terms:
            if term.alias:
                for image in self._of_alias(term.alias):
                    selected.setdefault(image.id, image)
            elif term.ssm_parameter:
                plain.append(Selector(id=self._of_parameter(term.ssm_parameter)))
            else:
                plain.append(term)
        for owners, chosen in _queries(plain):
            for image in self._describe(chosen, owners=owners):
                selected.setdefault(image.id, image)
        newest = sorted(selected.values(), key=lambda image: image.id)
        newest.sort(key=lambda image: image.created.timestamp() if image.created else 0.0, reverse=True)
        return sorted(newest, key=lambda image: image.deprecated)

    def _of_alias(self, alias: str) -> list[Image]:
        version = self._version()
        published_images = published(alias, kubernetes_version=version)
        ids = self._ids(tuple(item.parameter for item in published_images))
        accelerators = {
            ids[item.parameter]: item.accelerator for item in published_images if item.parameter in ids
        }
        if not accelerators:
            raise ProviderError(
                "AliasNotFound",
                f"amiSelectorTerms alias {alias!r}: AWS publishes no image of it for Kubernetes "
                f"{version} in {self._aws.region}; looked for {published_images[0].parameter} "
                f"and {len(published_images) - 1} more",
                class_=ErrorClass.NOT_FOUND,
                operation="images",
            )
        chosen: list[FilterTypeDef] = [{"Name": "image-id", "Values": sorted(accelerators)}]
        return [
            _image(item, now=self._aws.clock.now(), accelerator=accelerators.get(item["ImageId"]))
            for item in self._items(chosen, owners=())
        ]

    def _of_parameter(self, name: str) -> str:
        # SSM returns the bare name, even if the request has an ARN, or a version or label behind the name.
        image_ids = [*self._ids((name,)).values()]
        if not image_ids:
            raise ProviderError(
                "ParameterNotFound",
                f"amiSelectorTerms ssmParameter {name!r} does not exist in {self._aws.region}",
                class_=ErrorClass.NOT_FOUND,
                operation="images",
            )
        return image_ids[0]

    def _ids(self, names: tuple[str, ...]) -> dict[str, str]:
        """Parameter name to its value, for those that exist; one call (SSM takes ten names)."""

        def load() -> dict[str, str]:
            answer = self._aws.call(self._aws.ssm.get_parameters, Names=list(names))
            return {item["Name"]: item["Value"] for item in answer["Parameters"]}

        image_ids = self._parameters.get(names, load)
        if not image_ids:
            self._parameters.drop(names)
        return image_ids

    def _describe(self, chosen: list[FilterTypeDef], *, owners: Sequence[str]) -> list[Image]:
        return [_image(item, now=self._aws.clock.now()) for item in self._items(chosen, owners=owners)]

    def _items(self, chosen: list[FilterTypeDef], *, owners: Sequence[str]) -> Iterator[ImageTypeDef]:
        more: dict[str, Sequence[str]] = {"Owners": list(owners)} if owners else {}
        for page in self._aws.pages(
            self._aws.ec2.describe_images,
            Filters=[*chosen, {"Name": "state", "Values": ["available"]}],
            IncludeDeprecated=True,
            MaxResults=PAGE,
            **more,  # type: ignore[arg-type]
        ):
            yield from page["Images"]


def _queries(terms: Sequence[Selector]) -> Iterator[tuple[tuple[str, ...], list[FilterTypeDef]]]:
    """Owners and filters of each DescribeImages call."""
    ids = [Selector(id=term.id) for term in terms if term.id]
    for chosen in filters.of_terms(ids, field="amiSelectorTerms", id_name="image-id", name="name"):
        yield (), chosen
    for term in terms:
        if term.id:
            continue
        owners = (term.owner,) if term.owner else ("self", "amazon") if term.name else ()
        for chosen in filters.of_terms([term], field="amiSelectorTerms", id_name="image-id", name="name"):
            yield owners, chosen


def _image(item: ImageTypeDef, *, now: datetime, accelerator: Accelerator | None = None) -> Image:
    deprecated = _time(item.get("DeprecationTime", ""))
    return Image(
        id=item["ImageId"],
        architecture="arm64" if item.get("Architecture") == "arm64" else "amd64",
        platform=platform(item.get("PlatformDetails", "")),
        created=_time(item.get("CreationDate", "")),
        deprecated=deprecated is not None and deprecated <= now,
        accelerator=accelerator,
    )


def platform(details: str) -> str:
    """The platform that a reservation must have for an image with these PlatformDetails."""
    return _RESERVED_AS.get(details, details) or LINUX


def _time(text: str) -> datetime | None:
    """EC2 writes these two times as text."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
