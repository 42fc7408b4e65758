"""Whether any instance type that a NodePool allows has room for a pod, and how much the largest has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from broker.apis import names
from broker.apis.units import base
from broker.capacity.model import ANY_CLASS
from broker.capacity.options import TYPE_KEYS
from broker.capacity.requirements import InvalidRequirement, Requirements
from broker.capacity.type_filter import Mask, TypeFilter
from broker.capacity.types import CPU, MEMORY, STORAGE, capacity, lacking, type_labels
from broker.capacity.unknown_values import label_values, place_values, unknown_values
from broker.placement.future_nodes import FutureNode
from broker.placement.model import PodInfo
from broker.placement.pool_choice import AUTO_MODE, NO_LACK, Lack
from broker.placement.selectors import required
from broker.text import abridged
from providers.model import InstanceType

# The class decides about these, and not the type.
_OF_CLASS: Final = frozenset({names.OS, names.INSTANCE_TENANCY, *names.UNLABELED_KEYS})
# Auto Mode has Karpenter's labels of instances in its own domain.
_TYPE_KEYS: Final = frozenset(
    name for key in TYPE_KEYS - _OF_CLASS for name in (key, key.replace(names.KARPENTER_AWS, AUTO_MODE, 1))
)
MOST_NAMED: Final = 3


class TypeRoom:
    """Answers by EC2's types, which are read only if an answer depends on them.

    The methods raise ProviderError.
    """

    def __init__(self, types: Callable[[], Mapping[str, InstanceType]]) -> None:
        self._types = types

    def fits(self, node: FutureNode, pod: PodInfo) -> bool:
        """Whether a type has room for the pod."""
        selections = [*node.selections(pod)]
        return bool(selections) and self._has_room(self._allowed(selections), pod)

    def lack(self, node: FutureNode, pod: PodInfo) -> Lack:
        """Why no type has room for the pod; no lack if one has, and while no type is known."""
        selections = [*node.selections(pod)]
        if not selections or not self._machines.rooms:
            return NO_LACK
        possible = [item for item in selections if not unknown_values(item, self._places)]
        allowed = self._allowed(possible)
        if self._has_room(allowed, pod):
            return NO_LACK
        rooms = [room for room, is_allowed in zip(self._machines.rooms, allowed, strict=True) if is_allowed]
        if not rooms:
            return self._no_type(node.requirements, (possible or selections)[0])
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
            + f", the pod requests {_amount(name, requests[name])}"
            for name in short
        )
        return Lack("; ".join(texts), "requests")

    def allows_any(self, selection: Requirements) -> bool:
        """Whether the selection allows any type; also while no type is known."""
        return not self._machines.rooms or bool(self._allowed([selection]).any())

    def suits(self, name: str, pod: PodInfo, selections: Iterable[Requirements]) -> bool:
        """Whether the type has all resources of the pod, and labels of a selection; also while it is not
        known.
        """
        if (type_ := self._types().get(name)) is None:
            return True
        labels, lacks = _labels(type_), lacking(base(pod.requests), capacity(type_, ANY_CLASS))
        return not {*lacks} - {STORAGE} and any(not item.unmet(labels, among=labels) for item in selections)

    def unknown(self, pod: PodInfo) -> str:
        """The label values that the pod insists on and that nothing in the Region has, in a sentence."""
        terms = [()] if pod.node_terms is None else [term.expressions for term in pod.node_terms]
        try:
            selections = [Requirements(map(required, (*pod.node_selector, *term))) for term in terms]
        except InvalidRequirement:
            return ""
        # The values of types are read only if a term tests a label.
        by_term = [unknown_values(item, self._values) if len(item) else [] for item in selections]
        return "; ".join(by_term[0]) if by_term and all(by_term) else ""

    def _no_type(self, own: Requirements, both: Requirements) -> Lack:
        """Why no type is allowed, by the pool's `own` requirements or only with the pod's selector too."""
        if unknown_values(own, self._places) or not self._allowed([own]).any():
            unknown = "; ".join(unknown_values(own, self._values))
            text = "EC2 has no instance type that its requirements allow: correct them"
            return Lack(f"{text} ({unknown})" if unknown else text, "pool")
        if unknown_names := unknown_values(both, self._values):
            return Lack("; ".join(unknown_names), "selector")
        selected = [key for key in both if key in _TYPE_KEYS and both.describe(key) != own.describe(key)]
        tests = abridged([f"{key} {both.describe(key)}" for key in selected], MOST_NAMED)
        return Lack(f"EC2 has no instance type that it and the pod's selector allow ({tests})", "selector")

    def _has_room(self, allowed: Mask, pod: PodInfo) -> bool:
        return bool((allowed & self._machines.filter.fits(self._requests(pod))).any())

    def _allowed(self, selections: Sequence[Requirements]) -> Mask:
        """The types that any of the selections allows."""
        allowed: Mask = np.zeros(len(self._machines.rooms), dtype=bool)
        for selection in selections:
            allowed |= self._machines.filter.matches_labels(selection, among=_TYPE_KEYS)
        return allowed

    def _requests(self, pod: PodInfo) -> dict[str, float]:
        """The requests that the type decides about. The class decides the size of the disk, and a device
        plugin may add resources to any machine.
        """
        decided = self._machines.resources - {STORAGE}
        return {name: amount for name, amount in base(pod.requests).items() if amount and name in decided}

    @cached_property
    def _places(self) -> Mapping[str, Collection[str]]:
        """The values of labels that do not follow from the type."""
        return place_values(self._types().values())

    @cached_property
    def _values(self) -> Mapping[str, Collection[str]]:
        """The values of all labels, by label. The class decides about the operating system."""
        values = {**label_values(self._machines.labels), **self._places}
        values.pop(names.OS, None)
        return values

    @cached_property
    def _machines(self) -> _Machines:
        types = self._types().values()
        rooms = [capacity(type_, ANY_CLASS) for type_ in types]
        labels = [_labels(type_) for type_ in types]
        return _Machines(TypeFilter(labels, rooms), labels, rooms, frozenset().union(*rooms))


class _Machines(NamedTuple):
    """EC2's types as a filter, their labels and capacity, and all their resources."""

    filter: TypeFilter
    labels: Sequence[Mapping[str, str]]
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
