"""The parts of an EC2NodeClass that decide the size of its nodes: kubelet, block devices, interfaces."""

from __future__ import annotations

from collections.abc import Mapping

from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.karpenter_aws_launch import BlockDeviceMapping
from broker.capacity.model import Kubelet, Threshold
from broker.text import quantities, quantity
from providers.launch import BlockDevice, NetworkInterface

GIB = 2**30

# Root (and data) volumes if the class names none, as in Karpenter's families.
DEFAULT_DEVICES: Mapping[str, tuple[BlockDevice, ...]] = {
    "AL2023": (BlockDevice(device_name="/dev/xvda", volume_size_gib=20, volume_type="gp3", encrypted=True),),
    "Bottlerocket": (
        BlockDevice(device_name="/dev/xvda", volume_size_gib=4, volume_type="gp3", encrypted=True),
        BlockDevice(device_name="/dev/xvdb", volume_size_gib=20, volume_type="gp3", encrypted=True),
    ),
}


def kubelet(node_class: EC2NodeClass) -> Kubelet:
    """The class's kubelet settings, which have no problems. Raises ValueError for an invalid quantity."""
    settings = node_class.spec.kubelet
    if settings is None:
        return Kubelet()
    return Kubelet(
        max_pods=settings.max_pods,
        pods_per_core=settings.pods_per_core,
        kube_reserved=quantities(settings.kube_reserved or {}),
        system_reserved=quantities(settings.system_reserved or {}),
        eviction_hard=_thresholds(settings.eviction_hard or {}),
    )


def block_devices(node_class: EC2NodeClass, family: str) -> tuple[BlockDevice, ...]:
    """The class's block devices, or its family's. Raises ValueError for an invalid size."""
    mappings = node_class.spec.block_device_mappings
    if not mappings:
        return DEFAULT_DEVICES.get(family, ())
    return tuple(_device(mapping) for mapping in mappings)


def interfaces(node_class: EC2NodeClass) -> tuple[NetworkInterface, ...]:
    """The interfaces that the class names, the primary one first; empty if EC2 or the claim decides."""
    ordered = sorted(
        node_class.spec.network_interfaces,
        key=lambda interface: (interface.network_card_index, interface.device_index),
    )
    return tuple(
        NetworkInterface(
            card=interface.network_card_index,
            device=interface.device_index,
            kind="efa-only" if interface.interface_type == "efa-only" else "interface",
        )
        for interface in ordered
    )


def _device(mapping: BlockDeviceMapping) -> BlockDevice:
    ebs = mapping.ebs
    if ebs is None:
        return BlockDevice(device_name=mapping.device_name, root=mapping.root_volume)
    return BlockDevice(
        device_name=mapping.device_name,
        # EC2 takes whole GiB; a size in G or T is rounded up, so that the volume is not too small.
        volume_size_gib=-(-int(quantity(ebs.volume_size)) // GIB) if ebs.volume_size else None,
        volume_type=ebs.volume_type,
        iops=ebs.iops,
        throughput=ebs.throughput,
        encrypted=ebs.encrypted,
        kms_key_id=ebs.kms_key_id,
        delete_on_termination=ebs.delete_on_termination is not False,
        snapshot_id=ebs.snapshot_id,
        initialization_rate=ebs.volume_initialization_rate,
        root=mapping.root_volume,
    )


def _thresholds(settings: Mapping[str, str]) -> dict[str, Threshold]:
    return {
        signal: Threshold(percent=float(text[:-1]))
        if text.endswith("%")
        else Threshold(amount=quantity(text))
        for signal, text in settings.items()
    }
