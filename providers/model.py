"""The values of a capacity provider: reservations, types and instances.

They carry EC2's own words and numbers (the EC2 API Reference names each field) and no decision. Whether a
reservation fits is decided in broker.capacity. All times are timezone-aware UTC; memory is in MiB;
prices are US dollars an hour.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final, Literal

from providers.odcr_states import Maker, OdcrKind, OdcrState, Phase, facts_of, is_over, maker_of

MatchCriteria = Literal["open", "targeted"]
ReservationType = Literal["default", "capacity-block"]
Tenancy = Literal["default", "dedicated"]
Accelerator = Literal["none", "nvidia", "neuron", "none-or-neuron"]
CapacityType = Literal["reserved", "on-demand", "spot"]
Market = Literal["on-demand", "spot", "capacity-block", "interruptible-capacity-reservation"]
# By its tags a resource carries this cluster's UID, another cluster's UID or name, or no UID at all.
Ownership = Literal["owned", "foreign", "unproven"]


class Unchanged(Enum):
    """The type of UNCHANGED: a field that a change leaves as it is, where None is a value of its own."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED
_ZONE_ID: Final = re.compile(r"-az[0-9]+$")
LINUX: Final = "Linux/UNIX"
# Platform and tenancy that EC2 assumes where a request names none.
PLAIN_OFFER: Final = (LINUX, "default")
# EC2 API Reference, CreateCapacityReservation, InstancePlatform.
PLATFORMS: Final = frozenset(
    {
        LINUX,
        "Red Hat Enterprise Linux",
        "SUSE Linux",
        "Windows",
        "Windows with SQL Server",
        "Windows with SQL Server Enterprise",
        "Windows with SQL Server Standard",
        "Windows with SQL Server Web",
        "Linux with SQL Server Standard",
        "Linux with SQL Server Web",
        "Linux with SQL Server Enterprise",
        "RHEL with SQL Server Standard",
        "RHEL with SQL Server Enterprise",
        "RHEL with SQL Server Web",
        "RHEL with HA",
        "RHEL with HA and SQL Server Standard",
        "RHEL with HA and SQL Server Enterprise",
        "Ubuntu Pro",
    }
)
# The purchasing option that a launch into a reservation of each kind must name.
_MARKETS: Final[Mapping[OdcrKind, Market]] = {
    "default": "on-demand",
    "capacity-block": "capacity-block",
    "interruptible": "interruptible-capacity-reservation",
}

CLUSTER_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}")


def owned_prefix(cluster: str) -> str:
    """First part of the names of the groups and instance profiles that the broker makes for a cluster.

    The IAM policy allows changes under this prefix only. A cluster's name has no dot (EKS API Reference,
    CreateCluster, name), so the prefix of `demo` covers nothing of `demo-eu`.
    """
    return f"capacity-broker.{cluster}."


def is_zone_id(zone: str) -> bool:
    """`use1-az4` is a zone's id, `us-east-1a` a name."""
    return _ZONE_ID.search(zone) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class EksCluster:
    """The facts of a cluster that its nodes need to join: URL of the API server, and base64 of its CA."""

    endpoint: str
    ca_bundle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Odcr:
    """An EC2 Capacity Reservation as DescribeCapacityReservations shows it."""

    id: str
    instance_type: str
    zone: str
    total: int
    available: int
    arn: str = ""
    owner_id: str = ""
    billing_owner_id: str = ""  # the account billed for unused slots; empty: the owner's
    zone_id: str = ""
    platform: str = LINUX
    tenancy: str = "default"
    match_criteria: MatchCriteria = "open"
    state: OdcrState = "active"
    reservation_type: ReservationType = "default"
    interruptible: bool = False
    source_id: str = ""  # of an interruptible one: the reservation that it was allocated from
    lent: int = 0  # instances allocated to an interruptible one; `total` no longer has them
    lent_to: str = ""
    created: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None
    placement_group_arn: str = ""
    outpost_arn: str = ""
    ultraserver: bool = False
    unlaunchable: bool = False  # EC2's LaunchStatus, which only reservations of UltraServers have
    extending: bool = False  # an extension of the block waits for its payment, or may: EC2 does not answer
    tags: Mapping[str, str] = field(default_factory=dict)
    ownership: Ownership = "owned"

    @property
    def reserved(self) -> int:
        """All instances that are reserved by it, also those that it lent."""
        return self.total + self.lent

    @property
    def used(self) -> int:
        """Slots with an instance: one that begins or is over has none, and EC2 shows none of it as free."""
        return self.total - self.available if self.active else 0

    @property
    def idle(self) -> int:
        """Free slots that are paid for: EC2 bills a reservation while it is active."""
        return self.available if self.active else 0

    @property
    def phase(self) -> Phase:
        """Its place in its life, by EC2's state."""
        return facts_of(self.state).phase

    @property
    def active(self) -> bool:
        """Whether EC2 holds its capacity and bills it."""
        return self.phase == "active"

    @property
    def begins(self) -> bool:
        """Whether it may become active."""
        return self.phase == "begins"

    @property
    def over(self) -> bool:
        """Whether it is never active again, also while EC2 still ends it."""
        return is_over(self.state)

    @property
    def released(self) -> bool:
        """Whether EC2 holds no capacity for it any more. One that is `cancelling` still has its instances."""
        return self.phase in ("ended", "failed")

    @property
    def state_misfit(self) -> str:
        """The reason why its state keeps launches out; empty if launches use it or wait for it."""
        return facts_of(self.state).misfit

    @property
    def on_time(self) -> bool:
        """Whether EC2 makes it active within minutes of its creation or start."""
        return facts_of(self.state).on_time

    @property
    def kind(self) -> OdcrKind:
        """Its contract: paid by the hour, paid in advance for a time, or lent until its owner reclaims it."""
        return "interruptible" if self.interruptible else self.reservation_type

    @property
    def market(self) -> Market:
        """The purchasing option that a launch into it must name."""
        return _MARKETS[self.kind]

    @property
    def prepaid(self) -> bool:
        """Whether its slots cost nothing by the hour (EC2 User Guide, "Capacity Blocks pricing")."""
        return self.reservation_type == "capacity-block"

    @property
    def maker(self) -> Maker:
        """Its maker by its tags. EC2 makes interruptible ones, and copies the tags of their source."""
        return "other" if self.interruptible else maker_of(self.tags)


@dataclass(frozen=True, slots=True, kw_only=True)
class OdcrRequest:
    """One CreateCapacityReservation.

    `token` (at most 64 ASCII characters) makes a repeat harmless: the same token gets the reservation that it
    made, as that is now; with any other field changed it is refused. `zone` is a zone's name, or its id
    (`use1-az4`). `end`: None is never.
    """

    token: str
    instance_type: str
    zone: str
    count: int
    platform: str = LINUX
    tenancy: Tenancy = "default"
    match_criteria: MatchCriteria = "targeted"
    end: datetime | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationGroup:
    """A Resource Groups group of ODCRs; `member_ids` are the ids of the reservations in it.

    `tags` and `ownership` are set only by `CapacityProvider.tagged_group`.
    """

    arn: str
    name: str
    member_ids: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    ownership: Ownership = "unproven"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    name: str
    manufacturer: str
    count: int
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """DescribeInstanceTypes and its offerings. `zones` are those that offer the type.

    `max_pods` is the VPC CNI's limit: enis * (ipv4_per_eni - 1) + 2. `on_demand_price` is that of Linux/UNIX
    on default tenancy in US dollars an hour, None if unknown. `other_prices` are those of other platforms
    and tenancies, by platform, then tenancy.
    """

    name: str
    vcpus: int
    memory_mib: int
    architecture: Literal["amd64", "arm64"] = "amd64"
    zones: frozenset[str] = frozenset()
    gpus: tuple[Gpu, ...] = ()
    neurons: int = 0
    neuron_cores: int = 0
    efa_interfaces: int = 0
    interfaces_per_card: tuple[int, ...] = ()  # by the card's index; empty: unknown
    ena: bool = True
    max_pods: int = 110
    enis: int = 0  # of the default network card; 0: unknown
    addresses_per_eni: int = 0
    bare_metal: bool = False
    hypervisor: str = "nitro"
    local_storage_gb: int = 0
    local_nvme: bool = True  # whether its disks, if it has any, are NVMe
    market_types: frozenset[str] = frozenset({"on-demand", "spot"})
    placement_strategies: frozenset[str] = frozenset({"cluster", "partition", "spread"})
    nested_virtualization: bool = False
    enclaves: bool = False
    cpu_manufacturer: str = ""  # as EC2 writes it; empty where unknown
    clock_mhz: int = 0  # sustained; 0: unknown
    neuron_name: str = ""
    network_mbps: int = 0  # 0: unknown
    ebs_mbps: int = 0  # 0: unknown, or only if requested
    branch_interfaces: int = 0  # for pods with security groups of their own
    encryption_in_transit: bool = False
    on_demand_price: float | None = None
    other_prices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    spot_prices: Mapping[str, float] = field(default_factory=dict)  # zone -> price

    def price(self, platform: str, tenancy: str) -> float | None:
        """On-Demand price of one instance in US dollars an hour; None where it is unknown."""
        if (platform, tenancy) == PLAIN_OFFER:
            return self.on_demand_price
        return self.other_prices.get(platform, {}).get(tenancy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """One term of an EC2NodeClass selector, in the provider's words; the fields of one term are ANDed.

    A tag value of "*" means any value. `alias` and `ssm_parameter` are for images only.
    """

    id: str = ""
    name: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    alias: str = ""
    ssm_parameter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementGroup:
    """`strategy` is cluster, partition or spread; reservations refer to it by `arn`."""

    arn: str
    strategy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    id: str
    zone: str
    zone_id: str = ""
    available_addresses: int = 0
    outpost_arn: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityGroup:
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """`platform` is DescribeImages' PlatformDetails, as reservations call it: EC2 compares the two.

    `accelerator` is the kind of device that an alias's image is built for ("none": for instances without
    one, "none-or-neuron": for those and Neuron's); None where nothing is known and the image serves any.
    """

    id: str
    architecture: Literal["amd64", "arm64"] = "amd64"
    platform: str = LINUX
    created: datetime | None = None
    deprecated: bool = False
    accelerator: Accelerator | None = None

    def serves(self, type_: InstanceType) -> bool:
        """Whether the image runs on the type and drives the devices that it has."""
        nvidia = any(gpu.manufacturer.casefold() == "nvidia" for gpu in type_.gpus)
        device = "nvidia" if nvidia else "neuron" if type_.neurons else "none"
        drives = self.accelerator is None or device in self.accelerator.split("-or-")
        return self.architecture == type_.architecture and drives


Impairment = Literal["instance", "system", "event"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockExtension:
    """An extension of a Capacity Block from `start`, its end before, to `end`. `paid`: False until EC2 is."""

    odcr_id: str
    start: datetime
    end: datetime
    paid: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceProblem:
    """A failed status check of an instance, or an event that EC2 has scheduled for it.

    `since`: when the check first failed; None for an event, and if EC2 does not say it.
    """

    id: str
    kind: Impairment
    code: str  # of an event, such as instance-retirement; of a check the name
    message: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An instance as DescribeInstances shows it; `reservation_id` is EC2's record of its reservation."""

    id: str
    instance_type: str
    zone: str
    zone_id: str = ""
    state: str = "pending"
    image_id: str = ""
    subnet_id: str = ""
    security_group_ids: frozenset[str] = frozenset()
    reservation_id: str = ""
    # The specification that it was launched with, by which EC2 may count it in a reservation later.
    reservation_preference: str = ""
    reservation_group: str = ""  # the ARN of the group that it targets
    platform: str = LINUX  # its image's PlatformDetails
    placement_group: str = ""
    lifecycle: str = ""  # "", spot, capacity-block, interruptible-capacity-reservation
    tenancy: str = "default"
    private_dns_name: str = ""
    launched: datetime | None = None
    end_reason: str = ""  # EC2's StateReason
    described: bool = True  # False: launched, but EC2 does not show it yet, so reservation_id is unknown
    tags: Mapping[str, str] = field(default_factory=dict)
    ownership: Ownership = "owned"

    @property
    def alive(self) -> bool:
        """True while EC2 bills or starts it."""
        return self.state in ("pending", "running", "stopping", "stopped")
