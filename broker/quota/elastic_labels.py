"""Which pods are within the min of their quota, and the sum that its status shows.

Pods count in the order of their creation, then of priority from low to high, of size and of name. A pod is
within quota if the sum up to it is within min. Source: nos, internal/controllers/elasticquota.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cmp_to_key
from typing import Final, Literal

from broker.quota.elastic import Amounts, added, exceeds
from broker.quota.elastic_gpu import with_gpu_memory

QuotaLabel = Literal["in-quota", "over-quota"]
IN_QUOTA: Final = "in-quota"
OVER_QUOTA: Final = "over-quota"


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticPod:
    """A pod of a quota. `borrowed`: it is over quota by `labels`. `protected`: a budget forbids its
    eviction."""

    uid: str
    namespace: str
    name: str
    created: datetime
    requests: Amounts = field(default_factory=dict)
    priority: int = 0
    borrowed: bool = False
    protected: bool = False

    def with_gpus_of(self, gigabytes: int) -> ElasticPod:
        """The pod as it counts on a node with GPUs of this size."""
        return replace(self, requests=with_gpu_memory(self.requests, gigabytes))


def in_order(pods: Iterable[ElasticPod]) -> list[ElasticPod]:
    """The order in which pods use the min of their quota."""
    by_size = cmp_to_key(_compare_size)
    return sorted(
        pods, key=lambda pod: (pod.created, pod.priority, by_size(pod.requests), pod.name, pod.namespace)
    )


def labels(pods: Iterable[ElasticPod], min_: Amounts) -> dict[str, QuotaLabel]:
    """The label of each pod by uid, of all that take room. Resources that min does not name are left out."""
    used: dict[str, int] = {}
    result: dict[str, QuotaLabel] = {}
    for pod in in_order(pods):
        used = added(used, pod.requests)
        result[pod.uid] = OVER_QUOTA if exceeds(used, min_) else IN_QUOTA
    return result


def used_amounts(pods: Iterable[ElasticPod], min_: Amounts, max_: Amounts | None) -> dict[str, int]:
    """The sum of running pods over the resources of min and max, with zeros."""
    total = dict.fromkeys({**min_, **(max_ or {})}, 0)
    for pod in pods:
        for name in total:
            total[name] += pod.requests.get(name, 0)
    return total


def _compare_size(left: Mapping[str, int], right: Mapping[str, int]) -> int:
    """Smaller if no resource is larger; 0 if neither is smaller."""
    names = left.keys() | right.keys()
    less = all(left.get(name, 0) <= right.get(name, 0) for name in names)
    more = all(left.get(name, 0) >= right.get(name, 0) for name in names)
    return more - less
