"""Fields of a class that change its instances: EC2 shows the class's values on the instance."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack

P5 = "p5.48xlarge"
EFA = "vpc.amazonaws.com/efa"


def only_template(stack: Stack) -> dict[str, Any]:
    (name,) = stack.aws.template_names()
    return stack.aws.template_data(name)


@pytest.mark.covers("KRP-14")
def test_claim_that_requests_efa_gets_every_interface_of_its_type(stack: Stack) -> None:
    odcr = stack.aws.odcr(P5, count=2)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim("c-0", types=(P5,), requests={EFA: "32"})
    stack.claim("c-1", types=(P5,), requests={"cpu": "1"})
    stack.until_launched("c-0", "c-1")
    with_efa = stack.instance("c-0")["NetworkInterfaces"]
    assert {interface["InterfaceType"] for interface in with_efa} == {"efa"}
    cards = [
        (interface["Attachment"]["NetworkCardIndex"], interface["Attachment"]["DeviceIndex"])
        for interface in with_efa
    ]
    assert sorted(cards) == [(0, 0), *((card, 1) for card in range(1, 32))]
    assert {group["GroupId"] for interface in with_efa for group in interface["Groups"]} == {
        stack.aws.security_group
    }
    assert len(stack.instance("c-1")["NetworkInterfaces"]) == 1
    assert stack.reservation_of("c-0") == stack.reservation_of("c-1") == odcr


@pytest.mark.covers("KRP-14")
def test_the_interfaces_that_the_class_names(stack: Stack) -> None:
    stack.node_class(
        preference="none",
        networkInterfaces=[
            {"networkCardIndex": 0, "deviceIndex": 1, "interfaceType": "efa-only"},
            {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"},
        ],
        connectionTracking={"tcpEstablishedTimeout": 600},
        ipPrefixCount=1,
    )
    stack.start()
    stack.claim(types=(P5,), capacity=(ON_DEMAND,))
    stack.until_launched("c-0")
    primary, second = only_template(stack)["NetworkInterfaces"]
    assert (primary["InterfaceType"], second["InterfaceType"]) == ("interface", "efa-only")
    assert primary["ConnectionTrackingSpecification"] == {"TcpEstablishedTimeout": 600}
    assert primary["Ipv4PrefixCount"] == 1
    assert len(stack.instance("c-0")["NetworkInterfaces"]) == 2


@pytest.mark.covers("KRP-14")
def test_cpu_options_and_the_context_of_the_fleet(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one of the two types can run virtual machines, and it is the more expensive one."""
    monkeypatch.setattr("tests.cluster.stack.OFFERED", ("m5.large", "m7i.large"))
    monkeypatch.setattr("tests.cluster.stack.Provider.known", {})
    stack.node_class(
        preference="none", cpuOptions={"nestedVirtualization": "enabled"}, context="a-context-of-ec2s"
    )
    stack.start(kubelets=False)
    stack.claim(types=("m5.large", "m7i.large"), capacity=(ON_DEMAND,))
    stack.until_launched("c-0")
    assert stack.instance("c-0")["InstanceType"] == "m7i.large"
    assert only_template(stack)["CpuOptions"] == {"NestedVirtualization": "enabled"}
    (fleet,) = stack.control.log("CreateFleet")
    assert fleet["params"]["Context"] == "a-context-of-ec2s"


@pytest.mark.covers("KRP-14")
@pytest.mark.parametrize("by", ["name", "id"])
@pytest.mark.both_servers
def test_a_placement_group_and_a_reservation_in_it(stack: Stack, by: str) -> None:
    reply = stack.aws.ec2.create_placement_group(GroupName="ring", Strategy="cluster")["PlacementGroup"]
    odcr = stack.aws.odcr(PlacementGroupArn=reply["GroupArn"])
    chosen = {"name": "ring"} if by == "name" else {"id": reply["GroupId"]}
    stack.node_class(id_=odcr, placementGroupSelector=chosen)
    stack.start()
    stack.claim(capacity=(RESERVED,))
    stack.until_launched("c-0")
    assert stack.instance("c-0")["Placement"]["GroupName"] == "ring"
    assert stack.reservation_of("c-0") == odcr


def test_a_placement_group_that_is_not_there_is_named(stack: Stack) -> None:
    stack.node_class(preference="none", placementGroupSelector={"id": "pg-0123456789abcdef0"})
    stack.start()
    stack.claim(capacity=(ON_DEMAND,))
    condition = stack.until_class(names.LAUNCHABLE, "False", reason="PlacementGroupNotFound")
    assert condition.message.startswith("spec.placementGroupSelector: placement group 'pg-0123456789abcdef0'")
    assert "pg-0123456789abcdef0" in stack.until_waiting("c-0", "PlacementGroupNotFound").message


@pytest.mark.covers("KRP-23")
def test_node_capacity_follows_the_settings(stack: Stack) -> None:
    """m5.large has three interfaces of ten addresses, and 8,192 MiB."""
    stack.node_class(preference="none")
    stack.start(reserved_enis=1, vm_memory_overhead_percent=0.0)
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_launched("c-0")
    capacity = stack.get(NodeClaim, "c-0").status.capacity
    assert (capacity["pods"], capacity["memory"]) == ("20", str(8192 * 2**20))


@pytest.mark.covers("CUR-01")
def test_enclaves_are_enabled_on_types_that_support_them(stack: Stack) -> None:
    """Only the more expensive of the two types supports them."""
    stack.node_class(preference="none", enclaveOptions={"enabled": True})
    stack.start()
    stack.claim(types=("m5.large", "m5.xlarge"), capacity=(ON_DEMAND,))
    stack.until_launched("c-0")
    assert stack.instance("c-0")["InstanceType"] == "m5.xlarge"
    assert only_template(stack)["EnclaveOptions"] == {"Enabled": True}
    stack.claim("c-1", types=("m5.large",), capacity=(ON_DEMAND,))
    assert "the class excludes 2" in stack.until_waiting("c-1", "NoCompatibleInstanceTypes").message


@pytest.mark.covers("CUR-01")
@pytest.mark.parametrize(
    ("fields", "reason", "text"),
    [
        (
            {"kubelet": {"maxPods": "vcpus * 10"}},
            "KubeletExpressionsDisabled",
            "spec.kubelet.maxPods 'vcpus * 10'",
        ),
        (
            {"kubelet": {"evictionHard": {"cpu": "1"}}},
            "InvalidKubeletConfiguration",
            "spec.kubelet.evictionHard",
        ),
        (
            {"kubelet": {"registerWithTaints": []}},
            "InvalidKubeletConfiguration",
            "spec.kubelet.registerWithTaints",
        ),
        (
            {"capacityReservationSpec": None, "capacityReservationSelectorTerms": [{"tags": {}}]},
            "EmptySelector",
            "spec.capacityReservationSelectorTerms[0] would select everything",
        ),
        (
            {"subnetSelectorTerms": [{"tags": {}}]},
            "EmptySelector",
            "spec.subnetSelectorTerms[0] would select",
        ),
    ],
)
def test_field_that_cannot_be_honoured_is_named_and_nothing_is_launched(
    stack: Stack, fields: dict[str, Any], reason: str, text: str
) -> None:
    stack.node_class(preference="none", **fields)
    stack.start()
    stack.claim(capacity=(ON_DEMAND,))
    assert text in stack.until_class(names.LAUNCHABLE, "False", reason=reason).message
    assert text in stack.until_waiting("c-0", reason).message
    assert stack.calls("CreateFleet") == 0


@pytest.mark.covers("CUR-01")
def test_reservations_of_a_class_with_expressions_resolve_for_karpenter(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr, kubelet={"maxPods": "vcpus * 10"})
    stack.start()
    stack.until_class(names.LAUNCHABLE, "False", reason="KubeletExpressionsDisabled")
    stack.until_class("ReservationsResolved", "True")


@pytest.mark.covers("CUR-01")
def test_id_selects_alone_and_fields_beside_it_are_named(stack: Stack) -> None:
    """As with Karpenter: one of several terms may have an id and other fields."""
    subnets = list(stack.aws.subnets.values())
    terms = [{"id": subnets[0], "tags": {"no": "such"}}, {"id": subnets[1]}]
    stack.node_class(preference="none", subnetSelectorTerms=terms)
    stack.start()
    message = stack.until_class(names.LAUNCHABLE, "True").message
    assert "2 subnets" in message and "not read beside a field that selects alone: " in message
    assert message.endswith("spec.subnetSelectorTerms[0].tags")
