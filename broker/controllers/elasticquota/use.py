"""Elastic quota in the scheduler: how much each quota uses, and which of its pods borrow.

Invariant: the pods that count as use are the pods that can be reclaimed. They are all that take room, also
those that never start; the status of a quota counts running pods only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from broker.apis.core import Pod
from broker.controllers.elasticquota.reading import ElasticPods, Quota, declarations
from broker.quota.elastic import ElasticRefusal, ElasticTotals
from broker.quota.elastic_labels import OVER_QUOTA, ElasticPod, labels
from broker.quota.elastic_reclaim import totals_with
from broker.quota.elastic_resolve import in_force

_TEXTS: Final = {
    ElasticRefusal.OVER_MAX: "pod is rejected because its elastic quota {0} would exceed its max",
    ElasticRefusal.OVER_TOTAL_MIN: "pod is rejected because the total use of elastic quotas would exceed "
    "their total min",
}


@dataclass(frozen=True)
class ElasticUse:
    """The quotas in force, and the pods that take room in each, by the quota's id."""

    totals: ElasticTotals = field(default_factory=ElasticTotals)
    pods: Mapping[str, list[ElasticPod]] = field(default_factory=dict)
    quotas: Sequence[Quota] = ()  # all that were read

    @classmethod
    def of(
        cls,
        quotas: Sequence[Quota],
        pods: Iterable[tuple[Pod, str]],
        reading: ElasticPods,
        *,
        absent_is_zero: bool,
    ) -> ElasticUse:
        """`pods`: all that take room on nodes, with the node."""
        shares, _ = in_force(declarations(quotas))
        totals = ElasticTotals.of(shares, absent_is_zero=absent_is_zero)
        by_quota: dict[str, list[ElasticPod]] = {}
        for pod, node in pods if shares else ():
            share = totals.share_of(pod.namespace)
            if share is not None:
                by_quota.setdefault(share.id, []).append(reading.read(pod, node))
        used = totals_with(totals, (pod for counted in by_quota.values() for pod in counted))
        return cls(used, by_quota, quotas)

    @cached_property
    def marked(self) -> Mapping[str, ElasticPod]:
        """The pods by uid, each with whether it borrows."""
        marked: dict[str, ElasticPod] = {}
        for id_, pods in self.pods.items():
            by_uid = labels(pods, self.totals.shares[id_].min)
            marked |= {pod.uid: replace(pod, borrowed=by_uid[pod.uid] == OVER_QUOTA) for pod in pods}
        return marked


def rejection(totals: ElasticTotals, pod: ElasticPod) -> str | None:
    """Why the quota of the pod's namespace rejects it."""
    refusal = totals.refusal(pod.namespace, pod.requests)
    if refusal is None:
        return None
    share = totals.share_of(pod.namespace)
    return _TEXTS[refusal].format(share.id if share else "")
