"""The NodePools that a pod may get a node from, in the order in which they are chosen.

Invariant: provisioning, `explain` and the lists of waiting pods judge a NodePool here, so that they agree. A
pod that a Ready NodePool of another controller accepts is that controller's. The other pools follow by
weight, as in Karpenter (https://karpenter.sh/docs/concepts/nodepools/#specweight), and then by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.meta import condition
from broker.apis.static_pools import REPLICAS_MET, number_of_nodes
from broker.capacity.future_labels import future_labels
from broker.capacity.options import with_capacity_types
from broker.capacity.requirements import InvalidRequirement
from broker.lists import lists_by_key
from broker.placement.future_nodes import FutureNode, future_node
from broker.placement.model import PodInfo
from broker.placement.selectors import IN, holds
from broker.text import abridged, nearest

# EKS runs the controller of this group outside of the cluster.
AUTO_MODE: Final = "eks.amazonaws.com"
# Labels of all nodes of a group (https://docs.aws.amazon.com/eks/latest/userguide/associate-workload.html).
_OF_GROUP: Final[Mapping[str, Mapping[str, str]]] = {AUTO_MODE: {f"{AUTO_MODE}/compute-type": "auto"}}
# On a NodePool that has no machine for any pod: the type and the reason of the condition.
OFFERING: Final = "MachinesOffered"
# On a NodePool of another group: False if no controller serves it for certain.
SERVED: Final = "Served"
NO_MACHINE: Final = "NoMachineOffered"
MOST_NAMED: Final = 3


class Lack(NamedTuple):
    """Why no instance type that the pool's nodes may have has room for a pod, and which part to correct: the
    pod's requests, its selector, or the pool. Empty if one has room.
    """

    text: str = ""
    of: Literal["", "requests", "selector", "pool"] = ""


NO_LACK: Final = Lack()
RoomLack = Callable[[FutureNode, PodInfo], Lack]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolVerdict:
    """`rejection`: why the pod gets no node of the pool; empty if it may get one. `accepts`: whether labels
    and taints admit the pod, and a type has room for it, even if the pool serves no pod now. `lack`: the
    part to correct, if only the room lacks, or the pool cannot be read. `named`: whether the pod allows
    the name of the pool.
    """

    pool: NodePool
    rejection: str
    accepts: bool
    lack: str = ""
    named: bool = True

    @property
    def node_class(self) -> str:
        return self.pool.spec.template.spec.node_class_ref.name


def of_broker(pool: NodePool) -> bool:
    """Whether the broker makes claims for the pool's pods."""
    return pool.spec.template.spec.node_class_ref.group == names.BROKER


def by_weight(pools: Iterable[NodePool]) -> list[NodePool]:
    """The pools, those with more weight first."""
    return sorted(pools, key=lambda pool: (-(pool.spec.weight or 0), pool.name))


def pool_node(pool: NodePool) -> FutureNode:
    """The nodes that the pool's controller makes. Raises InvalidRequirement."""
    template, ref = pool.spec.template, pool.spec.template.spec.node_class_ref
    labels = {**template.metadata.labels, **_OF_GROUP.get(ref.group, {}), names.NODEPOOL: pool.name}
    if of_broker(pool):
        node = future_node(template.spec, future_labels(labels, ref.name))
        return replace(node, requirements=with_capacity_types(node.requirements))
    return future_node(template.spec, {**labels, f"{ref.group}/{ref.kind.lower()}": ref.name})


def buys(pool: NodePool) -> bool:
    """Whether the pool allows machines outside reservations. Raises InvalidRequirement."""
    required = pool_node(pool).requirements
    return any(required.allows(names.CAPACITY_TYPE, kind) for kind in ("on-demand", "spot"))


def static_pool(pool: NodePool) -> str:
    """Why pods get no machine from a pool that has a number of nodes of its own; empty for other pools."""
    number, met = number_of_nodes(pool), condition(pool.status.conditions, REPLICAS_MET)
    if number and met is not None:
        number = met.message  # also how many there are, and why no more
    return f"its number of nodes is its own: {number}; pods use the nodes that it has" if number else ""


def not_serving(pool: NodePool) -> str:
    """Why the pool gives no pod a new node now; empty if it does."""
    if pool.deleting:
        return "it is being deleted"
    ready = condition(pool.status.conditions, names.READY)
    if ready is not None and ready.status == "True":
        return static_pool(pool) if of_broker(pool) or pool.spec.replicas is not None else ""
    if ready is None:
        absent = condition(pool.status.conditions, SERVED)
        return absent.message if absent is not None else "no controller has reported that it is Ready"
    return f"it is not Ready: {ready.reason}{f': {ready.message}' if ready.message else ''}"


def pool_verdicts(pod: PodInfo, pools: Iterable[NodePool], room_lack: RoomLack) -> list[PoolVerdict]:
    """All pools; the first without a rejection is the one that the pod gets its node from."""
    verdicts = [pool_verdict(pod, pool, room_lack) for pool in by_weight(pools)]
    return sorted(verdicts, key=lambda v: (bool(v.rejection), not v.named, of_broker(v.pool)))


def pool_verdict(pod: PodInfo, pool: NodePool, room_lack: RoomLack) -> PoolVerdict:
    """Whether the pod may get a node of the pool."""
    lack = NO_LACK
    try:
        node = pool_node(pool)
        unfit = node.rejection(pod) or (lack := room_lack(node, pod)).text
    except InvalidRequirement as error:
        lack = Lack(f"its requirements cannot be read: {error}", "pool")
        unfit = lack.text
    rejection = unfit or not_serving(pool)
    return PoolVerdict(
        pool=pool, rejection=rejection, accepts=not unfit, lack=lack.of, named=_allows_name(pod, pool.name)
    )


def _allows_name(pod: PodInfo, pool: str) -> bool:
    """Whether the pod's selector and one term of its affinity allow the name of the pool."""
    return any(
        all(holds(item, {names.NODEPOOL: pool}) for item in selector if item.key == names.NODEPOOL)
        for selector in pod.alternatives
    )


def asked(pod: PodInfo) -> Hashable:
    """The part of the pod that verdicts depend on."""
    requests = tuple(sorted(pod.requests.items()))
    return requests, pod.node_selector, pod.node_terms, pod.named_nodes, pod.tolerations


def absent_pools(pod: PodInfo, existing: Collection[str]) -> str:
    """The NodePools that the pod's selector or affinity insists on, in a sentence, if none of them exists."""
    absent: dict[str, None] = {}
    for selector in pod.alternatives:
        insisted = [
            item.values
            for item in selector
            if (item.key, item.operator) == (names.NODEPOOL, IN) and item.values.isdisjoint(existing)
        ]
        if not insisted:
            return ""
        absent |= dict.fromkeys(sorted(insisted[0]))
    if not absent:
        return ""
    known = f"; the cluster has {abridged(sorted(existing), MOST_NAMED)}" if existing else ""
    near = nearest(next(iter(absent)), existing) or known
    return f"{pools_named([*absent])} {'does' if len(absent) == 1 else 'do'} not exist{near}"


def by_reason(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """A clause for each reason, with the names of its NodePools; in their order."""
    named = lists_by_key((reason, pool) for pool, reason in reasons)
    return [f"{pools_named(pools)}: {reason}" for reason, pools in named.items()]


def none_accepts(verdicts: Iterable[PoolVerdict]) -> str:
    """That no NodePool accepts a pod, with the reason of each, or only of those that the pod names.

    Those that lack only the room come first.
    """
    every = sorted(verdicts, key=lambda verdict: not verdict.lack)
    named = [verdict for verdict in every if verdict.named] or every
    reasons = by_reason((verdict.pool.name, verdict.rejection) for verdict in named)
    return f"no NodePool accepts it: {abridged(reasons, MOST_NAMED)}"


def pools_named(pools: Sequence[str]) -> str:
    return f"NodePool{'s' if len(pools) > 1 else ''} {abridged(pools, MOST_NAMED)}"
