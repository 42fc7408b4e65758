"""NodePools of other controllers: Karpenter's, EKS Auto Mode's, and those of any other group.

Why: their controllers do not see the broker's claims, and make a claim for each pod that their pools
accept. If the broker made one too, the pod would get two nodes. So such a pod is theirs, whatever the
broker's pools accept.

Invariant: a pool is its controller's, whichever group it has, and the broker writes nothing on it. The
exceptions are the pools that no controller serves for certain: Karpenter's while its Lease is not renewed,
and those with a misspelt group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.meta import ConditionUpdate
from broker.capacity.requirements import InvalidRequirement
from broker.placement.future_nodes import FutureNode
from broker.placement.model import PodInfo
from broker.placement.pool_choice import SERVED, by_weight, not_serving, of_broker, pool_node
from broker.placement.pool_room import TypeRoom
from broker.text import similar
from providers.model import InstanceType

KARPENTER_NOT_RUNNING: Final = "KarpenterNotRunning"
GROUP_UNKNOWN: Final = "NodeClassGroupUnknown"
# Known groups, and difflib's ratio from which another name is a typing error. Other providers of Karpenter
# have groups that are near to the one of AWS.
_MEANT: Final = ((names.BROKER, 0.75), (names.KARPENTER_AWS, 0.9))


def without_controller(pool: NodePool, *, karpenter_alive: bool) -> ConditionUpdate | None:
    """The condition of a pool that no controller serves for certain; None if one does, or may."""
    group = pool.spec.template.spec.node_class_ref.group
    if group == names.KARPENTER_AWS:
        reason, problem = KARPENTER_NOT_RUNNING, "Karpenter serves it, and Karpenter's Lease is not renewed"
        if karpenter_alive:
            return None
    else:
        near = [known for known, ratio in _MEANT if similar(group, (known,), ratio=ratio)]
        if not near or any(item.type != SERVED for item in pool.status.conditions):
            return None  # a controller that writes conditions exists
        reason, problem = GROUP_UNKNOWN, f"no controller is known for it; the nearest known one is {near[0]}"
    return ConditionUpdate(
        type=SERVED,
        status="False",
        reason=reason,
        message=f"spec.template.spec.nodeClassRef.group is {group!r}: {problem}; or make a NodePool of group "
        f"{names.BROKER}, which the broker serves",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPool:
    """A Ready NodePool of another controller. `shown`: its name and group."""

    name: str
    shown: str
    node: FutureNode


class OtherPools:
    """The NodePools of other controllers that serve pods now. `types` is called only if labels match."""

    def __init__(self, pools: Iterable[NodePool], types: Callable[[], Mapping[str, InstanceType]]) -> None:
        self._pools = [*_serving(pools)]
        self._room = TypeRoom(types)

    def of(self, pod: PodInfo) -> OtherPool | None:
        """The first pool that accepts the pod: some type has the labels and the room. Raises
        ProviderError."""
        return next((pool for pool in self._pools if self._room.fits(pool.node, pod)), None)


def _serving(pools: Iterable[NodePool]) -> Iterable[OtherPool]:
    """Without those that are not Ready, which serve no pod, and those of a fixed number of nodes."""
    for pool in by_weight(pools):
        if of_broker(pool) or not_serving(pool):
            continue
        ref = pool.spec.template.spec.node_class_ref
        try:
            node = pool_node(pool)
        except InvalidRequirement:
            continue  # its controller rejects such a pool
        yield OtherPool(name=pool.name, shown=f"NodePool {pool.name} of group {ref.group}", node=node)
