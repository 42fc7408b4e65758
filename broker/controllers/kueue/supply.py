"""The reserved instances for a workload, and their present use.

Invariant: a snapshot lasts one pass. Rooms are computed once, when needed, and filled by each placement, so
that two workloads of a pass never get the same instance. A workload that needs several flavors gets all of
them or takes none. A reservation that may borrow gets the idle instances of its whole cohort tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from broker.apis.kueue import Workload
from broker.apis.meta import Object
from broker.apis.ome_clusters import DedicatedAICluster
from broker.apis.units import base
from broker.capacity.matching import launchable
from broker.controllers.kueue.answers import demands, shortage
from broker.controllers.kueue.render import CHECK
from broker.controllers.kueue.room import InstanceRoom, InstanceSlots, Placed, PodGroup
from broker.controllers.reservation_reads import ReservationReads
from broker.kube.cache import Cache
from broker.quota.model import Queue, QuotaCohort
from broker.quota.tree import Tree
from broker.quota.usage import ReservationHolder, Reserved
from broker.reservations.cluster_admission import by_flavor
from broker.reservations.kueue_objects import BY_QUEUE, owning_cluster, queue_name
from broker.reservations.ownership import Ownership
from broker.reservations.sizing import FlavorProblem, flavor_of, supply
from broker.reservations.workloads import reserves
from providers.base import CapacityProvider

# Flavors with these problems are not reserved in EC2: no workload waits for them.
_NOT_RESERVED: Final = frozenset({"FlavorNotReserved", "FlavorWithoutInstanceType"})

Pool = tuple[frozenset[Reserved], str]  # the owners of the instances, and the flavor


class DemandCache:
    """Caches the demands of workloads, one version of each."""

    def __init__(self, clusters: Cache[DedicatedAICluster]) -> None:
        self._clusters = clusters
        self._demands: dict[str, tuple[tuple[str, bool], Mapping[str, tuple[PodGroup, ...]]]] = {}

    def demands(self, workload: Workload) -> Mapping[str, tuple[PodGroup, ...]]:
        version = _version(workload), owning_cluster(workload, self._clusters.get) is not None
        known = self._demands.get(workload.key)
        if known is None or known[0] != version:
            known = self._demands[workload.key] = version, demands(workload, dedicated=version[1])
        return known[1]

    def forget(self, workloads: Cache[Workload]) -> None:
        """Drops workloads that are gone, once there are many of them."""
        if len(self._demands) > 2 * len(workloads) + 100:
            self._demands = {key: demand for key, demand in self._demands.items() if workloads.find(key)}


def _version(item: Object) -> str:
    return f"{item.uid}/{item.metadata.resource_version}"


class SupplySnapshot:
    """The instances and their users, computed once a pass, when needed."""

    def __init__(
        self,
        reads: ReservationReads,
        provider: CapacityProvider,
        ownership: Ownership,
        other_holders: Mapping[Reserved, Sequence[ReservationHolder]],
        *,
        unattributed: Mapping[str, int],
        now: datetime,
        demands: DemandCache,
    ) -> None:
        """`unattributed`: the number of slots with unattributed instances, by ODCR id."""
        self._unattributed = unattributed
        self._now = now
        self._demands = demands
        self._reads = reads
        self._types = provider.instance_types()
        self._ownership = ownership
        self._other_holders = other_holders
        self._rooms: dict[Pool, InstanceRoom] = {}
        snapshot = reads.snapshot()
        # A barred reservation lends nothing, and borrows nothing new.
        specs = {key: spec for key, spec in snapshot.specs.items() if key not in snapshot.barred}
        self._borrows = {reserved.queue for reserved, spec in specs.items() if spec.allow_borrowing}
        self._members = {reserved.queue: reserved for reserved in specs}
        self._tree = Tree(
            [Queue(name=reserved.queue, cohort=spec.cohort) for reserved, spec in specs.items()],
            [
                QuotaCohort(name=cohort.name, parent=cohort.spec.parent_name)
                for cohort in reads.cohorts.cache.list()
            ],
        )

    def place(
        self, reserved: Reserved, demand: Mapping[str, tuple[PodGroup, ...]]
    ) -> tuple[list[str], dict[str, tuple[InstanceSlots, ...]]]:
        """Places the pods; returns the shortages, and the instances that they may use by reserved flavor."""
        own = frozenset({reserved})
        node = self._tree.queues.get(reserved.queue) if reserved.queue in self._borrows else None
        wider = own.union(self._members[peer.name] for peer in node.root().members()) if node else own
        short: list[str] = []
        used: dict[str, tuple[InstanceSlots, ...]] = {}
        done: list[tuple[InstanceRoom, Placed]] = []
        for flavor, pods in sorted(demand.items()):
            if not self._is_waited_for(flavor, wider):
                continue
            for owners in dict.fromkeys((own, wider)):
                room = self._room(owners, flavor)
                placed = room.place(pods)
                if placed is not None:
                    done.append((room, placed))
                    used[flavor] = self._slots(owners, flavor)
                    other = self._room(wider if owners == own else own, flavor)
                    if other is not room:  # the present users of these instances make room
                        done.append((other, other.fill(pods)))
                    break
            else:
                short.append(shortage(flavor, pods, self._slots(own, flavor), borrows=wider != own))
                if lost := sum(
                    self._unattributed.get(instances.odcr, 0) for instances in self._slots(wider, flavor)
                ):
                    short[-1] += f"; instances that are no nodes of this cluster have {lost} more"
        for room, placed in done if short else ():
            room.free(placed)
        return short, used

    def labels(self, flavors: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        flavors_ = {name: self._reads.flavors.cache.get(name) for name in flavors}
        return {name: flavor.spec.node_labels for name, flavor in flavors_.items() if flavor is not None}

    def _is_waited_for(self, flavor: str, owners: frozenset[Reserved]) -> bool:
        """Whether a workload waits for this flavor: it has ODCRs, or could have some."""
        if self._slots(owners, flavor):
            return True
        resource_flavor = self._reads.flavors.cache.get(flavor)
        if resource_flavor is None:
            return False
        resolved = flavor_of(flavor, resource_flavor.spec.node_labels, self._types)
        return not (isinstance(resolved, FlavorProblem) and resolved.reason in _NOT_RESERVED)

    def _slots(self, owners: frozenset[Reserved], flavor: str) -> tuple[InstanceSlots, ...]:
        return tuple(
            InstanceSlots(
                odcr=odcr.id,
                count=max(0, odcr.total - self._unattributed.get(odcr.id, 0)),
                resources=supply(self._types[odcr.instance_type]),
            )
            for reserved in sorted(owners)
            for odcr in self._ownership.of(reserved).get(flavor, ())
            if launchable(odcr, self._now) and odcr.instance_type in self._types
        )

    def _room(self, owners: frozenset[Reserved], flavor: str) -> InstanceRoom:
        room = self._rooms.get((owners, flavor))
        if room is None:
            room = self._rooms[owners, flavor] = InstanceRoom(self._slots(owners, flavor))
            for reserved in sorted(owners):
                room.fill(self._present_pods(reserved, flavor))
        return room

    def _present_pods(self, reserved: Reserved, flavor: str) -> Iterable[PodGroup]:
        """Pods that use the reservation's instances: of workloads past the check, and of other holders."""
        for workload in self._reads.workloads.cache.by(BY_QUEUE, queue_name(reserved)):
            if reserves(workload) and not _check_is_open(workload):
                yield from self._demands.demands(workload).get(flavor, ())
        for holder in self._other_holders.get(reserved, ()):
            amounts = base(by_flavor(holder.usage).get(flavor, {}))
            yield from _whole(amounts, self._slots(frozenset({reserved}), flavor))


def _check_is_open(workload: Workload) -> bool:
    """Whether the broker's check is open. Retry counts as open: the workload is about to lose its quota."""
    return any(
        check.name == CHECK and check.state in ("Pending", "Retry")
        for check in workload.status.admission_checks
    )


def _whole(amounts: Mapping[str, float], slots: Sequence[InstanceSlots]) -> Iterable[PodGroup]:
    """Amounts without pods, as pods of the instance's own size and one for the rest."""
    counted = PodGroup(count=1, requests=amounts).deciding
    resources = slots[0].resources if slots else {}
    size = {name: resources[name] for name in counted if resources.get(name)}
    if not size:
        return
    full = min(int(counted[name] / size[name]) for name in size)
    if full:
        yield PodGroup(count=full, requests=size)
    rest = {name: counted[name] - full * size[name] for name in size}
    if any(amount > 0 for amount in rest.values()):
        yield PodGroup(count=1, requests=rest)
