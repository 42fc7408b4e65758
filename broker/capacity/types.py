"""The node of an instance type: its labels, its capacity, its allocatable resources.

Invariant: labels and amounts equal those of Karpenter's AWS provider for the same type and class. So a
NodePool means the same to both (karpenter.sh, "Scheduling: well-known labels" and "NodeClasses: kubelet").
Only the network's bandwidth is EC2's own figure, while Karpenter ships a table; few types differ. Amounts
are in base units: cores, bytes, counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.apis import names
from broker.capacity.model import NodeClass, Threshold
from providers.launch import BlockDevice
from providers.model import InstanceType, Odcr

WINDOWS_BUILD: Final = "node.kubernetes.io/windows-build"

# Labels set by the instance alone; a claim's requirement on any other key becomes a label of its node. A
# requirement on one of names.UNLABELED_KEYS has no option: a label without a source would be false.
WELL_KNOWN: Final = frozenset(
    {
        names.INSTANCE_TYPE,
        names.ARCH,
        names.OS,
        names.ZONE,
        names.REGION,
        names.ZONE_ID,
        names.CAPACITY_TYPE,
        WINDOWS_BUILD,
        *names.KARPENTER_AWS_REQUIREMENT_KEYS,
    }
) - {names.NODECLASS_LABEL}

_NAME: Final = re.compile(r"([a-z]+)(?:-[0-9]+tb)?([0-9]+)[^.]*\.")
_REGION: Final = re.compile(r"[a-z]+(?:-[a-z]+)+-[0-9]+")
_MIB: Final = 2**20
_GIB: Final = 2**30
_ARM_RESERVED_MIB: Final = 64  # contiguous memory that Graviton kernels keep
_DEFAULT_ROOT_GIB: Final = 20

CPU: Final = "cpu"
MEMORY: Final = "memory"
STORAGE: Final = "ephemeral-storage"
PODS: Final = "pods"
EFA: Final = "vpc.amazonaws.com/efa"
# Their amounts follow from settings of the node class too.
OF_CLASS: Final = frozenset({STORAGE, PODS, EFA})
POD_ENI: Final = "vpc.amazonaws.com/pod-eni"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """The kubelet setup of an image family."""

    ephemeral_device: str | None  # None: the last device of the class
    reserve_by_interfaces: bool = True  # kube-reserved memory follows the interfaces' limit, not maxPods
    pods_per_core: bool = True


_FAMILIES: Final[Mapping[str, _Family]] = {
    "AL2": _Family(ephemeral_device="/dev/xvda"),
    "AL2023": _Family(ephemeral_device="/dev/xvda"),
    "Bottlerocket": _Family(ephemeral_device="/dev/xvdb", reserve_by_interfaces=False, pods_per_core=False),
    "Custom": _Family(ephemeral_device=None),
}
_GPU_RESOURCES: Final = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu", "HABANA": "habana.ai/gaudi"}
_NEURON, _NEURON_CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
ACCELERATORS: Final = (*_GPU_RESOURCES.values(), _NEURON, _NEURON_CORE)
# Every resource that EC2's types alone give nodes.
RESOURCES: Final = frozenset({CPU, MEMORY, STORAGE, PODS, EFA, POD_ENI, *ACCELERATORS})
# Millicores from, to, and the share of them reserved for the kubelet.
_CPU_RESERVE: Final = ((0, 1000, 0.06), (1000, 2000, 0.01), (2000, 4000, 0.005), (4000, 1 << 31, 0.0025))


def type_labels(type_: InstanceType) -> dict[str, str]:
    """The labels that follow from the type alone."""
    labels = {
        names.INSTANCE_TYPE: type_.name,
        names.ARCH: type_.architecture,
        names.OS: "linux",
        names.INSTANCE_CPU: str(type_.vcpus),
        names.INSTANCE_MEMORY: str(type_.memory_mib),
        names.INSTANCE_ENCRYPTION_IN_TRANSIT: "true" if type_.encryption_in_transit else "false",
        names.INSTANCE_CAPABILITY_FLEX: "true" if "-flex" in type_.name.partition(".")[0] else "false",
        names.INSTANCE_HYPERVISOR: type_.hypervisor,  # none on bare metal, which is a value as well
    }
    if match := _NAME.match(type_.name):
        labels[names.INSTANCE_CATEGORY], labels[names.INSTANCE_GENERATION] = match[1], match[2]
    family, dot, size = type_.name.partition(".")
    if dot:
        labels[names.INSTANCE_FAMILY], labels[names.INSTANCE_SIZE] = family, size
    for key, value in (
        (names.INSTANCE_CPU_MANUFACTURER, _kebab(type_.cpu_manufacturer)),
        (names.INSTANCE_CPU_MHZ, type_.clock_mhz),
        (names.INSTANCE_LOCAL_NVME, type_.local_storage_gb if type_.local_nvme else 0),
        (names.INSTANCE_NETWORK_BANDWIDTH, type_.network_mbps),
        (names.INSTANCE_EBS_BANDWIDTH, type_.ebs_mbps),
    ):
        if value:
            labels[key] = str(value)
    if len(type_.gpus) == 1:
        gpu = type_.gpus[0]
        labels[names.INSTANCE_GPU_NAME] = _kebab(gpu.name)
        labels[names.INSTANCE_GPU_MANUFACTURER] = _kebab(gpu.manufacturer)
        labels[names.INSTANCE_GPU_COUNT] = str(gpu.count)
        labels[names.INSTANCE_GPU_MEMORY] = str(gpu.memory_mib)
    if type_.neurons:
        labels[names.INSTANCE_ACCELERATOR_MANUFACTURER] = "aws"
        labels[names.INSTANCE_ACCELERATOR_COUNT] = str(type_.neurons)
        if type_.neuron_name:
            labels[names.INSTANCE_ACCELERATOR_NAME] = _kebab(type_.neuron_name)
    return labels


def zone_labels(zone: str, zone_id: str = "") -> dict[str, str]:
    """The labels that follow from the zone."""
    labels = {names.ZONE: zone}
    if match := _REGION.match(zone):
        labels[names.REGION] = match[0]
    if zone_id:
        labels[names.ZONE_ID] = zone_id
    return labels


def reservation_labels(odcr: Odcr) -> dict[str, str]:
    """The labels of a node that runs in this reservation, capacity type included."""
    return {
        names.CAPACITY_TYPE: "reserved",
        names.RESERVATION_ID: odcr.id,
        names.RESERVATION_TYPE: odcr.reservation_type,
        names.RESERVATION_INTERRUPTIBLE: "true" if odcr.interruptible else "false",
    }


def node_labels(
    type_: InstanceType,
    zone: str,
    *,
    zone_id: str = "",
    capacity_type: str = "",
    odcr: Odcr | None = None,
    tenancy: str = "default",
) -> dict[str, str]:
    """All labels that EC2 decides for a node of this type in this zone; in `odcr` if one is given."""
    labels = type_labels(type_) | zone_labels(zone, zone_id) | {names.INSTANCE_TENANCY: tenancy or "default"}
    if odcr is not None:
        return labels | reservation_labels(odcr)
    return labels | ({names.CAPACITY_TYPE: capacity_type} if capacity_type else {})


def capacity(type_: InstanceType, node_class: NodeClass) -> dict[str, float]:
    """The capacity that the node will report. Resources that the type lacks are left out."""
    amounts: dict[str, float] = {
        CPU: float(type_.vcpus),
        MEMORY: _memory(type_, node_class),
        STORAGE: _storage(type_, node_class),
        PODS: float(_pods(type_, node_class)),
    }
    for gpu in type_.gpus:
        if resource := _GPU_RESOURCES.get(gpu.manufacturer.upper()):
            amounts[resource] = amounts.get(resource, 0.0) + gpu.count
    if type_.neurons:
        amounts[_NEURON] = float(type_.neurons)
    if type_.neuron_cores:
        amounts[_NEURON_CORE] = float(type_.neuron_cores)
    if efas := _efas(type_, node_class):
        amounts[EFA] = float(efas)
    if type_.branch_interfaces:
        amounts[POD_ENI] = float(type_.branch_interfaces)
    return amounts


def allocatable(type_: InstanceType, node_class: NodeClass) -> dict[str, float]:
    """The resources for pods: capacity less kube-reserved, system-reserved and the eviction thresholds."""
    amounts = capacity(type_, node_class)
    kubelet = node_class.kubelet
    for overhead in (
        _kube_reserved(type_, node_class) | dict(kubelet.kube_reserved),
        kubelet.system_reserved,
        _eviction(amounts, node_class),
    ):
        for resource, amount in overhead.items():
            if resource in amounts:
                amounts[resource] = max(0.0, amounts[resource] - amount)
    return amounts


def lacking(requests: Mapping[str, float], amounts: Mapping[str, float]) -> list[str]:
    """The resources with larger requests than amounts, in order."""
    return sorted(name for name, amount in requests.items() if amount > amounts.get(name, 0.0))


def fits(requests: Mapping[str, float], amounts: Mapping[str, float]) -> str | None:
    """None if the requests fit, else the first resource that does not, with both numbers."""
    short = lacking(requests, amounts)
    if not short:
        return None
    requested, have = requests[short[0]], amounts.get(short[0], 0.0)
    return f"{short[0]}: requests {_number(requested)}, the node has {_number(have)}"


def has_accelerator(type_: InstanceType) -> bool:
    """Whether it has a GPU or another accelerator."""
    return bool(type_.gpus or type_.neurons)


def exotic(type_: InstanceType, price: float | None) -> bool:
    """Whether a call leaves the type out while generic ones remain: accelerators, bare metal, or an unknown
    price. The rule is Karpenter's ExoticInstanceTypeFilter (pkg/providers/instance/filter)."""
    return has_accelerator(type_) or type_.bare_metal or price is None


def size_key(type_: InstanceType) -> tuple[int, bool, int, int, str]:
    """Smaller first; types with accelerators, or on bare metal, after all others."""
    accelerators = sum(gpu.count for gpu in type_.gpus) + type_.neurons
    return (accelerators, type_.bare_metal, type_.vcpus, type_.memory_mib, type_.name)


def _memory(type_: InstanceType, node_class: NodeClass) -> float:
    mib = type_.memory_mib - (_ARM_RESERVED_MIB if type_.architecture == "arm64" else 0)
    return float((mib - math.ceil(mib * node_class.defaults.vm_memory_percent)) * _MIB)


def _efas(type_: InstanceType, node_class: NodeClass) -> int:
    """The number of EFAs: from the class's interfaces if it lists any, else the type's."""
    if node_class.interfaces:
        return sum(interface.kind == "efa-only" for interface in node_class.interfaces)
    return type_.efa_interfaces


def _pods_by_interfaces(type_: InstanceType, node_class: NodeClass, *, reserved: int) -> int:
    """The VPC CNI's limit, without the interfaces that carry no pods.

    These are reserved interfaces, and efa-only ones, which have no address, on the card that the CNI uses.
    """
    podless = reserved + sum(
        interface.kind == "efa-only" and interface.card == 0 for interface in node_class.interfaces
    )
    if not podless or not type_.enis:
        return type_.max_pods
    usable = max(0, type_.enis - podless)
    return usable * (type_.addresses_per_eni - 1) + 2 if usable else 0


def _pods(type_: InstanceType, node_class: NodeClass) -> int:
    kubelet, family = node_class.kubelet, _family(node_class)
    if kubelet.max_pods is not None:
        count = kubelet.max_pods
    else:
        reserved = node_class.defaults.reserved_enis
        count = _pods_by_interfaces(type_, node_class, reserved=reserved)
    if kubelet.pods_per_core and family.pods_per_core:
        count = min(count, kubelet.pods_per_core * type_.vcpus)
    return count


def _storage(type_: InstanceType, node_class: NodeClass) -> float:
    if node_class.instance_store_raid0 and type_.local_storage_gb:
        return type_.local_storage_gb * 1e9
    return float(_root_gib(node_class.block_devices, _family(node_class)) * _GIB)


def _root_gib(devices: tuple[BlockDevice, ...], family: _Family) -> int:
    named = [device for device in devices if device.root]
    known = (
        devices[-1:]
        if family.ephemeral_device is None
        else [device for device in devices if device.device_name == family.ephemeral_device]
    )
    sizes = (device.volume_size_gib for device in (*named, *known))
    return next((size for size in sizes if size), _DEFAULT_ROOT_GIB)


def _kube_reserved(type_: InstanceType, node_class: NodeClass) -> dict[str, float]:
    # Reserved interfaces reduce the pods, but not the kubelet's own reserve (Karpenter's types.go, 1.14).
    by_interfaces = _family(node_class).reserve_by_interfaces
    pods = _pods_by_interfaces(type_, node_class, reserved=0) if by_interfaces else _pods(type_, node_class)
    millicores = type_.vcpus * 1000
    reserved = sum(
        int((min(millicores, end) - start) * share)
        for start, end, share in _CPU_RESERVE
        if millicores >= start
    )
    return {CPU: reserved / 1000, MEMORY: float((11 * pods + 255) * _MIB), STORAGE: float(_GIB)}


def _eviction(amounts: Mapping[str, float], node_class: NodeClass) -> dict[str, float]:
    """Hard thresholds alone: a soft one only warns (kubernetes.io, "Reserve Compute Resources")."""
    overhead = {MEMORY: 100.0 * _MIB, STORAGE: float(math.ceil(amounts[STORAGE] / 10))}
    for signal, resource in (("memory.available", MEMORY), ("nodefs.available", STORAGE)):
        if threshold := node_class.kubelet.eviction_hard.get(signal):
            overhead[resource] = _threshold(threshold, amounts[resource])
    return overhead


def _threshold(threshold: Threshold, whole: float) -> float:
    if threshold.percent is None:
        return threshold.amount
    # Kubernetes reads 100 % as "no threshold".
    return 0.0 if threshold.percent == 100 else float(math.ceil(whole / 100 * threshold.percent))


def _family(node_class: NodeClass) -> _Family:
    return _FAMILIES.get(node_class.family, _FAMILIES["Custom"])


def _kebab(words: str) -> str:
    return words.lower().replace(" ", "-")


def _number(amount: float) -> str:
    return f"{amount:g}" if amount < 1e6 else f"{amount / _GIB:.4g}Gi"
