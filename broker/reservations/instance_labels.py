"""Labels of a running instance, by the ODCR that EC2 counts it in, however it was launched.

Invariant: an instance is `reserved`, with all three reservation labels, exactly while EC2 counts it in an
ODCR that has not ended. Otherwise it has none of the three. While EC2 does not show it, nothing is decided.

A reservation that ends or is cancelled leaves its instances running as On-Demand Instances (EC2 User Guide,
"Cancel a Capacity Reservation"). A running instance that matches an open reservation with room is counted in
it ("Capacity Reservation usage"). Instances of Capacity Blocks and of interruptible reservations end with
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from broker.apis.names import CAPACITY_TYPE, RESERVATION_ID, SHOWN_LATER
from broker.capacity.types import node_labels, reservation_labels
from providers.model import Instance, InstanceType, Odcr

RESERVED: Final = "reserved"
# InstanceLifecycle of instances that EC2 terminates when their reservation ends.
ENDS_WITH_IT: Final = frozenset({"capacity-block", "interruptible-capacity-reservation"})

Change = Literal["demoted", "promoted", "moved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLabels:
    """Labels to set on an instance's claim and node; None removes one.

    `contradicted`: EC2 describes the instance in an ODCR that it describes as ended. The newer description is
    right.
    """

    labels: Mapping[str, str | None]
    contradicted: bool = False

    def lacking(self, labels: Mapping[str, str]) -> dict[str, str | None]:
        """Changes to these labels, as a merge patch."""
        return {key: value for key, value in self.labels.items() if labels.get(key) != value}

    def change(self, labels: Mapping[str, str]) -> Change | None:
        """The transition of a node with these labels; None if it only lacks some of them."""
        if CAPACITY_TYPE not in labels:
            return None  # it was launched, and EC2 did not show it yet
        was, now = labels.get(CAPACITY_TYPE) == RESERVED, self.labels[CAPACITY_TYPE] == RESERVED
        if was != now:
            return "promoted" if now else "demoted"
        return "moved" if was and labels.get(RESERVATION_ID) != self.labels[RESERVATION_ID] else None


def instance_facts(instance: Instance | None, types: Mapping[str, InstanceType]) -> Mapping[str, str] | None:
    """The labels that follow from the instance and stay as they are; None if EC2 does not show them."""
    type_ = types.get(instance.instance_type) if instance is not None else None
    if instance is None or type_ is None or not instance.described:
        return None
    return node_labels(type_, instance.zone, zone_id=instance.zone_id, tenancy=instance.tenancy)


def instance_labels(instance: Instance, odcr: Odcr | None) -> InstanceLabels | None:
    """The labels of an instance, by EC2's descriptions of it and of its ODCR.

    `odcr` is None if the instance names none, or if that was not described. The result is None if nothing is
    known: EC2 does not show the instance yet, it is terminating, or its ODCR is not described.
    """
    if not instance.described or not instance.alive:
        return None
    over = not instance.reservation_id or (odcr is not None and odcr.released)
    if over and instance.lifecycle in ENDS_WITH_IT:
        return None
    if over:
        bare: dict[str, str | None] = dict.fromkeys(SHOWN_LATER)
        kind = "spot" if instance.lifecycle == "spot" else "on-demand"
        return InstanceLabels(labels=bare | {CAPACITY_TYPE: kind}, contradicted=bool(instance.reservation_id))
    return InstanceLabels(labels=reservation_labels(odcr)) if odcr is not None else None
