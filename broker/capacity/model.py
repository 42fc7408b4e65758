"""The values that the decisions about instances take and return.

Only data: claims and their requirements, classes and their resolved resources, pools, the plan, and the one
record of an attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal

from broker.capacity.entitlement import NominatedSlot
from broker.capacity.requirements import Requirements
from broker.text import counted, pool_name
from providers.errors import ErrorClass
from providers.launch import RESERVATIONS_ONLY, BlockDevice, NetworkInterface, Preference
from providers.model import CapacityType, Image, Market, Odcr, Subnet

# The reason of a claim that waits for a reservation which is about to begin.
RESERVATION_PENDING: Final = "ReservationPending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """An eviction threshold: an amount in base units, or, if `percent` is set, a share of the capacity."""

    amount: float = 0.0
    percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubelet:
    """The kubelet settings of a class that change a node's allocatable resources, in base units."""

    max_pods: int | None = None
    pods_per_core: int | None = None
    kube_reserved: Mapping[str, float] = field(default_factory=dict)
    system_reserved: Mapping[str, float] = field(default_factory=dict)
    eviction_hard: Mapping[str, Threshold] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationTerm:
    """One of Karpenter's capacityReservationSelectorTerms; the fields of one term are ANDed."""

    id: str = ""
    owner_id: str = ""
    match_criteria: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The reservations that a class selects.

    Exactly one of: a preference, an id, a group ARN, or Karpenter's selector terms. If all are empty the
    class selects none, and its instances opt out of open matching as Karpenter's do.
    """

    preference: Preference | None = None
    reservation_id: str = ""
    group_arn: str = ""
    terms: tuple[ReservationTerm, ...] = ()

    @property
    def matches_openly(self) -> bool:
        """Whether EC2 chooses among the open reservations."""
        return self.preference in ("open", RESERVATIONS_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A selected reservation that cannot be used, and the reason.

    `code` is EC2's own, if it gave one; `reason` is CamelCase, `message` a sentence with both values.
    `instance_type` and `zone` are empty if EC2 does not show the reservation. `unreadable`: it may exist, but
    could not be read.
    """

    id: str
    reason: str
    message: str
    code: str = ""
    instance_type: str = ""
    zone: str = ""
    unreadable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The result of a selection: usable reservations, those that start soon, and those that do not fit."""

    usable: tuple[Odcr, ...] = ()
    pending: tuple[Odcr, ...] = ()
    misfits: tuple[Misfit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDefaults:
    """Settings of all classes.

    `vm_memory_percent` and `reserved_enis` are the part of every instance that pods cannot use, as
    Karpenter's settings of the same names define it. `price_ceiling`: no claim buys an instance outside
    reservations that costs more than so many times its cheapest option. `fallback_premium`: the share that
    an on-demand option may cost more if it has the type and zone of an open reservation. `gang_hold_seconds`:
    the time in which free slots are held for a gang that outranks others; 0 holds none.
    """

    vm_memory_percent: float = 0.075
    reserved_enis: int = 0
    price_ceiling: float = 10.0
    fallback_premium: float = 0.1
    gang_hold_seconds: float = 0.0


LAUNCH_DEFAULTS = LaunchDefaults()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClass:
    """A class as launches need it: its selection, the resolved reservations, its subnets, images and
    settings.

    `not_ready` is the reason why nothing may be launched from it now; empty if it is ready.
    """

    name: str
    selection: Selection
    resolved: Resolved = Resolved()
    dedicated: Resolved = Resolved()  # its reservations for claims that require dedicated tenancy
    subnets: tuple[Subnet, ...] = ()
    images: tuple[Image, ...] = ()
    tenancy: str = "default"
    placement_group_arn: str = ""
    family: str = "AL2023"
    block_devices: tuple[BlockDevice, ...] = ()
    instance_store_raid0: bool = False
    kubelet: Kubelet = field(default_factory=Kubelet)
    defaults: LaunchDefaults = LAUNCH_DEFAULTS
    interfaces: tuple[NetworkInterface, ...] = ()
    tracks_connections: bool = False
    placement_strategy: str = ""
    nested_virtualization: bool = False
    enclaves: bool = False
    not_ready: str = ""

    def of_tenancy(self, tenancy: str) -> NodeClass:
        """The class for claims that require a tenancy (empty: for claims that require none).

        EC2 places no instance into a reservation of another tenancy.
        """
        if tenancy in ("", self.tenancy):
            return self
        return replace(self, tenancy=tenancy, resolved=self.dedicated)

    def first_usable(self, odcr_ids: Collection[str]) -> Odcr | None:
        """Its first usable reservation of these."""
        return next((odcr for odcr in self.resolved.usable if odcr.id in odcr_ids), None)

    def subnets_in(self, zone: str, odcr_ids: Collection[str]) -> Sequence[Subnet]:
        """The subnets of the zone in which instances start, in one of these reservations or outside (none).

        Those on the reservation's Outpost; otherwise one on an Outpost only if the zone has no other.
        """
        # Without a subnet on an Outpost no usable reservation is on one: the usual case, for each option.
        odcr = self.first_usable(odcr_ids) if any(subnet.outpost_arn for subnet in self.subnets) else None
        outpost = odcr.outpost_arn if odcr else ""
        subnets = [subnet for subnet in self.subnets if subnet.zone == zone]
        eligible = [subnet for subnet in subnets if subnet.outpost_arn == outpost]
        return eligible or ([] if outpost else subnets)

    @property
    def placement(self) -> str:
        """The tenancy and placement group, if they set its launches apart from others of the same type and
        zone.

        EC2 may have room for one kind of launch and none for the other. Empty: nothing sets them
        apart.
        """
        tenancy = "" if self.tenancy == "default" else self.tenancy
        return ",".join(filter(None, (tenancy, self.placement_group_arn.rpartition("/")[2])))


# Without the settings of a class: the whole machine counts.
ANY_CLASS: Final = NodeClass(name="", selection=Selection())


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A NodeClaim that waits for an instance. Higher `priority` first; `gang` launches all or none.

    `gang_size`: the declared number of claims of the gang, if any; it waits until they exist. `domain`: the
    label of nodes, of which all claims of the gang get one value; empty if they need not. `requests`
    are in base units: cores, bytes, counts. Claims with unequal `template` (their nodes' settings at
    start) never share a call. `min_values`: for each label, the number of different values that must be
    possible. `since`: when its pods began to wait, if that was before it was `created`. `slot`: the
    reservation in which it takes over the slot of a node that ends for it, and until when that is kept.
    """

    name: str
    uid: str
    node_class: str
    requirements: Requirements
    requests: Mapping[str, float] = field(default_factory=dict)
    priority: int = 0
    created: datetime | None = None
    since: datetime | None = None
    gang: str = ""
    gang_size: int = 0
    domain: str = ""
    template: str = ""
    min_values: tuple[tuple[str, int], ...] = ()
    slot: str = ""
    slot_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Pool:
    """The source of a launch. Launches from equal pools use the same room.

    `reservation` is an ODCR's id, a group's ARN, or empty for an open match or unreserved capacity. Open
    matches and unreserved capacity belong to one `placement` (a placement group, a tenancy): a refusal
    of one placement does not apply to another. Type and zone are empty for a reservation that EC2 does not
    show.
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
    def shown(self) -> str:
        """The pool in a message. `str` is its key."""
        return pool_name(self.capacity_type, self.instance_type, self.zone, self.reservation, self.placement)

    @property
    def reserved(self) -> bool:
        return self.capacity_type == "reserved"

    @property
    def target(self) -> Literal["id", "group", "open", "unreserved"]:
        """How a launch into it names its reservations."""
        if not self.reserved:
            return "unreserved"
        return "open" if not self.reservation else "group" if self.reservation.startswith("arn:") else "id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A pool that a claim could use, and the parameters of a launch into it.

    `odcr_ids` are the reservations that give the pool its room (several for a group or an open match).
    `ends` is the soonest end among them. `price` orders options; `estimated`: it is that of Linux on shared
    tenancy, since that of the option is unknown.
    """

    pool: Pool
    odcr_ids: tuple[str, ...] = ()
    price: float | None = None
    estimated: bool = False
    ends: datetime | None = None
    market: Market = "on-demand"

    def __hash__(self) -> int:
        pool = self.pool  # its fields tell options apart, and a group has many members
        return hash((pool.instance_type, pool.zone, pool.reservation))

    @property
    def usd_hour(self) -> float | None:
        """Its price outside reservations in US dollars an hour; None if it is unknown."""
        return None if self.estimated else self.price

    def skipped(self, reason: str, why: str, class_: ErrorClass | None = None) -> Skipped:
        """The option as one that is not taken."""
        message = f"{self.pool.shown}: {why}"
        return Skipped(pool=self.pool, odcr_ids=self.odcr_ids, reason=reason, message=message, class_=class_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An option that was considered and not taken, and the reason; `class_`: that of a remembered refusal.

    `odcr_ids` are those of the option.
    """

    pool: Pool
    reason: str
    message: str
    class_: ErrorClass | None = None
    odcr_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A claim and the option for its launch now; `rest` are its remaining options in order.

    `closed`: instance types and zones where an instance outside reservations must match none, now or later.
    """

    claim: Claim
    option: Option
    rest: tuple[Option, ...] = ()
    closed: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """A claim without an option to launch into now. `retry_at`: the end of a remembered shortage, if there
    is one."""

    claim: Claim
    reason: str
    message: str
    skipped: tuple[Skipped, ...] = ()
    retry_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The solver of a plan, and the quality of its result.

    `reserved` claims have a slot; no plan has more than `bound`. `bundles` of like claims and their `pairs`
    with reservations are the problem's size. `note`: why it is not optimal. `gaps`: for each level of the
    objective, how much better another plan could be at most.
    """

    solver: str = "nothing to solve"
    optimal: bool = True
    reserved: int = 0
    bound: int = 0
    bundles: int = 0
    pairs: int = 0
    seconds: float = field(default=0.0, compare=False)
    note: str = ""
    gaps: tuple[tuple[str, float], ...] = ()

    @property
    def gap(self) -> float:
        """The share of the possible claims in reservations that another plan could have beyond this one."""
        return 1 - self.reserved / self.bound if self.bound else 0.0

    def __str__(self) -> str:
        quality = "optimal" if self.optimal else f"not proven optimal, gap at most {self.gap:.1%}"
        size = counted(self.bundles, "group of like claims", "groups of like claims")
        size += f", {counted(self.pairs, 'match', 'matches')} with reservations"
        summary = (
            f"{self.solver}: {counted(self.reserved, 'claim')} in reservations, {quality}, "
            f"{self.seconds:.3f} s ({size})"
        )
        gaps = ", ".join(f"{level} {most:g}" for level, most in self.gaps if most)
        return "; ".join(filter(None, (summary, self.note, gaps and f"better by at most: {gaps}")))


@dataclass(frozen=True, slots=True, kw_only=True)
class GangHold:
    """Free slots (by reservation) that a gang needs: before a time no claim of lower priority gets them.

    `needs`: the claims of the gang that cannot launch without a slot.
    """

    gang: str
    until: datetime
    priority: int
    needs: int
    slots: Mapping[str, int]

    def applies(self, claim: Claim) -> bool:
        """Whether the slots are held for the claim's gang, or against the claim."""
        return claim.gang == self.gang or claim.priority < self.priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Claims assigned to pools; `skipped` are the better options that each claim (by uid) did not get.

    `nominated`: claims (by uid) that wait for slots of their reservation that others hold. `kept`: the
    reservation of each claim that keeps a free slot while others of its gang wait. `later`: claims (by uid)
    for which the time was too short. They are to be planned when the assignments are launched. `holds`: slots
    that are free and held for a gang.
    """

    assignments: tuple[Assignment, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    skipped: Mapping[str, tuple[Skipped, ...]] = field(default_factory=dict)
    solution: Solution = Solution()
    nominated: Mapping[str, NominatedSlot] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    later: frozenset[str] = frozenset()
    holds: tuple[GangHold, ...] = ()
