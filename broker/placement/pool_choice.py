"""The NodePools that a pod may get a node from, in the order in which they are chosen.

Invariant: provisioning, `explain` and the lists of waiting pods judge a NodePool here, so that they agree. A
pod that a Ready NodePool of another controller accepts is that controller's. The other pools follow by
weight, as in Karpenter (https://karpenter.sh/docs/concepts/nodepools/#specweight), and then by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.meta import condition
from broker.apis.static_pools import number_of_nodes
from broker.capacity.future_labels import future_labels
from broker.capacity.requirements import InvalidRequirement
from broker.placement.future_nodes import FutureNode, future_node
from broker.placement.model import PodInfo

# EKS runs the controller of this group outside of the cluster.
AUTO_MODE: Final = "eks.amazonaws.com"
# Labels of all nodes of a group (https://docs.aws.amazon.com/eks/latest/userguide/associate-workload.html).
_OF_GROUP: Final[Mapping[str, Mapping[str, str]]] = {AUTO_MODE: {f"{AUTO_MODE}/compute-type": "auto"}}
# On a NodePool that has no machine for any pod: the type and the reason of the condition.
OFFERING: Final = "MachinesOffered"
NO_MACHINE: Final = "NoMachineOffered"
NO_ROOM: Final = "none of its instance types has room for the pod"
# Whether some instance type that the pool's nodes may have has room for the pod.
HasRoom = Callable[[FutureNode, PodInfo], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolVerdict:
    """`rejection`: why the pod gets no node of the pool; empty if it may get one. `accepts`: whether labels
    and taints admit the pod, even if the pool serves no pod now.
    """

    pool: NodePool
    rejection: str
    accepts: bool

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
        return future_node(template.spec, future_labels(labels, ref.name))
    return future_node(template.spec, {**labels, f"{ref.group}/{ref.kind.lower()}": ref.name})


def static_pool(pool: NodePool) -> str:
    """Why pods get no machine from a pool that has a number of nodes of its own; empty for other pools."""
    number = number_of_nodes(pool)
    return f"its number of nodes is its own: {number}; pods use the nodes that it has" if number else ""


def not_serving(pool: NodePool) -> str:
    """Why the pool gives no pod a new node now; empty if it does."""
    if pool.deleting:
        return "it is being deleted"
    ready = condition(pool.status.conditions, names.READY)
    if ready is not None and ready.status == "True":
        return static_pool(pool) if of_broker(pool) or pool.spec.replicas is not None else ""
    if ready is None:
        return "no controller has reported that it is Ready"
    return f"it is not Ready: {ready.reason}{f': {ready.message}' if ready.message else ''}"


def pool_verdicts(pod: PodInfo, pools: Iterable[NodePool], has_room: HasRoom) -> list[PoolVerdict]:
    """All pools; the first without a rejection is the one that the pod gets its node from."""
    verdicts = [_verdict(pod, pool, has_room) for pool in by_weight(pools)]
    return sorted(verdicts, key=lambda verdict: (bool(verdict.rejection), of_broker(verdict.pool)))


def _verdict(pod: PodInfo, pool: NodePool, has_room: HasRoom) -> PoolVerdict:
    try:
        node = pool_node(pool)
        unfit = node.rejection(pod) or ("" if has_room(node, pod) else NO_ROOM)
    except InvalidRequirement as error:
        unfit = f"its requirements cannot be read: {error}"
    return PoolVerdict(pool=pool, rejection=unfit or not_serving(pool), accepts=not unfit)
