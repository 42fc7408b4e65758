"""The values that the decisions about instances take and return.

Nothing here does anything: claims and what they accept, classes and what they resolved to, pools, the plan,
and the one record of what was tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from broker.capacity.entitlement import Awaited
from broker.capacity.requirements import Requirements
from providers.model import (
    BlockDevice,
    CapacityType,
    ErrorClass,
    Image,
    Market,
    NetworkInterface,
    Odcr,
    Preference,
    ReservationGroup,
    Subnet,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationTerm:
    """One of Karpenter's capacityReservationSelectorTerms; the fields of one term are ANDed."""

    id: str = ""
    owner_id: str = ""
    match_criteria: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which reservations a class asks for.

    Exactly one of: a preference, an id, a group ARN, or Karpenter's selector terms; all empty means that the
    class names none, and instances opt out of open matching as Karpenter's do.
    """

    preference: Preference | None = None
    reservation_id: str = ""
    group_arn: str = ""
    terms: tuple[ReservationTerm, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A reservation that was selected and cannot be used, and why.

    `code` is EC2's own where EC2 said it; `reason` is CamelCase, `message` a sentence with both values.
    """

    id: str
    reason: str
    message: str
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a class's selection found: usable reservations, those that start soon, those that do not fit."""

    usable: tuple[Odcr, ...] = ()
    pending: tuple[Odcr, ...] = ()
    misfits: tuple[Misfit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """An eviction threshold: an amount in base units, or, when `percent` is set, a share of the capacity."""

    amount: float = 0.0
    percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubelet:
    """The kubelet settings of a class that change what a node can hold; amounts are in base units."""

    max_pods: int | None = None
    pods_per_core: int | None = None
    kube_reserved: Mapping[str, float] = field(default_factory=dict)
    system_reserved: Mapping[str, float] = field(default_factory=dict)
    eviction_hard: Mapping[str, Threshold] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What of every instance pods cannot have, as Karpenter's settings of the same names say it."""

    vm_memory_percent: float = 0.075
    reserved_enis: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.vm_memory_percent < 1:
            raise ValueError(
                f"--vm-memory-overhead-percent is a share from 0 to below 1, not {self.vm_memory_percent}"
            )
        if self.reserved_enis < 0:
            raise ValueError(f"--reserved-enis is a count from 0 on, not {self.reserved_enis}")


DEFAULT_OVERHEAD = Overhead()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClass:
    """A class as launches need it: its selection, what that resolved to, where and with what it launches.

    `not_ready` says why nothing may be launched from it now; empty means that it is ready.
    """

    name: str
    selection: Selection
    resolved: Resolved = Resolved()
    dedicated: Resolved = Resolved()  # what it resolved to for claims that require dedicated tenancy
    subnets: tuple[Subnet, ...] = ()
    images: tuple[Image, ...] = ()
    tenancy: str = "default"
    placement_group_arn: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    family: str = "AL2023"
    block_devices: tuple[BlockDevice, ...] = ()
    instance_store_raid0: bool = False
    kubelet: Kubelet = Kubelet()
    overhead: Overhead = DEFAULT_OVERHEAD
    interfaces: tuple[NetworkInterface, ...] = ()
    tracks_connections: bool = False
    placement_strategy: str = ""
    nested_virtualization: bool = False
    not_ready: str = ""

    def of_tenancy(self, tenancy: str) -> NodeClass:
        """The class as claims that insist on a tenancy (empty: on none) launch from it: EC2 runs nothing in a
        reservation of another tenancy."""
        if tenancy in ("", self.tenancy):
            return self
        return replace(self, tenancy=tenancy, resolved=self.dedicated)

    @property
    def placement(self) -> str:
        """What sets its launches apart from others of the same type and zone: EC2 may have room for the one
        and none for the other. Empty: nothing does."""
        tenancy = "" if self.tenancy == "default" else self.tenancy
        return ",".join(filter(None, (tenancy, self.placement_group_arn.rpartition("/")[2])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A NodeClaim that waits for an instance. Higher `priority` first; `gang` launches all or none.

    `gang_size` is how many claims the gang is to have, if that is declared: it waits until they exist.
    `requests` are in base units: cores, bytes, counts. Claims with unequal `template` (what their nodes are
    told at start) never share a call.
    """

    name: str
    uid: str
    node_class: str
    requirements: Requirements
    requests: Mapping[str, float] = field(default_factory=dict)
    priority: int = 0
    created: datetime | None = None
    gang: str = ""
    gang_size: int = 0
    template: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Pool:
    """What a launch draws from. Two launches of equal pools draw from the same room.

    `reservation` is an ODCR's id, a group's ARN, or empty for an open match or plain capacity; these two are
    of one `placement` (a placement group, a tenancy), since what refuses one such launch may serve another.
    """

    capacity_type: CapacityType
    instance_type: str
    zone: str
    reservation: str = ""
    placement: str = ""

    def __str__(self) -> str:
        where = f"{self.capacity_type}:{self.instance_type}:{self.zone}"
        placed = f"@{self.placement}" if self.placement else ""
        return f"{where}:{self.reservation}{placed}" if self.reservation else f"{where}{placed}"

    @property
    def reserved(self) -> bool:
        return self.capacity_type == "reserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A pool that a claim could take, and what a launch into it must say.

    `odcr_ids` are the reservations that give the pool its room (several for a group or an open match).
    `ends` is the soonest end among them.
    """

    pool: Pool
    odcr_ids: tuple[str, ...] = ()
    price: float | None = None
    ends: datetime | None = None
    market: Market = "on-demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An option that was considered and not taken, and why; `class_`: of a refusal still remembered."""

    pool: Pool
    reason: str
    message: str
    class_: ErrorClass | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A claim and the option it is to be launched into now; `rest` are its remaining options in order."""

    claim: Claim
    option: Option
    rest: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """A claim with nothing to launch into now. `retry_at` is when a remembered shortage ends, if one does."""

    claim: Claim
    reason: str
    message: str
    skipped: tuple[Skipped, ...] = ()
    retry_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """How a plan's slots were given out, and how good that is.

    `reserved` claims have a slot; no better plan has more than `bound`. `needs` and `ways` are the size of
    what was solved: bundles of interchangeable claims, and pairs of needs and slots. `note` says what kept it
    from being optimal.
    """

    solver: str = "nothing to solve"
    optimal: bool = True
    reserved: int = 0
    bound: int = 0
    needs: int = 0
    ways: int = 0
    seconds: float = field(default=0.0, compare=False)
    note: str = ""

    @property
    def gap(self) -> float:
        """How much more, as a share of the best there might be, another plan could have in reservations."""
        return 1 - self.reserved / self.bound if self.bound else 0.0

    def __str__(self) -> str:
        quality = "optimal" if self.optimal else f"not proven optimal, gap at most {self.gap:.1%}"
        size = f"{self.needs} needs, {self.ways} ways"
        told = (
            f"{self.solver}: {self.reserved} claims in reservations, {quality}, {self.seconds:.3f} s ({size})"
        )
        return f"{told}; {self.note}" if self.note else told


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Claims assigned to pools; `skipped` tells for each claim (by uid) the better options it did not get.

    `awaited`: claims (by uid) that wait to have slots of their reservation back, which others hold; `kept`:
    the reservation of each claim that keeps a free slot meanwhile, since others of its gang wait.
    """

    assignments: tuple[Assignment, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    skipped: Mapping[str, tuple[Skipped, ...]] = field(default_factory=dict)
    solution: Solution = Solution()
    awaited: Mapping[str, Awaited] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """EC2's reservations and groups as last described, less what was launched since.

    `debits` are launches into a reservation that the description does not show yet, by reservation id;
    `credits` are instances that have ended in one since.
    """

    odcrs: Mapping[str, Odcr] = field(default_factory=dict)
    groups: Mapping[str, ReservationGroup] = field(default_factory=dict)
    debits: Mapping[str, int] = field(default_factory=dict)
    credits: Mapping[str, int] = field(default_factory=dict)
    described: datetime | None = None

    def free(self, odcr_id: str) -> int:
        """Slots that may be planned: EC2's available count, and what came free, less what was taken."""
        odcr = self.odcrs.get(odcr_id)
        if odcr is None or odcr.unlaunchable:
            return 0
        # The description may show what came free already.
        room = min(odcr.total, odcr.available + self.credits.get(odcr_id, 0))
        return max(0, room - self.debits.get(odcr_id, 0))


class Outcome(StrEnum):
    """What came of an attempt."""

    LAUNCHED = "Launched"
    REFUSED = "Refused"  # EC2 answered no
    SKIPPED = "Skipped"  # never asked: shortage remembered, no room, does not fit
    ADOPTED = "Adopted"  # an instance of ours without a claim was taken instead
    SPILLED = "Spilled"  # launched, but EC2 did not put it into the reservation it was meant for


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One thing tried for one claim: written once, read by status, events, metrics, journal and explain.

    `also` are further pools that had the same answer at the same moment.
    """

    claim: str
    node_class: str
    pool: Pool
    outcome: Outcome
    at: datetime
    code: str = ""
    class_: ErrorClass | None = None
    message: str = ""
    request_id: str = ""
    next_step: str = ""
    instance_id: str = ""
    also: tuple[Pool, ...] = ()
