"""The demo's pods: made as the controllers of Deployments and Jobs make them, which the demo has not.

It has no kube-scheduler either, so the pods name the broker's own scheduler. A pod that a drain evicts is
made again, as by its controller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.apis.core import Pod
from broker.commands.plan.pod_manifests import pods_of
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import AlreadyExists
from local.demo.simulated import Simulated

SCHEDULER: Final = "capacity-broker"
EVERY: Final = 0.5


class Workloads(Simulated):
    """Keeps the pods of some documents in the cluster, by one thread."""

    def __init__(self, client: Client, documents: Sequence[Mapping[str, Any]], *, clock: Clock) -> None:
        super().__init__("workloads", clock=clock, every=EVERY)
        self._client = client
        self._bodies = {
            pod.name: _body(pod.name, document["spec"]["template"])
            for document in documents
            for pod in pods_of([document])
        }

    @property
    def names(self) -> Sequence[str]:
        return sorted(self._bodies)

    def start(self) -> None:
        self.step()
        super().start()

    def step(self) -> None:
        """Creates the pods that do not exist. Raises ApiError."""
        existing = {item["metadata"]["name"] for item in self._client.list(Pod.KIND, namespace="default")[0]}
        for name, body in self._bodies.items():
            if name not in existing:
                try:
                    self._client.create(Pod.KIND, body)
                except AlreadyExists:
                    continue

    def nodes(self) -> dict[str, str]:
        """The node of each pod; empty for one that waits."""
        pods = map(Pod.decode, self._client.list(Pod.KIND, namespace="default")[0])
        return {pod.name: pod.spec.node_name for pod in pods if pod.name in self._bodies}


def _body(name: str, template: Mapping[str, Any]) -> dict[str, Any]:
    # No container runs, so none needs time to end.
    spec = {**template["spec"], "schedulerName": SCHEDULER, "terminationGracePeriodSeconds": 0}
    return {"metadata": {**template.get("metadata", {}), "name": name, "namespace": "default"}, "spec": spec}
