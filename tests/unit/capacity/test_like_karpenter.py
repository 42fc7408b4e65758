"""Karpenter's own results for real types, compared with the broker's: capacity, allocatable and labels.

`karpenter_types.json` holds EC2's descriptions and the results of `instancetype.NewInstanceType` of
Karpenter's AWS provider 1.14.0 for the five classes here, without zeros.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.capacity.model import Kubelet, LaunchDefaults, NodeClass, Threshold
from broker.capacity.types import WELL_KNOWN, allocatable, capacity, type_labels, zone_labels
from providers.aws.instance_types import instance_type
from providers.launch import BlockDevice, NetworkInterface

from .builders import node_class

GIB = 2**30
KEPT = json.loads(Path(__file__).with_name("karpenter_types.json").read_text())
CLASSES = {
    "al2023": node_class(family="AL2023"),
    "bottlerocket": node_class(family="Bottlerocket", kubelet=Kubelet(max_pods=200, pods_per_core=5)),
    "al2-kubelet": node_class(
        family="AL2",
        kubelet=Kubelet(
            pods_per_core=5,
            kube_reserved={"cpu": 0.3},
            system_reserved={"memory": GIB, "cpu": 0.1},
            eviction_hard={
                "memory.available": Threshold(percent=5),
                "nodefs.available": Threshold(percent=15),
            },
        ),
    ),
    "custom-raid": node_class(
        family="Custom",
        instance_store_raid0=True,
        defaults=LaunchDefaults(reserved_enis=1),
        block_devices=(BlockDevice(device_name="/dev/sda", volume_size_gib=50),),
    ),
    "nics": node_class(
        family="AL2023",
        defaults=LaunchDefaults(reserved_enis=1),
        interfaces=(
            NetworkInterface(card=0, device=0),
            NetworkInterface(card=0, device=1, kind="efa-only"),
        ),
    ),
}


def _positive(amounts: dict[str, float]) -> dict[str, float]:
    """Karpenter's amounts become negative if more is reserved than exists."""
    return {name: amount for name, amount in amounts.items() if amount > 0}


@pytest.mark.covers("KRP-23")
@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept["ec2"]["InstanceType"])
@pytest.mark.parametrize("named", CLASSES)
def test_node_capacity_equals_karpenters(kept: dict[str, Any], named: str) -> None:
    described, expected = _described_type(kept), kept["amounts"][named]
    node: NodeClass = CLASSES[named]
    assert _positive(capacity(described, node)) == pytest.approx(_positive(expected["capacity"]))
    assert _positive(allocatable(described, node)) == pytest.approx(_positive(expected["allocatable"]))


@pytest.mark.covers("KRP-23")
@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept["ec2"]["InstanceType"])
def test_a_type_has_the_labels_that_karpenter_gives_it(kept: dict[str, Any]) -> None:
    labels = type_labels(_described_type(kept)) | zone_labels("us-east-1a", "use1-az1")
    assert labels == kept["labels"]
    assert labels.keys() <= WELL_KNOWN


def _described_type(kept: dict[str, Any]) -> Any:
    return instance_type(kept["ec2"], zones=frozenset({"us-east-1a"}))
