"""NodePools of other controllers: which pods are theirs, and which pools no controller serves."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.controllers.provisioning.other_pools import (
    GROUP_UNKNOWN,
    KARPENTER_NOT_RUNNING,
    OtherPools,
    without_controller,
)
from broker.placement.pool_choice import AUTO_MODE
from tests.unit.capacity.builders import type_
from tests.unit.placement.builders import pod

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
TYPES = {
    item.name: item for item in (type_("m5.large"), type_("p5.48xlarge", vcpus=192, memory_gib=2048, gpus=8))
}


def pool(name: str = "theirs", group: str = AUTO_MODE, *, ready: bool = True, **spec: Any) -> NodePool:
    kind = "NodeClass" if group == AUTO_MODE else "EC2NodeClass"
    template = {"nodeClassRef": {"group": group, "kind": kind, "name": "default"}, "requirements": []}
    conditions = [{"type": "Ready", "status": "True", "reason": "Ready"}] if ready else []
    return NodePool.decode(
        {
            "metadata": {"name": name},
            "spec": {
                "template": {"spec": {**template, **spec.pop("template", {})}},
                **spec,
            },
            "status": {"conditions": conditions},
        }
    )


def rule(key: str, *values: str, operator: str = "In") -> Json:
    return {"key": key, "operator": operator, "values": [*values]}


GENERAL = {"requirements": [rule(f"{AUTO_MODE}/instance-category", "c", "m", "r")]}
SMALL = {"requirements": [rule(names.INSTANCE_TYPE, "m5.large")]}
WINDOWS = {"requirements": [rule(names.OS, "windows")]}
NOT_AUTO = {
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [rule(f"{AUTO_MODE}/compute-type", "auto", operator="NotIn")]}
                ]
            }
        }
    }
}


@pytest.mark.covers("FLT-04")
@pytest.mark.parametrize("group", [AUTO_MODE, names.KARPENTER_AWS, "karpenter.azure.com", "example.com"])
@pytest.mark.parametrize(
    ("spec", "wanted", "theirs"),
    [
        ({}, {}, True),
        ({"ready": False}, {}, False),
        ({"replicas": 1}, {}, False),
        ({"template": {"taints": [{"key": "t", "effect": "NoSchedule"}]}}, {}, False),
        ({}, {"nodeSelector": {names.NODEPOOL: "theirs"}}, True),
        ({}, {"nodeSelector": {names.NODEPOOL: "ours"}}, False),
        ({}, {"nodeSelector": {"beta.kubernetes.io/os": "linux"}}, True),
        ({"template": WINDOWS}, {"nodeSelector": {names.OS: "windows"}}, True),
        ({}, {"nodeSelector": {"team": "a"}}, False),
        ({}, {"requests": {"cpu": "64", GPU: "8"}}, True),
        ({}, {"requests": {"cpu": "64", GPU: "16"}}, False),
        ({"template": SMALL}, {"requests": {GPU: "1"}}, False),
        ({}, {"requests": {"example.com/device": "1"}}, True),
    ],
)  # fmt: skip
def test_pod_belongs_to_a_ready_pool_of_any_group_that_accepts_it(
    group: str, spec: Json, wanted: Json, theirs: bool
) -> None:
    others = OtherPools([pool(group=group, **spec)], lambda: TYPES)
    accepting = others.of(pod(**wanted))
    assert (accepting is not None) is theirs
    assert accepting is None or accepting.shown == f"NodePool theirs of group {group}"


@pytest.mark.covers("FLT-04")
@pytest.mark.parametrize(
    ("wanted", "theirs"),
    [
        ({}, True),
        ({"requests": {GPU: "1"}}, False),  # the default pool of Auto Mode has no accelerators
        ({"nodeSelector": {f"{AUTO_MODE}/compute-type": "auto"}}, True),
        (NOT_AUTO, False),
    ],
)
def test_pod_belongs_to_auto_mode_by_its_labels(wanted: Json, theirs: bool) -> None:
    others = OtherPools([pool(template=GENERAL)], lambda: TYPES)
    assert (others.of(pod(**wanted)) is not None) is theirs


@pytest.mark.covers("FLT-04")
@pytest.mark.parametrize(
    ("group", "alive", "reason"),
    [
        (AUTO_MODE, False, ""),
        ("karpenter.azure.com", False, ""),
        ("karpenter.k8s.gcp", False, ""),
        ("example.com", False, ""),
        (names.KARPENTER_AWS, True, ""),
        (names.KARPENTER_AWS, False, KARPENTER_NOT_RUNNING),
        ("capacity-broker.example", True, GROUP_UNKNOWN),
        ("karpenter.k8s.awss", True, GROUP_UNKNOWN),
    ],
)
def test_pool_is_reported_only_if_its_controller_is_known_to_be_absent(
    group: str, alive: bool, reason: str
) -> None:
    update = without_controller(pool(group=group, ready=False), karpenter_alive=alive)
    assert (update.reason if update else "") == reason


@pytest.mark.covers("FLT-04")
def test_pool_with_conditions_has_a_controller_whatever_its_group_is_like() -> None:
    assert without_controller(pool(group="capacity-broker.example"), karpenter_alive=False) is None
