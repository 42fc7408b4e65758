"""The cluster's network and the kubelet's settings on nodes: launch templates, as EC2 shows them."""

from __future__ import annotations

import base64
import email
import tomllib
from typing import Any

import pytest
import yaml

from broker.apis import names
from broker.apis.networking import ServiceCIDR
from tests.cluster.objects import ON_DEMAND, Json
from tests.cluster.stack import Stack

P5 = "p5.48xlarge"
PLAIN: Json = {"capacity": (ON_DEMAND,)}
RANGES = "/apis/networking.k8s.io/v1/servicecidrs"
FIRST = "/api/v1/namespaces/default/services/kubernetes"
DNS = "/api/v1/namespaces/kube-system/services/kube-dns"
GONE = {"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "not found"}
FORBIDDEN = {
    "kind": "Status",
    "status": "Failure",
    "code": 403,
    "reason": "Forbidden",
    "message": "no access",
}


def ranges(*cidrs: str) -> Json:
    items = [{"metadata": {"name": "kubernetes", "uid": "1"}, "spec": {"cidrs": list(cidrs)}}]
    return {"kind": "ServiceCIDRList", "metadata": {"resourceVersion": "1"}, "items": items}


def service(address: str) -> Json:
    return {"kind": "Service", "metadata": {"name": "it", "uid": "2"}, "spec": {"clusterIP": address}}


def template(stack: Stack) -> Json:
    [name] = stack.aws.template_names()
    return stack.aws.template_data(name)


def node_config(stack: Stack) -> Any:
    """nodeadm's part of the user data."""
    text = base64.b64decode(template(stack)["UserData"]).decode()
    [part] = [p for p in email.message_from_string(text).walk() if p.get_content_type().endswith("eks.aws")]
    return yaml.safe_load(str(part.get_payload()))["spec"]


def kubernetes_settings(stack: Stack) -> Any:
    """Bottlerocket's part of the user data."""
    return tomllib.loads(base64.b64decode(template(stack)["UserData"]).decode())["settings"]["kubernetes"]


@pytest.mark.covers("SAF-17")
def test_nodes_get_the_service_range_of_the_cluster(stack: Stack) -> None:
    [service_cidr], _ = stack.client.list(ServiceCIDR.KIND)
    stack.tap.fake_reply(DNS, service("10.96.0.10"))
    stack.node_class()
    stack.start()
    stack.claim(**PLAIN)
    stack.until_launched("c-0")
    assert node_config(stack)["cluster"]["cidr"] == service_cidr["spec"]["cidrs"][0]
    assert node_config(stack)["kubelet"]["config"]["clusterDNS"] == ["10.96.0.10"]


@pytest.mark.covers("SAF-17")
@pytest.mark.both_servers
def test_before_servicecidrs_the_range_begins_at_the_api_servers_service(stack: Stack) -> None:
    stack.tap.fake_reply(RANGES, GONE)
    stack.tap.fake_reply(FIRST, service("172.20.0.1"))
    stack.node_class()
    stack.start()
    stack.claim(**PLAIN)
    stack.until_launched("c-0")
    assert node_config(stack)["cluster"]["cidr"] == "172.20.0.0/24"


@pytest.mark.covers("SAF-17")
def test_wrong_range_launches_nothing_and_the_class_names_both(stack: Stack) -> None:
    stack.node_class()
    stack.start(service_cidr="10.100.0.0/16")
    stack.claim(**PLAIN)
    condition = stack.until_class(names.LAUNCHABLE, "False", reason="ServiceCIDRMismatch")
    assert "10.100.0.0/16" in condition.message and "10.96.0.0/" in condition.message
    assert "10.100.0.0/16" in stack.until_waiting("c-0", "ServiceCIDRMismatch").message
    stack.passes()
    assert stack.calls("CreateFleet") == stack.calls("CreateLaunchTemplate") == 0
    stack.stop()
    stack.start(service_cidr="")
    stack.until_launched("c-0")


@pytest.mark.covers("SAF-17")
@pytest.mark.both_servers
def test_a_range_that_may_not_be_read_is_not_guessed(stack: Stack) -> None:
    stack.tap.fake_reply(RANGES, FORBIDDEN)
    stack.node_class()
    stack.start()
    condition = stack.until_class(names.LAUNCHABLE, "False", reason="ServiceCIDRUnknown")
    assert "servicecidrs" in condition.message
    stack.tap.fake_replies.clear()
    stack.until(
        lambda: (c := stack.class_condition(names.LAUNCHABLE)) is not None and c.status == "True",
        "the class is launchable",
        step=5.0,
    )


@pytest.mark.covers("SAF-18")
@pytest.mark.parametrize(
    "interfaces",
    [
        {},
        {"requests": {"vpc.amazonaws.com/efa": "32"}},
        {
            "networkInterfaces": [
                {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"},
                {"networkCardIndex": 0, "deviceIndex": 1, "interfaceType": "efa-only"},
            ]
        },
    ],
    ids=["one", "efa", "named"],
)
def test_nodes_of_an_ipv6_cluster_have_ipv6(stack: Stack, interfaces: Json) -> None:
    """A primary address on each interface that has addresses, prefixes of that family, the range, the DNS."""
    stack.tap.fake_reply(RANGES, ranges("fd00:96::/108"))
    stack.tap.fake_reply(FIRST, service("fd00:96::1"))
    stack.tap.fake_reply(DNS, service("fd00:96::a"))
    class_fields = {key: value for key, value in interfaces.items() if key == "networkInterfaces"}
    stack.node_class(ipPrefixCount=1, **class_fields)
    stack.start()
    stack.claim(types=(P5,), requests=interfaces.get("requests"), **PLAIN)
    stack.until_launched("c-0")
    shown = template(stack)["NetworkInterfaces"]
    addressed = [interface for interface in shown if interface.get("InterfaceType") != "efa-only"]
    assert [
        (interface["PrimaryIpv6"], interface["Ipv6AddressCount"], interface["Ipv6PrefixCount"])
        for interface in addressed
    ] == [(True, 1, 1)] * len(addressed)
    assert not [interface for interface in shown if "Ipv4PrefixCount" in interface]
    assert not [interface for interface in shown if interface not in addressed and "PrimaryIpv6" in interface]
    spec = node_config(stack)
    assert spec["cluster"]["cidr"] == "fd00:96::/108"
    assert spec["kubelet"]["config"]["clusterDNS"] == ["fd00:96::a"]


@pytest.mark.covers("SAF-18")
def test_bottlerocket_nodes_of_an_ipv6_cluster_have_its_addresses_and_dns(stack: Stack) -> None:
    stack.tap.fake_reply(RANGES, ranges("fd00:96::/108"))
    stack.tap.fake_reply(FIRST, service("fd00:96::1"))
    stack.tap.fake_reply(DNS, service("fd00:96::a"))
    stack.node_class(amiFamily="Bottlerocket", ipPrefixCount=1)
    stack.start()
    stack.claim(**PLAIN)
    stack.until_launched("c-0")
    [shown] = template(stack)["NetworkInterfaces"]
    assert (shown["PrimaryIpv6"], shown["Ipv6AddressCount"], shown["Ipv6PrefixCount"]) == (True, 1, 1)
    assert kubernetes_settings(stack)["cluster-dns-ip"] == "fd00:96::a"


@pytest.mark.covers("SAF-18")
def test_ipv4_cluster_requests_no_ipv6(stack: Stack) -> None:
    stack.node_class(ipPrefixCount=1)
    stack.start()
    stack.claim(**PLAIN)
    stack.until_launched("c-0")
    [shown] = template(stack)["NetworkInterfaces"]
    assert shown["Ipv4PrefixCount"] == 1
    assert not [key for key in shown if "Ipv6" in key and shown[key]]


OWN: Json = {
    "maxPods": 20,
    "clusterDNS": ["169.254.20.10"],
    "cpuManagerPolicy": "static",
    "cpuManagerPolicyOptions": {"full-pcpus-only": "true", "align-by-socket": "false"},
    "podPidsLimit": 4096,
    "featureGates": {"SomeNewGate": True},
}


@pytest.mark.covers("SAF-19")
def test_kubelet_fields_that_the_broker_does_not_know_reach_the_node(stack: Stack) -> None:
    stack.tap.fake_reply(DNS, service("10.96.0.10"))
    stack.node_class(kubelet=OWN)
    stack.start()
    condition = stack.until_class(names.LAUNCHABLE, "True")
    assert "spec.kubelet" not in condition.message
    stack.claim(**PLAIN)
    stack.until_launched("c-0")
    config = node_config(stack)["kubelet"]["config"]
    assert {key: value for key, value in config.items() if key != "registerWithTaints"} == OWN


@pytest.mark.covers("SAF-19")
def test_the_class_lists_the_kubelet_fields_that_bottlerocket_has_no_setting_for(stack: Stack) -> None:
    stack.node_class(amiFamily="Bottlerocket", kubelet=OWN)
    stack.start()
    condition = stack.until_class(names.LAUNCHABLE, "True")
    assert condition.message.endswith("fields of spec.kubelet that Bottlerocket does not apply: featureGates")
    stack.claim(**PLAIN)
    stack.until_launched("c-0")
    settings = kubernetes_settings(stack)
    assert (settings["max-pods"], settings["cluster-dns-ip"], settings["pod-pids-limit"]) == (
        20,
        "169.254.20.10",
        4096,
    )
    assert (settings["cpu-manager-policy"], settings["cpu-manager-policy-options"]) == (
        "static",
        ["full-pcpus-only"],
    )


@pytest.mark.covers("SAF-19")
def test_class_lists_all_kubelet_fields_if_the_user_data_is_custom(stack: Stack) -> None:
    stack.node_class(amiFamily="Custom", userData="#!/bin/sh", kubelet=OWN)
    stack.start()
    condition = stack.until_class(names.LAUNCHABLE, "True")
    assert condition.message.endswith(f"Custom does not apply: {', '.join(sorted(OWN))}")
