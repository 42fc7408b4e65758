"""On-Demand prices that are shipped with the broker, for comparisons before AWS's prices are read.

US dollars an hour for Linux on shared tenancy in us-east-1, from the public EC2 On-Demand price list of
January 2026. A missing type or Region has no price: it is unknown, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from providers.model import InstanceType

_SMALL = "nano micro small medium large xlarge 2xlarge"
_TO_24 = "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge"
_TO_32 = f"{_TO_24} 32xlarge"
_TO_48 = f"{_TO_24} 48xlarge"
_TO_48A = f"{_TO_32} 48xlarge"
_GRAVITON = "medium large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge"
_GRAVITON_4 = f"{_GRAVITON} 24xlarge 48xlarge"

# Families whose price follows the size: the price of an xlarge, and the sizes that there are.
_PROPORTIONAL: Mapping[str, tuple[float, str]] = {
    "t3": (0.1664, _SMALL),
    "t3a": (0.1504, _SMALL),
    "t4g": (0.1344, _SMALL),
    "m5": (0.192, _TO_24),
    "m5a": (0.172, _TO_24),
    "m5d": (0.226, _TO_24),
    "m5n": (0.238, _TO_24),
    "m6a": (0.1728, _TO_48A),
    "m6g": (0.154, _GRAVITON),
    "m6i": (0.192, _TO_32),
    "m6id": (0.2373, _TO_32),
    "m7a": (0.23184, f"medium {_TO_48A}"),
    "m7g": (0.1632, _GRAVITON),
    "m7i": (0.2016, _TO_48),
    "m8g": (0.17952, _GRAVITON_4),
    "m8i": (0.21168, f"{_TO_48A} 96xlarge"),
    "c5": (0.17, "large xlarge 2xlarge 4xlarge 9xlarge 12xlarge 18xlarge 24xlarge"),
    "c5a": (0.154, _TO_24),
    "c5n": (0.216, "large xlarge 2xlarge 4xlarge 9xlarge 18xlarge"),
    "c6a": (0.153, _TO_48A),
    "c6g": (0.136, _GRAVITON),
    "c6i": (0.17, _TO_32),
    "c6in": (0.2268, _TO_32),
    "c7a": (0.20528, f"medium {_TO_48A}"),
    "c7g": (0.145, _GRAVITON),
    "c7i": (0.1785, _TO_48),
    "c8g": (0.15952, _GRAVITON_4),
    "c8i": (0.18742, f"{_TO_48A} 96xlarge"),
    "r5": (0.252, _TO_24),
    "r5a": (0.226, _TO_24),
    "r6a": (0.2268, _TO_48A),
    "r6g": (0.2016, _GRAVITON),
    "r6i": (0.252, _TO_32),
    "r7a": (0.3043, f"medium {_TO_48A}"),
    "r7g": (0.2142, _GRAVITON),
    "r7i": (0.2646, _TO_48),
    "r8g": (0.23564, _GRAVITON_4),
    "r8i": (0.27784, f"{_TO_48A} 96xlarge"),
}

# Accelerated types, each by itself.
_EACH: Mapping[str, float] = {
    "g4dn.xlarge": 0.526,
    "g4dn.2xlarge": 0.752,
    "g4dn.4xlarge": 1.204,
    "g4dn.8xlarge": 2.176,
    "g4dn.12xlarge": 3.912,
    "g4dn.16xlarge": 4.352,
    "g4dn.metal": 7.824,
    "g5.xlarge": 1.006,
    "g5.2xlarge": 1.212,
    "g5.4xlarge": 1.624,
    "g5.8xlarge": 2.448,
    "g5.12xlarge": 5.672,
    "g5.16xlarge": 4.096,
    "g5.24xlarge": 8.144,
    "g5.48xlarge": 16.288,
    "g6.xlarge": 0.8048,
    "g6.2xlarge": 0.9776,
    "g6.4xlarge": 1.3232,
    "g6.8xlarge": 2.0144,
    "g6.12xlarge": 4.6016,
    "g6.16xlarge": 3.3968,
    "g6.24xlarge": 6.6752,
    "g6.48xlarge": 13.3504,
    "g6e.xlarge": 1.861,
    "g6e.2xlarge": 2.24208,
    "g6e.4xlarge": 3.00424,
    "g6e.8xlarge": 4.52856,
    "g6e.12xlarge": 10.49264,
    "g6e.16xlarge": 7.57719,
    "g6e.24xlarge": 15.06559,
    "g6e.48xlarge": 30.13118,
    "gr6.4xlarge": 1.5392,
    "gr6.8xlarge": 2.4464,
    "p3.2xlarge": 3.06,
    "p3.8xlarge": 12.24,
    "p3.16xlarge": 24.48,
    "p3dn.24xlarge": 31.212,
    "p4d.24xlarge": 21.957642,
    "p4de.24xlarge": 27.44705,
    "p5.4xlarge": 6.88,
    "p5.48xlarge": 55.04,
    "p5en.48xlarge": 63.296,
    "p6-b200.48xlarge": 113.9328,
    "dl1.24xlarge": 13.10904,
    "inf1.xlarge": 0.228,
    "inf1.2xlarge": 0.362,
    "inf1.6xlarge": 1.18,
    "inf1.24xlarge": 4.721,
    "inf2.xlarge": 0.7582,
    "inf2.8xlarge": 1.96786,
    "inf2.24xlarge": 6.49063,
    "inf2.48xlarge": 12.98127,
    "trn1.2xlarge": 1.34375,
    "trn1.32xlarge": 21.5,
    "trn1n.32xlarge": 24.78,
}

_XLARGES = {"nano": 1 / 32, "micro": 1 / 16, "small": 1 / 8, "medium": 1 / 4, "large": 1 / 2, "xlarge": 1.0}

PRICES: Mapping[str, Mapping[str, float]] = {
    "us-east-1": {
        **{
            f"{family}.{size}": round(price * (_XLARGES.get(size) or float(size.removesuffix("xlarge"))), 6)
            for family, (price, sizes) in _PROPORTIONAL.items()
            for size in sizes.split()
        },
        **_EACH,
    }
}


@cache
def shipped_types() -> Mapping[str, InstanceType]:
    """The types of the table with their names, zones and prices alone, for readers that do not call AWS."""
    return {
        name: InstanceType(
            name=name, vcpus=0, memory_mib=0, zones=frozenset({f"{region}a"}), on_demand_price=usd
        )
        for region, listed in PRICES.items()
        for name, usd in listed.items()
    }
