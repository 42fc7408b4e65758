"""GPU memory in GB, derived from whole GPUs and from MIG profiles.

A profile such as `nvidia.com/mig-2g.20gb` has its memory in its name. NVIDIA's names may have slices before
it and attributes behind it, as in `1c.3g.20gb` and `1g.24gb-me` (MIG User Guide, "Device names"). Slices of
MPS do not count. Source: nos, pkg/gpu/util/resource.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

GPU: Final = "nvidia.com/gpu"
GPU_MEMORY: Final = "nos.nebuly.com/gpu-memory"
_PROFILE: Final = re.compile(r"nvidia\.com/mig-(?:.*[-.+_])?[0-9]+g\.([0-9]+)gb(?:[-.+_].*)?")


def gpu_memory(requests: Mapping[str, int], gb_per_gpu: int) -> int:
    """The memory of all requested GPUs and MIG devices."""
    total = requests.get(GPU, 0) * gb_per_gpu
    for name, count in requests.items():
        if profile := _PROFILE.fullmatch(name):
            total += int(profile[1]) * count
    return total


def needs_size(requests: Mapping[str, int]) -> bool:
    """Whether the memory depends on the GPUs of the node."""
    return requests.get(GPU, 0) > 0


def with_gpu_memory(requests: Mapping[str, int], gb_per_gpu: int) -> dict[str, int]:
    """The requests with their GPU memory, which replaces a number that the pod names itself."""
    memory = gpu_memory(requests, gb_per_gpu)
    return {**requests, GPU_MEMORY: memory} if memory else dict(requests)
