"""The groups whose size a gang needs, in each API that has them.

Kubernetes' PodGroup is read in the version that the API server has. A cluster without a kind has no such
groups: then the size of a gang is unknown, and all its pods that exist count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.apis.workloads import NativePodGroup, NativeWorkload, SchedulingPodGroup, SchedulingPolicy
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.informer import Informer
from broker.kube.served_informer import ServedInformer
from broker.placement.gangs import PLUGINS, GroupRef, GroupSize

ABSENT = GroupSize(absent=True)


class PodGroupReads:
    """Three informers, all optional."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        self._plugins = Informer(client, SchedulingPodGroup, clock=clock)
        self._native = ServedInformer(client, NativePodGroup, clock=clock)
        self._workloads = Informer(client, NativeWorkload, clock=clock)
        for informer in self.informers:
            informer.optional = True

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        return (self._plugins, self._native, self._workloads)

    @property
    def named(self) -> Mapping[str, Informer[Any]]:
        """Groups by name; two kinds have the same plural."""
        return {
            "schedulerpodgroups": self._plugins,
            "podgroups": self._native,
            "podgroupworkloads": self._workloads,
        }

    def complete(self) -> bool:
        return all(informer.complete for informer in self.informers)

    def size(self, group: GroupRef) -> GroupSize:
        """The minimum of a group, as `gang_of` needs it."""
        key = f"{group.namespace}/{group.name}"
        if group.api == PLUGINS:
            plugins = self._plugins.cache.find(key)
            return GroupSize(size=plugins.spec.min_member if plugins is not None else 0)
        if group.part:
            workload = self._workloads.cache.find(key)
            parts = workload.spec.pod_groups if workload is not None else ()
            policy = next((part.policy for part in parts if part.name == group.part), None)
            return _size(policy, self._workloads)
        native = self._native.cache.find(key)
        return _size(None if native is None else native.spec.scheduling_policy, self._native)


def _size(policy: SchedulingPolicy | None, informer: Informer[Any]) -> GroupSize:
    if policy is None:
        return ABSENT if informer.served else GroupSize()
    return GroupSize(alone=True) if policy.gang is None else GroupSize(size=policy.gang.min_count)
