"""The supply of one moment: all that the claims of a plan may be launched from, and who may use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from broker.capacity.entitlement import NO_ENTITLEMENTS, Entitlements
from broker.capacity.inventory import Inventory
from broker.capacity.model import NodeClass
from broker.capacity.shortages import Shortages
from providers.model import InstanceType


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSupply:
    """Classes by name, EC2's types and reservations, the pools that refuse now, and entitlements to slots.

    `ending`: by reservation, the names of the claims that end and have a slot of it until then.
    """

    classes: Mapping[str, NodeClass]
    types: Mapping[str, InstanceType]
    inventory: Inventory
    shortages: Shortages
    now: datetime
    entitlements: Entitlements = NO_ENTITLEMENTS
    ending: Mapping[str, Sequence[str]] = field(default_factory=dict)
