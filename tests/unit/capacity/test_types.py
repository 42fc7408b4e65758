"""The node of a type: the labels and amounts that Karpenter gives the same type and class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.capacity.model import Kubelet, LaunchDefaults, Threshold
from broker.capacity.types import (
    WELL_KNOWN,
    allocatable,
    capacity,
    fits,
    node_labels,
    size_key,
    type_labels,
    zone_labels,
)
from providers.launch import BlockDevice, NetworkInterface
from providers.model import Gpu

from .builders import TYPES, node_class, odcr, type_

MIB, GIB = 2**20, 2**30


@pytest.mark.covers("KRP-23")
def test_the_labels_of_a_gpu_node_in_a_reservation() -> None:
    p5 = replace(TYPES["p5.48xlarge"], cpu_manufacturer="AMD", local_storage_gb=30400, network_mbps=3200000)
    labels = node_labels(p5, "us-east-1a", zone_id="use1-az6", odcr=odcr("cr-1", "p5.48xlarge"))
    assert labels == {
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": "us-east-1a",
        "topology.kubernetes.io/region": "us-east-1",
        "topology.k8s.aws/zone-id": "use1-az6",
        "karpenter.sh/capacity-type": "reserved",
        "karpenter.k8s.aws/capacity-reservation-id": "cr-1",
        "karpenter.k8s.aws/capacity-reservation-type": "default",
        "karpenter.k8s.aws/capacity-reservation-interruptible": "false",
        "karpenter.k8s.aws/instance-tenancy": "default",
        "karpenter.k8s.aws/instance-category": "p",
        "karpenter.k8s.aws/instance-family": "p5",
        "karpenter.k8s.aws/instance-generation": "5",
        "karpenter.k8s.aws/instance-size": "48xlarge",
        "karpenter.k8s.aws/instance-cpu": "192",
        "karpenter.k8s.aws/instance-capability-flex": "false",
        "karpenter.k8s.aws/instance-cpu-manufacturer": "amd",
        "karpenter.k8s.aws/instance-memory": "2097152",
        "karpenter.k8s.aws/instance-hypervisor": "nitro",
        "karpenter.k8s.aws/instance-local-nvme": "30400",
        "karpenter.k8s.aws/instance-network-bandwidth": "3200000",
        "karpenter.k8s.aws/instance-encryption-in-transit-supported": "false",
        "karpenter.k8s.aws/instance-gpu-name": "h100",
        "karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia",
        "karpenter.k8s.aws/instance-gpu-count": "8",
        "karpenter.k8s.aws/instance-gpu-memory": "81559",
    }
    assert set(labels) <= WELL_KNOWN


@pytest.mark.parametrize(
    ("kind", "reserved", "interruptible"),
    [
        ({}, "default", "false"),
        ({"reservation_type": "capacity-block"}, "capacity-block", "false"),
        ({"interruptible": True}, "default", "true"),
    ],
)
def test_labels_per_reservation_kind(kind: dict[str, Any], reserved: str, interruptible: str) -> None:
    labels = node_labels(TYPES["m5.xlarge"], "us-east-1a", odcr=odcr("cr-1", **kind))
    assert labels["karpenter.k8s.aws/capacity-reservation-type"] == reserved
    assert labels["karpenter.k8s.aws/capacity-reservation-interruptible"] == interruptible


def test_a_node_outside_reservations_has_none_of_their_labels() -> None:
    labels = node_labels(TYPES["m5.xlarge"], "us-east-1a", capacity_type="on-demand")
    assert labels["karpenter.sh/capacity-type"] == "on-demand"
    assert not [key for key in labels if "capacity-reservation" in key]


@pytest.mark.parametrize(
    ("name", "category", "generation", "family", "size"),
    [
        ("m5.large", "m", "5", "m5", "large"),
        ("c7gn.16xlarge", "c", "7", "c7gn", "16xlarge"),
        ("u-6tb1.112xlarge", "u", "1", "u-6tb1", "112xlarge"),
        ("trn2.48xlarge", "trn", "2", "trn2", "48xlarge"),
        ("m5.metal", "m", "5", "m5", "metal"),
    ],
)
def test_category_generation_family_and_size_come_from_the_name(
    name: str, category: str, generation: str, family: str, size: str
) -> None:
    labels = type_labels(type_(name))
    assert [
        labels["karpenter.k8s.aws/instance-" + key] for key in ("category", "generation", "family", "size")
    ] == [
        category,
        generation,
        family,
        size,
    ]


def test_neurons_are_accelerators() -> None:
    labels = type_labels(type_("inf2.xlarge", neurons=1, neuron_name="Inferentia2"))
    assert labels["karpenter.k8s.aws/instance-accelerator-name"] == "inferentia2"
    assert labels["karpenter.k8s.aws/instance-accelerator-manufacturer"] == "aws"
    assert labels["karpenter.k8s.aws/instance-accelerator-count"] == "1"


@pytest.mark.parametrize(
    ("zone", "region"),
    [("us-east-1a", "us-east-1"), ("us-west-2-lax-1a", "us-west-2"), ("us-gov-west-1b", "us-gov-west-1")],
)
def test_the_region_is_read_from_the_zone(zone: str, region: str) -> None:
    assert zone_labels(zone)["topology.kubernetes.io/region"] == region


def test_capacity_equals_the_nodes_report() -> None:
    assert capacity(TYPES["p5.48xlarge"], node_class()) == {
        "cpu": 192,
        "memory": (2097152 - 157287) * MIB,  # 7.5 %, rounded up to whole MiB
        "ephemeral-storage": 20 * GIB,
        "pods": 58,
        "nvidia.com/gpu": 8,
        "vpc.amazonaws.com/efa": 32,
    }


def test_graviton_types_reserve_64_mib() -> None:
    arm = type_("c6g.xlarge", memory_gib=8, architecture="arm64")
    assert capacity(arm, node_class())["memory"] == (8128 - 610) * MIB


@pytest.mark.parametrize(
    ("vcpus", "millicores"),
    [(1, 60), (2, 70), (4, 80), (8, 90), (96, 310), (192, 550)],
)
def test_kube_reserved_cpu_takes_less_of_each_further_core(vcpus: int, millicores: int) -> None:
    room = allocatable(type_("m5.x", vcpus=vcpus), node_class())
    assert room["cpu"] == pytest.approx(vcpus - millicores / 1000)


def test_allocatable_is_capacity_less_kubelet_reservations() -> None:
    room = allocatable(TYPES["m5.xlarge"], node_class())
    assert room["memory"] == (16384 - 1229) * MIB - (11 * 58 + 255) * MIB - 100 * MIB
    assert room["ephemeral-storage"] == 20 * GIB - GIB - 2 * GIB
    assert room["pods"] == 58


@pytest.mark.parametrize(
    ("family", "kubelet", "pods", "reserve_pods"),
    [
        ("AL2023", Kubelet(), 58, 58),
        ("AL2023", Kubelet(max_pods=200), 200, 58),
        ("AL2023", Kubelet(pods_per_core=5), 20, 58),
        ("AL2023", Kubelet(max_pods=10, pods_per_core=5), 10, 58),
        ("Bottlerocket", Kubelet(max_pods=200), 200, 200),
        ("Bottlerocket", Kubelet(pods_per_core=5), 58, 58),
    ],
)
def test_pods_and_kube_reserved_follow_the_family(
    family: str, kubelet: Kubelet, pods: int, reserve_pods: int
) -> None:
    nodeclass = node_class(family=family, kubelet=kubelet)
    m5 = TYPES["m5.xlarge"]
    assert capacity(m5, nodeclass)["pods"] == pods
    kept = capacity(m5, nodeclass)["memory"] - allocatable(m5, nodeclass)["memory"]
    assert kept == (11 * reserve_pods + 255 + 100) * MIB


def test_reserve_of_the_class_replaces_the_computed_one() -> None:
    kubelet = Kubelet(
        kube_reserved={"cpu": 0.5},
        system_reserved={"cpu": 0.25, "memory": GIB, "ephemeral-storage": GIB},
        eviction_hard={"memory.available": Threshold(amount=500 * MIB)},
    )
    m5, nodeclass = TYPES["m5.xlarge"], node_class(kubelet=kubelet)
    room = allocatable(m5, nodeclass)
    assert room["cpu"] == 3.25
    assert room["memory"] == capacity(m5, nodeclass)["memory"] - (11 * 58 + 255) * MIB - GIB - 500 * MIB
    assert room["ephemeral-storage"] == 20 * GIB - GIB - GIB - 2 * GIB


@pytest.mark.parametrize(
    ("hard", "kept"),
    [
        (Threshold(percent=10), 0.10),
        (Threshold(percent=20), 0.20),
        (Threshold(percent=100), 0.0),
        (Threshold(amount=2 * GIB), 0.10),
    ],
)
def test_a_hard_eviction_threshold_counts_and_a_hundred_percent_means_none(
    hard: Threshold, kept: float
) -> None:
    kubelet = Kubelet(eviction_hard={"nodefs.available": hard})
    room = allocatable(TYPES["m5.xlarge"], node_class(kubelet=kubelet))
    assert room["ephemeral-storage"] == pytest.approx(20 * GIB * (1 - kept) - GIB, abs=1)


@pytest.mark.parametrize(("percent", "mib"), [(0.075, 15155), (0.0, 16384), (0.05, 15564)])
def test_hypervisor_overhead_is_a_setting(percent: float, mib: int) -> None:
    """16,384 MiB less the share, rounded up to a whole MiB."""
    nodeclass = node_class(defaults=LaunchDefaults(vm_memory_percent=percent))
    assert capacity(TYPES["m5.xlarge"], nodeclass)["memory"] == mib * MIB


M5 = replace(TYPES["m5.xlarge"], enis=4, addresses_per_eni=15, max_pods=58)
EFA_ONLY = NetworkInterface(card=0, device=1, kind="efa-only")
PRIMARY = NetworkInterface(card=0, device=0)


@pytest.mark.parametrize(
    ("reserved", "interfaces", "pods"),
    [
        (0, (), 58),
        (1, (), 3 * 14 + 2),
        (3, (), 16),
        (4, (), 0),
        (9, (), 0),
        (0, (PRIMARY, EFA_ONLY), 3 * 14 + 2),
        (1, (PRIMARY, EFA_ONLY), 2 * 14 + 2),
        (0, (PRIMARY, NetworkInterface(card=1, device=0, kind="efa-only")), 58),
    ],
)
def test_interfaces_without_addresses_carry_no_pods(
    reserved: int, interfaces: tuple[NetworkInterface, ...], pods: int
) -> None:
    nodeclass = node_class(defaults=LaunchDefaults(reserved_enis=reserved), interfaces=interfaces)
    assert capacity(M5, nodeclass)["pods"] == pods
    kept = capacity(M5, nodeclass)["memory"] - allocatable(M5, nodeclass)["memory"]
    counted = replace(nodeclass, defaults=LaunchDefaults())
    unreserved = int(capacity(M5, counted)["pods"])
    assert kept == (11 * unreserved + 255 + 100) * MIB, (
        "kubelet reserves as much as without reserved interfaces"
    )


def test_max_pods_of_the_class_allows_prefix_delegation() -> None:
    """With prefixes a node takes more pods than addresses; maxPods sets their number, and kube-reserved
    stays."""
    nodeclass = node_class(kubelet=Kubelet(max_pods=110))
    assert capacity(M5, nodeclass)["pods"] == 110
    kept = capacity(M5, nodeclass)["memory"] - allocatable(M5, nodeclass)["memory"]
    assert kept == (11 * 58 + 255 + 100) * MIB


def test_the_interfaces_of_the_class_count_instead_of_the_type_s() -> None:
    p5 = replace(M5, efa_interfaces=32)
    assert capacity(p5, node_class())["vpc.amazonaws.com/efa"] == 32
    assert capacity(p5, node_class(interfaces=(PRIMARY, EFA_ONLY)))["vpc.amazonaws.com/efa"] == 1
    assert "vpc.amazonaws.com/efa" not in capacity(p5, node_class(interfaces=(PRIMARY,)))


def test_neuron_devices_and_their_cores() -> None:
    trn1 = replace(M5, neurons=16, neuron_cores=32)
    amounts = capacity(trn1, node_class())
    assert (amounts["aws.amazon.com/neuron"], amounts["aws.amazon.com/neuroncore"]) == (16, 32)


@pytest.mark.parametrize(
    ("family", "devices", "gib"),
    [
        ("AL2023", (), 20),
        ("AL2023", (BlockDevice(device_name="/dev/xvda", volume_size_gib=100),), 100),
        ("AL2023", (BlockDevice(device_name="/dev/xvdz", volume_size_gib=100),), 20),
        ("AL2023", (BlockDevice(device_name="/dev/xvdz", volume_size_gib=100, root=True),), 100),
        (
            "AL2023",
            (
                BlockDevice(device_name="/dev/xvda", volume_size_gib=40),
                BlockDevice(device_name="/dev/xvdz", snapshot_id="snap-1", root=True),
            ),
            40,
        ),
        (
            "Bottlerocket",
            (
                BlockDevice(device_name="/dev/xvda", volume_size_gib=4),
                BlockDevice(device_name="/dev/xvdb", volume_size_gib=80),
            ),
            80,
        ),
        (
            "Custom",
            (
                BlockDevice(device_name="/dev/sda", volume_size_gib=4),
                BlockDevice(device_name="/dev/sdb", volume_size_gib=70),
            ),
            70,
        ),
    ],
)
def test_ephemeral_storage_is_the_familys_device(
    family: str, devices: tuple[BlockDevice, ...], gib: int
) -> None:
    nodeclass = node_class(family=family, block_devices=devices)
    assert capacity(TYPES["m5.xlarge"], nodeclass)["ephemeral-storage"] == gib * GIB


def test_local_disks_are_ephemeral_storage_if_they_are_joined() -> None:
    disks = type_("m5d.large", local_storage_gb=75)
    assert capacity(disks, node_class(instance_store_raid0=True))["ephemeral-storage"] == 75e9
    assert capacity(disks, node_class())["ephemeral-storage"] == 20 * GIB


def test_missing_resources_are_reported_with_both_amounts() -> None:
    room = allocatable(TYPES["m5.xlarge"], node_class())
    assert fits({"cpu": 3.5, "memory": GIB}, room) is None
    assert fits({"cpu": 4}, room) == "cpu: requests 4, the node has 3.92"
    assert fits({"nvidia.com/gpu": 1}, room) == "nvidia.com/gpu: requests 1, the node has 0"


def test_amd_and_habana_cards_have_their_own_names() -> None:
    instance_type = replace(
        type_("x.large"),
        gpus=(
            Gpu(name="V520", manufacturer="AMD", count=2, memory_mib=1),
            Gpu(name="Gaudi", manufacturer="Habana", count=1, memory_mib=1),
        ),
    )
    amounts = capacity(instance_type, node_class())
    assert (amounts["amd.com/gpu"], amounts["habana.ai/gaudi"]) == (2, 1)
    # Karpenter labels cards only if there is one kind.
    assert "karpenter.k8s.aws/instance-gpu-name" not in type_labels(instance_type)


def test_types_with_accelerators_sort_after_those_without() -> None:
    names = sorted(TYPES, key=lambda name: size_key(TYPES[name]))
    assert names == ["m5.large", "c6g.xlarge", "m5.xlarge", "m5.2xlarge", "p5.48xlarge"]
    huge = type_("m7i.metal", vcpus=448, memory_gib=4096, bare_metal=True)
    assert size_key(TYPES["m5.2xlarge"]) < size_key(huge) < size_key(TYPES["p5.48xlarge"])
