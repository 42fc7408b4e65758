"""The kubelet settings of a class that decide the size of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """An eviction threshold: an amount in base units, or, if `percent` is set, a share of the capacity."""

    amount: float = 0.0
    percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubelet:
    """The kubelet settings of a class that change a node's allocatable resources, in base units."""

    max_pods: int | None = None
    pods_per_core: int | None = None
    kube_reserved: Mapping[str, float] = field(default_factory=dict)
    system_reserved: Mapping[str, float] = field(default_factory=dict)
    eviction_hard: Mapping[str, Threshold] = field(default_factory=dict)
