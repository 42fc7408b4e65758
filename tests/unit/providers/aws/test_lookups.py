"""Images, types, prices, selector terms and the cache: the requests to AWS and their results."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from botocore.stub import Stubber
from hypothesis import given
from hypothesis import strategies as st

from providers.aws.cache import TtlCache
from providers.aws.filters import batches, of_terms
from providers.aws.images import platform, published
from providers.aws.reservations import odcr
from providers.errors import ErrorClass, ProviderError
from providers.model import Accelerator, Gpu, Image, InstanceType, PlacementGroup, Selector

from .support import ManualClock, Wire, answer, provider

ROOT = "/aws/service/eks/optimized-ami/1.32/amazon-linux-2023"


@pytest.mark.covers("KRP-14")
@pytest.mark.parametrize(
    ("alias", "parameters"),
    [
        (
            "al2023@latest",
            {
                f"{ROOT}/x86_64/standard/recommended/image_id": "none",
                f"{ROOT}/arm64/standard/recommended/image_id": "none",
                f"{ROOT}/x86_64/nvidia/recommended/image_id": "nvidia",
                f"{ROOT}/arm64/nvidia/recommended/image_id": "nvidia",
                f"{ROOT}/x86_64/neuron/recommended/image_id": "neuron",
            },
        ),
        (
            "bottlerocket@v1.20.3",
            {
                "/aws/service/bottlerocket/aws-k8s-1.32/x86_64/1.20.3/image_id": "none-or-neuron",
                "/aws/service/bottlerocket/aws-k8s-1.32/arm64/1.20.3/image_id": "none",
                "/aws/service/bottlerocket/aws-k8s-1.32-nvidia/x86_64/1.20.3/image_id": "nvidia",
                "/aws/service/bottlerocket/aws-k8s-1.32-nvidia/arm64/1.20.3/image_id": "nvidia",
            },
        ),
        (
            "bottlerocket@latest",
            {
                "/aws/service/bottlerocket/aws-k8s-1.32/x86_64/latest/image_id": "none-or-neuron",
                "/aws/service/bottlerocket/aws-k8s-1.32/arm64/latest/image_id": "none",
                "/aws/service/bottlerocket/aws-k8s-1.32-nvidia/x86_64/latest/image_id": "nvidia",
                "/aws/service/bottlerocket/aws-k8s-1.32-nvidia/arm64/latest/image_id": "nvidia",
            },
        ),
    ],
)
def test_an_alias_names_the_images_that_aws_publishes(alias: str, parameters: dict[str, str]) -> None:
    assert dict(published(alias, kubernetes_version="1.32")) == parameters


def test_a_version_of_al2023_names_the_image() -> None:
    first = published("al2023@v20250505", kubernetes_version="1.32")[0]
    name = "amazon-eks-node-al2023-x86_64-standard-1.32-v20250505"
    assert first.parameter == f"{ROOT}/x86_64/standard/{name}/image_id"


@pytest.mark.parametrize("alias", ["al2023", "ubuntu@latest", "@latest", "al2023@"])
def test_an_invalid_alias_names_the_valid_form(alias: str) -> None:
    with pytest.raises(ProviderError, match="al2023@latest") as caught:
        published(alias, kubernetes_version="1.32")
    assert caught.value.class_ is ErrorClass.CONFIGURATION


terms = st.builds(
    Selector,
    id=st.sampled_from(["", "subnet-1", "subnet-2"]),
    tags=st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["1", "*"])),
)


@given(st.lists(terms, max_size=6))
def test_no_term_ever_selects_everything(chosen: list[Selector]) -> None:
    if any(not term.id and not term.tags for term in chosen):
        with pytest.raises(ProviderError, match="selects by nothing"):
            list(of_terms(chosen, field="subnetSelectorTerms", id_name="subnet-id", name=""))
        return
    queries = list(of_terms(chosen, field="subnetSelectorTerms", id_name="subnet-id", name=""))
    assert all(queries)
    assert len(queries) <= max(1, len(chosen))
    values = {value for query in queries for filter_ in query for value in filter_.get("Values", [])}
    assert {term.id for term in chosen if term.id} <= values


def test_a_star_filters_by_the_key_alone_and_fields_are_combined() -> None:
    (query,) = of_terms(
        [Selector(id="subnet-1", tags={"any": "*", "env": "prod"})], field="x", id_name="subnet-id", name=""
    )
    assert query == [
        {"Name": "tag-key", "Values": ["any"]},
        {"Name": "tag:env", "Values": ["prod"]},
        {"Name": "subnet-id", "Values": ["subnet-1"]},
    ]


def test_plain_ids_are_one_call() -> None:
    queries = list(
        of_terms([Selector(id=f"subnet-{n}") for n in range(150)], field="x", id_name="subnet-id", name="")
    )
    assert len(queries) == 1


@given(st.lists(st.integers(), max_size=50), st.integers(1, 20))
def test_batches_contain_every_item(items: list[int], size: int) -> None:
    cut = list(batches(items, size))
    assert [item for batch in cut for item in batch] == items
    assert all(1 <= len(batch) <= size for batch in cut)


def test_an_expired_value_is_loaded_again() -> None:
    clock = ManualClock()
    cache: TtlCache[str, int] = TtlCache(ttl=60, monotonic=clock.monotonic)
    loads = iter(range(9))
    assert cache.get("k", lambda: next(loads)) == 0
    clock.advance(59)
    assert cache.get("k", lambda: next(loads)) == 0
    clock.advance(1)
    assert cache.get("k", lambda: next(loads)) == 1
    cache.drop("k")
    assert cache.get("k", lambda: next(loads)) == 2


def test_a_failed_load_is_not_cached() -> None:
    cache: TtlCache[str, int] = TtlCache(ttl=60, monotonic=lambda: 0.0)
    with pytest.raises(ZeroDivisionError):
        cache.get("k", lambda: 1 // 0)
    assert cache.get("k", lambda: 7) == 7


def test_concurrent_callers_cause_a_single_load() -> None:
    cache: TtlCache[str, int] = TtlCache(ttl=60, monotonic=lambda: 0.0)
    loads = []
    together = threading.Barrier(6)

    def load() -> int:
        loads.append(1)
        return 1

    def read_value() -> None:
        together.wait(60)
        cache.get("k", load)

    threads = [threading.Thread(target=read_value) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1


def _types(name: str, body: str) -> str:
    inner = f"<instanceTypeSet><item><instanceType>{name}</instanceType>{body}</item></instanceTypeSet>"
    return answer("DescribeInstanceTypes", inner)


OFFERED = answer(
    "DescribeInstanceTypeOfferings",
    "<instanceTypeOfferingSet><item><instanceType>m5.large</instanceType><location>us-east-1b</location></item>"
    "</instanceTypeOfferingSet>",
)


def test_pods_are_limited_by_the_default_network_card() -> None:
    aws = provider()
    wire = Wire(aws)
    body = """<processorInfo><supportedArchitectures><item>x86_64</item></supportedArchitectures>
      </processorInfo>
      <networkInfo><maximumNetworkInterfaces>8</maximumNetworkInterfaces>
      <ipv4AddressesPerInterface>10</ipv4AddressesPerInterface>
      <defaultNetworkCardIndex>0</defaultNetworkCardIndex>
      <networkCards><item><networkCardIndex>0</networkCardIndex>
      <maximumNetworkInterfaces>3</maximumNetworkInterfaces></item>
      <item><networkCardIndex>1</networkCardIndex><maximumNetworkInterfaces>5</maximumNetworkInterfaces></item>
      </networkCards></networkInfo>"""
    wire.reply("DescribeInstanceTypes", (200, _types("m5.large", body)))
    wire.reply("DescribeInstanceTypeOfferings", (200, OFFERED))
    type_ = aws.instance_types()["m5.large"]
    assert type_.max_pods == 3 * 9 + 2
    assert type_.zones == {"us-east-1b"}
    assert type_.on_demand_price == 0.096


def test_types_are_read_once_an_hour() -> None:
    clock = ManualClock()
    aws = provider(clock)
    wire = Wire(aws)
    wire.reply("DescribeInstanceTypes", (200, _types("m5.large", "")))
    wire.reply("DescribeInstanceTypeOfferings", (200, OFFERED))
    aws.instance_types()
    clock.advance(3599)
    aws.instance_types()
    assert wire.count("DescribeInstanceTypes") == 1
    clock.advance(1)
    aws.instance_types()
    assert wire.count("DescribeInstanceTypes") == 2


def test_a_group_that_is_no_arn_is_refused_with_the_form() -> None:
    with pytest.raises(ProviderError, match="arn:aws:resource-groups:REGION:ACCOUNT:group/NAME"):
        provider().group("gpu-group")


def test_a_class_without_role_or_profile_is_refused() -> None:
    with pytest.raises(ProviderError, match="instanceProfile"):
        provider().instance_profile(role="", profile="", labels={})
    assert provider().instance_profile(role="nodes", profile="mine", labels={}) == "mine"


def test_a_placement_group_by_its_name() -> None:
    aws = provider()
    wire = Wire(aws)
    arn = "arn:aws:ec2:us-east-1:123456789012:placement-group/ring"
    fields = {"groupId": "pg-1", "groupName": "ring", "groupArn": arn, "strategy": "cluster"}
    item = "".join(("<item>", *(f"<{key}>{value}</{key}>" for key, value in fields.items()), "</item>"))
    body = f"<placementGroupSet>{item}</placementGroupSet>"
    wire.reply("DescribePlacementGroups", (200, answer("DescribePlacementGroups", body)))
    assert aws.placement_group(name="ring") == PlacementGroup(arn=arn, strategy="cluster")
    assert aws.placement_group(id_="pg-1").arn == arn
    assert wire.of("DescribePlacementGroups")[-1]["GroupId.1"] == "pg-1"
    with pytest.raises(ProviderError, match="'other' does not exist") as caught:
        aws.placement_group(name="other")
    assert caught.value.class_ is ErrorClass.NOT_FOUND


CPU = InstanceType(name="m5.large", vcpus=2, memory_mib=8192)
GPU = InstanceType(
    name="p5.48xlarge",
    vcpus=192,
    memory_mib=1,
    gpus=(Gpu(name="H100", manufacturer="NVIDIA", count=8, memory_mib=1),),
)
AMD = InstanceType(
    name="g4ad.xlarge",
    vcpus=4,
    memory_mib=1,
    gpus=(Gpu(name="V520", manufacturer="AMD", count=1, memory_mib=1),),
)
NEURON = InstanceType(name="trn1.2xlarge", vcpus=8, memory_mib=1, neurons=1)
ARM = InstanceType(name="m6g.large", vcpus=2, memory_mib=1, architecture="arm64")


@pytest.mark.covers("KRP-14")
@pytest.mark.parametrize(
    ("accelerator", "served"),
    [
        (None, {"m5.large", "p5.48xlarge", "g4ad.xlarge", "trn1.2xlarge"}),
        ("none", {"m5.large", "g4ad.xlarge"}),
        ("nvidia", {"p5.48xlarge"}),
        ("neuron", {"trn1.2xlarge"}),
        ("none-or-neuron", {"m5.large", "g4ad.xlarge", "trn1.2xlarge"}),
    ],
)
def test_an_image_serves_types_with_supported_devices(
    accelerator: Accelerator | None, served: set[str]
) -> None:
    image = Image(id="ami-1", accelerator=accelerator)
    assert {t.name for t in (CPU, GPU, AMD, NEURON, ARM) if image.serves(t)} == served


def _parameters(*parameter_names: str) -> dict[str, Any]:
    return {"Parameters": [{"Name": name, "Value": f"ami-{n}"} for n, name in enumerate(parameter_names)]}


@pytest.mark.covers("KRP-14")
def test_an_alias_gives_the_published_images_with_their_accelerators() -> None:
    clock = ManualClock()
    aws = provider(clock)
    wire = Wire(aws)
    names = [item.parameter for item in published("al2023@latest", kubernetes_version="1.32")]
    images = "".join(
        f"<item><imageId>ami-{n}</imageId><architecture>{arch}</architecture></item>"
        for n, arch in enumerate(["x86_64", "arm64", "x86_64"])
    )
    wire.reply("DescribeImages", (200, answer("DescribeImages", f"<imagesSet>{images}</imagesSet>")))
    with Stubber(aws._aws.ssm) as ssm:
        params = {"Names": names}
        ssm.add_response("get_parameters", _parameters(*names[:3]), params)
        images_by_id = {image.id: image for image in aws.images([Selector(alias="al2023@latest")])}
        aws.images([Selector(alias="al2023@latest")])
        clock.advance(3600)
        ssm.add_response("get_parameters", _parameters(names[0]), params)
        assert aws.images([Selector(alias="al2023@latest")])
    assert [
        (images_by_id[i].architecture, images_by_id[i].accelerator) for i in ("ami-0", "ami-1", "ami-2")
    ] == [
        ("amd64", "none"),
        ("arm64", "none"),
        ("amd64", "nvidia"),
    ]


def test_an_unpublished_alias_names_the_parameters() -> None:
    aws = provider()
    with Stubber(aws._aws.ssm) as ssm:
        ssm.add_response("get_parameters", _parameters())
        with pytest.raises(ProviderError, match=r"al2023@v19990101.*Kubernetes 1\.32 in us-east-1") as caught:
            aws.images([Selector(alias="al2023@v19990101")])
    assert caught.value.class_ is ErrorClass.NOT_FOUND


@pytest.mark.covers("KRP-14")
@pytest.mark.parametrize(
    "parameter_name", ["/golden", "/golden:7", "arn:aws-cn:ssm:cn-north-1:123456789012:parameter/golden"]
)
def test_a_parameter_is_found_by_name_by_version_and_by_arn(parameter_name: str) -> None:
    aws = provider()
    wire = Wire(aws)
    images = "<item><imageId>ami-7</imageId></item>"
    wire.reply("DescribeImages", (200, answer("DescribeImages", f"<imagesSet>{images}</imagesSet>")))
    with Stubber(aws._aws.ssm) as ssm:
        # SSM returns the bare name, however the parameter was requested.
        parameter = {"Name": "/golden", "Value": "ami-7", "Version": 7}
        ssm.add_response("get_parameters", {"Parameters": [parameter]}, {"Names": [parameter_name]})
        assert [image.id for image in aws.images([Selector(ssm_parameter=parameter_name)])] == ["ami-7"]
        ssm.add_response("get_parameters", {"Parameters": []})
        with pytest.raises(ProviderError, match="'/other' does not exist in us-east-1") as caught:
            aws.images([Selector(ssm_parameter="/other")])
    assert caught.value.class_ is ErrorClass.NOT_FOUND


@pytest.mark.covers("KRP-29")
def test_a_reservation_of_ultraservers_is_recognized_by_its_launch_status() -> None:
    item: Any = {"CapacityReservationId": "cr-1", "ReservationType": "capacity-block"}
    assert not odcr(item).ultraserver
    item["LaunchStatus"] = "launchable"
    assert odcr(item).ultraserver and not odcr(item).unlaunchable
    item["LaunchStatus"] = "unlaunchable"
    assert odcr(item).ultraserver and odcr(item).unlaunchable


@pytest.mark.covers("KRP-08")
@pytest.mark.parametrize(
    ("details", "reserved"),
    [
        ("", "Linux/UNIX"),
        ("Linux/UNIX", "Linux/UNIX"),
        ("Red Hat BYOL Linux", "Linux/UNIX"),
        ("Red Hat Enterprise Linux", "Red Hat Enterprise Linux"),
        ("Red Hat Enterprise Linux with HA", "RHEL with HA"),
        ("Red Hat Enterprise Linux with SQL Server Web", "RHEL with SQL Server Web"),
        ("Red Hat Enterprise Linux with SQL Server Standard and HA", "RHEL with HA and SQL Server Standard"),
        ("SQL Server Enterprise", "Linux with SQL Server Enterprise"),
        ("SUSE Linux", "SUSE Linux"),
        ("Ubuntu Pro", "Ubuntu Pro"),
        ("Windows with SQL Server Web", "Windows with SQL Server Web"),
    ],
)
def test_an_image_is_matched_by_the_platform_name_of_reservations(details: str, reserved: str) -> None:
    assert platform(details) == reserved


def test_deprecated_images_come_last_and_a_bare_name_is_read_from_known_owners_only() -> None:
    clock = ManualClock()
    aws = provider(clock)
    wire = Wire(aws)
    images = (
        "<item><imageId>ami-2-new</imageId><creationDate>2025-12-01T00:00:00.000Z</creationDate>"
        "<deprecationTime>2025-12-31T00:00:00.000Z</deprecationTime></item>"
        "<item><imageId>ami-1-old</imageId><creationDate>2024-01-01T00:00:00.000Z</creationDate>"
        "<deprecationTime>2027-01-01T00:00:00.000Z</deprecationTime></item>"
        "<item><imageId>ami-3-mid</imageId><creationDate>2025-01-01T00:00:00.000Z</creationDate>"
        "<platformDetails>SQL Server Web</platformDetails></item>"
    )
    wire.reply("DescribeImages", (200, answer("DescribeImages", f"<imagesSet>{images}</imagesSet>")))
    selected = aws.images([Selector(name="node-*")])
    assert [(i.id, i.deprecated, i.platform) for i in selected] == [
        ("ami-3-mid", False, "Linux with SQL Server Web"),
        ("ami-1-old", False, "Linux/UNIX"),
        ("ami-2-new", True, "Linux/UNIX"),
    ]
    (sent,) = wire.sent
    assert {sent["Owner.1"], sent["Owner.2"]} == {"self", "amazon"}
    assert sent["IncludeDeprecated"] == "true"
    aws.images([Selector(name="node-*", owner="123456789012")])
    assert wire.sent[1]["Owner.1"] == "123456789012" and "Owner.2" not in wire.sent[1]
    aws.images([Selector(id="ami-9"), Selector(tags={"team": "ml"})])
    filters = [{key: value for key, value in sent.items() if "Value" in key} for sent in wire.sent[2:]]
    assert filters == [
        {"Filter.1.Value.1": "ami-9", "Filter.2.Value.1": "available"},
        {"Filter.1.Value.1": "ml", "Filter.2.Value.1": "available"},
    ]
    assert not any("Owner.1" in sent for sent in wire.sent[2:])
