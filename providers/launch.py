"""Launches: the launch template with the node's settings, the request of a fleet, and its result.

The field names are EC2's (CreateLaunchTemplate and CreateFleet in the EC2 API Reference). Prices are US
dollars an hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from providers.errors import ErrorClass
from providers.model import Instance, Market

Preference = Literal["open", "none", "capacity-reservations-only"]
# EC2 launches into a reservation or not at all; it takes a target with no other preference.
RESERVATIONS_ONLY: Final = "capacity-reservations-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDevice:
    device_name: str
    volume_size_gib: int | None = None
    volume_type: str = ""
    iops: int | None = None
    throughput: int | None = None
    encrypted: bool | None = None
    kms_key_id: str = ""
    delete_on_termination: bool = True
    snapshot_id: str = ""
    initialization_rate: int | None = None
    root: bool = False  # whether this is the root volume


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataOptions:
    http_endpoint: str = "enabled"
    http_tokens: str = "required"
    http_put_response_hop_limit: int = 1
    http_protocol_ipv6: str = "disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """The settings of a node's user data, for any image family.

    `ca_bundle` is base64; `taints` are `key=value:Effect`. `kubelet` holds the KubeletConfiguration fields
    of the class (clusterDNS, maxPods, systemReserved, ...).
    """

    cluster_name: str
    endpoint: str
    ca_bundle: str = ""
    service_cidr: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    kubelet: Mapping[str, object] = field(default_factory=dict)
    instance_store_raid0: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationTarget:
    """Template's CapacityReservationSpecification. Empty id and group: no target.

    `spills`: EC2 runs an instance that finds no free slot in the group On-Demand, and may count it there
    later.
    """

    preference: Preference | None = None
    reservation_id: str = ""
    group_arn: str = ""
    spills: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInterface:
    """One interface of an instance: its card, its place on the card, its type."""

    card: int
    device: int
    kind: Literal["interface", "efa", "efa-only"] = "interface"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTracking:
    """Idle timeouts in seconds; None is EC2's default."""

    tcp_established: int | None = None
    udp_stream: int | None = None
    udp: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """All that a launch template holds; its name is a hash of exactly this."""

    image_id: str
    user_data: str = ""  # not base64: the provider encodes it
    security_group_ids: tuple[str, ...] = ()
    instance_profile: str = ""  # name or ARN
    block_devices: tuple[BlockDevice, ...] = ()
    metadata: MetadataOptions = MetadataOptions()
    detailed_monitoring: bool = False
    tenancy: str = "default"
    placement_group: str = ""
    placement_group_id: str = ""  # instead of the name
    associate_public_ip: bool | None = None
    interfaces: tuple[NetworkInterface, ...] = ()  # none: the one that EC2 makes
    ipv4_prefix_count: int | None = None
    ipv6_prefix_count: int | None = None
    primary_ipv6: bool = False  # an IPv6 address by which the node is reached: in an IPv6 cluster
    connection_tracking: ConnectionTracking | None = None
    nested_virtualization: str = ""
    enclaves: bool = False
    market: Market = "on-demand"
    target: ReservationTarget = ReservationTarget()
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRef:
    """An instance profile that the broker made, for a role."""

    name: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRef:
    """A launch template in EC2 that the broker made."""

    name: str
    id: str = ""
    owner: str = ""  # the class it was made for
    created: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One pool of a launch: EC2 refuses a request with two of one type and zone."""

    instance_type: str
    zone: str
    subnet_id: str
    priority: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One CreateFleet of type instant, of one template and one market.

    `token` makes a repeat harmless; `minimum` > 0 means all or nothing below that count. `max_price`: dollars
    an hour that all instances together may cost; 0 for no limit.
    """

    token: str
    template: TemplateRef
    overrides: tuple[Override, ...]
    count: int
    market: Market = "on-demand"
    minimum: int = 0
    context: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    max_price: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchError:
    """One pool's refusal inside a fleet's answer."""

    code: str
    message: str
    class_: ErrorClass
    instance_type: str = ""
    zone: str = ""
    subnet_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """The result of a fleet: instances as EC2 describes them after the launch, and each pool's refusal."""

    instances: tuple[Instance, ...] = ()
    errors: tuple[LaunchError, ...] = ()
    request_id: str = ""
