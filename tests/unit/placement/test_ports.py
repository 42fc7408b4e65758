"""NodePorts: the address, protocol and port of host ports."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.placement.model import HostPort, PodInfo
from broker.placement.ports import conflicts
from tests.unit.placement.builders import node, on_one, pod

TAKEN = ["node(s) didn't have free ports for the requested pod ports"]


def with_ports(*ports: dict[str, Any], name: str = "p", on: str = "", **spec: Any) -> PodInfo:
    return pod(name, on=on, containers=[{"name": "c", "ports": list(ports)}], **spec)


def port(number: int, ip: str = "", protocol: str = "TCP") -> dict[str, Any]:
    return {"containerPort": number, "hostPort": number, "hostIP": ip, "protocol": protocol}


@pytest.mark.parametrize(
    ("used", "requested", "taken"),
    [
        (port(80), port(80), True),
        (port(80), port(81), False),
        (port(80), port(80, protocol="UDP"), False),
        (port(80, "10.0.0.1"), port(80, "10.0.0.2"), False),
        (port(80, "10.0.0.1"), port(80, "10.0.0.1"), True),
        (port(80, "0.0.0.0"), port(80, "10.0.0.1"), True),
        (port(80, "10.0.0.1"), port(80), True),
        ({"containerPort": 80}, port(80), False),
        (port(80), {"containerPort": 80}, False),
    ],
)
def test_host_port_is_taken_for_its_address_and_protocol(
    used: dict[str, Any], requested: dict[str, Any], taken: bool
) -> None:
    other = with_ports(used, name="other", on="n")
    assert on_one(with_ports(requested), node(), other) == (TAKEN if taken else [])


def test_ports_on_the_host_network_are_host_ports() -> None:
    other = with_ports({"containerPort": 80}, name="other", on="n", hostNetwork=True)
    assert on_one(with_ports(port(80)), node(), other) == TAKEN


@pytest.mark.parametrize(("policy", "taken"), [("Always", True), ("", False)])
def test_init_containers_hold_ports_only_as_sidecars(policy: str, taken: bool) -> None:
    init = [{"name": "i", "restartPolicy": policy, "ports": [port(80)]}]
    other = pod("other", on="n", initContainers=init)
    assert on_one(with_ports(port(80)), node(), other) == (TAKEN if taken else [])


PORTS = st.builds(
    HostPort,
    st.sampled_from(["0.0.0.0", "10.0.0.1", "10.0.0.2"]),
    st.sampled_from(["TCP", "UDP"]),
    st.integers(1, 3),
)


@given(PORTS, PORTS)
def test_conflict_is_mutual(port_a: HostPort, port_b: HostPort) -> None:
    assert conflicts(port_a, {port_b}) == conflicts(port_b, {port_a})
