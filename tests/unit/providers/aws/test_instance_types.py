"""Types of instances from EC2's description."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.capacity.types import capacity, has_accelerator, type_labels
from broker.reservations.sizing import InstanceFlavor, size
from providers.aws.instance_types import instance_type
from tests.unit.capacity.builders import node_class

GPU = "nvidia.com/gpu"


def described(name: str, **gpu: Any) -> Any:
    card = {"Name": "L4", "Manufacturer": "NVIDIA", "MemoryInfo": {"SizeInMiB": 2861}, **gpu}
    return {
        "InstanceType": name,
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "VCpuInfo": {"DefaultVCpus": 2},
        "MemoryInfo": {"SizeInMiB": 8192},
        "GpuInfo": {"Gpus": [card]},
    }


@pytest.mark.covers("FLT-32")
@pytest.mark.parametrize(
    ("name", "gpu", "count"),
    [
        ("g6f.large", {"Count": 0, "LogicalGpuCount": 1, "GpuPartitionSize": 0.125}, 1),
        ("gr6f.4xlarge", {"LogicalGpuCount": 1, "GpuPartitionSize": 0.5}, 1),
        ("g6.12xlarge", {"Count": 4, "LogicalGpuCount": 4, "GpuPartitionSize": 1.0}, 4),
        ("g5.xlarge", {"Count": 1}, 1),
    ],
)
def test_gpus_are_counted_as_the_device_plugin_shows_them(name: str, gpu: dict[str, Any], count: int) -> None:
    type_ = instance_type(described(name, **gpu), zones=frozenset({"us-east-1a"}))
    assert type_ is not None and has_accelerator(type_)
    assert capacity(type_, node_class())[GPU] == count
    assert type_labels(type_)[names.INSTANCE_GPU_COUNT] == str(count)
    flavor = InstanceFlavor(name="f", instance_types=(name,), zones=("us-east-1a",), labels={})
    assert size(flavor, {GPU: 8}, {name: type_}).count == 8 / count
