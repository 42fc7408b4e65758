"""Informers of the kinds that the scheduler honours, all of them optional.

Invariant: a scheduler name is served only while one of its kinds is, and while the project's own scheduler
does not run: two schedulers of one name would give the same room away twice. A cluster without these kinds
sees no decision and no write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, Final

from broker.apis.core import Pod, ResourceQuota
from broker.apis.godel import GodelDeployment, GodelReplicaSet, GodelReservation
from broker.apis.koordinator import KoordinatorReservation
from broker.apis.kueue import Namespace
from broker.apis.meta import Object
from broker.apis.nos import CompositeElasticQuota, ElasticQuota
from broker.controllers.newest import none_other
from broker.controllers.nodereservation.room_rules import RoomRules
from broker.controllers.pod_groups import PodGroupReads
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.informer import Informer
from broker.placement.holds_bounds import RoomBounds
from broker.placement.reading import takes_room

GODEL: Final = "godel-scheduler"
# A name of another's scheduler is served with that project's kinds; all other names with any kind.
KINDS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "koord-scheduler": ("koordinator",),
    GODEL: ("godel",),
    "nos-scheduler": ("elasticquotas", "compositeelasticquotas"),
}

# The namespaces in which each project installs its scheduler. Pods of users elsewhere decide nothing.
NAMESPACES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "koord-scheduler": ("koordinator-system", "kube-system"),
    GODEL: ("godel-system", "kube-system"),
    "nos-scheduler": ("nebuly-nos", "nos-system", "kube-system"),
}
BY_SCHEDULER: Final = "scheduler"


def scheduler_of(pod: Pod) -> list[str]:
    """The project's scheduler that a pod is, by its namespace, and by its name or a label."""
    return [
        name
        for name, namespaces in NAMESPACES_OF.items()
        if pod.namespace in namespaces
        and (pod.name.startswith(f"{name}-") or pod.name == name or name in pod.labels.values())
    ]


def runs(pod: Pod, now: datetime) -> bool:
    """Whether the pod's containers may run. A deleted pod has its grace period, and may bind pods in it.

    Its deletionTimestamp is the end of that period, so a pod on a lost node does not count for ever.
    """
    ends = pod.metadata.deletion_timestamp
    return takes_room(pod) and (ends is None or now <= ends)


class SchedulerReads:
    """Complete once each informer is `synced` or `missing`."""

    def __init__(
        self, client: Client, pods: Cache[Pod], *, clock: Clock, names: Iterable[str], places: bool = True
    ) -> None:
        """`pods` has the index `BY_SCHEDULER`. `places`: False for a reader that only needs the kept room."""
        self._client = client
        self._names, self._pods, self._clock, self._places = tuple(names), pods, clock, places
        self.koordinator = Informer(client, KoordinatorReservation, clock=clock)
        self.quotas = Informer(client, ElasticQuota, clock=clock)
        self.composites = Informer(client, CompositeElasticQuota, clock=clock)
        self.godel = Informer(client, GodelReservation, clock=clock)
        self.deployments = Informer(client, GodelDeployment, clock=clock)
        self.replica_sets = Informer(client, GodelReplicaSet, clock=clock)
        self.resource_quotas = Informer(client, ResourceQuota, clock=clock)
        self.groups = PodGroupReads(client, clock=clock)
        for informer in self.named.values():
            informer.optional = True
        # They limit the room of deleted pods.
        self.resource_quotas.needed = self._keeps_rooms
        # Only placing needs Deployments and ReplicaSets, and only where Gödel's kind is installed.
        for informer in (self.deployments, self.replica_sets):
            informer.needed = self._godel_served
        for informer in self.groups.informers:
            informer.needed = lambda: self._places and self.installed()

    @property
    def rooms(self) -> Mapping[str, Informer[Any]]:
        """The kinds that decide which pod may have which room."""
        return {
            "koordinator": self.koordinator,
            "elasticquotas": self.quotas,
            "compositeelasticquotas": self.composites,
            "godel": self.godel,
        }

    @property
    def named(self) -> Mapping[str, Informer[Any]]:
        return {
            **self.rooms,
            "deployments": self.deployments,
            "replicasets": self.replica_sets,
            "resourcequotas": self.resource_quotas,
            **self.groups.named,
        }

    def rules(self, bounds: RoomBounds, namespaces: Cache[Namespace]) -> RoomRules:
        """The operator's rules of kept room."""
        quotas = self.resource_quotas.cache
        return RoomRules(bounds, namespaces, quotas.list, served=lambda: GODEL in self.served_names())

    def guard(self, item: Object) -> AbstractContextManager[object]:
        """`Cache.guard` of a pod, or of a reservation of either kind."""
        if isinstance(item, KoordinatorReservation):
            return self.koordinator.cache.guard(item)
        if isinstance(item, GodelReservation):
            return self.godel.cache.guard(item)
        return self._pods.guard(item) if isinstance(item, Pod) else nullcontext()

    def all_quotas(
        self, read: Callable[[ElasticQuota | CompositeElasticQuota], object]
    ) -> list[ElasticQuota | CompositeElasticQuota]:
        """The quotas that `read` can read; the others are left out."""
        return [*self.quotas.cache.readable(read), *self.composites.cache.readable(read)]

    def rooms_unchanged(self, objects: Iterable[Object]) -> bool:
        """Whether these are all reservations and quotas that the API server has, as they were read.

        Raises ApiError.
        """
        models = [informer.cache.model for informer in self.rooms.values() if informer.served]
        return none_other(self._client, models, objects)

    def synced(self) -> bool:
        if not all(informer.complete for informer in self.rooms.values()):
            return False
        if self._keeps_rooms() and not self.resource_quotas.complete:
            return False
        if self._places and self.installed() and not self.groups.complete():
            return False
        return not self._godel_served() or (self.deployments.complete and self.replica_sets.complete)

    def installed(self) -> bool:
        """Whether the API server serves one of the scheduler's kinds."""
        return any(informer.served for informer in self.rooms.values())

    def _keeps_rooms(self) -> bool:
        return GODEL in self._names and self.godel.served

    def _godel_served(self) -> bool:
        return self._places and self._keeps_rooms()

    def served_names(self) -> frozenset[str]:
        """The scheduler names that are in force now."""
        served = {name for name, informer in self.named.items() if informer.served}
        own = {kind for kinds in KINDS_OF.values() for kind in kinds}
        named = (name for name in self._names if served & set(KINDS_OF.get(name, own)))
        return frozenset(name for name in named if not self._foreign(name))

    def _foreign(self, name: str) -> bool:
        """Whether the project's own scheduler runs under this name."""
        now = self._clock.now()
        return any(runs(pod, now) for pod in self._pods.by(BY_SCHEDULER, name))
