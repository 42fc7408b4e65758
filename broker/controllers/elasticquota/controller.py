"""Status of elastic quotas, and the labels of their pods.

One run reads all quotas, since a namespace may have only one. The sum in the status counts running pods
only. Labels are those of all pods that take room, also before they run: the pods that the scheduler may
reclaim are the pods with the label over-quota. A pod that ended keeps its last label. Source: nos,
internal/controllers/elasticquota.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from broker.apis import nos
from broker.apis.core import Pod
from broker.apis.meta import ConditionUpdate, Json
from broker.apis.units import kept
from broker.controllers.elasticquota.reading import (
    ElasticPods,
    Quota,
    declarations,
    namespaces_of,
    quota_id,
)
from broker.controllers.pod_metadata import patch_metadata
from broker.kube.cache import Cache
from broker.kube.conditions import changed, condition_body, set_conditions
from broker.kube.context import ControllerContext
from broker.kube.for_each import for_each
from broker.kube.refusals import tell_refusal
from broker.placement.holds_reading import holds_room
from broker.quota.elastic_labels import QuotaLabel, labels, used_amounts
from broker.quota.elastic_resolve import ElasticDeclaration, ElasticProblem, in_force

BY_NAMESPACE: Final = "namespace"
RUNNING: Final = "Running"


class ElasticQuotaController:
    """`quotas` returns both kinds; `pods` is indexed by namespace."""

    def __init__(
        self,
        context: ControllerContext,
        quotas: Callable[[], Iterable[Quota]],
        *,
        pods: Cache[Pod],
        reading: ElasticPods,
    ) -> None:
        self._client, self._clock, self._recorder = context.client, context.clock, context.recorder
        self._quotas, self._pods, self._reading = quotas, pods, reading

    def run(self, _items: Sequence[str]) -> None:
        """Raises ApiError, after every quota had its turn unless the API server is unavailable."""
        quotas = [quota for quota in self._quotas() if not quota.deleting]
        declared = {item.id: item for item in declarations(quotas)}
        _, problems = in_force(declared.values())
        for_each(
            quotas,
            lambda quota: self._reconcile(quota, declared[quota_id(quota)], problems.get(quota_id(quota))),
            refused=lambda quota, error: tell_refusal(self._recorder, quota, error),
        )

    def _reconcile(self, quota: Quota, declared: ElasticDeclaration, problem: ElasticProblem | None) -> None:
        pods = [
            pod
            for namespace in namespaces_of(quota)
            for pod in self._pods.by(BY_NAMESPACE, namespace)
            if holds_room(pod)
        ]
        counted = {pod.uid: self._reading.read(pod) for pod in pods}
        if problem is None:
            pod_labels = labels(counted.values(), declared.min)
            for pod in pods:
                self._label(pod, pod_labels[pod.uid])
        running = [counted[pod.uid] for pod in pods if pod.status.phase == RUNNING]
        self._status(quota, used_amounts(running, declared.min, declared.max), problem)

    def _label(self, pod: Pod, label: QuotaLabel) -> None:
        if pod.labels.get(nos.CAPACITY) == label:
            return
        patch_metadata(self._client, pod, {"uid": pod.uid, "labels": {nos.CAPACITY: label}})

    def _status(self, quota: Quota, used: dict[str, int], problem: ElasticProblem | None) -> None:
        update = ConditionUpdate(type=nos.IN_FORCE, status="True", reason="InForce")
        if problem is not None:
            update = ConditionUpdate(
                type=nos.IN_FORCE, status="False", reason=problem.reason, message=problem.message
            )
        conditions = set_conditions(
            quota.status.conditions,
            update,
            now=self._clock.now(),
            observed_generation=quota.metadata.generation,
        )
        old = quota.status.used
        gone = dict.fromkeys(old.keys() - used.keys())
        status: Json = {
            "used": {**gone, **{name: kept(old.get(name, ""), name, used[name]) for name in used}},
            "conditions": [condition_body(item) for item in conditions],
        }
        if changed(quota.status.wire(), status):
            self._client.patch(
                quota.KIND, quota.name, {"status": status}, namespace=quota.namespace, subresource="status"
            )


def by_namespace(pod: Pod) -> list[str]:
    return [pod.namespace]
