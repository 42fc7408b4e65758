"""The older names of node labels, which the kubelet and the cloud's controller still write.

A rule on an older name is a rule on the present one: every node has both, with one value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Other names of these labels, which a claim may use: Kubernetes' from before they were stable, and the EBS
# driver's on volumes (karpenter pkg/apis/v1/labels.go, its AWS provider's pkg/operator).
RENAMED: Final = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "topology.ebs.csi.aws.com/zone": "topology.kubernetes.io/zone",
    "beta.kubernetes.io/arch": "kubernetes.io/arch",
    "beta.kubernetes.io/os": "kubernetes.io/os",
    "beta.kubernetes.io/instance-type": "node.kubernetes.io/instance-type",
}


def stable(key: str) -> str:
    """The label's present name."""
    return RENAMED.get(key, key)


def by_present_names(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels by their present names; a present name wins over an older one."""
    older = {stable(key): value for key, value in labels.items() if key in RENAMED}
    return older | {key: value for key, value in labels.items() if key not in RENAMED}
