"""Types that a class cannot launch, as in Karpenter's compatibility table, and the reported reasons."""

from __future__ import annotations

from typing import Any

import pytest

from broker.capacity.compatibility import incompatibility
from broker.capacity.model import Selection
from providers.launch import NetworkInterface
from tests.unit.capacity.builders import options

from .builders import NOW, claim, inventory, node_class, odcr, type_


def nic(card: int, device: int, kind: Any = "interface") -> NetworkInterface:
    return NetworkInterface(card=card, device=device, kind=kind)


BIG = {"interfaces_per_card": (2, 1), "efa_interfaces": 1}


@pytest.mark.covers("KRP-14")
@pytest.mark.parametrize(
    ("described", "class_fields", "reason"),
    [
        ({}, {}, ""),
        ({"name": "a1.large"}, {"family": "AL2023"}, "AL2023 does not run on a1 instances"),
        ({"name": "a1.large"}, {"family": "Bottlerocket"}, ""),
        ({"hypervisor": "nitro"}, {"tracks_connections": True}, ""),
        ({"hypervisor": "xen"}, {"tracks_connections": True}, "connectionTracking needs Nitro instances"),
        ({"hypervisor": ""}, {"tracks_connections": True}, "connectionTracking needs Nitro instances"),
        ({"hypervisor": "xen"}, {}, ""),
        (BIG, {"interfaces": (nic(0, 0), nic(0, 1), nic(1, 0))}, ""),
        (BIG, {"interfaces": (nic(0, 0), nic(2, 0))}, "networkInterfaces names network card 2, and it has 2"),
        (
            BIG,
            {"interfaces": (nic(0, 0), nic(1, 1))},
            "networkInterfaces names device 1 of network card 1, which has 1 interface",
        ),
        (BIG, {"interfaces": (nic(0, 0), nic(0, 1, "efa-only"))}, ""),
        (
            BIG,
            {"interfaces": (nic(0, 0), nic(0, 1, "efa-only"), nic(1, 0, "efa-only"))},
            "networkInterfaces has 2 of type efa-only, and it has 1",
        ),
        (
            {"interfaces_per_card": (3,)},
            {"interfaces": (nic(0, 0), nic(0, 1, "efa-only"))},
            "networkInterfaces has 1 of type efa-only, and it has 0",
        ),
        ({}, {"interfaces": (nic(0, 0), nic(4, 9))}, ""),  # EC2 did not describe its cards
        ({"ena": False}, {"interfaces": (nic(0, 0),)}, "networkInterfaces needs instances with ENA"),
        ({"ena": False}, {}, ""),
        (
            {},
            {"nested_virtualization": True},
            "cpuOptions.nestedVirtualization is enabled, and its processors do not have it",
        ),
        ({"nested_virtualization": True}, {"nested_virtualization": True}, ""),
        ({}, {"enclaves": True}, "enclaveOptions is enabled, and it does not support Nitro Enclaves"),
        ({"enclaves": True}, {"enclaves": True}, ""),
        ({"enclaves": True}, {}, ""),
        (
            {"placement_strategies": frozenset({"partition", "spread"})},
            {"placement_strategy": "cluster"},
            "EC2 takes it into no placement group with the cluster strategy",
        ),
        ({"placement_strategies": frozenset({"spread"})}, {"placement_strategy": "spread"}, ""),
        ({"placement_strategies": frozenset()}, {}, ""),
    ],
)
def test_type_that_a_class_cannot_launch_has_a_reason(described: Any, class_fields: Any, reason: str) -> None:
    given = {"name": "m5.large", **described}
    assert incompatibility(type_(given.pop("name"), **given), node_class(**class_fields)) == reason


@pytest.mark.covers("KRP-14", "KRP-24")
def test_incompatible_type_is_no_option_and_its_reservation_reports_why() -> None:
    world = inventory(odcr("cr-1", "t2.micro"))
    types = {
        name: type_(name, hypervisor=kind) for name, kind in (("t2.micro", "xen"), ("m5.large", "nitro"))
    }
    nodeclass = node_class(Selection(reservation_id="cr-1"), world, tracks_connections=True)
    usable, skipped = options(claim(), nodeclass, types, world, NOW)
    assert {option.pool.instance_type for option in usable} == {"m5.large"}
    assert [(skip.reason, skip.message) for skip in skipped] == [
        ("InstanceTypeMismatch", "t2.micro: connectionTracking needs Nitro instances")
    ]
