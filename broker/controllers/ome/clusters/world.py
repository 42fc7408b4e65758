"""What decides about the dedicated clusters of all reservations, read in one look.

Invariant: quota is counted against the same specs that reservations are judged by everywhere, and everybody
who holds some is counted: clusters by their status, until their instances are gone, and, where no Kueue
counts workloads, the claims of others that draw from a reservation and have an instance. A cluster's own
claims are counted as the cluster. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import ResourceFlavor, ResourceFlavorSpec
from broker.apis.meta import ObjectMeta
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation, ReservationSpec
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.apis.ome_rules import judge
from broker.apis.units import units
from broker.capacity.sizing import ACCELERATORS
from broker.controllers.ome.clusters.admission import Held, held
from broker.controllers.ome.clusters.settle import leaving
from broker.controllers.ome.clusters.wanted import Refused, Wanted, wanted
from broker.controllers.ome.queues import queues
from broker.controllers.ome.reads import OmeReads
from broker.quota import flavors
from broker.quota.assign import Rules
from broker.quota.entitled import Entitled, Standing, Verdict, Want, entitle, held_of
from broker.quota.model import Amounts, FlavorResource, Queue, Workload
from broker.quota.resolve import Names, Unresolved
from broker.quota.standing import attribute
from broker.quota.usage import Reserved

Reservation = CapacityReservation | ClusterCapacityReservation
CLAIM = "NodeClaim "  # before a claim's name, which a cluster may have too


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A cluster, what it wants, and of whom. `barred`: why that reservation gives nothing new."""

    cluster: DedicatedAICluster
    profile: DedicatedAIClusterProfile | None
    wanted: Wanted | Refused
    reserved: Reserved | Unresolved
    held: Held | None
    barred: str = ""
    priority: int = 0

    @property
    def leaves(self) -> bool:
        return leaving(self.cluster, self.reserved)

    @property
    def want(self) -> Want | None:
        """What it asks for now: all, or more than it holds; None where that is nothing."""
        if isinstance(self.wanted, Refused) or isinstance(self.reserved, Unresolved) or self.barred:
            return None
        has = held_of(self.held.usage) if self.held else {}
        if self.leaves and (self.held or self.cluster.deleting):
            return None
        if all(value <= has.get(name, 0) for name, value in self.wanted.requests.items()):
            return None
        return Want(
            name=self.cluster.name,
            queue=self.reserved.queue,
            pods=self.wanted.pods,
            priority=self.priority,
            queued=_queued(self.cluster),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """`reservations` are all there are; `specs` those that were judged without problems."""

    reservations: Mapping[Reserved, Reservation]
    specs: Mapping[Reserved, ReservationSpec]
    flavors: Mapping[str, ResourceFlavor]
    asking: Sequence[Asking]
    others: Sequence[Workload]

    def never(self, one: Asking) -> Verdict | None:
        """That a cluster could not have what it wants if nobody held anything; None where it could."""
        if (want := one.want) is None:
            return None
        made, cohorts = queues(self.specs)
        found = entitle(made, cohorts, holders=(), wants=(want,), rules=self._rules).verdicts[want.name]
        return found if found.standing is Standing.NEVER else None

    @property
    def _rules(self) -> Rules:
        return Rules(flavors={name: _flavor(one) for name, one in self.flavors.items()})

    def decide(self) -> Entitled:
        """Who gets quota, who waits, who must leave."""
        made, cohorts = queues(self.specs)
        clusters = [
            Workload(
                name=each.cluster.name,
                queue=each.held.reserved.queue,
                usage=each.held.usage,
                priority=each.priority,
                queued=_queued(each.cluster),
                reserved=each.held.since.timestamp(),
                evicted=each.leaves,
            )
            for each in self.asking
            if each.held is not None
        ]
        wants = [want for each in self.asking if (want := each.want) is not None]
        return entitle(made, cohorts, holders=[*clusters, *self.others], wants=wants, rules=self._rules)


def look(
    reads: OmeReads,
    claims: Iterable[NodeClaim],
    *,
    priority: Callable[[str], int | None],
    default_cohort: str,
    strict: bool,
) -> World:
    """Everything from the caches. `claims`: those that draw from a reservation."""
    both: tuple[Reservation, ...] = (
        *reads.reservations.cache.list(),
        *reads.cluster_reservations.cache.list(),
    )
    reservations = {Reserved(one.namespace, one.name): one for one in both}
    specs: dict[Reserved, ReservationSpec] = {}
    barred: dict[Reserved, str] = {}
    for reserved, one in reservations.items():
        judged = judge(one.spec, default_cohort=default_cohort, strict=strict)
        if judged.problems:
            barred[reserved] = "; ".join(judged.problems)
            continue
        specs[reserved] = judged.spec
        if one.deleting:
            barred[reserved] = "it is deleted"
    known = _flavors(reads, specs)
    by_name = Names(reservations)

    def asking(cluster: DedicatedAICluster) -> Asking:
        profile = reads.profiles.cache.get(cluster.spec.profile) if cluster.spec.profile else None
        asked = wanted(cluster, profile)
        reserved = by_name.resolve(cluster.spec.capacity_reservation_id)
        mine = None if isinstance(reserved, Unresolved) else reservations[reserved]
        named = asked.priority_class if isinstance(asked, Wanted) else ""
        worth = priority(named or (mine.spec.priority_class_name if mine else ""))
        return Asking(
            cluster=cluster,
            profile=profile,
            wanted=asked,
            reserved=reserved,
            held=held(cluster),
            barred=barred.get(reserved, "") if isinstance(reserved, Reserved) else "",
            priority=worth or 0,
        )

    return World(
        reservations=reservations,
        specs=specs,
        flavors=known,
        asking=[asking(each) for each in sorted(reads.clusters.cache.list(), key=lambda one: one.name)],
        others=[*_drawing(claims, specs, known)],
    )


def _flavors(reads: OmeReads, specs: Mapping[Reserved, ReservationSpec]) -> Mapping[str, ResourceFlavor]:
    """Where Kueue is not installed, a flavor of an instance type's name means that type."""
    if not reads.flavors.missing:
        return {one.name: one for one in reads.flavors.cache.list()}
    named = {
        flavor.name for spec in specs.values() for group in spec.resource_groups for flavor in group.flavors
    }
    return {
        name: ResourceFlavor(
            metadata=ObjectMeta(name=name), spec=ResourceFlavorSpec(node_labels={names.INSTANCE_TYPE: name})
        )
        for name in named
    }


def _flavor(one: ResourceFlavor) -> flavors.Flavor:
    return flavors.Flavor(
        name=one.name,
        labels=one.spec.node_labels,
        taints=tuple(
            flavors.Taint(key=each.key, value=each.value, effect=each.effect) for each in one.spec.node_taints
        ),
        tolerations=tuple(
            flavors.Toleration(key=each.key, operator=each.operator, value=each.value, effect=each.effect)
            for each in one.spec.tolerations
        ),
    )


def _drawing(
    claims: Iterable[NodeClaim],
    specs: Mapping[Reserved, ReservationSpec],
    known: Mapping[str, ResourceFlavor],
) -> Iterable[Workload]:
    """Claims with an instance, as what holds quota: each the share of it that its instance stands for."""
    made = {each.name: each for each in queues(specs)[0]}
    by_name = Names(specs)
    for claim in claims:
        if names.DEDICATED in claim.labels or not claim.status.provider_id:
            continue
        reserved = by_name.resolve(claim.annotations.get(names.DRAWS_FROM, ""))
        if isinstance(reserved, Unresolved):
            continue
        mine = made[reserved.queue]
        named = {flavor for group in mine.groups for flavor in group.flavors}
        labels = {name: known[name].spec.node_labels for name in sorted(named) if name in known}
        if len(found := attribute(claim.labels, labels)) != 1:
            continue
        since = claim.metadata.creation_timestamp
        priority = claim.annotations.get(names.PRIORITY, "0")
        yield Workload(
            name=f"{CLAIM}{claim.name}",
            queue=mine.name,
            usage=_share(mine, found[0], claim),
            priority=int(priority) if priority.lstrip("-").isdigit() else 0,
            reserved=since.timestamp() if since else 0.0,
            evicted=claim.deleting,
        )


def _share(queue: Queue, flavor: str, claim: NodeClaim) -> Amounts:
    """By the accelerator, whole; of what else the flavor has quota for, as much as goes with that, and no
    more than the instance has."""
    has = {name: units(name, text) for name, text in claim.status.capacity.items()}
    quota = {key.resource: each.nominal for key, each in queue.quotas.items() if key.flavor == flavor}
    by = next((name for name in ACCELERATORS if has.get(name) and quota.get(name)), None)
    return {
        FlavorResource(flavor, name): has[name]
        if by in (None, name)
        else min(has[name], nominal * has[by] // quota[by])
        for name, nominal in quota.items()
        if has.get(name)
    }


def _queued(cluster: DedicatedAICluster) -> float:
    created = cluster.metadata.creation_timestamp
    return created.timestamp() if created else 0.0
