"""apps and scheduling.x-k8s.io as far as pods need machines: DaemonSets, and the size of pod groups.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/daemon-set-v1/,
https://github.com/kubernetes-sigs/scheduler-plugins (apis/scheduling/v1alpha1/types.go)
"""

from __future__ import annotations

from typing import ClassVar

from broker.apis.core import Pod, PodSpec
from broker.apis.meta import Kind, Model, Object, ObjectMeta


class PodTemplate(Model):
    """The pods that a workload makes."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()

    def pod(self, name: str, namespace: str) -> Pod:
        """A pod as the workload would make it."""
        meta = self.metadata.model_copy(update={"name": name, "namespace": namespace})
        return Pod(metadata=meta, spec=self.spec)


class DaemonSetSpec(Model):
    template: PodTemplate = PodTemplate()


class DaemonSet(Object):
    KIND: ClassVar[Kind] = Kind(group="apps", version="v1", kind="DaemonSet", namespaced=True)

    spec: DaemonSetSpec = DaemonSetSpec()


class PodGroupSpec(Model):
    min_member: int = 0


class SchedulingPodGroup(Object):
    """The scheduler-plugins' group of pods that are scheduled together."""

    KIND: ClassVar[Kind] = Kind(
        group="scheduling.x-k8s.io", version="v1alpha1", kind="PodGroup", namespaced=True
    )

    spec: PodGroupSpec = PodGroupSpec()


class GangPolicy(Model):
    min_count: int = 0


class SchedulingPolicy(Model):
    """`gang`: all pods up to the minimum together. Without it, each pod by itself."""

    gang: GangPolicy | None = None


class NativePodGroupSpec(Model):
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()


class NativePodGroup(Object):
    """Kubernetes' own group of pods, since 1.36."""

    KIND: ClassVar[Kind] = Kind(
        group="scheduling.k8s.io",
        version="v1beta1",
        kind="PodGroup",
        namespaced=True,
        versions=("v1beta1", "v1alpha3", "v1alpha2"),
    )

    spec: NativePodGroupSpec = NativePodGroupSpec()


class WorkloadPodGroup(Model):
    name: str = ""
    policy: SchedulingPolicy = SchedulingPolicy()


class NativeWorkloadSpec(Model):
    pod_groups: tuple[WorkloadPodGroup, ...] = ()


class NativeWorkload(Object):
    """Kubernetes' own Workload, of which pods named a group in 1.35."""

    KIND: ClassVar[Kind] = Kind(
        group="scheduling.k8s.io", version="v1alpha1", kind="Workload", namespaced=True
    )

    spec: NativeWorkloadSpec = NativeWorkloadSpec()
