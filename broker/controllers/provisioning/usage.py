"""The resources that NodePools use: the start of their limits, and their status.

Invariant: `counted` alone decides which claims count, for status and limits alike. As in Karpenter, a claim
that ends, or that has a replacement, counts no more (pkg/controllers/state/cluster.go,
updateNodePoolResources): its replacement counts instead. A claim in flight counts for the limits with the
largest machine that it may get, until EC2 answers: any smaller number could be exceeded by the launch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import is_true
from broker.apis.spelling import NEAR
from broker.apis.units import whole, written
from broker.capacity.model import ANY_CLASS, NodeClass
from broker.capacity.options import TYPE_KEYS, tenancy
from broker.capacity.requirements import InvalidRequirement
from broker.capacity.types import capacity, type_labels
from broker.controllers.claim_status import replaced_uids
from broker.placement.quantities import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, amounts
from broker.placement.reading import requirements_of
from broker.reservations.sizing import SOLD
from broker.text import InvalidText, quantities, similar
from providers.model import InstanceType

NODES: Final = "nodes"
# Shown even if they are zero (karpenter pkg/controllers/nodepool/counter, BaseResources).
_SHOWN: Final = (CPU, MEMORY, PODS, EPHEMERAL_STORAGE, NODES)

Largest = Callable[[NodeClaim], Mapping[str, int]]


class LargestMachines:
    """The largest capacity that a claim may get, by resource, over all types that it admits.

    `node_class`: the class by its name; None if it cannot launch now.
    """

    def __init__(
        self, types: Mapping[str, InstanceType], node_class: Callable[[str], NodeClass | None]
    ) -> None:
        self._types, self._node_class = types, node_class
        self._known: dict[Hashable, Mapping[str, int]] = {}
        self._capacities: dict[tuple[str, str], dict[str, int]] = {}

    def __call__(self, claim: NodeClaim) -> Mapping[str, int]:
        """At least the claim's requests, if no type is known for it."""
        ref = claim.spec.node_class_ref.name
        key = (ref, *((item.key, item.operator, *item.values) for item in claim.spec.requirements))
        if key not in self._known:
            self._known[key] = self._largest(claim, self._node_class(ref) or ANY_CLASS)
        return self._known[key] or amounts(claim.spec.resources.requests)

    def _largest(self, claim: NodeClaim, node_class: NodeClass) -> Mapping[str, int]:
        try:
            required = requirements_of(claim.spec)
        except InvalidRequirement:
            return {}
        most: dict[str, int] = {}
        settings = {names.INSTANCE_TENANCY: tenancy(required) or node_class.tenancy}
        for name, type_ in self._types.items():
            if not required.allows(names.INSTANCE_TYPE, name):
                continue
            if required.unmet({**type_labels(type_), **settings}, among=TYPE_KEYS):
                continue
            for resource, amount in self._capacity(type_, node_class).items():
                most[resource] = max(amount, most.get(resource, 0))
        return most

    def _capacity(self, type_: InstanceType, node_class: NodeClass) -> dict[str, int]:
        key = (type_.name, node_class.name)
        if key not in self._capacities:
            self._capacities[key] = whole(capacity(type_, node_class))
        return self._capacities[key]


def counted(claims: Iterable[NodeClaim]) -> list[NodeClaim]:
    """The claims of NodePools that count: neither ending, nor replaced by another one."""
    known = [claim for claim in claims if not _ends(claim)]
    replaced = {uid for claim in known for uid in replaced_uids(claim)}
    return [claim for claim in known if claim.node_pool and claim.uid not in replaced]


def pool_usage(claims: Iterable[NodeClaim], nodes: Iterable[Node]) -> dict[str, Counter[str]]:
    """Sums by pool: the total capacity of its nodes, and their number."""
    return _used((claim for claim in counted(claims) if claim.status.provider_id), nodes, _unknown)


def pool_limits(
    pools: Iterable[NodePool], claims: Iterable[NodeClaim], nodes: Iterable[Node], largest: Largest
) -> dict[str, dict[str, int]]:
    """The resources that each pool with limits may still add; negative beyond a limit.

    Nodes that are replaced count with what they have more than their replacement, which may be given up.
    """
    limited = {pool.name: limit_amounts(pool.spec.limits) for pool in pools if pool.spec.limits}
    if not limited:
        return {}
    known, listed = [*claims], [*nodes]
    used = _used((claim for claim in counted(known) if claim.node_pool in limited), listed, largest)
    moves = [(new, olds) for new, olds in _replaced(known) if olds[0].node_pool in limited]
    by_claim = _by_claim((claim for new, olds in moves for claim in (new, *olds)), listed, largest)
    for new, olds in moves:
        more = sum((by_claim[old.uid] for old in olds), Counter[str]())
        more -= by_claim[new.uid]  # a Counter keeps positive amounts only
        used.setdefault(olds[0].node_pool, Counter()).update(more)
    return {
        pool: {name: amount - used[pool][name] if pool in used else amount for name, amount in limits.items()}
        for pool, limits in limited.items()
    }


def claim_usage(claim: NodeClaim, node: Node | None, largest: Largest) -> Counter[str]:
    """The capacity of a claim's machine, and its node as one."""
    if node is not None and is_true(claim, names.INITIALIZED_CONDITION):
        return Counter({**amounts(node.status.capacity), NODES: 1})
    # Before that, also that of EC2's type.
    reported = amounts(node.status.capacity) if node is not None else {}
    launched = {**amounts(claim.status.capacity), **{name: n for name, n in reported.items() if n}}
    return Counter({**(launched or largest(claim)), NODES: 1})


def node_room(pool: NodePool, claims: Iterable[NodeClaim]) -> int | None:
    """How many nodes a static pool may have beside its claims; None without a limit.

    As in Karpenter, those that end or are replaced count as well (pkg/controllers/state/statenodepool.go).
    """
    limit = limit_amounts(pool.spec.limits).get(NODES)
    own = sum(claim.node_pool == pool.name for claim in claims)
    return None if limit is None else max(0, limit - own)


def limit_amounts(limits: Mapping[str, str]) -> dict[str, int]:
    """Limits in placement's units; the number of nodes is one of them. Raises InvalidText."""
    limited = {**amounts(limits)}
    if NODES in limits:
        limited[NODES] = int(quantities({NODES: limits[NODES]})[NODES])
    return limited


def unreadable(pool: NodePool) -> str:
    """The error of limits that cannot be read; empty if they can."""
    try:
        limit_amounts(pool.spec.limits)
        quantities(pool.spec.limits)
    except InvalidText as error:
        return str(error)
    return ""


def exceeded(limits: Mapping[str, int], used: Mapping[str, int]) -> str:
    """The resources beyond their limits, with both amounts; empty if there are none."""
    return ", ".join(
        f"{name} {written(name, used.get(name, 0))} of {written(name, amount)}"
        for name, amount in sorted(limits.items())
        if used.get(name, 0) > amount
    )


def misspelt(limits: Mapping[str, str], used: Mapping[str, int]) -> str:
    """The limits of resources that no node of the pool has and that resemble one of EC2's; empty if none.

    A device plugin may give nodes a resource that EC2 does not know, so such a limit stops nothing.
    """
    known = {*_SHOWN, *SOLD, *used}
    return "; ".join(
        f"no node of the pool has {name}, so its limit has no effect: write {meant} if that is meant"
        for name in sorted({*limits} - known)
        if (meant := similar(name, known, ratio=NEAR))
    )


def shown(used: Mapping[str, int]) -> dict[str, str]:
    """The resources as the pool's status has them."""
    return {
        name: written(name, amount) for name, amount in sorted({**dict.fromkeys(_SHOWN, 0), **used}.items())
    }


def _replaced(claims: Sequence[NodeClaim]) -> Iterator[tuple[NodeClaim, list[NodeClaim]]]:
    """The replacements, with the claims that each replaces; none of them ends."""
    by_uid = {claim.uid: claim for claim in claims if not _ends(claim)}
    for claim in by_uid.values():
        if olds := [by_uid[uid] for uid in replaced_uids(claim) if uid in by_uid]:
            yield claim, olds


def _used(claims: Iterable[NodeClaim], nodes: Iterable[Node], largest: Largest) -> dict[str, Counter[str]]:
    counted_claims = [*claims]
    by_claim = _by_claim(counted_claims, nodes, largest)
    by_pool: dict[str, Counter[str]] = {}
    for claim in counted_claims:
        by_pool.setdefault(claim.node_pool, Counter()).update(by_claim[claim.uid])
    return by_pool


def _by_claim(
    claims: Iterable[NodeClaim], nodes: Iterable[Node], largest: Largest
) -> dict[str, Counter[str]]:
    """The usage of each claim, by uid."""
    by_id = {node.instance_id: node for node in nodes if node.instance_id}
    return {
        claim.uid: claim_usage(claim, by_id.get(id_) if (id_ := claim.instance_id) else None, largest)
        for claim in claims
    }


def _unknown(_: NodeClaim) -> Mapping[str, int]:
    return {}


def _ends(claim: NodeClaim) -> bool:
    return claim.deleting or is_true(claim, names.INSTANCE_TERMINATING)
