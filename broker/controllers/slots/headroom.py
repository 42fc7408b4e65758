"""Holds back claims that would take the quota that nominated clusters wait for.

Invariant: a claim counts against its reservation's quota once it has a reserved instance. A nominated cluster
has its quota only after its victims have left. Until then no claim is launched that would take that quota:
it would be drained at once, or a victim would return before the cluster starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import ResourceFlavor
from broker.apis.units import whole
from broker.placement.claims import priority_of
from broker.quota.candidates import fits
from broker.quota.joint import QuotaState
from broker.quota.model import Amounts
from broker.quota.tree import QuotaNode, Tree
from broker.reservations.claim_holders import share
from broker.reservations.claims import nominated
from broker.reservations.cluster_admission import ClusterAdmission
from broker.reservations.sizing import supply
from providers.model import InstanceType


def without_room(
    quota: QuotaState,
    nominated_quota: Mapping[str, ClusterAdmission],
    claims: Iterable[tuple[NodeClaim, str]],
    machines: Mapping[str, str],
    *,
    flavors: Mapping[str, ResourceFlavor],
    types: Mapping[str, InstanceType],
) -> frozenset[str]:
    """The uids of claims that would take quota for which clusters are nominated. `nominated_quota`: the total
    future quota of each nominated cluster, by name; `claims`: the waiting claims with their queues;
    `machines`: the queues of machines that may be opened, by uid, after all claims."""
    tree = Tree(quota.queues)
    for holder in quota.holders:
        # The future quota of a nominated cluster includes its present quota.
        if holder.queue in tree.queues and not holder.evicted and holder.name not in nominated_quota:
            tree.queues[holder.queue].add(holder.usage)
    roots = set()
    for held in nominated_quota.values():
        if (node := tree.queues.get(held.reserved.queue)) is not None:
            node.add(held.usage)
            roots.add(node.root())
    made_for = {key.flavor for held in nominated_quota.values() for key in held.usage}
    held_back = set()
    waiting = [*claims]
    gangs = {claim.gang for claim, _ in waiting if nominated(claim)} - {""}

    def first(claim: NodeClaim) -> bool:
        return nominated(claim) or claim.gang in gangs

    for claim, queue in sorted(waiting, key=lambda item: (not first(item[0]), *_order(item[0]))):
        node = tree.queues.get(queue)
        if node is None or node.root() not in roots:
            continue
        fitting = True
        for usage in _usages(_allowed(claim), node, made_for, flavors, types):
            if fits(node, usage, borrow=True):
                node.add(usage)
            else:
                fitting = False
        if not fitting and not first(claim):
            held_back.add(claim.uid)
    for uid, queue in machines.items():
        node = tree.queues.get(queue)
        if node is not None and node.root() in roots:
            usages = _usages({}, node, made_for, flavors, types)
            if not all(fits(node, usage, borrow=True) for usage in usages):
                held_back.add(uid)
    return frozenset(held_back)


def _order(claim: NodeClaim) -> tuple[int, float, str]:
    created = claim.metadata.creation_timestamp
    return (
        -priority_of(claim),
        created.timestamp() if created is not None else 0.0,
        claim.name,
    )


def _allowed(claim: NodeClaim) -> Mapping[str, Collection[str]]:
    """The values that the claim requires, by label."""
    return {item.key: item.values for item in claim.spec.requirements if item.operator == "In"}


def _usages(
    allowed: Mapping[str, Collection[str]],
    node: QuotaNode,
    made_for: Set[str],
    flavors: Mapping[str, ResourceFlavor],
    types: Mapping[str, InstanceType],
) -> Iterator[Amounts]:
    """The usage of one instance in each flavor that the labels allow."""
    if node.queue is None:
        return
    for name in sorted({key.flavor for key in node.queue.quotas} & made_for & flavors.keys()):
        labels = flavors[name].spec.node_labels
        kind = types.get(labels.get(names.INSTANCE_TYPE, ""))
        if kind is None or any(value not in allowed.get(key, (value,)) for key, value in labels.items()):
            continue
        yield share(node.queue, name, whole(supply(kind)))
