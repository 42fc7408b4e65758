"""Sizes a flavor's quota in instances: its types and zones, and the number needed.

Invariant: a quota is served by whole instances, counted by its accelerator, or without one by the resource
that needs most. Quota beyond the supply of those instances is `missing`, with both numbers, and nothing is
bought for it: a memory quota that no whole number of eight-GPU instances has would double the GPUs. With
`max` the resource that needs most always decides. An instance supplies the resources that EC2 sells it
with (DescribeInstanceTypes); Kubernetes and the hypervisor keep some of the memory for themselves.
Label keys: https://kubernetes.io/docs/reference/labels-annotations-taints/ and karpenter.sh, "Well-known
labels"; a ResourceFlavor without a zone means the zones of the settings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Literal

from broker.apis.names import (
    CAPACITY_TYPE,
    INSTANCE_TYPE,
    RESERVATION_ID,
    RESERVATION_INTERRUPTIBLE,
    RESERVATION_TYPE,
    UNLABELED_KEYS,
    ZONE,
    ZONE_ID,
)
from broker.capacity.model import ANY_CLASS
from broker.capacity.types import (
    ACCELERATORS,
    CPU,
    MEMORY,
    PODS,
    STORAGE,
    WELL_KNOWN,
    capacity,
    reservation_labels,
    size_key,
    type_labels,
    zone_labels,
)
from broker.capacity.unknown_values import unknown_value
from providers.model import InstanceType, Odcr, is_zone_id

Sizing = Literal["accelerator", "max"]

# Resources that EC2 sells. The amount of any other (a licence, volumes, hugepages, shares of a GPU, credits)
# is known only from a node that has it, so its lack is no lack of machines.
SOLD: Final = frozenset({*ACCELERATORS, CPU, MEMORY, PODS})
# Labels of a single node, not of its type: the rest of the well-known labels choose types.
_NOT_OF_TYPE: Final = frozenset(
    {CAPACITY_TYPE, ZONE, ZONE_ID, RESERVATION_ID, RESERVATION_TYPE, RESERVATION_INTERRUPTIBLE}
)
# Labels of an ODCR that the broker buys; blocks and interruptible ones are used and never purchased.
_AS_BOUGHT: Final = {RESERVATION_TYPE: "default", RESERVATION_INTERRUPTIBLE: "false"}
_CHOOSING: Final = re.compile(r"instance-(type|family|gpu-name|accelerator-name|size)$")
_MIB: Final = 2**20
_GIB: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFlavor:
    """A ResourceFlavor's instance types and zones, each in order of preference.

    A zone is a zone's name, or its id if the flavor's labels name the id.
    """

    name: str
    instance_types: tuple[str, ...]
    zones: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)

    def places(self, types: Mapping[str, InstanceType]) -> Iterator[tuple[str, str]]:
        """Pairs (type, zone) in which the type is offered, in order of preference."""
        for name in self.instance_types:
            for zone in self.zones:
                if is_zone_id(zone) or zone in types[name].zones:
                    yield name, zone

    def has_place(self, instance_type: str, *zones: str) -> bool:
        """Whether the type is one of the flavor, and one of these names and ids of a zone."""
        return instance_type in self.instance_types and not {*zones}.isdisjoint(self.zones)

    def admits(self, odcr: Odcr) -> bool:
        """Whether an instance in the reservation is a node of this flavor."""
        pinned = {key: value for key, value in self.labels.items() if key in _NOT_OF_TYPE}
        has = {**zone_labels(odcr.zone, odcr.zone_id), **reservation_labels(odcr)}
        return self.has_place(odcr.instance_type, odcr.zone, odcr.zone_id) and all(
            has.get(key) == value for key, value in pinned.items()
        )

    @property
    def never_bought(self) -> tuple[str, ...]:
        """Labels of the flavor that no purchased reservation can have: an id is of an existing one."""
        return tuple(
            f"{key}={value}"
            for key, value in sorted(self.labels.items())
            if key == RESERVATION_ID or value != _AS_BOUGHT.get(key, value)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorProblem:
    """Why a flavor resolves to no instances: `reason` for a condition, `message` for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedQuota:
    """Instances of a quota: `count` of `instance_type`, the flavor's first.

    `counts`: the count with each of the flavor's types alone. `by` is the resource that decided. `reason` is
    empty if nothing is missing.
    """

    count: int
    instance_type: str
    counts: Mapping[str, int] = field(default_factory=dict)
    by: str = ""
    reason: str = ""
    message: str = ""


def flavor_of(
    name: str,
    node_labels: Mapping[str, str],
    types: Mapping[str, InstanceType],
    zones: Sequence[str] = (),
) -> InstanceFlavor | FlavorProblem:
    """The flavor of these node labels. `zones` are the configured ones; none: all that offer the type."""

    def problem(reason: str, message: str) -> FlavorProblem:
        return FlavorProblem(reason=reason, message=f"flavor {name}: {message}")

    if node_labels.get(CAPACITY_TYPE, "reserved") != "reserved":
        return problem(
            "FlavorNotReserved",
            f"its label {CAPACITY_TYPE} is {node_labels[CAPACITY_TYPE]!r}, so no EC2 reservation serves it",
        )
    of_types = WELL_KNOWN - _NOT_OF_TYPE - {*UNLABELED_KEYS}
    wanted = {key: value for key, value in node_labels.items() if key in of_types}
    if not any(_CHOOSING.search(key) for key in wanted):
        return problem(
            "FlavorWithoutInstanceType",
            f"its ResourceFlavor has no instance type: give its nodeLabels {INSTANCE_TYPE}",
        )
    if INSTANCE_TYPE in wanted and wanted[INSTANCE_TYPE] not in types:
        return problem(
            "InstanceTypeUnknown",
            f"{unknown_value(INSTANCE_TYPE, wanted[INSTANCE_TYPE], types)}: correct {INSTANCE_TYPE} in the "
            "nodeLabels of its ResourceFlavor",
        )
    chosen = [type_ for type_ in types.values() if _is(type_, wanted)]
    if not chosen:
        label_text = ", ".join(f"{key}={value}" for key, value in sorted(wanted.items()))
        return problem("InstanceTypeUnknown", f"no instance type in this Region has the labels {label_text}")
    chosen_zone = node_labels.get(ZONE) or node_labels.get(ZONE_ID)
    places = (chosen_zone,) if chosen_zone else tuple(dict.fromkeys(zones)) or _offering(chosen)
    flavor = InstanceFlavor(
        name=name,
        instance_types=tuple(type_.name for type_ in sorted(chosen, key=_cheapest)),
        zones=places,
        labels=dict(node_labels),
    )
    known = _offering([*types.values()])
    unknown = [zone for zone in places if not is_zone_id(zone) and zone not in known]
    if unknown and len(unknown) == len(places):
        field = (
            f"{ZONE} in the nodeLabels of its ResourceFlavor" if chosen_zone else "--buy-zones of the broker"
        )
        return problem(
            "ZoneUnknown",
            f"{unknown_value(ZONE, unknown[0], known)}: correct {field}",
        )
    if next(flavor.places(types), None) is None:
        offered = ", ".join(_offering(chosen)) or "none"
        return problem(
            "InstanceTypeNotOffered",
            f"{', '.join(flavor.instance_types)} is not offered in {', '.join(places)}; zones that offer it: "
            f"{offered}",
        )
    return flavor


def size(
    flavor: InstanceFlavor,
    nominal: Mapping[str, float],
    types: Mapping[str, InstanceType],
    *,
    sizing: Sizing = "accelerator",
) -> SizedQuota:
    """Instances that serve a quota (base units), and the rest that they do not."""
    first = types[flavor.instance_types[0]]
    wanted = {name: amount for name, amount in nominal.items() if amount > 0}
    deciding = deciding_resources(wanted, sizing)
    counts = {name: math.ceil(needed(types[name], nominal, sizing=sizing)) for name in flavor.instance_types}
    count, has = counts[first.name], supply(first)
    ratios = _ratios(first, wanted)
    supplied = {name: count * has.get(name, 0.0) for name in wanted if name in SOLD or name in has}
    missing = {name: wanted[name] - given for name, given in supplied.items() if wanted[name] > given}
    by = max((name for name in deciding if name in ratios), key=lambda name: ratios[name], default="")
    return SizedQuota(
        count=count,
        instance_type=first.name,
        counts=counts,
        by=by,
        reason="ResourceRatioUnsatisfiable" if missing else "",
        message=_shortfall(flavor, first, count, by, wanted, supplied, missing) if missing else "",
    )


def needed(type_: InstanceType, nominal: Mapping[str, float], *, sizing: Sizing = "accelerator") -> Fraction:
    """Instances of the type that serve the quota, not rounded; 0 if it has none of the deciding resource."""
    wanted = {name: amount for name, amount in nominal.items() if amount > 0}
    ratios = _ratios(type_, wanted)
    return max(
        (ratios[name] for name in deciding_resources(wanted, sizing) if name in ratios), default=Fraction(0)
    )


def supply(type_: InstanceType) -> dict[str, float]:
    """Resources that EC2 sells an instance of the type with, in base units."""
    amounts = capacity(type_, ANY_CLASS) | {MEMORY: float(type_.memory_mib * _MIB)}
    del amounts[STORAGE]  # a volume of any size
    return amounts


def amount_text(resource: str, amount: float) -> str:
    """An amount as people write it: `16Ti`, `64`."""
    if resource != MEMORY or amount < _MIB:
        return f"{amount:.10g}"
    unit, name = next(
        (unit, name) for unit, name in ((2**40, "Ti"), (_GIB, "Gi"), (_MIB, "Mi")) if amount >= unit
    )
    return f"{amount / unit:.5g}{name}"


def deciding_resources(wanted: Mapping[str, float], sizing: Sizing) -> list[str]:
    """The accelerators among these resources; without any, or with `max`, all of them."""
    accelerators: list[str] = [name for name in ACCELERATORS if name in wanted]
    return [*wanted] if sizing == "max" or not accelerators else accelerators


def _ratios(type_: InstanceType, wanted: Mapping[str, float]) -> dict[str, Fraction]:
    """Instances that each resource of the type needs."""
    return {
        name: Fraction(wanted[name]) / Fraction(has)
        for name, has in supply(type_).items()
        if name in wanted and has > 0
    }


def _is(type_: InstanceType, wanted: Mapping[str, str]) -> bool:
    has = type_labels(type_)
    return all(
        has.get(key, value if key.endswith("-tenancy") else None) == value for key, value in wanted.items()
    )


def _cheapest(type_: InstanceType) -> tuple[float, tuple[int, bool, int, int, str]]:
    price = type_.on_demand_price
    return (math.inf if price is None else price, size_key(type_))


def _offering(types: Sequence[InstanceType]) -> tuple[str, ...]:
    return tuple(sorted(set().union(*(type_.zones for type_ in types))))


def _shortfall(
    flavor: InstanceFlavor,
    type_: InstanceType,
    count: int,
    by: str,
    wanted: Mapping[str, float],
    supplied: Mapping[str, float],
    missing: Mapping[str, float],
) -> str:
    if not by:
        return f"flavor {flavor.name}: {type_.name} has no {' and no '.join(sorted(missing))}"
    parts = "; ".join(
        f"{name}: quota {amount_text(name, wanted[name])}, they have {amount_text(name, supplied[name])}, "
        f"{amount_text(name, missing[name])} too few"
        for name in sorted(missing)
    )
    return (
        f"flavor {flavor.name}: {amount_text(by, wanted[by])} of {by} are {count} {type_.name}. {parts}: "
        "lower the quota, or set sizing to max"
    )
