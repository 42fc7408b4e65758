"""Instance types and the zones that offer them.

Invariant: facts are EC2's (DescribeInstanceTypes, DescribeInstanceTypeOfferings). The limit of pods is the
VPC CNI's: ENIs * (IPv4 addresses per ENI - 1) + 2. It counts the ENIs of the default network card, since the
CNI attaches to no other (amazon-vpc-cni-k8s, eni-max-pods). Facts that EC2 lacks are in `branches`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from providers.aws.branches import branch_interfaces
from providers.aws.clients import Aws
from providers.aws.tags import texts
from providers.model import Gpu, InstanceType

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import EbsInfoTypeDef, InstanceTypeInfoTypeDef, NetworkInfoTypeDef

TYPES_PAGE = 100
OFFERINGS_PAGE = 1000
ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}


def instance_types(aws: Aws) -> dict[str, InstanceType]:
    """Every type of the Region that a node can be, by name, without prices."""
    zones = _zones(aws)
    types: dict[str, InstanceType] = {}
    for page in aws.pages(
        aws.ec2.describe_instance_types,
        Filters=[{"Name": "supported-virtualization-type", "Values": ["hvm"]}],
        MaxResults=TYPES_PAGE,
    ):
        for item in page["InstanceTypes"]:
            type_ = instance_type(item, zones=texts(zones[item["InstanceType"]]))
            if type_ is not None:
                types[type_.name] = type_
    return types


def _zones(aws: Aws) -> defaultdict[str, set[str]]:
    """Type to the zones that offer it."""
    zones: defaultdict[str, set[str]] = defaultdict(set)
    for page in aws.pages(
        aws.ec2.describe_instance_type_offerings, LocationType="availability-zone", MaxResults=OFFERINGS_PAGE
    ):
        for item in page["InstanceTypeOfferings"]:
            zones[item.get("InstanceType", "")].add(item.get("Location", ""))
    return zones


def instance_type(item: InstanceTypeInfoTypeDef, *, zones: frozenset[str]) -> InstanceType | None:
    supported = item.get("ProcessorInfo", {}).get("SupportedArchitectures", [])
    architecture = next((ARCHITECTURES[a] for a in supported if a in ARCHITECTURES), None)
    if architecture is None:
        return None
    network = item.get("NetworkInfo", {})
    name = item["InstanceType"]
    return InstanceType(
        name=name,
        vcpus=item.get("VCpuInfo", {}).get("DefaultVCpus", 0),
        memory_mib=item.get("MemoryInfo", {}).get("SizeInMiB", 0),
        architecture="arm64" if architecture == "arm64" else "amd64",
        zones=zones,
        gpus=tuple(
            Gpu(
                name=gpu.get("Name", ""),
                manufacturer=gpu.get("Manufacturer", ""),
                # EC2 counts no whole GPU in g6f and gr6f; a part of one is a device of its own.
                count=gpu.get("Count") or gpu.get("LogicalGpuCount", 0),
                memory_mib=gpu.get("MemoryInfo", {}).get("SizeInMiB", 0),
            )
            for gpu in item.get("GpuInfo", {}).get("Gpus", [])
        ),
        neurons=_neurons(item),
        neuron_cores=_neuron_cores(item),
        efa_interfaces=network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        interfaces_per_card=_per_card(network),
        ena=network.get("EnaSupport") != "unsupported",
        max_pods=_max_pods(network),
        enis=_enis(network),
        addresses_per_eni=network.get("Ipv4AddressesPerInterface", 1),
        bare_metal=item.get("BareMetal", False),
        hypervisor=item.get("Hypervisor", ""),
        local_storage_gb=item.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
        local_nvme=item.get("InstanceStorageInfo", {}).get("NvmeSupport") != "unsupported",
        cpu_manufacturer=item.get("ProcessorInfo", {}).get("Manufacturer", ""),
        clock_mhz=round(1000 * item.get("ProcessorInfo", {}).get("SustainedClockSpeedInGhz", 0.0)),
        neuron_name=next(
            (d.get("Name", "") for d in item.get("NeuronInfo", {}).get("NeuronDevices", [])), ""
        ),
        network_mbps=round(
            1000 * sum(card.get("BaselineBandwidthInGbps", 0.0) for card in network.get("NetworkCards", []))
        ),
        ebs_mbps=_ebs_mbps(item.get("EbsInfo", {})),
        branch_interfaces=branch_interfaces(name),
        encryption_in_transit=network.get("EncryptionInTransitSupported", False),
        market_types=texts(item.get("SupportedUsageClasses", [])),
        placement_strategies=texts(item.get("PlacementGroupInfo", {}).get("SupportedStrategies", [])),
        nested_virtualization="nested-virtualization"
        in item.get("ProcessorInfo", {}).get("SupportedFeatures", []),
        enclaves=item.get("NitroEnclavesSupport") == "supported",
    )


def _neurons(item: InstanceTypeInfoTypeDef) -> int:
    """Neuron devices; older answers name Inferentia under its own heading."""
    devices = item.get("NeuronInfo", {}).get("NeuronDevices", [])
    older = item.get("InferenceAcceleratorInfo", {}).get("Accelerators", [])
    return sum(d.get("Count", 0) for d in devices) or sum(
        a.get("Count", 0) for a in older if a.get("Manufacturer") == "AWS"
    )


def _neuron_cores(item: InstanceTypeInfoTypeDef) -> int:
    devices = item.get("NeuronInfo", {}).get("NeuronDevices", [])
    return sum(d.get("Count", 0) * d.get("CoreInfo", {}).get("Count", 0) for d in devices)


def _ebs_mbps(ebs: EbsInfoTypeDef) -> int:
    """Where EC2 gives it to every instance; older types have it only if a launch requests it."""
    if ebs.get("EbsOptimizedSupport") != "default":
        return 0
    return ebs.get("EbsOptimizedInfo", {}).get("MaximumBandwidthInMbps", 0)


def _enis(network: NetworkInfoTypeDef) -> int:
    cards = network.get("NetworkCards", [])
    default = network.get("DefaultNetworkCardIndex", 0)
    return next(
        (c.get("MaximumNetworkInterfaces", 0) for c in cards if c.get("NetworkCardIndex", 0) == default),
        network.get("MaximumNetworkInterfaces", 0),
    )


def _per_card(network: NetworkInfoTypeDef) -> tuple[int, ...]:
    cards = {
        card.get("NetworkCardIndex", 0): card.get("MaximumNetworkInterfaces", 0)
        for card in network.get("NetworkCards", [])
    }
    return tuple(cards.get(index, 0) for index in range(max(cards, default=-1) + 1))


def _max_pods(network: NetworkInfoTypeDef) -> int:
    return max(0, _enis(network) * (network.get("Ipv4AddressesPerInterface", 1) - 1) + 2)
