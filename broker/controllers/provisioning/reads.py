"""What provisioning reads besides claims: DaemonSets, LimitRanges, pod groups, volumes, the learned room.

Invariant: a kind that is not served delays nothing: it counts as empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from broker.apis.coordination import Lease
from broker.apis.core import Node, Pod
from broker.apis.limits import LimitRange
from broker.apis.storage import CsiNode, PersistentVolume, PersistentVolumeClaim, StorageClass
from broker.apis.workloads import DaemonSet
from broker.controllers.elasticquota.reading import declaration
from broker.controllers.nodereservation.occupancy import OccupancyReader
from broker.controllers.pod_groups import PodGroupReads
from broker.controllers.provisioning.elastic_sizes import ElasticRules
from broker.controllers.provisioning.learned import RoomLearner
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.derived import Derived
from broker.kube.informer import Informer
from broker.lists import lists_by_key
from broker.placement.limit_ranges import default_requests, with_defaults
from broker.placement.model import PodInfo
from broker.placement.reading import pod_info
from broker.placement.storage import Storage
from broker.settings import Settings


class ProvisioningReads:
    """Complete once each kind is `synced` or `missing`."""

    def __init__(
        self,
        client: Client,
        occupancy: OccupancyReader,
        *,
        clock: Clock,
        leases: Cache[Lease],
        nodes: Cache[Node],
        settings: Settings,
    ) -> None:
        self.occupancy = occupancy
        self._nodes, self.settings = nodes, settings
        self.leases = leases
        self.learner = RoomLearner()
        self.daemon_sets = Informer(client, DaemonSet, clock=clock)
        self.limit_ranges = Informer(client, LimitRange, clock=clock)
        self.volume_claims = Informer(client, PersistentVolumeClaim, clock=clock)
        self.volumes = Informer(client, PersistentVolume, clock=clock)
        self.storage_classes = Informer(client, StorageClass, clock=clock)
        self.csi_nodes = Informer(client, CsiNode, clock=clock)
        self.informers: Sequence[Informer[Any]] = [
            informer for informer in vars(self).values() if isinstance(informer, Informer)
        ]
        for informer in self.informers:
            informer.optional = True
        groups = PodGroupReads(client, clock=clock)
        self.group_size = groups.size
        self.informers = [*self.informers, *groups.informers]
        stored = (self.volume_claims, self.volumes, self.storage_classes, self.csi_nodes)
        self.storage = Derived(self._read_storage, *(informer.cache for informer in stored))

    def synced(self) -> bool:
        return self.occupancy.synced() and all(informer.complete for informer in self.informers)

    def elastic(self) -> ElasticRules:
        """The elastic quotas, as the scheduler applies them."""
        quotas, served = self.occupancy.quotas(declaration)
        return ElasticRules(
            nodes=self._nodes,
            quotas=quotas,
            served=served,
            gpu_gb=self.settings.gpu_memory_gb,
            absent_is_zero=self.settings.quota_absent_is_zero,
            group_size=self.group_size,
        )

    def _read_storage(self) -> Storage:
        return Storage.of(
            claims=self.volume_claims.cache.readable(lambda item: Storage.of(claims=[item])),
            volumes=self.volumes.cache.readable(lambda item: Storage.of(volumes=[item])),
            classes=self.storage_classes.cache.readable(lambda item: Storage.of(classes=[item])),
            nodes=self.csi_nodes.cache.readable(lambda item: Storage.of(nodes=[item])),
        )

    def daemons(self) -> list[PodInfo]:
        """A pod of each DaemonSet, as it is once it is created."""
        infos: list[PodInfo] = []
        admit = self._admission()
        for item in sorted(self.daemon_sets.cache.list(), key=lambda item: item.key):
            with self.daemon_sets.cache.guard(item):
                infos.append(pod_info(admit(item.spec.template.pod(item.name, item.namespace))))
        return infos

    def admitted(self, pods: Iterable[Pod]) -> list[Pod]:
        """The pods, which do not exist yet, with the requests that their namespace's LimitRanges give."""
        return [*map(self._admission(), pods)]

    def _admission(self) -> Callable[[Pod], Pod]:
        readable = self.limit_ranges.cache.readable(lambda item: default_requests([item]))
        ranges = lists_by_key((item.namespace, item) for item in readable)
        requests = {namespace: default_requests(items) for namespace, items in ranges.items()}

        def admit(pod: Pod) -> Pod:
            spec = with_defaults(pod.spec, requests.get(pod.namespace, {}))
            return pod.model_copy(update={"spec": spec})

        return admit
