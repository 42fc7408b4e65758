"""Slots that dedicated clusters hold quota for and that none of their claims has yet.

Invariant: from its admission on, each instance of a cluster is counted in one place: as a claim with an
instance, as a claim of the plan at hand, or here. So its slots are not lent between its admission and its
launch. Flavors without reserved instances have no pending slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.dedicatedaicluster.demand import ClusterDemand, DemandError
from broker.controllers.dedicatedaicluster.machines import flavor_name, takes_reserved
from broker.controllers.dedicatedaicluster.snapshot import terminating
from broker.quota.model import Amounts
from broker.quota.resolve import ReservationNames
from broker.quota.slot_model import PendingSlots
from broker.quota.usage import ReservationKey
from broker.reservations.claims import cluster_of
from broker.reservations.cluster_admission import EPOCH, ClusterAdmission, by_flavor, held
from broker.reservations.cluster_sizes import Size
from broker.reservations.sizing import FlavorProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHolding:
    """A cluster that holds quota or may be admitted.

    `instances`: their number by flavor; `requesting`: its claims that request a slot now, by flavor. `size`
    converts quota to instances. `reserved`: the flavors of which it takes reserved instances.
    `nomination`: the quota that it is nominated for.
    """

    name: str
    held: ClusterAdmission
    size: Size
    instances: Mapping[str, int]
    reserved: frozenset[str]
    nomination: ClusterAdmission | None = None
    requesting: Mapping[str, int] = field(default_factory=dict)


def cluster_holdings(
    clusters: Iterable[DedicatedAICluster],
    claims: Iterable[NodeClaim],
    *,
    by_name: ReservationNames,
    demand: Callable[[DedicatedAICluster], ClusterDemand | DemandError],
    flavors: Collection[ResourceFlavor],
    sizes: Callable[[object], Size],
    counted_claims: Collection[str],
    admitted: Mapping[str, ClusterAdmission],
    nominated_quota: Mapping[str, ClusterAdmission],
    requesting: Collection[str] = (),
) -> list[ClusterHolding]:
    """The holdings of all clusters that are not terminating.

    `counted_claims`: claims (by uid) that count as if they had an instance; the `requesting` ones of them
    are considered by themselves. `admitted`, by uid: recent decisions that the status of a cluster may not
    show yet; `nominated_quota`: nominations.
    """
    known = list(clusters)
    if not known:
        return []
    all_claims = [*claims]
    instances = _counted(
        all_claims, lambda claim: bool(claim.status.provider_id) or claim.uid in counted_claims
    )
    requesting_now = _counted(
        all_claims, lambda claim: not claim.status.provider_id and claim.uid in requesting
    )
    holdings = []
    for cluster in known:
        reserved = by_name.resolve(cluster.spec.capacity_reservation_id)
        admission = admitted.get(cluster.uid) or held(cluster)
        if admission is None and isinstance(reserved, ReservationKey):
            admission = ClusterAdmission(reserved=reserved, since=EPOCH, usage={})
        if admission is not None and not terminating(cluster, reserved):
            holdings.append(
                ClusterHolding(
                    name=cluster.name,
                    held=admission,
                    size=sizes(admission.reserved),
                    instances=instances.get(cluster.uid, {}),
                    reserved=_reserved_flavors(demand(cluster), flavors),
                    nomination=nominated_quota.get(cluster.uid),
                    requesting=requesting_now.get(cluster.uid, {}),
                )
            )
    return holdings


def _counted(claims: Iterable[NodeClaim], counts: Callable[[NodeClaim], bool]) -> dict[str, Counter[str]]:
    """The number of these claims that count, by the uid of their cluster and by flavor."""
    counted: dict[str, Counter[str]] = {}
    for claim in claims:
        uid, _ = cluster_of(claim)
        if uid and not claim.deleting and counts(claim):
            counted.setdefault(uid, Counter())[flavor_name(claim)] += 1
    return counted


def _reserved_flavors(
    demand: ClusterDemand | DemandError, flavors: Iterable[ResourceFlavor]
) -> frozenset[str]:
    """The flavors of which a cluster takes reserved instances. With an unknown demand it keeps its slots."""
    known = demand if isinstance(demand, ClusterDemand) else ClusterDemand(requests={})
    return frozenset(flavor.name for flavor in flavors if takes_reserved(flavor.spec.node_labels, known))


def pending_slots(
    holdings: Iterable[ClusterHolding],
    *,
    usage: Mapping[str, Amounts],
    evicted: Collection[str],
    non_preemptible: bool,
) -> list[PendingSlots]:
    """The slots still missing for the quota of each cluster.

    `usage`: quota admitted in this decision, by cluster; `evicted`: clusters evicted in it.
    `non_preemptible`: no claim may preempt them.
    """
    missing = []
    for holding in holdings:
        if holding.name not in evicted:
            admission = replace(holding.held, usage=usage.get(holding.name, holding.held.usage))
            missing += _pending(
                holding, admission, _missing(holding, admission.usage), non_preemptible=non_preemptible
            )
    return missing


def nominated_slots(
    holdings: Iterable[ClusterHolding], *, usage: Mapping[str, Amounts], evicted: Collection[str]
) -> list[PendingSlots]:
    """The slots of nominated clusters beyond those that they hold quota for.

    `usage`: all quota that they will hold, by this decision. Without an entry the last decision counts.
    """
    missing = []
    for holding in holdings:
        held = holding.nomination
        if holding.name in usage:
            held = replace(holding.nomination or holding.held, usage=usage[holding.name])
        if holding.name in evicted or held is None:
            continue
        more = _missing(holding, held.usage)
        more.subtract(_missing(holding, holding.held.usage))
        missing += _pending(holding, held, more, nominated=True)
    return missing


def _pending(
    holding: ClusterHolding,
    held: ClusterAdmission,
    counts: Mapping[str, int],
    *,
    non_preemptible: bool = False,
    nominated: bool = False,
) -> list[PendingSlots]:
    return [
        PendingSlots(
            cluster=holding.name,
            queue=held.reserved.queue,
            flavor=flavor,
            count=count,
            priority=held.priority,
            since=held.since.timestamp(),
            non_preemptible=non_preemptible,
            nominated=nominated,
            requesting=holding.requesting.get(flavor, 0),
        )
        for flavor, count in sorted(counts.items())
        if count > 0
    ]


def _missing(holding: ClusterHolding, usage: Amounts) -> Counter[str]:
    """The number of instances by flavor that some quota amounts to, beyond the existing ones."""
    counts: Counter[str] = Counter()
    for flavor, amounts in by_flavor(usage).items():
        sized = holding.size(flavor, amounts)
        if not isinstance(sized, FlavorProblem) and flavor in holding.reserved:
            counts[flavor] = max(0, sized.count - holding.instances.get(flavor, 0))
    return counts
