"""Why a pod gets no machine, counted by instance types: no node exists that could be counted."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Taint
from broker.placement.packing_model import MachineOption
from broker.placement.type_reasons import over_limits
from tests.unit.placement.builders import node_affinity
from tests.unit.placement.packing import TYPE, option, pack, pending
from tests.unit.placement.test_packing import A, B

TYPES = [option(f"m{n}.large", zone=zone, labels={"arch": "amd64"}) for n in (4, 5, 6) for zone in (A, B)]
BOTH = [
    {"key": "disk", "operator": "In", "values": ["ssd"]},
    {"key": "cores", "operator": "Gt", "values": ["8"]},
]


def reason(options: list[MachineOption], **pod: Any) -> str:
    (text,) = pack([pending(**pod)], options, room={}).reasons.values()
    return text.removeprefix("NodePool default: ")


@pytest.mark.covers("FLT-35")
@pytest.mark.parametrize(
    ("pod", "text"),
    [
        (
            {"nodeSelector": {"arch": "arm64"}},
            "3 instance types do not match the pod's node selector (arch In [arm64])",
        ),
        (
            {"nodeSelector": {TYPE: "m5.lrage"}},
            f"3 instance types do not match the pod's node selector ({TYPE} In [m5.lrage])",
        ),
        (
            {"affinity": node_affinity({"matchExpressions": BOTH})},
            "3 instance types do not match the pod's node affinity (disk In [ssd], cores Gt [8])",
        ),
        (
            {"nodeSelector": {"arch": "arm64"}, "affinity": node_affinity({"matchExpressions": BOTH[:1]})},
            "3 instance types do not match the pod's node selector and affinity (arch In [arm64], "
            "disk In [ssd])",
        ),
        (
            {"affinity": node_affinity({"matchExpressions": BOTH}, {"matchExpressions": BOTH[:1]})},
            "3 instance types do not match the pod's node affinity (disk In [ssd], cores Gt [8] or "
            "disk In [ssd])",
        ),
        ({"cpu": "9"}, "3 instance types have too little cpu (2 for pods at most, the pod requests 9)"),
        ({"requests": {"nvidia.com/gpu": "1"}}, "3 instance types have no nvidia.com/gpu"),
        (
            {"requests": {"nvidia.com/gpus": "1"}},
            "3 instance types have no nvidia.com/gpus; the nearest name is nvidia.com/gpu",
        ),
        ({"requests": {"nvidia.com/mig-1g.5gb": "1"}}, "3 instance types have no nvidia.com/mig-1g.5gb"),
    ],
    ids=["selector", "type", "affinity", "both", "terms", "room", "device", "misspelt", "plugin"],
)
def test_types_of_all_zones_count_once_and_no_node_is_named(pod: dict[str, Any], text: str) -> None:
    assert reason(TYPES, **pod) == text


@pytest.mark.covers("FLT-35")
def test_tenancy_that_no_machine_has_names_the_requirement_of_a_pool() -> None:
    options = [option("m5.large", zone=A, labels={names.INSTANCE_TENANCY: "default"})]
    assert reason(options, nodeSelector={names.INSTANCE_TENANCY: "dedicated"}) == (
        f"1 instance type does not match the pod's node selector ({names.INSTANCE_TENANCY} In [dedicated]): "
        f"a NodePool has it if its requirement {names.INSTANCE_TENANCY} leaves only that value"
    )


def test_types_of_another_architecture_are_those_of_the_images_of_the_class() -> None:
    options = [option("m5.large", zone=A, labels={names.ARCH: "amd64"})]
    assert reason(options, nodeSelector={names.ARCH: "arm64"}) == (
        "1 instance type does not match the pod's node selector (kubernetes.io/arch In [arm64]); "
        "they are amd64: see the architecture of the images of the NodePool's class"
    )


def test_a_type_counts_where_it_comes_nearest_to_the_pod() -> None:
    """Two types are in the pod's zone and too small; the third is only in another zone."""
    options = [*TYPES[:4], TYPES[5]]
    assert reason(options, cpu="9", nodeSelector={"topology.kubernetes.io/zone": A}) == (
        "2 instance types have too little cpu (2 for pods at most, the pod requests 9), "
        "1 instance type does not match the pod's node selector (topology.kubernetes.io/zone In [us-east-1a])"
    )


def test_the_largest_room_is_named_and_each_resource_that_lacks() -> None:
    options = [option("m5.large", cpu="1930m"), option("m5.xlarge", cpu="3920m", memory="512Mi")]
    assert reason(options, cpu="8") == (
        "2 instance types have too little cpu (3920m for pods at most, the pod requests 8), "
        "1 instance type has too little memory (512Mi for pods at most, the pod requests 1Gi)"
    )


def test_a_test_that_no_type_meets_is_named_without_those_that_some_meet() -> None:
    chosen = {TYPE: "m5.large", "arch": "arm64"}
    assert reason(TYPES, nodeSelector=chosen).endswith("(arch In [arm64])")
    assert reason(TYPES, nodeSelector={TYPE: "m5.large", "topology.kubernetes.io/zone": "c"}).endswith(
        "/zone In [c])"
    )


def test_tests_that_no_type_meets_at_once_are_all_named() -> None:
    options = [option("m5.large", zone=A), option("p5.48xlarge", zone=B)]
    zone = {"topology.kubernetes.io/zone": A, TYPE: "p5.48xlarge"}
    assert reason(options, nodeSelector=zone) == (
        f"2 instance types do not match the pod's node selector ({TYPE} In [p5.48xlarge], "
        "topology.kubernetes.io/zone In [us-east-1a])"
    )


def test_each_taint_is_named_as_kubectl_writes_it() -> None:
    taints = (Taint(key="gpu", value="yes", effect="NoSchedule"), Taint(key="team", effect="NoExecute"))
    options = [option("m5.large", taints=taints), option("m5.xlarge", taints=taints)]
    assert reason(options) == (
        "2 instance types have a taint that the pod does not tolerate (gpu=yes:NoSchedule, team:NoExecute)"
    )


@pytest.mark.parametrize(
    ("pools", "named"),
    [
        ("NodePool web", ["web"]),
        ("NodePools team, web", ["team", "web"]),
        ("NodePools a, b and 2 more", ["a", "b"]),
    ],
)
def test_pools_at_a_limit_are_read_from_the_reason_that_names_them(pools: str, named: list[str]) -> None:
    reason = f"NodePool big: it is not Ready; {pools}: its limit of cpu is 4, its nodes and claims use 4"
    assert over_limits(reason) == [(pool, "cpu") for pool in named]
