"""Whether any instance type that a NodePool allows has room for a pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final

from broker.apis import names
from broker.apis.units import base
from broker.capacity.model import ANY_CLASS
from broker.capacity.options import TYPE_KEYS
from broker.capacity.requirements import Requirements
from broker.capacity.type_filter import TypeFilter
from broker.capacity.types import STORAGE, capacity, type_labels
from broker.placement.future_nodes import FutureNode
from broker.placement.model import PodInfo
from broker.placement.pool_choice import AUTO_MODE
from providers.model import InstanceType

# Auto Mode has Karpenter's labels of instances in its own domain.
_TYPE_KEYS: Final = TYPE_KEYS | {key.replace(names.KARPENTER_AWS, AUTO_MODE, 1) for key in TYPE_KEYS}


class TypeRoom:
    """Answers by EC2's types. `types` is called only if labels and taints admit the pod."""

    def __init__(self, types: Callable[[], Mapping[str, InstanceType]]) -> None:
        self._types = types

    def __call__(self, node: FutureNode, pod: PodInfo) -> bool:
        """Raises ProviderError."""
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


def _labels(type_: InstanceType) -> dict[str, str]:
    labels = type_labels(type_)
    return labels | {key.replace(names.KARPENTER_AWS, AUTO_MODE, 1): value for key, value in labels.items()}
