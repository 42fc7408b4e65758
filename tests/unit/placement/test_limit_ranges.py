"""The requests that LimitRanges give to the containers of DaemonSets."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.core import PodSpec
from broker.apis.limits import LimitRange
from broker.placement.limit_ranges import default_requests, with_defaults
from broker.placement.quantities import spec_requests

Json = dict[str, Any]
CPU = {"type": "Container", "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}

THREE = {"type": "Container", "defaultRequest": {"cpu": "3"}}


def limit_range(*items: Json, name: str = "l") -> LimitRange:
    return LimitRange.decode({"metadata": {"name": name, "namespace": "a"}, "spec": {"limits": [*items]}})


@pytest.mark.covers("FLT-36")
@pytest.mark.parametrize(
    ("ranges", "resources", "cpu"),
    [
        ([], {}, 0),
        ([limit_range(CPU)], {}, 1000),
        ([limit_range(CPU)], {"requests": {"cpu": "100m"}}, 100),
        ([limit_range(CPU)], {"limits": {"cpu": "4"}}, 4000),  # a limit is the request, before the range
        ([limit_range({"type": "Container", "default": {"cpu": "2"}})], {}, 2000),
        ([limit_range({**CPU, "type": "Pod"})], {}, 0),
        ([limit_range(CPU, name="b"), limit_range(THREE, name="a")], {}, 3000),
    ],
)  # fmt: skip
def test_container_without_a_request_gets_its_namespaces_default(
    ranges: list[LimitRange], resources: Json, cpu: int
) -> None:
    spec = PodSpec.model_validate({"containers": [{"name": "c", "resources": resources}]})
    assert spec_requests(with_defaults(spec, default_requests(ranges))).get("cpu", 0) == cpu


@pytest.mark.covers("FLT-36")
def test_containers_of_the_start_and_sidecars_get_defaults_too() -> None:
    sidecar = {"name": "s", "restartPolicy": "Always"}
    spec = PodSpec.model_validate({"containers": [{"name": "c"}], "initContainers": [sidecar]})
    assert spec_requests(with_defaults(spec, default_requests([limit_range(CPU)])))["cpu"] == 2000
