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
def test_nodes_are_told_the_range_that_the_cluster_has(stack: Stack) -> None:
    [found], _ = stack.client.list(ServiceCIDR.KIND)
    stack.tap.tell(DNS, service("10.96.0.10"))
    stack.node_class()
    stack.start()
    stack.claim(**PLAIN)
    stack.until_launched("c-0")
    assert node_config(stack)["cluster"]["cidr"] == found["spec"]["cidrs"][0]
    assert node_config(stack)["kubelet"]["config"]["clusterDNS"] == ["10.96.0.10"]


@pytest.mark.covers("SAF-17")
@pytest.mark.both_servers
def test_before_servicecidrs_the_range_begins_at_the_api_servers_service(stack: Stack) -> None:
    stack.tap.tell(RANGES, GONE)
    stack.tap.tell(FIRST, service("172.20.0.1"))
    stack.node_class()
    stack.start()
    stack.claim(**PLAIN)
    stack.until_launched("c-0")
    assert node_config(stack)["cluster"]["cidr"] == "172.20.0.0/24"


@pytest.mark.covers("SAF-17")
def test_a_wrong_range_launches_nothing_and_the_class_says_both(stack: Stack) -> None:
    stack.node_class()
    stack.start(service_cidr="10.100.0.0/16")
    stack.claim(**PLAIN)
    said = stack.until_class(names.LAUNCHABLE, "False", reason="ServiceCIDRMismatch")
    assert "10.100.0.0/16" in said.message and "10.96.0.0/" in said.message
    assert "10.100.0.0/16" in stack.until_waiting("c-0", "ServiceCIDRMismatch").message
    stack.passes()
    assert stack.calls("CreateFleet") == stack.calls("CreateLaunchTemplate") == 0
    stack.stop()
    stack.start(service_cidr="")
    stack.until_launched("c-0")


@pytest.mark.covers("SAF-17")
@pytest.mark.both_servers
def test_a_range_that_may_not_be_read_is_not_guessed(stack: Stack) -> None:
    stack.tap.tell(RANGES, FORBIDDEN)
    stack.node_class()
    stack.start()
    said = stack.until_class(names.LAUNCHABLE, "False", reason="ServiceCIDRUnknown")
    assert "servicecidrs" in said.message
    stack.tap.told.clear()
    stack.until(
        lambda: (c := stack.class_says(names.LAUNCHABLE)) is not None and c.status == "True",
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
    stack.tap.tell(RANGES, ranges("fd00:96::/108"))
    stack.tap.tell(FIRST, service("fd00:96::1"))
    stack.tap.tell(DNS, service("fd00:96::a"))
    asked = {key: value for key, value in interfaces.items() if key == "networkInterfaces"}
    stack.node_class(ipPrefixCount=1, **asked)
    stack.start()
    stack.claim(types=(P5,), requests=interfaces.get("requests"), **PLAIN)
    stack.until_launched("c-0")
    shown = template(stack)["NetworkInterfaces"]
    addressed = [each for each in shown if each.get("InterfaceType") != "efa-only"]
    assert [
        (each["PrimaryIpv6"], each["Ipv6AddressCount"], each["Ipv6PrefixCount"]) for each in addressed
    ] == [(True, 1, 1)] * len(addressed)
    assert not [each for each in shown if "Ipv4PrefixCount" in each]
    assert not [each for each in shown if each not in addressed and "PrimaryIpv6" in each]
    spec = node_config(stack)
    assert spec["cluster"]["cidr"] == "fd00:96::/108"
    assert spec["kubelet"]["config"]["clusterDNS"] == ["fd00:96::a"]


@pytest.mark.covers("SAF-18")
def test_bottlerocket_nodes_of_an_ipv6_cluster_have_its_addresses_and_dns(stack: Stack) -> None:
    stack.tap.tell(RANGES, ranges("fd00:96::/108"))
    stack.tap.tell(FIRST, service("fd00:96::1"))
    stack.tap.tell(DNS, service("fd00:96::a"))
    stack.node_class(amiFamily="Bottlerocket", ipPrefixCount=1)
    stack.start()
    stack.claim(**PLAIN)
    stack.until_launched("c-0")
    [shown] = template(stack)["NetworkInterfaces"]
    assert (shown["PrimaryIpv6"], shown["Ipv6AddressCount"], shown["Ipv6PrefixCount"]) == (True, 1, 1)
    assert kubernetes_settings(stack)["cluster-dns-ip"] == "fd00:96::a"


@pytest.mark.covers("SAF-18")
def test_an_ipv4_cluster_asks_for_no_ipv6(stack: Stack) -> None:
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
    stack.tap.tell(DNS, service("10.96.0.10"))
    stack.node_class(kubelet=OWN)
    stack.start()
    said = stack.until_class(names.LAUNCHABLE, "True")
    assert "spec.kubelet" not in said.message
    stack.claim(**PLAIN)
    stack.until_launched("c-0")
    config = node_config(stack)["kubelet"]["config"]
    assert {key: value for key, value in config.items() if key != "registerWithTaints"} == OWN


@pytest.mark.covers("SAF-19")
def test_the_class_lists_the_kubelet_fields_that_bottlerocket_has_no_setting_for(stack: Stack) -> None:
    stack.node_class(amiFamily="Bottlerocket", kubelet=OWN)
    stack.start()
    said = stack.until_class(names.LAUNCHABLE, "True")
    assert said.message.endswith("fields of spec.kubelet that Bottlerocket does not apply: featureGates")
    stack.claim(**PLAIN)
    stack.until_launched("c-0")
    made = kubernetes_settings(stack)
    assert (made["max-pods"], made["cluster-dns-ip"], made["pod-pids-limit"]) == (20, "169.254.20.10", 4096)
    assert (made["cpu-manager-policy"], made["cpu-manager-policy-options"]) == ("static", ["full-pcpus-only"])


@pytest.mark.covers("SAF-19")
def test_the_class_lists_all_kubelet_fields_where_the_user_data_is_the_users_own(stack: Stack) -> None:
    stack.node_class(amiFamily="Custom", userData="#!/bin/sh", kubelet=OWN)
    stack.start()
    said = stack.until_class(names.LAUNCHABLE, "True")
    assert said.message.endswith(f"Custom does not apply: {', '.join(sorted(OWN))}")
