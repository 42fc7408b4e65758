"""Input and output values of ODCR procurement: desired capacity, and the changes that lead to it.

One OdcrChange, GroupChange or Purchase becomes one AWS call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from broker.quota.usage import ReservationKey
from broker.reservations.ownership import ReservationProblem
from broker.reservations.purchases import Purchase
from broker.reservations.sizing import InstanceFlavor, Sizing
from providers.model import LINUX, UNCHANGED, Instance, MatchCriteria, ReservationGroup, Tenancy, Unchanged
from providers.prices import Product

# A purchase with an unknown result: EC2 is believed to show it after this.
LATEST_VISIBLE: Final = timedelta(minutes=5)
# Instances that one call may add (CreateCapacityReservation, ModifyCapacityReservation).
MOST_ADDED: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PurchaseSpec:
    """Terms of every purchase for one reservation. Without `end` an ODCR never ends."""

    match_criteria: MatchCriteria = "targeted"
    platform: str = LINUX
    tenancy: Tenancy = "default"
    end: datetime | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def product(self, instance_type: str, zone: str) -> Product:
        return Product(instance_type=instance_type, zone=zone, platform=self.platform, tenancy=self.tenancy)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorDemand:
    """Quota of one flavor, in base units, less `released` instances of its first type."""

    flavor: InstanceFlavor
    nominal: Mapping[str, float]
    sizing: Sizing = "accelerator"
    released: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredCapacity:
    """The ODCRs that one managed CapacityReservation should have.

    `demands`: flavors that resolve to instances. `flavor_names`: all flavors of the spec; ODCRs of a flavor
    that does not resolve stay as they are. `deleted`: the object is being deleted; `cancels`: surplus ODCRs
    are cancelled, not kept. `ready`: the object has the finalizer. `on_hold`: why nothing may be bought now.
    `frozen`: why nothing may be changed, so nothing is bought either. `refused`: EC2's refusal, during its
    back-off.
    `groups`: its resource group is known; `group` is then that group as last read, or None. `minimum`: the
    instances of a flavor that the caps must allow before any is bought; None: all. `restored`: ODCRs to which
    its capacity was moved, and which it does not get. `running`: instances outside reservations, of claims
    that draw from it.
    """

    reserved: ReservationKey
    demands: Mapping[str, FlavorDemand] = field(default_factory=dict)
    flavor_names: tuple[str, ...] = ()
    terms: PurchaseSpec = PurchaseSpec()
    deleted: bool = False
    cancels: bool = False
    ready: bool = True
    on_hold: str = ""
    frozen: str = ""
    refused: str = ""
    groups: bool = True
    group: ReservationGroup | None = None
    minimum: int | None = None
    restored: frozenset[str] = frozenset()
    running: tuple[Instance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Limits of purchases: instances, and dollars an hour.

    In all, for each CapacityReservation, and for each namespace (cluster-wide ones count as one).
    """

    instances: float = math.inf
    instances_each: float = math.inf
    instances_namespace: float = math.inf
    dollars: float = 0.0
    dollars_each: float = math.inf
    dollars_namespace: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class OdcrChange:
    """A new count or end of an ODCR that the broker made. A `count` of 0 cancels it.

    `flavor` is empty for an ODCR of no flavor. `moved_to`: the ODCRs that replace it, as text.
    """

    reserved: ReservationKey
    odcr_id: str
    count: int
    why: str
    flavor: str = ""
    moved_to: str = ""
    end: datetime | Unchanged | None = UNCHANGED


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """Members to add to and remove from a reservation's group, by id; `drop` deletes the group."""

    reserved: ReservationKey
    make: bool = False
    join: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    drop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorCount:
    """Instances of one flavor: wanted for its quota, usable now (`obtained`), not yet usable (`pending`).

    `code` and `message`: EC2's last refusal of a purchase that is still wanted, `retry_at`: its next attempt.
    `buying`: the shortfall is requested, now or later, or pending.
    """

    wanted: int = 0
    obtained: int = 0
    pending: int = 0
    buying: bool = False
    code: str = ""
    message: str = ""
    retry_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FulfilmentStatus:
    """The fulfilment of one reservation. `deletable`: deleted, without remaining work in EC2."""

    counts: Mapping[str, FlavorCount] = field(default_factory=dict)
    problems: tuple[ReservationProblem, ...] = ()
    deletable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcurementPlan:
    """The next steps, with one purchase a flavor, since EC2's response decides about the rest.

    `retry_at`: when the first back-off ends.
    """

    purchases: tuple[Purchase, ...] = ()
    changes: tuple[OdcrChange, ...] = ()
    regroups: tuple[GroupChange, ...] = ()
    statuses: Mapping[ReservationKey, FulfilmentStatus] = field(default_factory=dict)
    retry_at: datetime | None = None
