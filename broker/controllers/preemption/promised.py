"""Slots that dedicated clusters hold quota for and that none of their claims has yet.

Invariant: from its admission on, each instance of a cluster is counted in one place: as a claim with an
instance, as a claim of the plan at hand, or here. So its slots are not lent between its admission and its
launch. Flavors without reserved instances are promised no slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.dedicatedaicluster.admission import EPOCH, ClusterAdmission, by_flavor, held
from broker.controllers.dedicatedaicluster.machines import flavor_name
from broker.controllers.dedicatedaicluster.settle import Size, terminating
from broker.quota.model import Amounts
from broker.quota.resolve import Names
from broker.quota.slot_model import Promise
from broker.quota.usage import Reserved
from broker.reservations.sizing import FlavorProblem

RESERVED: Final = "reserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHolding:
    """A cluster that holds quota or may be admitted.

    `has`: its instances by flavor; `asking`: its claims that request a slot now, by flavor. `size` converts
    quota to instances. `reserved`: the flavors of which it takes reserved instances. `later`: its
    nomination.
    """

    name: str
    held: ClusterAdmission
    size: Size
    has: Mapping[str, int]
    reserved: frozenset[str]
    later: ClusterAdmission | None = None
    asking: Mapping[str, int] = field(default_factory=dict)


def cluster_of(claim: NodeClaim) -> tuple[str, str]:
    """The uid and the name of the cluster that owns a claim, empty without one."""
    if names.DEDICATED in claim.labels:
        for owner in claim.metadata.owner_references:
            if owner.kind == DedicatedAICluster.KIND.kind:
                return owner.uid, owner.name
    return "", ""


def cluster_holdings(
    clusters: Iterable[DedicatedAICluster],
    claims: Iterable[NodeClaim],
    *,
    by_name: Names,
    flavors: Collection[ResourceFlavor],
    sizes: Callable[[object], Size],
    settled: Collection[str],
    admitted: Mapping[str, ClusterAdmission],
    later: Mapping[str, ClusterAdmission],
    asking: Collection[str] = (),
) -> list[ClusterHolding]:
    """The holdings of all clusters that are not terminating.

    `settled`: claims (by uid) that count as if they had an instance; the `asking` ones of them are
    considered by themselves. `admitted`, by uid: recent decisions that the status of a cluster may not show
    yet; `later`: nominations.
    """
    there = list(clusters)
    if not there:
        return []
    listed = [*claims]
    has = _counted(listed, lambda claim: bool(claim.status.provider_id) or claim.uid in settled)
    asks = _counted(listed, lambda claim: not claim.status.provider_id and claim.uid in asking)
    found = []
    for each in there:
        reserved = by_name.resolve(each.spec.capacity_reservation_id)
        has_some = held(each)
        mine = admitted.get(each.uid) or has_some
        if mine is None and isinstance(reserved, Reserved):
            mine = ClusterAdmission(reserved=reserved, since=EPOCH, usage={})
        # A cluster that gave everything back, and waits again, still has its condition Preempted.
        leaves = terminating(each, reserved) if has_some else each.deleting
        if mine is not None and not leaves:
            found.append(
                ClusterHolding(
                    name=each.name,
                    held=mine,
                    size=sizes(mine.reserved),
                    has=has.get(each.uid, {}),
                    reserved=_takes_reserved(each, flavors),
                    later=later.get(each.uid),
                    asking=asks.get(each.uid, {}),
                )
            )
    return found


def _counted(claims: Iterable[NodeClaim], counts: Callable[[NodeClaim], bool]) -> dict[str, Counter[str]]:
    """The number of these claims that count, by the uid of their cluster and by flavor."""
    found: dict[str, Counter[str]] = {}
    for claim in claims:
        uid, _ = cluster_of(claim)
        if uid and not claim.deleting and counts(claim):
            found.setdefault(uid, Counter())[flavor_name(claim)] += 1
    return found


def _takes_reserved(cluster: DedicatedAICluster, flavors: Iterable[ResourceFlavor]) -> frozenset[str]:
    own = cluster.spec.node_selector.get(names.CAPACITY_TYPE, RESERVED)
    return frozenset(
        each.name for each in flavors if each.spec.node_labels.get(names.CAPACITY_TYPE, own) == RESERVED
    )


def promises(
    those: Iterable[ClusterHolding],
    *,
    usage: Mapping[str, Amounts],
    gone: Collection[str],
    spared: bool,
) -> list[Promise]:
    """The slots still missing for the quota of each cluster.

    `usage`: quota admitted in this decision, by cluster; `gone`: clusters evicted in it. `spared`: the
    promises are non-preemptible.
    """
    found = []
    for each in those:
        if each.name not in gone:
            mine = replace(each.held, usage=usage.get(each.name, each.held.usage))
            found += _promised(each, mine, _missing(each, mine.usage), spared=spared)
    return found


def nominations(
    those: Iterable[ClusterHolding], *, usage: Mapping[str, Amounts], gone: Collection[str]
) -> list[Promise]:
    """The slots of nominated clusters beyond those that they hold quota for.

    `usage`: all quota that they will hold, by this decision. Without an entry the last decision counts.
    """
    found = []
    for each in those:
        held = each.later
        if each.name in usage:
            held = replace(each.later or each.held, usage=usage[each.name])
        if each.name in gone or held is None:
            continue
        more = _missing(each, held.usage)
        more.subtract(_missing(each, each.held.usage))
        found += _promised(each, held, more, later=True)
    return found


def _promised(
    one: ClusterHolding,
    held: ClusterAdmission,
    counts: Mapping[str, int],
    *,
    spared: bool = False,
    later: bool = False,
) -> list[Promise]:
    return [
        Promise(
            cluster=one.name,
            queue=held.reserved.queue,
            flavor=flavor,
            count=count,
            priority=held.priority,
            since=held.since.timestamp(),
            non_preemptible=spared,
            later=later,
            asking=one.asking.get(flavor, 0),
        )
        for flavor, count in sorted(counts.items())
        if count > 0
    ]


def _missing(one: ClusterHolding, usage: Amounts) -> Counter[str]:
    """The number of instances by flavor that some quota amounts to, beyond the existing ones."""
    found: Counter[str] = Counter()
    for flavor, amounts in by_flavor(usage).items():
        sized = one.size(flavor, amounts)
        if not isinstance(sized, FlavorProblem) and flavor in one.reserved:
            found[flavor] = max(0, sized.count - one.has.get(flavor, 0))
    return found
