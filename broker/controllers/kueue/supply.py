"""The reserved instances for a workload, and their present use.

Invariant: there is one count of promised instances. Every workload that was answered Ready holds its pods'
room, on the instances of its reservation or, if that may borrow, of its cohort tree; a new one fits only
beside all of them. Kueue reclaims lent quota before it reserves an owner's: what still holds room then leaves
for nobody, such as a workload of a member that has quota and no instances. Rooms are computed once a pass and
filled by each placement. A workload that needs several flavors gets all of them or takes none. One that
replaces another holds the other's pods until it is Ready itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from broker.apis.kueue import Workload
from broker.apis.ome_clusters import DedicatedAICluster
from broker.apis.units import base
from broker.by_version import ByVersion
from broker.capacity.matching import expiring, launchable
from broker.controllers.kueue.answers import demands, shortage
from broker.controllers.kueue.room import InstanceRoom, InstanceSlots, Placed, PodGroup
from broker.controllers.snapshot import Snapshot
from broker.kube.cache import Cache
from broker.quota.model import Queue
from broker.quota.tree import Tree
from broker.quota.usage import ReservationKey
from broker.reservations.cluster_admission import by_flavor
from broker.reservations.kueue_objects import owning_cluster
from broker.reservations.ownership import Ownership
from broker.reservations.sizing import FlavorProblem, flavor_of, supply
from providers.model import Odcr

# Flavors with these problems are not reserved in EC2: no workload waits for them.
_NOT_RESERVED: Final = frozenset({"FlavorNotReserved", "FlavorWithoutInstanceType"})

Owners = frozenset[ReservationKey]
Pool = tuple[Owners, str]  # the owners of the instances, and the flavor


class DemandCache:
    """Caches the demands of workloads, one version of each."""

    def __init__(self, clusters: Cache[DedicatedAICluster]) -> None:
        self._clusters = clusters
        self._demands: ByVersion[str, Mapping[str, tuple[PodGroup, ...]]] = ByVersion()

    def demands(self, workload: Workload) -> Mapping[str, tuple[PodGroup, ...]]:
        dedicated = owning_cluster(workload, self._clusters.get) is not None
        version = workload.uid, workload.metadata.resource_version, dedicated
        return self._demands.of(workload.key, version, demands, workload, dedicated=dedicated)

    def forget(self, workloads: Cache[Workload]) -> None:
        """Drops workloads that are gone, once there are many of them."""
        if len(self._demands) > 2 * len(workloads) + 100:
            self._demands.keep({workload.key for workload in workloads.list()})


def launchable_instances(ownership: Ownership, now: datetime) -> object:
    """The instances of all reservations: equal as long as none is gone or new."""
    return {
        (reserved, flavor, odcr.id, odcr.total)
        for reserved, flavors in ownership.odcrs.items()
        for flavor, odcrs in flavors.items()
        for odcr in odcrs
        if _counts(odcr, now)
    }


def _counts(odcr: Odcr, now: datetime) -> bool:
    """Whether its instances are promised to workloads: as long as its owner's status counts them."""
    return launchable(odcr, now) and not expiring(odcr, now)


class SupplySnapshot:
    """The instances and their users, computed once a pass, when needed."""

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        unattributed: Mapping[str, int],
        now: datetime,
    ) -> None:
        """`unattributed`: the number of slots with unattributed instances, by ODCR id."""
        self._unattributed = unattributed
        self._now = now
        self._flavors = snapshot.flavors
        self._types = snapshot.types
        self._ownership = snapshot.odcrs.owned
        self._other_holders = snapshot.unqueued_clusters
        self._rooms: dict[Pool, InstanceRoom] = {}
        # A barred reservation lends nothing, and borrows nothing new.
        specs = {key: spec for key, spec in snapshot.specs.items() if key not in snapshot.barred}
        self._specs = specs
        self._borrows = {reserved.queue for reserved, spec in specs.items() if spec.allow_borrowing}
        self._members = {reserved.queue: reserved for reserved in specs}
        self._tree = Tree(
            [Queue(name=reserved.queue, cohort=spec.cohort) for reserved, spec in specs.items()],
            snapshot.cohorts,
        )

    def place(
        self, reserved: ReservationKey, demand: Mapping[str, Sequence[PodGroup]]
    ) -> tuple[list[str], dict[str, tuple[InstanceSlots, ...]]]:
        """Places the pods; returns the shortages, and the instances that they may use by reserved flavor."""
        own, tree = frozenset({reserved}), self._tree_of(reserved)
        borrows = reserved.queue in self._borrows and tree != own
        short: list[str] = []
        used: dict[str, tuple[InstanceSlots, ...]] = {}
        done: list[tuple[InstanceRoom, Placed]] = []
        for flavor, pods in sorted(demand.items()):
            if not self._is_waited_for(flavor, tree if borrows else own):
                continue
            optional = all(group.optional for group in pods)  # then all of them are placed, or none
            pods = tuple(replace(group, optional=False) for group in pods) if optional else tuple(pods)
            placed = [(room, room.place(pods)) for room in self._rooms_of(own, tree, flavor)]
            fits = {room: moves for room, moves in placed if moves is not None}
            in_own, in_tree = placed[0][1] is not None, placed[-1][1] is not None
            if in_tree and (in_own or borrows):
                done += fits.items()
                used[flavor] = self._slots(own if in_own else tree, flavor)
                continue
            for room, moves in fits.items():
                room.free(moves)
            if not optional:
                short.append(self._shortage(flavor, pods, own, tree, borrows=borrows, in_own=in_own))
        for room, moves in done if short else ():
            room.free(moves)
        return short, used

    def hold(self, reserved: ReservationKey, demand: Mapping[str, Sequence[PodGroup]]) -> bool:
        """Takes room for pods that were promised it, as far as it exists; returns whether it is enough."""
        own, tree = frozenset({reserved}), self._tree_of(reserved)
        borrows, enough = reserved.queue in self._borrows, True
        for flavor, pods in demand.items():
            if self._is_replaced(reserved, flavor, tree):
                left = tuple(pods)
                for other in sorted(self._ownership.of(reserved)):
                    left = self._hold(reserved, other, left, own, tree)
            elif self._is_waited_for(flavor, tree if borrows else own):
                left = self._hold(reserved, flavor, pods, own, tree)
                enough = enough and not any(group.count and not group.optional for group in left)
        return enough

    def _hold(
        self, reserved: ReservationKey, flavor: str, pods: Sequence[PodGroup], own: Owners, tree: Owners
    ) -> tuple[PodGroup, ...]:
        """Takes room of one flavor; returns the pods without."""
        rooms = self._rooms_of(own, tree, flavor)
        held = rooms[0].fill(pods)
        for room in rooms[1:]:  # a member that may not borrow has nothing beyond its own
            held = room.fill(pods if reserved.queue in self._borrows else held)
        counts = zip(pods, held, strict=True)
        return tuple(replace(group, count=group.count - has.count) for group, has in counts)

    def _is_replaced(self, reserved: ReservationKey, flavor: str, tree: Owners) -> bool:
        """Whether the reservation has neither the flavor any more nor instances of it.

        Its pods go on, on instances that are of another flavor now.
        """
        if (spec := self._specs.get(reserved)) is None or self._slots(tree, flavor):
            return False
        return all(quotas.name != flavor for group in spec.resource_groups for quotas in group.flavors)

    def clear(self) -> None:
        """Forgets all placements."""
        self._rooms = {}

    def _rooms_of(self, own: Owners, tree: Owners, flavor: str) -> tuple[InstanceRoom, ...]:
        return tuple(self._room(owners, flavor) for owners in dict.fromkeys((own, tree)))

    def _tree_of(self, reserved: ReservationKey) -> Owners:
        """The reservation, and all members of its cohort tree."""
        node = self._tree.queues.get(reserved.queue)
        members = (self._members[peer.name] for peer in node.root().members()) if node else ()
        return frozenset({reserved}).union(members)

    def _shortage(
        self, flavor: str, pods: Sequence[PodGroup], own: Owners, tree: Owners, *, borrows: bool, in_own: bool
    ) -> str:
        slots = self._slots(own, flavor)
        text = shortage(flavor, pods, slots, borrows=borrows, promised=in_own)
        usable = self._slots(tree if borrows else own, flavor)
        if lost := sum(self._unattributed.get(instances.odcr, 0) for instances in usable):
            text += f"; instances that are no nodes of this cluster have {lost} more"
        return text

    def labels(self, flavors: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        labels = {name: self._flavors.labels(name) for name in flavors}
        return {name: known for name, known in labels.items() if known is not None}

    def _is_waited_for(self, flavor: str, owners: Owners) -> bool:
        """Whether a workload waits for this flavor: it has ODCRs, or could have some."""
        if self._slots(owners, flavor):
            return True
        labels = self._flavors.labels(flavor)
        if labels is None:
            return False
        resolved = flavor_of(flavor, labels, self._types)
        return not (isinstance(resolved, FlavorProblem) and resolved.reason in _NOT_RESERVED)

    def _slots(self, owners: Owners, flavor: str) -> tuple[InstanceSlots, ...]:
        return tuple(
            InstanceSlots(
                odcr=odcr.id,
                count=max(0, odcr.total - self._unattributed.get(odcr.id, 0)),
                resources=supply(self._types[odcr.instance_type]),
            )
            for reserved in sorted(owners)
            for odcr in self._ownership.of(reserved).get(flavor, ())
            if _counts(odcr, self._now) and odcr.instance_type in self._types
        )

    def _room(self, owners: Owners, flavor: str) -> InstanceRoom:
        room = self._rooms.get((owners, flavor))
        if room is None:
            room = self._rooms[owners, flavor] = InstanceRoom(self._slots(owners, flavor))
            for reserved in sorted(owners):
                for holder in self._other_holders.get(reserved, ()):
                    amounts = base(by_flavor(holder.usage).get(flavor, {}))
                    room.fill(_whole(amounts, self._slots(frozenset({reserved}), flavor)))
        return room


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
