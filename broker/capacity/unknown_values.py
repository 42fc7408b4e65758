"""Names the label values that nothing in the Region has, with the nearest known value.

Why: such a requirement is a typing error nearly always, and neither waiting nor more capacity helps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, get_args

from broker.apis import names
from broker.capacity.requirements import Requirements
from broker.capacity.types import zone_labels
from broker.text import abridged, nearest
from providers.model import CapacityType, InstanceType, Tenancy

MOST_LISTED: Final = 3
FEW: Final = 20  # known values, from which some are listed if none is near
_SENTENCES: Final[Mapping[str, str]] = {
    names.INSTANCE_TYPE: "EC2 has no instance type {!r} in this Region",
    names.INSTANCE_FAMILY: "EC2 has no instance family {!r} in this Region",
    names.INSTANCE_GPU_NAME: "EC2 has no GPU {!r} in this Region",
    names.ARCH: "EC2 has no instance type of architecture {!r} in this Region",
    names.ZONE: "this Region has no zone {!r}",
    names.REGION: "this Region is not {!r}",
    names.CAPACITY_TYPE: "there is no capacity type {!r}",
    names.INSTANCE_TENANCY: "there is no tenancy {!r}",
    names.OS: "the broker launches no nodes of operating system {!r}",
}
_OTHERS: Final = "EC2 has no instance type with {key} {value!r} in this Region"


def place_values(types: Iterable[InstanceType]) -> Mapping[str, Collection[str]]:
    """The values that exist of labels which do not follow from the type. `types`: all of the Region."""
    zones = frozenset[str]().union(*(type_.zones for type_ in types))
    return {
        names.ZONE: zones,
        names.REGION: {zone_labels(zone).get(names.REGION, zone) for zone in zones},
        names.CAPACITY_TYPE: get_args(CapacityType),
        names.INSTANCE_TENANCY: get_args(Tenancy),
    }


def label_values(labels: Iterable[Mapping[str, str]]) -> Mapping[str, Collection[str]]:
    """The values of each label over the labels of types."""
    values: dict[str, set[str]] = {}
    for of_type in labels:
        for key, value in of_type.items():
            values.setdefault(key, set()).add(value)
    return values


def unknown_values(requirements: Requirements, known: Mapping[str, Collection[str]]) -> list[str]:
    """A sentence for each label of which only unknown values are accepted. `known`: the values by label."""
    sentences = []
    for key, values in known.items():
        accepted = requirements.values(key) or frozenset()
        if values and accepted and accepted.isdisjoint(values):
            sentences.append(unknown_value(key, min(accepted), values))
    return sentences


def unknown_value(key: str, value: str, known: Collection[str]) -> str:
    """A sentence about the value of a label that is not known, with the nearest known one."""
    sentence = _SENTENCES.get(key, "").format(value) or _OTHERS.format(key=key, value=value)
    listed = f"; there are {abridged(sorted(known), MOST_LISTED)}" if known and len(known) <= FEW else ""
    return sentence + (("" if value.isdigit() else nearest(value, known)) or listed)
