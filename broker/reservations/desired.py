"""The values that the decision about buying, changing and ending EC2's reservations takes and returns.

Nothing here does anything. A wish is what one managed CapacityReservation wants of EC2; a step is one call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from broker.quota.usage import Reserved
from broker.reservations.ownership import ReservationProblem
from broker.reservations.purchases import Purchase
from broker.reservations.sizing import InstanceFlavor, Sizing
from providers.model import UNCHANGED, MatchCriteria, ReservationGroup, Tenancy, Unchanged

# A purchase that the broker may have made and lost sight of is believed to be shown by EC2 after this.
LATEST_VISIBLE: Final = timedelta(minutes=5)
MOST: Final = 1000  # instances that one call may add (CreateCapacityReservation, ModifyCapacityReservation)


@dataclass(frozen=True, slots=True, kw_only=True)
class PurchaseSpec:
    """What everything that is bought for a reservation has in common. `end`: None is never."""

    match_criteria: MatchCriteria = "targeted"
    platform: str = "Linux/UNIX"
    tenancy: Tenancy = "default"
    end: datetime | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorDemand:
    """Quota of one flavor, in base units; less so many instances of its first type that were `released`."""

    flavor: InstanceFlavor
    nominal: Mapping[str, float]
    sizing: Sizing = "accelerator"
    released: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredCapacity:
    """What one managed CapacityReservation wants of EC2.

    `asks` are the flavors that mean something; `flavor_names` all that the spec names: nothing of a flavor
    that means nothing today is changed. `deleted`: the object is; `cancels`: what is no longer wanted at all
    is given back rather than kept. `ready`: the object will not go unseen. `held`: why nothing may be bought
    for it now, in words for people; `frozen`: why nothing at all of it may be changed, which is as good as
    `held`; `refused`: EC2's answer for which nothing is asked for a while. `groups`: whether it is known
    which group it has; then `group` is that group as last read, or None where there is none.
    """

    reserved: Reserved
    asks: Mapping[str, FlavorDemand] = field(default_factory=dict)
    flavor_names: tuple[str, ...] = ()
    terms: PurchaseSpec = PurchaseSpec()
    deleted: bool = False
    cancels: bool = False
    ready: bool = True
    held: str = ""
    frozen: str = ""
    refused: str = ""
    groups: bool = True
    group: ReservationGroup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """The most that the broker may hold of what it bought: instances, and dollars an hour.

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
    """A reservation of ours with another count or end. `count` 0 ends it."""

    reserved: Reserved
    odcr_id: str
    count: int
    why: str
    end: datetime | Unchanged | None = UNCHANGED


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """A reservation's group made the same as what it holds. Both are ids; `drop` deletes the group."""

    reserved: Reserved
    make: bool = False
    join: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    drop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorCount:
    """Instances of one flavor: wanted for its quota, held and usable now, held and not yet usable.

    `code` and `message` are EC2's last refusal, where something is wanted and was refused. `buying`: what is
    lacking is being asked for, now or again later, or is there and not yet usable.
    """

    wanted: int = 0
    obtained: int = 0
    pending: int = 0
    buying: bool = False
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FulfilmentStatus:
    """How one wish stands. `settled`: deleted, and nothing in EC2 is left to do for it."""

    counts: Mapping[str, FlavorCount] = field(default_factory=dict)
    problems: tuple[ReservationProblem, ...] = ()
    settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcurementPlan:
    """What to do next. Purchases come one for each flavor: what EC2 answers decides on the rest.

    `again` is when a refusal ends that keeps something from being asked for.
    """

    purchases: tuple[Purchase, ...] = ()
    changes: tuple[OdcrChange, ...] = ()
    regroups: tuple[GroupChange, ...] = ()
    outlooks: Mapping[Reserved, FulfilmentStatus] = field(default_factory=dict)
    again: datetime | None = None

    @property
    def steps(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.purchases or self.changes or self.regroups)
