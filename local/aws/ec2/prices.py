"""Approximate prices of an On-Demand hour: enough to order pools for `lowest-price`.

Known prices are us-east-1's for Linux; other types cost their family's rate for each vCPU. Only the order
matters: these numbers are not shown.
"""

from __future__ import annotations

import re

from moto.ec2.models.instance_types import INSTANCE_TYPES

PER_HOUR: dict[str, float] = {
    "t3.nano": 0.0052,
    "t3.micro": 0.0104,
    "t3.small": 0.0208,
    "t3.medium": 0.0416,
    "g4dn.xlarge": 0.526,
    "g5.xlarge": 1.006,
    "g5.48xlarge": 16.288,
    "g6.xlarge": 0.8048,
    "p3.2xlarge": 3.06,
    "p4d.24xlarge": 21.96,
    "p4de.24xlarge": 27.45,
    "p5.4xlarge": 6.88,
    "p5.48xlarge": 55.04,
    "p5en.48xlarge": 63.30,
    "p6-b200.48xlarge": 113.93,
    "trn1.32xlarge": 21.50,
    "trn2.48xlarge": 35.76,
}
PER_VCPU: dict[str, float] = {
    "a": 0.0255,
    "c": 0.0425,
    "d": 0.0690,
    "g": 0.2515,
    "h": 0.0585,
    "i": 0.0780,
    "inf": 0.0571,
    "m": 0.0480,
    "p": 0.3200,
    "r": 0.0630,
    "t": 0.0416,
    "trn": 0.1680,
    "u": 0.1220,
    "x": 0.1042,
    "z": 0.0930,
}
ELSE_PER_VCPU = 0.05
FAMILY = re.compile(r"^[a-z]+")


def per_hour(instance_type: str) -> float:
    if instance_type in PER_HOUR:
        return PER_HOUR[instance_type]
    known = INSTANCE_TYPES.get(instance_type, {})
    vcpus = known.get("VCpuInfo", {}).get("DefaultVCpus", 2)
    family = FAMILY.match(instance_type)
    # Graviton and AMD cost a little less than Intel of the same size
    processor = (
        0.85 if "g." in instance_type or "gd." in instance_type else 0.9 if "a." in instance_type else 1.0
    )
    return float(PER_VCPU.get(family.group() if family else "", ELSE_PER_VCPU) * vcpus * processor)
