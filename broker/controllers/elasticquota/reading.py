"""Reads elastic quotas, and pods as they count in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from broker.apis import names, nos
from broker.apis.core import Node, Pod
from broker.apis.units import units
from broker.kube.cache import Cache
from broker.placement.quantities import PODS, pod_requests
from broker.quota.elastic_gpu import with_gpu_memory
from broker.quota.elastic_labels import ElasticPod
from broker.quota.elastic_resolve import ElasticDeclaration

Quota = nos.ElasticQuota | nos.CompositeElasticQuota

_FIRST: Final = datetime.min.replace(tzinfo=UTC)


def quota_id(quota: Quota) -> str:
    return f"{quota.KIND.kind}/{quota.key}"


def declarations(quotas: Iterable[Quota]) -> list[ElasticDeclaration]:
    """The quotas that are not being deleted. An invalid quantity counts as zero."""
    return [
        ElasticDeclaration(
            id=quota_id(quota),
            shown=f"{quota.KIND.kind} {quota.key}",
            created=quota.metadata.creation_timestamp or _FIRST,
            namespaces=namespaces_of(quota),
            min=_amounts(quota.spec.min),
            max=None if quota.spec.max is None else _amounts(quota.spec.max),
        )
        for quota in quotas
        if not quota.deleting
    ]


def namespaces_of(quota: Quota) -> tuple[str, ...]:
    spec = quota.spec
    return spec.namespaces if isinstance(spec, nos.CompositeElasticQuotaSpec) else (quota.namespace,)


class ElasticPods:
    """Reads pods with the GPU memory of their node, or `gpu_gb` if the node does not show it."""

    def __init__(self, nodes: Cache[Node], *, gpu_gb: int) -> None:
        self._nodes, self._gpu_gb = nodes, gpu_gb

    def read(self, pod: Pod) -> ElasticPod:
        return ElasticPod(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            created=pod.metadata.creation_timestamp or _FIRST,
            requests=self.requests(pod),
            priority=pod.spec.priority,
        )

    def requests(self, pod: Pod) -> dict[str, int]:
        return {**with_gpu_memory(pod_requests(pod.spec), self._size(pod)), PODS: 1}

    def _size(self, pod: Pod) -> int:
        """GB of one GPU: by the node of the pod, or by the nodes that its selector matches."""
        if pod.spec.node_name:
            node = self._nodes.get(pod.spec.node_name)
            return _gigabytes(node.labels if node else {}, self._gpu_gb)
        selector = pod.spec.node_selector.items()
        if selector:
            for node in self._nodes.list():
                if selector <= node.labels.items():
                    return _gigabytes(node.labels, self._gpu_gb)
        return self._gpu_gb


def _gigabytes(labels: Mapping[str, str], default: int) -> int:
    """From Karpenter's label, which has MiB of one GPU."""
    text = labels.get(names.INSTANCE_GPU_MEMORY, "")
    return int(text) // 1024 if text.isascii() and text.isdigit() else default


def _amounts(quantities: Mapping[str, str]) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for name, text in quantities.items():
        try:
            amounts[name] = units(name, text)
        except ValueError:
            amounts[name] = 0
    return amounts
