"""The instance types that satisfy a set of attributes (InstanceRequirements).

Source: EC2 API reference, InstanceRequirementsRequest, with its defaults: no bare metal, no burstable types,
any accelerator, any local storage. Price protection drops types that cost over 20 % more (On-Demand) or over
100 % more (Spot) than the cheapest matching C, M or R type of the current generation. Without such a type,
the cheapest matching type counts. Prices are approximate (`prices`), so the edge of the protection is too.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from local.aws.ec2 import errors, prices

Facts = Mapping[str, Any]  # of an instance type, as DescribeInstanceTypes has them
PROTECTION = {
    "on-demand": ("OnDemandMaxPricePercentageOverLowestPrice", 20),
    "spot": ("SpotMaxPricePercentageOverLowestPrice", 100),
}
NO_PROTECTION = 999_999
MANUFACTURERS = {"intel": "Intel", "amd": "AMD", "amazon-web-services": "AWS", "apple": "Apple"}
MAKERS = {"aws": "amazon-web-services"}
ACCELERATORS = {
    "gpu": ("GpuInfo", "Gpus"),
    "inference": ("InferenceAcceleratorInfo", "Accelerators"),
    "fpga": ("FpgaInfo", "Fpgas"),
    "media": ("MediaAcceleratorInfo", "Accelerators"),
}


def satisfying(required: Mapping[str, Any], among: Iterable[str], *, market: str = "on-demand") -> list[str]:
    """The types among these that satisfy the request, the cheapest first."""
    for name in ("VCpuCount", "MemoryMiB"):
        if (required.get(name) or {}).get("Min") is None:
            raise errors.missing(f"InstanceRequirements.{name}.Min")
    if required.get("AllowedInstanceTypes") and required.get("ExcludedInstanceTypes"):
        raise errors.combination("AllowedInstanceTypes and ExcludedInstanceTypes can't be specified together")
    fitting = [
        name
        for name in among
        if name in INSTANCE_TYPES and all(rule(required, name, INSTANCE_TYPES[name]) for rule in RULES)
    ]
    ordered = sorted(fitting, key=lambda name: (prices.per_hour(name), name))
    return _protected(required, ordered, market)


def _protected(required: Mapping[str, Any], ordered: list[str], market: str) -> list[str]:
    parameter, default = PROTECTION.get(market, PROTECTION["on-demand"])
    allowed = int(required.get(parameter, default))
    current = [name for name in ordered if INSTANCE_TYPES[name].get("CurrentGeneration")]
    usual = [name for name in current if re.match(r"[cmr]\d", name)]
    cheapest = next(iter(usual or current or ordered), None)
    if cheapest is None or allowed >= NO_PROTECTION:
        return ordered
    most = prices.per_hour(cheapest) * (1 + allowed / 100)
    return [name for name in ordered if prices.per_hour(name) <= most + 1e-9]


# ---- rules


def _within(bounds: Mapping[str, Any] | None, value: float) -> bool:
    bounds = bounds or {}
    return float(bounds.get("Min", 0)) <= value <= float(bounds.get("Max", "inf"))


def _vcpus(facts: Facts) -> int:
    return int(facts["VCpuInfo"]["DefaultVCpus"])


def _memory(facts: Facts) -> int:
    return int(facts["MemoryInfo"]["SizeInMiB"])


def _sizes(required: Mapping[str, Any], _: str, facts: Facts) -> bool:
    return (
        _within(required["VCpuCount"], _vcpus(facts))
        and _within(required["MemoryMiB"], _memory(facts))
        and _within(required.get("MemoryGiBPerVCpu"), _memory(facts) / 1024 / _vcpus(facts))
    )


def _names(required: Mapping[str, Any], name: str, _: Facts) -> bool:
    def any_of(patterns: Iterable[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    allowed = required.get("AllowedInstanceTypes")
    return (not allowed or any_of(allowed)) and not any_of(required.get("ExcludedInstanceTypes") or [])


def _three_way(parameter: str, has: Callable[[Facts], bool], default: str) -> Callable[..., bool]:
    """included, required or excluded."""

    def rule(required: Mapping[str, Any], _: str, facts: Facts) -> bool:
        choice = required.get(parameter) or default
        return choice == "included" or has(facts) == (choice == "required")

    return rule


def _is_burstable(facts: Facts) -> bool:
    """The T families; moto's data mark all but the newest as burstable."""
    return bool(facts.get("BurstablePerformanceSupported")) or bool(re.match(r"t\d", facts["InstanceType"]))


def _processors(required: Mapping[str, Any], _: str, facts: Facts) -> bool:
    manufacturers = {MANUFACTURERS.get(maker, maker) for maker in required.get("CpuManufacturers") or []}
    return not manufacturers or facts.get("ProcessorInfo", {}).get("Manufacturer") in manufacturers


def _generations(required: Mapping[str, Any], _: str, facts: Facts) -> bool:
    generations = required.get("InstanceGenerations")
    return not generations or ("current" if facts.get("CurrentGeneration") else "previous") in generations


def _accelerators(required: Mapping[str, Any], _: str, facts: Facts) -> bool:
    devices = [
        (kind, device)
        for kind, (info, field) in ACCELERATORS.items()
        for device in facts.get(info, {}).get(field, [])
    ]
    count = sum(int(device.get("Count", 1)) for _, device in devices)
    memory = sum(
        int(device.get("Count", 1)) * int(device.get("MemoryInfo", {}).get("SizeInMiB", 0))
        for _, device in devices
    )
    makers = {
        MAKERS.get(maker, maker) for maker in (str(d.get("Manufacturer", "")).lower() for _, d in devices)
    }
    names = {str(device.get("Name", "")).lower() for _, device in devices}
    return (
        _within(required.get("AcceleratorCount"), count)
        and _within(required.get("AcceleratorTotalMemoryMiB"), memory)
        and _any(required.get("AcceleratorTypes"), {kind for kind, _ in devices})
        and _any(required.get("AcceleratorManufacturers"), makers)
        and _any(required.get("AcceleratorNames"), names)
    )


def _any(accepted: Iterable[str] | None, offered: set[str]) -> bool:
    return not accepted or bool(offered.intersection(accepted))


def _storage(required: Mapping[str, Any], _: str, facts: Facts) -> bool:
    info = facts.get("InstanceStorageInfo") or {}
    kinds = {disk.get("Type") for disk in info.get("Disks", [])}
    accepted = required.get("LocalStorageTypes")
    return _within(required.get("TotalLocalStorageGB"), info.get("TotalSizeInGB", 0)) and (
        not accepted or not kinds or bool(kinds.intersection(accepted))
    )


def _network(required: Mapping[str, Any], _: str, facts: Facts) -> bool:
    network = facts.get("NetworkInfo", {})
    bandwidth = sum(card.get("BaselineBandwidthInGbps", 0) for card in network.get("NetworkCards", []))
    disks = facts.get("EbsInfo", {}).get("EbsOptimizedInfo", {}).get("BaselineBandwidthInMbps", 0)
    return (
        _within(required.get("NetworkInterfaceCount"), network.get("MaximumNetworkInterfaces", 0))
        and _within(required.get("NetworkBandwidthGbps"), bandwidth)
        and _within(required.get("BaselineEbsBandwidthMbps"), disks)
        and (not required.get("RequireHibernateSupport") or bool(facts.get("HibernationSupported")))
        and (
            not required.get("RequireEncryptionInTransit")
            or bool(network.get("EncryptionInTransitSupported"))
        )
    )


RULES: tuple[Callable[[Mapping[str, Any], str, Facts], bool], ...] = (
    _sizes,
    _names,
    _processors,
    _generations,
    _three_way("BareMetal", lambda facts: bool(facts.get("BareMetal")), "excluded"),
    _three_way("BurstablePerformance", _is_burstable, "excluded"),
    _three_way("LocalStorage", lambda facts: bool(facts.get("InstanceStorageSupported")), "included"),
    _accelerators,
    _storage,
    _network,
)
