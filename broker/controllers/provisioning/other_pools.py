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
from difflib import get_close_matches
from functools import cached_property
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.meta import ConditionUpdate, is_true
from broker.apis.units import base
from broker.capacity.model import ANY_CLASS
from broker.capacity.options import TYPE_KEYS
from broker.capacity.requirements import InvalidRequirement, Requirements
from broker.capacity.type_filter import TypeFilter
from broker.capacity.types import STORAGE, capacity, type_labels
from broker.controllers.provisioning.pools import SERVED, of_broker
from broker.placement.future_nodes import FutureNode, future_node
from broker.placement.model import PodInfo
from providers.model import InstanceType

KARPENTER_NOT_RUNNING: Final = "KarpenterNotRunning"
GROUP_UNKNOWN: Final = "NodeClassGroupUnknown"
# EKS runs the controller of this group outside of the cluster.
AUTO_MODE: Final = "eks.amazonaws.com"
# Known groups, and difflib's ratio from which another name is a typing error. Other providers of Karpenter
# have groups that are near to the one of AWS.
_MEANT: Final = ((names.BROKER, 0.75), (names.KARPENTER_AWS, 0.9))
# Labels of all nodes of a group (https://docs.aws.amazon.com/eks/latest/userguide/associate-workload.html).
_OF_GROUP: Final[Mapping[str, Mapping[str, str]]] = {AUTO_MODE: {f"{AUTO_MODE}/compute-type": "auto"}}
# Auto Mode has Karpenter's labels of instances in its own domain.
_TYPE_KEYS: Final = TYPE_KEYS | {key.replace(names.KARPENTER_AWS, AUTO_MODE, 1) for key in TYPE_KEYS}


def without_controller(pool: NodePool, *, karpenter_alive: bool) -> ConditionUpdate | None:
    """The condition of a pool that no controller serves for certain; None if one does, or may."""
    group = pool.spec.template.spec.node_class_ref.group
    if group == names.KARPENTER_AWS:
        reason, problem = KARPENTER_NOT_RUNNING, "Karpenter serves it, and Karpenter's Lease is not renewed"
        if karpenter_alive:
            return None
    else:
        near = [known for known, ratio in _MEANT if get_close_matches(group, (known,), cutoff=ratio)]
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
        self._types = types

    def of(self, pod: PodInfo) -> OtherPool | None:
        """The first pool that accepts the pod: some type has the labels and the room. Raises
        ProviderError."""
        return next((pool for pool in self._pools if self._accepts(pool.node, pod)), None)

    def _accepts(self, node: FutureNode, pod: PodInfo) -> bool:
        return any(self._has_type(required, pod) for required in node.selections(pod))

    def _has_type(self, required: Requirements, pod: PodInfo) -> bool:
        machines, resources = self._machines
        requests = {name: amount for name, amount in base(pod.requests).items() if name in resources}
        return bool((machines.matches_labels(required, among=_TYPE_KEYS) & machines.fits(requests)).any())

    @cached_property
    def _machines(self) -> tuple[TypeFilter, frozenset[str]]:
        """EC2's types, and the resources that the type decides.

        The class decides the size of the disk, and a device plugin may add resources to any machine.
        """
        types = self._types().values()
        rooms = [capacity(type_, ANY_CLASS) for type_ in types]
        return TypeFilter([_labels(type_) for type_ in types], rooms), frozenset().union(*rooms) - {STORAGE}


def _serving(pools: Iterable[NodePool]) -> Iterable[OtherPool]:
    """Without those that are not Ready, which serve no pod, and those of a fixed number of nodes."""
    for pool in sorted(pools, key=lambda pool: (-(pool.spec.weight or 0), pool.name)):
        if (
            of_broker(pool)
            or pool.deleting
            or pool.spec.replicas is not None
            or not is_true(pool, names.READY)
        ):
            continue
        template, ref = pool.spec.template, pool.spec.template.spec.node_class_ref
        labels = {
            **template.metadata.labels,
            **_OF_GROUP.get(ref.group, {}),
            names.NODEPOOL: pool.name,
            f"{ref.group}/{ref.kind.lower()}": ref.name,
        }
        try:
            node = future_node(template.spec, labels)
        except InvalidRequirement:
            continue  # its controller rejects such a pool
        yield OtherPool(name=pool.name, shown=f"NodePool {pool.name} of group {ref.group}", node=node)


def _labels(type_: InstanceType) -> dict[str, str]:
    labels = type_labels(type_)
    return labels | {key.replace(names.KARPENTER_AWS, AUTO_MODE, 1): value for key, value in labels.items()}
