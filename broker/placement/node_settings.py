"""The settings of a claim's node that its user data holds: labels, taints and network adapters.

Claims with equal settings share one launch template (`template_key`).
"""

from __future__ import annotations

from typing import Final

import orjson

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.types import EFA

UNREGISTERED: Final = f"{names.UNREGISTERED_TAINT}:NoExecute"
# The kubelet may set only these of Kubernetes' own labels on its node (NodeRestriction admission).
_KUBELET_MAY_SET: Final = ("node.kubernetes.io/", "kubelet.kubernetes.io/")


def template_key(claim: NodeClaim) -> str:
    """Equal for claims that share one launch template."""
    content = [node_labels(claim), node_taints(claim), *([EFA] if requests_efa(claim) else [])]
    return orjson.dumps(content, option=orjson.OPT_SORT_KEYS).decode()


def requests_efa(claim: NodeClaim) -> bool:
    """Whether the claim requests EFA adapters."""
    return EFA in claim.spec.resources.requests


def node_labels(claim: NodeClaim) -> dict[str, str]:
    """The labels that the kubelet may set on its own node."""
    return {key: value for key, value in sorted(claim.labels.items()) if _kubelet_may_set(key)}


def _kubelet_may_set(key: str) -> bool:
    domain = key.partition("/")[0] if "/" in key else ""
    kubernetes = domain in ("kubernetes.io", "k8s.io") or domain.endswith((".kubernetes.io", ".k8s.io"))
    return not kubernetes or key.startswith(_KUBELET_MAY_SET)


def node_taints(claim: NodeClaim) -> list[str]:
    """The taints in the kubelet's words, with the one that keeps pods off until the node is registered."""
    taints = (*claim.spec.taints, *claim.spec.startup_taints)
    return [f"{t.key}={t.value}:{t.effect}" if t.value else f"{t.key}:{t.effect}" for t in taints] + [
        UNREGISTERED
    ]
