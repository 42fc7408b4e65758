"""The parts of a class and a claim in the launch template, and the lifetime of a template."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from broker.apis.hashes import VERSION, class_hash
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.capacity.launches import LaunchGroup
from broker.capacity.model import Assignment, NodeClass, Option, Pool, Selection
from broker.controllers.launch.template import NodeBootstrap, instance_tags, template
from broker.controllers.nodeclass.resolve import LaunchClass, ServiceNetwork, Surroundings
from broker.controllers.nodeclass.templates import TemplateSweeper
from broker.placement.claims import planned
from providers.launch import (
    BlockDevice,
    Bootstrap,
    ConnectionTracking,
    MetadataOptions,
    NetworkInterface,
    Override,
    ReservationTarget,
    Template,
    TemplateRef,
)
from providers.model import Image, SecurityGroup
from tests.support.clock import FakeClock

EFA = "vpc.amazonaws.com/efa"
SPEC: dict[str, Any] = {
    "userData": "echo hello",
    "tags": {"team": "ml"},
    "metadataOptions": {
        "httpEndpoint": "disabled",
        "httpProtocolIPv6": "enabled",
        "httpPutResponseHopLimit": 3,
        "httpTokens": "optional",
    },
    "detailedMonitoring": True,
    "associatePublicIPAddress": False,
    "ipPrefixCount": 2,
    "connectionTracking": {"tcpEstablishedTimeout": 60, "udpStreamTimeout": 61, "udpTimeout": 31},
    "cpuOptions": {"nestedVirtualization": "enabled"},
    "instanceStorePolicy": "RAID0",
    "placementGroupSelector": {"name": "ring"},
    "kubelet": {"maxPods": 7},
}
DEVICE = BlockDevice(device_name="/dev/xvdb", volume_size_gib=7)
TARGET = ReservationTarget(preference="capacity-reservations-only", reservation_id="cr-1")
CLUSTER = NodeBootstrap(name="blue", endpoint="https://api", ca_bundle="Q0E=")


class Ec2:
    """A provider that records the parameters of user data."""

    def __init__(self) -> None:
        self.received: tuple[str, Bootstrap, str] | None = None

    def user_data(self, *, family: str, bootstrap: Bootstrap, custom: str) -> str:
        self.received = family, bootstrap, custom
        return "the user data"


def ready(spec: Mapping[str, Any] = SPEC) -> LaunchClass:
    return LaunchClass(
        plan=NodeClass(
            name="training",
            selection=Selection(reservation_id="cr-1"),
            block_devices=(DEVICE,),
            tenancy="dedicated",
        ),
        surroundings=Surroundings(
            subnets=(),
            security_groups=(SecurityGroup(id="sg-2"), SecurityGroup(id="sg-1")),
            images=(),
            family="Bottlerocket",
            instance_profile="node-profile",
        ),
        source=EC2NodeClass.decode({"metadata": {"name": "training"}, "spec": dict(spec)}),
        network=ServiceNetwork(range="10.0.0.0/16", dns="10.0.0.10"),
    )


def claim(**requests: str) -> NodeClaim:
    return NodeClaim.decode(
        {
            "metadata": {"name": "c-0", "labels": {"team": "a", "kubernetes.io/role": "no kubelet may"}},
            "spec": {
                "nodeClassRef": {"group": "capacity-broker.io", "kind": "EC2NodeClass", "name": "training"},
                "resources": {"requests": requests},
                "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
                "startupTaints": [{"key": "cni", "effect": "NoExecute"}],
            },
        }
    )


def template_of(claim_: NodeClaim, of: LaunchClass, ec2: Ec2) -> Template:
    pool = Pool(capacity_type="reserved", instance_type="p5.48xlarge", zone="us-east-1a", reservation="cr-1")
    group = LaunchGroup(
        node_class="training",
        capacity_type="reserved",
        market="capacity-block",
        target=TARGET,
        image=Image(id="ami-7"),
        overrides=(Override(instance_type="p5.48xlarge", zone="us-east-1a", subnet_id="subnet-1"),),
        assignments=(Assignment(claim=planned(claim_), option=Option(pool=pool)),),
        efa_interfaces=3,
    )
    provider: Any = ec2
    return template(of, group, claim_, provider=provider, cluster=CLUSTER)


@pytest.mark.covers("KRP-14")
def test_a_template_has_all_fields_of_its_class() -> None:
    ec2 = Ec2()
    assert template_of(claim(), ready(), ec2) == Template(
        image_id="ami-7",
        user_data="the user data",
        security_group_ids=("sg-1", "sg-2"),
        instance_profile="node-profile",
        block_devices=(DEVICE,),
        metadata=MetadataOptions(
            http_endpoint="disabled",
            http_tokens="optional",
            http_put_response_hop_limit=3,
            http_protocol_ipv6="enabled",
        ),
        detailed_monitoring=True,
        tenancy="dedicated",
        placement_group="ring",
        associate_public_ip=False,
        ipv4_prefix_count=2,
        connection_tracking=ConnectionTracking(tcp_established=60, udp_stream=61, udp=31),
        nested_virtualization="enabled",
        market="capacity-block",
        target=TARGET,
        tags={"team": "ml"},
    )
    assert ec2.received == (
        "Bottlerocket",
        Bootstrap(
            cluster_name="blue",
            endpoint="https://api",
            ca_bundle="Q0E=",
            service_cidr="10.0.0.0/16",
            labels={"team": "a"},
            taints=("gpu=yes:NoSchedule", "cni:NoExecute", "karpenter.sh/unregistered:NoExecute"),
            kubelet={"maxPods": 7, "clusterDNS": ["10.0.0.10"]},
            instance_store_raid0=True,
        ),
        "echo hello",
    )


@pytest.mark.covers("KRP-14")
def test_unset_fields_of_a_class_are_ec2s_defaults() -> None:
    template_ = template_of(claim(), ready({"placementGroupSelector": {"id": "pg-1"}}), Ec2())
    assert (template_.placement_group, template_.placement_group_id) == ("", "pg-1")
    assert (template_.connection_tracking, template_.associate_public_ip, template_.ipv4_prefix_count) == (
        None,
        None,
        None,
    )
    assert (template_.metadata, template_.detailed_monitoring, template_.interfaces) == (
        MetadataOptions(),
        False,
        (),
    )


@pytest.mark.covers("KRP-14")
def test_an_efa_request_gets_one_on_each_network_card() -> None:
    assert template_of(claim(**{EFA: "1"}), ready(), Ec2()).interfaces == tuple(
        NetworkInterface(card=card, device=device, kind="efa") for card, device in ((0, 0), (1, 1), (2, 1))
    )


@pytest.mark.covers("KRP-14")
def test_instances_have_the_tags_of_class_and_broker() -> None:
    launched = ready()
    assert instance_tags(launched, launch="l-1", cluster="blue") == {
        "team": "ml",
        "capacity-broker.io/cluster": "blue",
        "capacity-broker.io/nodeclass": "training",
        "capacity-broker.io/nodeclass-hash": f"{VERSION}/{class_hash(launched.source)}",
        "capacity-broker.io/launch": "l-1",
    }


class Kept:
    """A provider's templates."""

    def __init__(self, *refs: TemplateRef) -> None:
        self.refs = [*refs]

    def templates(self) -> list[TemplateRef]:
        return [*self.refs]

    def delete_template(self, ref: TemplateRef) -> None:
        self.refs.remove(ref)


@pytest.mark.covers("KRP-13")
def test_a_template_is_deleted_with_its_class_or_after_a_day_without_use() -> None:
    clock = FakeClock()
    long_ago = clock.now() - timedelta(days=9)
    old = TemplateRef(name="old", owner="gpu", created=long_ago)
    used = TemplateRef(name="used", owner="gpu", created=long_ago)
    undated = TemplateRef(name="undated", owner="gpu")
    others = TemplateRef(name="others", owner="web", created=long_ago)
    kept, classes = Kept(old, used, undated, others), ["gpu", "web"]
    provider: Any = kept
    sweeper = TemplateSweeper(provider, clock=clock, classes=lambda: classes)

    def left() -> list[str]:
        sweeper.sweep()
        return [ref.name for ref in kept.refs]

    # The use by an earlier process is unknown, so the day of each template begins with this process.
    assert left() == ["old", "used", "undated", "others"]
    sweeper.used(others)
    classes.remove("web")
    assert left() == ["old", "used", "undated"]
    clock.advance(timedelta(hours=23).total_seconds())
    sweeper.used(used)
    kept.refs.append(TemplateRef(name="new", owner="gpu", created=clock.now()))
    assert left() == ["old", "used", "undated", "new"]
    clock.advance(timedelta(hours=1).total_seconds())
    assert left() == ["used", "new"]
    clock.advance(timedelta(hours=23).total_seconds())
    assert left() == []


@pytest.mark.covers("KRP-13")
def test_a_template_of_a_class_that_is_made_during_the_listing_stays() -> None:
    classes: list[str] = []

    class Meanwhile(Kept):
        def templates(self) -> list[TemplateRef]:
            classes.append("gpu")
            return super().templates()

    kept = Meanwhile(TemplateRef(name="new", owner="gpu"))
    provider: Any = kept
    TemplateSweeper(provider, clock=FakeClock(), classes=lambda: classes).sweep()
    assert kept.refs
