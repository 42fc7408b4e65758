"""A template's name follows from its content; its data is valid for EC2."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.aws.launch_templates import template_data, template_name
from providers.errors import ErrorClass, ProviderError
from providers.launch import (
    BlockDevice,
    ConnectionTracking,
    MetadataOptions,
    NetworkInterface,
    ReservationTarget,
    Template,
    TemplateRef,
)

from .support import Wire, answer, provider, refusal

GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/gpu"
words = st.text(st.characters(codec="ascii", categories=("L", "N")), max_size=6)
templates = st.builds(
    Template,
    image_id=words,
    user_data=words,
    security_group_ids=st.lists(words, max_size=3).map(tuple),
    instance_profile=words,
    block_devices=st.lists(
        st.builds(
            BlockDevice, device_name=words, volume_size_gib=st.none() | st.integers(1, 9), kms_key_id=words
        ),
        max_size=2,
    ).map(tuple),
    detailed_monitoring=st.booleans(),
    tenancy=st.sampled_from(["default", "dedicated"]),
    associate_public_ip=st.none() | st.booleans(),
    market=st.sampled_from(["on-demand", "spot", "capacity-block"]),
    target=st.builds(ReservationTarget, reservation_id=words),
    tags=st.dictionaries(words, words, max_size=3),
)


def name(template: Template, *, owner: str = "gpu", cluster: str = "blue") -> str:
    return template_name(template, owner=owner, cluster=cluster)


@pytest.mark.covers("KRP-13")
@given(templates)
def test_equal_content_has_one_name(template: Template) -> None:
    turned = dataclasses.replace(
        template,
        security_group_ids=tuple(reversed(template.security_group_ids)),
        tags=dict(reversed(list(template.tags.items()))),
    )
    assert name(turned) == name(template)
    assert len(name(template)) <= 128 and name(template).startswith("capacity-broker/")


@pytest.mark.covers("KRP-13")
@given(templates, templates)
def test_other_content_has_another_name(first: Template, second: Template) -> None:
    def content(template: Template) -> Template:
        return dataclasses.replace(template, security_group_ids=tuple(sorted(template.security_group_ids)))

    assert (name(first) == name(second)) == (content(first) == content(second))


def test_no_two_classes_or_clusters_share_a_template() -> None:
    template = Template(image_id="ami-1")
    assert len({name(template), name(template, owner="cpu"), name(template, cluster="green")}) == 3


@pytest.mark.parametrize(
    ("target", "data"),
    [
        (ReservationTarget(), None),
        (ReservationTarget(preference="open"), {"CapacityReservationPreference": "open"}),
        (ReservationTarget(preference="none"), {"CapacityReservationPreference": "none"}),
        (
            ReservationTarget(preference="capacity-reservations-only"),
            {"CapacityReservationPreference": "capacity-reservations-only"},
        ),
        (
            ReservationTarget(reservation_id="cr-1"),
            {
                "CapacityReservationPreference": "capacity-reservations-only",
                "CapacityReservationTarget": {"CapacityReservationId": "cr-1"},
            },
        ),
        (
            ReservationTarget(preference="capacity-reservations-only", group_arn=GROUP),
            {
                "CapacityReservationPreference": "capacity-reservations-only",
                "CapacityReservationTarget": {"CapacityReservationResourceGroupArn": GROUP},
            },
        ),
        (
            ReservationTarget(group_arn=GROUP, spills=True),
            {"CapacityReservationTarget": {"CapacityReservationResourceGroupArn": GROUP}},
        ),
    ],
)
def test_a_target_goes_with_reservations_only_unless_it_spills(
    target: ReservationTarget, data: object
) -> None:
    data_ = template_data(Template(image_id="ami-1", target=target))
    assert data_.get("CapacityReservationSpecification") == data


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (ReservationTarget(preference="none", reservation_id="cr-1"), "preference none with target cr-1"),
        (ReservationTarget(preference="open", group_arn=GROUP), "preference open with target arn:"),
        (ReservationTarget(reservation_id="cr-1", group_arn=GROUP), "not both"),
        (ReservationTarget(reservation_id="cr-1", spills=True), "only a launch into a group"),
    ],
)
def test_a_template_that_ec2_rejects_is_never_sent(target: ReservationTarget, message: str) -> None:
    aws = provider()
    wire = Wire(aws)
    with pytest.raises(ValueError, match=message):
        aws.ensure_template(Template(image_id="ami-1", target=target), owner="gpu")
    assert wire.sent == []


@pytest.mark.covers("KRP-15")
@pytest.mark.parametrize(
    ("market", "data"),
    [
        ("capacity-block", {"MarketType": "capacity-block"}),
        ("interruptible-capacity-reservation", {"MarketType": "interruptible-capacity-reservation"}),
        ("on-demand", None),
        ("spot", None),
    ],
)
def test_blocks_and_interruptible_reservations_have_their_market(market: str, data: object) -> None:
    template = Template(image_id="ami-1", market=market)  # type: ignore[arg-type]
    assert template_data(template).get("InstanceMarketOptions") == data


def test_a_spot_template_never_has_a_target() -> None:
    with pytest.raises(ValueError, match="spot"):
        template_data(
            Template(image_id="ami-1", market="spot", target=ReservationTarget(reservation_id="cr-1"))
        )


@pytest.mark.covers("KRP-14")
def test_everything_of_the_class_reaches_ec2() -> None:
    template = Template(
        image_id="ami-1",
        user_data="#!/bin/sh",
        security_group_ids=("sg-2", "sg-1"),
        instance_profile="nodes",
        block_devices=(
            BlockDevice(
                device_name="/dev/xvda", volume_size_gib=100, volume_type="gp3", iops=4000, encrypted=True
            ),
            BlockDevice(device_name="/dev/xvdb", snapshot_id="snap-1", initialization_rate=200),
        ),
        detailed_monitoring=True,
        tenancy="dedicated",
        placement_group="ring",
        tags={"team": "ml"},
    )
    data = template_data(template)
    assert data["ImageId"] == "ami-1"
    assert base64.b64decode(data["UserData"]) == b"#!/bin/sh"
    assert data["SecurityGroupIds"] == ["sg-1", "sg-2"]
    assert data["IamInstanceProfile"] == {"Name": "nodes"}
    assert data["BlockDeviceMappings"] == [
        {
            "DeviceName": "/dev/xvda",
            "Ebs": {
                "VolumeSize": 100,
                "VolumeType": "gp3",
                "Iops": 4000,
                "Encrypted": True,
                "DeleteOnTermination": True,
            },
        },
        {
            "DeviceName": "/dev/xvdb",
            "Ebs": {
                "SnapshotId": "snap-1",
                "VolumeInitializationRate": 200,
                "DeleteOnTermination": True,
            },
        },
    ]
    assert data["Monitoring"] == {"Enabled": True}
    assert data["Placement"] == {"Tenancy": "dedicated", "GroupName": "ring"}
    assert data["MetadataOptions"] == {
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 1,
        "HttpProtocolIpv6": "disabled",
        "InstanceMetadataTags": "disabled",
    }
    assert {spec["ResourceType"] for spec in data["TagSpecifications"]} == {
        "instance",
        "volume",
        "network-interface",
    }
    assert all(spec["Tags"] == [{"Key": "team", "Value": "ml"}] for spec in data["TagSpecifications"])


@pytest.mark.covers("KRP-14")
def test_unset_fields_of_a_class_are_not_sent() -> None:
    plain = template_data(Template(image_id="ami-1"))
    assert plain.keys() == {"ImageId", "MetadataOptions", "Monitoring", "Placement"}
    assert (plain["Monitoring"], plain["Placement"]) == ({"Enabled": False}, {"Tenancy": "default"})
    other = MetadataOptions(
        http_endpoint="disabled",
        http_tokens="optional",
        http_put_response_hop_limit=5,
        http_protocol_ipv6="enabled",
    )
    options = template_data(Template(image_id="ami-1", metadata=other))["MetadataOptions"]
    assert (options["HttpEndpoint"], options["HttpTokens"]) == ("disabled", "optional")
    assert (options["HttpPutResponseHopLimit"], options["HttpProtocolIpv6"]) == (5, "enabled")


def test_a_public_address_moves_the_groups_to_the_interface() -> None:
    data = template_data(Template(image_id="ami-1", security_group_ids=("sg-1",), associate_public_ip=False))
    assert "SecurityGroupIds" not in data
    (interface,) = data["NetworkInterfaces"]
    assert interface["Groups"] == ["sg-1"] and interface["AssociatePublicIpAddress"] is False


PRIMARY = NetworkInterface(card=0, device=0)
EFAS = tuple(NetworkInterface(card=card, device=min(card, 1), kind="efa") for card in range(4))


@pytest.mark.covers("KRP-14")
def test_each_efa_is_an_interface_on_a_card_of_its_own() -> None:
    data = template_data(Template(image_id="ami-1", security_group_ids=("sg-1",), interfaces=EFAS))
    assert "SecurityGroupIds" not in data
    assert data["NetworkInterfaces"] == [
        {
            "NetworkCardIndex": card,
            "DeviceIndex": 0 if card == 0 else 1,
            "InterfaceType": "efa",
            "Groups": ["sg-1"],
            "DeleteOnTermination": True,
        }
        for card in range(4)
    ]


@pytest.mark.covers("KRP-14")
def test_an_interface_without_an_address_requests_none() -> None:
    data = template_data(
        Template(
            image_id="ami-1",
            interfaces=(PRIMARY, NetworkInterface(card=0, device=1, kind="efa-only")),
            associate_public_ip=False,
            ipv4_prefix_count=2,
            connection_tracking=ConnectionTracking(tcp_established=600, udp=45),
        )
    )
    first, second = data["NetworkInterfaces"]
    assert (first["AssociatePublicIpAddress"], first["Ipv4PrefixCount"]) == (False, 2)
    assert first["ConnectionTrackingSpecification"] == {"TcpEstablishedTimeout": 600, "UdpTimeout": 45}
    assert set(second) == {
        "NetworkCardIndex",
        "DeviceIndex",
        "InterfaceType",
        "Groups",
        "DeleteOnTermination",
    }


@pytest.mark.parametrize(
    ("content", "field", "value"),
    [
        ({"ipv4_prefix_count": 1}, "Ipv4PrefixCount", 1),
        (
            {"connection_tracking": ConnectionTracking(udp_stream=90)},
            "ConnectionTrackingSpecification",
            {"UdpStreamTimeout": 90},
        ),
    ],
)
def test_a_field_of_interfaces_creates_an_interface(content: Any, field: str, value: object) -> None:
    (interface,) = template_data(Template(image_id="ami-1", **content))["NetworkInterfaces"]
    sent: Any = interface
    assert (sent["DeviceIndex"], sent[field]) == (0, value)


def test_a_placement_group_by_id_and_nested_virtualization() -> None:
    data = template_data(
        Template(image_id="ami-1", placement_group_id="pg-1", nested_virtualization="enabled")
    )
    assert data["Placement"] == {"Tenancy": "default", "GroupId": "pg-1"}
    assert data["CpuOptions"] == {"NestedVirtualization": "enabled"}


@pytest.mark.covers("CUR-01")
@pytest.mark.parametrize(("enclaves", "sent"), [(True, {"Enabled": True}), (False, None)])
def test_enclaves_are_enabled_in_the_template(enclaves: bool, sent: object) -> None:
    assert template_data(Template(image_id="ami-1", enclaves=enclaves)).get("EnclaveOptions") == sent


def test_a_profile_by_arn_is_sent_as_one() -> None:
    arn = "arn:aws:iam::123456789012:instance-profile/nodes"
    assert template_data(Template(image_id="ami-1", instance_profile=arn))["IamInstanceProfile"] == {
        "Arn": arn
    }


@pytest.mark.covers("KRP-26")
def test_karpenters_cluster_tag_is_refused() -> None:
    with pytest.raises(ProviderError, match="eks:eks-cluster-name=blue") as caught:
        template_data(Template(image_id="ami-1", tags={"eks:eks-cluster-name": "blue"}))
    assert caught.value.class_ is ErrorClass.CONFIGURATION


def _described(tags: str) -> str:
    item = (
        "<launchTemplateId>lt-1</launchTemplateId><launchTemplateName>{}</launchTemplateName>"
        "<createTime>2026-01-01T00:00:00Z</createTime>" + tags
    )
    return answer("DescribeLaunchTemplates", f"<launchTemplates><item>{item}</item></launchTemplates>")


OWN_TAGS = (
    "<tagSet><item><key>capacity-broker.io/cluster</key><value>blue</value></item>"
    "<item><key>capacity-broker.io/nodeclass</key><value>gpu</value></item></tagSet>"
)


def test_an_existing_template_is_adopted() -> None:
    aws = provider()
    wire = Wire(aws)
    template = Template(image_id="ami-1")
    wire.reply("CreateLaunchTemplate", (400, refusal("InvalidLaunchTemplateName.AlreadyExistsException")))
    wire.reply("DescribeLaunchTemplates", (200, _described(OWN_TAGS).format(name(template))))
    ref = aws.ensure_template(template, owner="gpu")
    assert (ref.id, ref.owner, ref.name) == ("lt-1", "gpu", name(template))
    aws.ensure_template(template, owner="gpu")
    assert wire.count("CreateLaunchTemplate") == 1


def test_a_foreign_template_of_the_same_name_is_not_adopted() -> None:
    aws = provider()
    wire = Wire(aws)
    template = Template(image_id="ami-1")
    wire.reply("CreateLaunchTemplate", (400, refusal("InvalidLaunchTemplateName.AlreadyExistsException")))
    wire.reply("DescribeLaunchTemplates", (200, _described("").format(name(template))))
    with pytest.raises(ProviderError, match=r"without the tags .*capacity-broker\.io/cluster"):
        aws.ensure_template(template, owner="gpu")


@pytest.mark.covers("KRP-13")
def test_a_template_with_a_foreign_name_is_neither_listed_nor_deleted() -> None:
    aws = provider()
    wire = Wire(aws)
    wire.reply("DescribeLaunchTemplates", (200, _described(OWN_TAGS).format("karpenter.k8s.aws/123")))
    assert aws.templates() == []
    with pytest.raises(ValueError, match="not the broker's"):
        aws.delete_template(TemplateRef(name="karpenter.k8s.aws/123", id="lt-1"))
    assert wire.count("DeleteLaunchTemplate") == 0


@pytest.mark.parametrize(
    "ref", [TemplateRef(name="capacity-broker/1", id="lt-1"), TemplateRef(name="capacity-broker/1")]
)
@pytest.mark.parametrize(
    "code", ["InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateName.NotFoundException"]
)
def test_deleting_a_deleted_template_succeeds(ref: TemplateRef, code: str) -> None:
    aws = provider()
    wire = Wire(aws)
    wire.reply("DeleteLaunchTemplate", (400, refusal(code)))
    aws.delete_template(ref)
    assert wire.count("DeleteLaunchTemplate") == 1
