"""The checks of `spec.kubelet`, which are Karpenter's, with a message for each invalid value."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.karpenter_aws_kubelet import EXPRESSION, INVALID, KubeletConfiguration, problems

VALID: tuple[Any, ...] = (
    {},
    {"maxPods": 110, "podsPerCore": 0, "clusterDNS": ["10.0.0.10"], "cpuCFSQuota": False},
    {"kubeReserved": {"cpu": "100m", "memory": "1Gi", "pid": "1000", "ephemeral-storage": "1e3"}},
    {"evictionHard": {"memory.available": "5%", "nodefs.inodesFree": "0", "pid.available": "100.0%"}},
    {
        "evictionSoft": {"imagefs.available": "10Gi"},
        "evictionSoftGracePeriod": {"imagefs.available": "1m30s"},
        "evictionMaxPodGracePeriod": 30,
        "evictionMinimumReclaim": {"nodefs.available": "500Mi"},
    },
    {"imageGCHighThresholdPercent": 80, "imageGCLowThresholdPercent": 60},
    {"topologyManagerPolicy": "restricted", "featureGates": {"A": True}, "unheardOf": [1]},
)
INVALID_VALUES: tuple[tuple[Any, str, str], ...] = (
    ({"maxPods": -1}, INVALID, "spec.kubelet.maxPods '-1' must be a whole number"),
    ({"maxPods": True}, INVALID, "spec.kubelet.maxPods 'True' must be a whole number"),
    ({"maxPods": 2**31}, INVALID, "must be a whole number from 0 to 2147483647"),
    ({"maxPods": "vcpus * 10"}, EXPRESSION, "spec.kubelet.maxPods 'vcpus * 10' is an expression"),
    ({"podsPerCore": "ten"}, INVALID, "spec.kubelet.podsPerCore 'ten' must be a whole number"),
    ({"clusterDNS": "10.0.0.10"}, INVALID, "spec.kubelet.clusterDNS '10.0.0.10' must be a list"),
    ({"cpuCFSQuota": "yes"}, INVALID, "spec.kubelet.cpuCFSQuota 'yes' must be true or false"),
    ({"kubeReserved": []}, INVALID, "spec.kubelet.kubeReserved '[]' must be a map"),
    (
        {"kubeReserved": {"nvidia.com/gpu": "1"}},
        INVALID,
        "kubeReserved has an unknown key 'nvidia.com/gpu'; known are cpu",
    ),
    ({"kubeReserved": {"cpu": 1}}, INVALID, "spec.kubelet.kubeReserved[cpu] '1' must be text"),
    (
        {"systemReserved": {"cpu": "-1"}},
        INVALID,
        "spec.kubelet.systemReserved[cpu] '-1' must not be negative",
    ),
    (
        {"systemReserved": {"memory": "max_pods * 11"}},
        EXPRESSION,
        "systemReserved[memory] 'max_pods * 11' is an expression",
    ),
    (
        {"evictionHard": {"memory.available": "101%"}},
        INVALID,
        "evictionHard[memory.available] '101%' must be a percentage",
    ),
    ({"evictionHard": {"memory.available": ""}}, INVALID, "evictionHard[memory.available]"),
    ({"evictionHard": {"memory.available": "nan%"}}, INVALID, "must be a percentage"),
    ({"evictionMinimumReclaim": {"cpu": "1"}}, INVALID, "evictionMinimumReclaim has an unknown key 'cpu'"),
    ({"evictionHard": {"memory.available": "-1Gi"}}, INVALID, "a quantity of zero or more"),
    ({"evictionSoftGracePeriod": {"pid.available": "soon"}}, INVALID, "must be a duration of zero or more"),
    ({"evictionSoftGracePeriod": {"pid.available": "-1s"}}, INVALID, "must be a duration of zero or more"),
    ({"evictionSoft": {"pid.available": "5%"}}, INVALID, "evictionSoft[pid.available] has no counterpart"),
    (
        {"evictionSoftGracePeriod": {"pid.available": "5s"}},
        INVALID,
        "evictionSoftGracePeriod[pid.available] has no",
    ),
    ({"imageGCHighThresholdPercent": 101}, INVALID, "must be a whole number from 0 to 100"),
    (
        {"imageGCHighThresholdPercent": 60, "imageGCLowThresholdPercent": 60},
        INVALID,
        "imageGCHighThresholdPercent must be greater than imageGCLowThresholdPercent",
    ),
    (
        {"registerWithTaints": []},
        INVALID,
        "spec.kubelet.registerWithTaints is set from the taints of the NodeClaim",
    ),
)


@pytest.mark.covers("CUR-01")
@pytest.mark.parametrize("written", VALID)
def test_valid_settings_have_no_problem_and_are_kept(written: Any) -> None:
    kubelet = KubeletConfiguration.model_validate(written)
    assert (problems(kubelet), kubelet.wire()) == ([], written)
    assert problems(None) == []


@pytest.mark.covers("CUR-01")
@pytest.mark.parametrize(("written", "reason", "message"), INVALID_VALUES)
def test_invalid_setting_is_named_with_its_value(written: Any, reason: str, message: str) -> None:
    ((given, text),) = problems(KubeletConfiguration.model_validate(written))
    assert given == reason and message in text
