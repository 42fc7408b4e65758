"""Reads elastic quotas, and pods as they count in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.apis import names, nos
from broker.apis.core import Node, Pod
from broker.apis.units import units_or_zero
from broker.kube.cache import Cache
from broker.placement.quantities import PODS, pod_requests
from broker.quota.elastic_gpu import with_gpu_memory
from broker.quota.elastic_labels import ElasticPod
from broker.quota.elastic_resolve import ElasticDeclaration

Quota = nos.ElasticQuota | nos.CompositeElasticQuota


def quota_id(quota: Quota) -> str:
    return f"{quota.KIND.kind}/{quota.key}"


def declarations(quotas: Iterable[Quota]) -> list[ElasticDeclaration]:
    """The quotas that are not being deleted."""
    return [declaration(quota) for quota in quotas if not quota.deleting]


def declaration(quota: Quota) -> ElasticDeclaration:
    """The quota as decisions read it. An invalid quantity counts as zero."""
    return ElasticDeclaration(
        id=quota_id(quota),
        shown=f"{quota.KIND.kind} {quota.key}",
        created=quota.created,
        namespaces=namespaces_of(quota),
        min=_amounts(quota.spec.min),
        max=None if quota.spec.max is None else _amounts(quota.spec.max),
    )


def namespaces_of(quota: Quota) -> tuple[str, ...]:
    spec = quota.spec
    return spec.namespaces if isinstance(spec, nos.CompositeElasticQuotaSpec) else (quota.namespace,)


class ElasticPods:
    """Reads pods with the GPU memory of their node, or `gpu_gb` if the node does not show it.

    A pod without a node has it by `gpu_gb`: which nodes it may have is decided when it is placed.
    """

    def __init__(self, nodes: Cache[Node], *, gpu_gb: int) -> None:
        self._nodes, self._gpu_gb = nodes, gpu_gb

    def read(self, pod: Pod, node: str = "") -> ElasticPod:
        """`node`: of a pod with a place that the caches do not show."""
        return ElasticPod(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            created=pod.created,
            requests=self._requests(pod, node or pod.spec.node_name),
            priority=pod.spec.priority,
        )

    def _requests(self, pod: Pod, node: str) -> dict[str, int]:
        known = self._nodes.get(node) if node else None
        size = gigabytes(known.labels if known else {}, self._gpu_gb)
        return {**with_gpu_memory(pod_requests(pod), size), PODS: 1}


def gigabytes(labels: Mapping[str, str], default: int) -> int:
    """The memory of one GPU, from Karpenter's label, which has MiB."""
    text = labels.get(names.INSTANCE_GPU_MEMORY, "")
    return int(text) // 1024 if text.isascii() and text.isdigit() else default


def _amounts(quantities: Mapping[str, str]) -> dict[str, int]:
    return {name: units_or_zero(name, text) for name, text in quantities.items()}
