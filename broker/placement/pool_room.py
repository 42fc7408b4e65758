"""Whether any instance type that a NodePool allows has room for a pod, and how much the largest has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from broker.apis import names
from broker.apis.units import base
from broker.capacity.model import ANY_CLASS
from broker.capacity.options import TYPE_KEYS
from broker.capacity.type_filter import Mask, TypeFilter
from broker.capacity.types import CPU, MEMORY, STORAGE, capacity, type_labels
from broker.placement.future_nodes import FutureNode
from broker.placement.model import PodInfo
from broker.placement.pool_choice import AUTO_MODE, NO_LACK, Lack
from providers.model import InstanceType

# Auto Mode has Karpenter's labels of instances in its own domain.
_TYPE_KEYS: Final = TYPE_KEYS | {key.replace(names.KARPENTER_AWS, AUTO_MODE, 1) for key in TYPE_KEYS}


class TypeRoom:
    """Answers by EC2's types. `types` is called only if labels and taints admit the pod.

    Both methods raise ProviderError.
    """

    def __init__(self, types: Callable[[], Mapping[str, InstanceType]]) -> None:
        self._types = types

    def fits(self, node: FutureNode, pod: PodInfo) -> bool:
        """Whether a type has room for the pod."""
        allowed = self._allowed(node, pod)
        return allowed is not None and self._has_room(allowed, pod)

    def lack(self, node: FutureNode, pod: PodInfo) -> Lack:
        """Why no type has room for the pod; no lack if one has, and while no type is known."""
        allowed = self._allowed(node, pod)
        if allowed is None or not self._machines.rooms or self._has_room(allowed, pod):
            return NO_LACK
        rooms = [room for room, is_allowed in zip(self._machines.rooms, allowed, strict=True) if is_allowed]
        if not rooms:
            alone = self._machines.filter.matches_labels(node.requirements, among=_TYPE_KEYS).any()
            whose = "it and the pod's selector allow" if alone else "its requirements allow: correct them"
            return Lack(f"EC2 has no instance type that {whose}", "selector" if alone else "pool")
        requests = self._requests(pod)
        largest = {name: max(room.get(name, 0.0) for room in rooms) for name in requests}
        short = [name for name in sorted(requests) if requests[name] > largest[name]]
        if not short:
            wanted = " and ".join(_amount(name, requests[name]) for name in sorted(requests))
            return Lack(f"no type that it allows has {wanted} at once", "requests")
        texts = (
            (
                f"the largest type that it allows has {_amount(name, largest[name])}"
                if largest[name]
                else f"no type that it allows has {name}"
            )
            + f", the pod asks for {_amount(name, requests[name])}"
            for name in short
        )
        return Lack("; ".join(texts), "requests")

    def _has_room(self, allowed: Mask, pod: PodInfo) -> bool:
        return bool((allowed & self._machines.filter.fits(self._requests(pod))).any())

    def _allowed(self, node: FutureNode, pod: PodInfo) -> Mask | None:
        """The types that requirements and selector allow; None if labels or taints do not admit the pod."""
        selections = [*node.selections(pod)]
        if not selections:
            return None
        matches = self._machines.filter.matches_labels
        allowed: Mask = np.logical_or.reduce([matches(item, among=_TYPE_KEYS) for item in selections])
        return allowed

    def _requests(self, pod: PodInfo) -> dict[str, float]:
        """The requests that the type decides about. The class decides the size of the disk, and a device
        plugin may add resources to any machine.
        """
        decided = self._machines.resources - {STORAGE}
        return {name: amount for name, amount in base(pod.requests).items() if amount and name in decided}

    @cached_property
    def _machines(self) -> _Machines:
        types = self._types().values()
        rooms = [capacity(type_, ANY_CLASS) for type_ in types]
        return _Machines(
            TypeFilter([_labels(type_) for type_ in types], rooms), rooms, frozenset().union(*rooms)
        )


class _Machines(NamedTuple):
    """EC2's types as a filter, their capacity, and all their resources."""

    filter: TypeFilter
    rooms: Sequence[Mapping[str, float]]
    resources: frozenset[str]


def _amount(resource: str, amount: float) -> str:
    """`8 CPU`, `64 GiB of memory`, `8 nvidia.com/gpu`."""
    if resource == MEMORY:
        gib = f"{amount / 2**30:,.2f}".rstrip("0").rstrip(".")
        return f"{gib} GiB of memory"
    return f"{amount:.10g} {'CPU' if resource == CPU else resource}"


def _labels(type_: InstanceType) -> dict[str, str]:
    labels = type_labels(type_)
    return labels | {key.replace(names.KARPENTER_AWS, AUTO_MODE, 1): value for key, value in labels.items()}
