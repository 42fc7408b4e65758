"""Keeps pods off machines with GPUs that their elastic quota refuses, by the rule of the bind.

Invariant: no machine is opened for a pod that its quota would refuse on it. Pods are counted one after
another, a pod without a machine by the largest GPU that it may get. So a machine for a later pod may have to
wait for the node of an earlier one, but none is bought needlessly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, pods_of
from broker.capacity.demand import units
from broker.controllers.elasticquota.reading import ElasticPods, Quota, gigabytes
from broker.controllers.elasticquota.use import ElasticUse, rejection
from broker.controllers.provisioning.pools import ServedPool
from broker.kube.cache import Cache
from broker.placement.gangs import GroupSizes, gang_of, is_member
from broker.placement.packing_model import PendingPod
from broker.placement.selectors import LESS, SelectorRequirement
from broker.quota.elastic import ElasticTotals
from broker.quota.elastic_gpu import needs_size
from broker.quota.elastic_labels import ElasticPod
from broker.quota.elastic_reclaim import totals_with
from providers.model import InstanceType

_MIB: Final = 1024


class _Waiting(NamedTuple):
    pending: PendingPod
    elastic: ElasticPod


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticRules:
    """The quotas in force. `served`: the schedulers that apply them. `gpu_gb`: without a node's label."""

    nodes: Cache[Node]
    quotas: Sequence[Quota]
    served: Collection[str]
    gpu_gb: int
    absent_is_zero: bool
    group_size: GroupSizes

    @property
    def reading(self) -> ElasticPods:
        return ElasticPods(self.nodes, gpu_gb=self.gpu_gb)

    def totals(self, bound: Iterable[Pod]) -> ElasticTotals:
        """The quotas with the pods that take room on nodes."""
        placed = ((pod, pod.spec.node_name) for pod in bound)
        use = ElasticUse.of(self.quotas, placed, self.reading, absent_is_zero=self.absent_is_zero)
        return use.totals

    def within(
        self,
        pending: Iterable[PendingPod],
        pods: Mapping[str, Pod],
        bound: Iterable[Pod],
        claims: Iterable[NodeClaim],
        sizes: Collection[int],
    ) -> tuple[list[PendingPod], dict[str, str]]:
        """The pods, limited to the sizes of GPU that their quotas allow, and why, by pod.

        `pods`: those that wait, by key. `bound`: all that take room. `sizes`: GB of the GPUs that served
        pools may have.
        """
        listed = [*pending]
        if not self.quotas or not sizes:
            return listed, {}
        placed = [*bound]
        machines = {key: claim for claim in claims if not claim.deleting for key in pods_of(claim)}
        totals, largest = self.totals(placed), max(sizes)
        waiting: list[_Waiting] = []
        for item in sorted(listed, key=lambda item: -item.priority):
            pod = pods.get(item.key)
            if pod is None or pod.spec.scheduler_name not in self.served:
                continue
            elastic = self.reading.read(pod)
            if item.key in machines:
                size = gigabytes(machines[item.key].labels, largest)
                totals = totals_with(totals, (elastic.with_gpus_of(size),))
            elif needs_size(elastic.requests):
                waiting.append(_Waiting(item, elastic))
            else:
                totals = totals_with(totals, (elastic,))
        before = started((item.gang for item in listed if item.gang), placed, self.group_size)
        before += Counter(item.gang for item in listed if item.key in machines)
        limited: dict[str, PendingPod] = {}
        reasons: dict[str, str] = {}
        for unit in units(waiting, lambda item: item.pending.gang):
            needed = needed_of(unit[0].pending, len(unit), before)
            bounds, after = _bounds([pod for _, pod in unit], totals, sizes, needed)
            for (item, elastic), refused in zip(unit, bounds, strict=True):
                if refused > largest:
                    continue
                below = SelectorRequirement(names.INSTANCE_GPU_MEMORY, LESS, bound=refused * _MIB)
                info = replace(item.info, node_selector=(*item.info.node_selector, below))
                limited[item.key] = replace(item, info=info)
                quota = rejection(after, elastic.with_gpus_of(largest))
                reasons[item.key] = f"with GPUs of {refused} GB or more, {quota}"
            totals = after
        return [limited.get(item.key, item) for item in listed], reasons


def gpu_sizes(pools: Iterable[ServedPool], types: Mapping[str, InstanceType]) -> frozenset[int]:
    """GB of one GPU of each type that the pools' requirements on types allow."""
    served = [pool.requirements for pool in pools]
    return frozenset(
        gpu.memory_mib // _MIB
        for type_ in types.values()
        if type_.gpus and any(required.allows(names.INSTANCE_TYPE, type_.name) for required in served)
        for gpu in type_.gpus
    )


def with_quota(reasons: Mapping[str, str], too_large: Mapping[str, str]) -> dict[str, str]:
    """The reasons of pods without a machine, with the quota in front that keeps them off larger GPUs."""
    return {key: "; ".join(filter(None, (too_large.get(key), text))) for key, text in reasons.items()}


def started(gangs: Iterable[str], bound: Iterable[Pod], sizes: GroupSizes) -> Counter[str]:
    """The number of pods of each of these gangs that have a node."""
    names_ = {*gangs}
    members = (gang_of(pod, sizes).name for pod in bound if is_member(pod)) if names_ else ()
    return Counter(name for name in members if name in names_)


def needed_of(pod: PendingPod, count: int, before: Mapping[str, int]) -> int:
    """The number of the pod's gang that must have a place, so that any gets one. `count`: those that wait.

    `before`: those with a place, by gang. A pod without a gang is alone.
    """
    return max(1, pod.gang_size - before[pod.gang]) if pod.gang_size else count


def _bounds(
    pods: Sequence[ElasticPod], totals: ElasticTotals, sizes: Collection[int], needed: int
) -> tuple[list[int], ElasticTotals]:
    """The least GB of a GPU that each pod of a gang may not have, and the totals with all of them.

    If fewer than `needed` would get a GPU one after another, so many have the same bound. If that gives them
    none, the gang counts nothing.
    """
    bounds, after = _one_by_one(pods, totals, sizes)
    if sum(bool(_largest_below(bound, sizes)) for bound in bounds) >= needed:
        return bounds, after
    common = _first_refused(totals, pods[:needed], max(sizes))
    size = _largest_below(common, sizes)
    if not size:
        return [common] * len(pods), totals
    after = totals_with(totals, (pod.with_gpus_of(size) for pod in pods[:needed]))
    rest, after = _one_by_one(pods[needed:], after, sizes)
    return [common] * needed + rest, after


def _one_by_one(
    pods: Sequence[ElasticPod], totals: ElasticTotals, sizes: Collection[int]
) -> tuple[list[int], ElasticTotals]:
    """The bound of each pod after those before it; one that gets no GPU counts nothing."""
    bounds: list[int] = []
    for pod in pods:
        bounds.append(_first_refused(totals, [pod], max(sizes)))
        if size := _largest_below(bounds[-1], sizes):
            totals = totals_with(totals, (pod.with_gpus_of(size),))
    return bounds, totals


def _largest_below(bound: int, sizes: Collection[int]) -> int:
    return max((size for size in sizes if size < bound), default=0)


def _first_refused(totals: ElasticTotals, pods: Sequence[ElasticPod], largest: int) -> int:
    """The least GB of a GPU with which the quota refuses the pods together; more than `largest` if none."""

    def refused(size: int) -> bool:
        after = totals
        for pod in pods:
            if rejection(after, pod.with_gpus_of(size)) is not None:
                return True
            after = totals_with(after, (pod.with_gpus_of(size),))
        return False

    return 1 + bisect_left(range(1, largest + 1), True, key=refused)
