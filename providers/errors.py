"""The classes of a provider's refusals, each with its policy, and the error that carries one.

Invariant: a class is its row. A reader asks the row and has no set of classes of its own, so a new class is
one more member here, and its codes in providers.aws.errors. A policy marks only the resource that the error
is about: a quota or a subnet never marks a reservation. A throttled or failed call marks nothing, nor does a
limit other than a vCPU quota. An invalid or forbidden request stops the claim instead of being tried
elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, Literal, Self

# The remedy for a shortage of which nothing more is known.
EXPLAIN: Final = "The command capacity-broker explain claim NAME lists its options."

Marks = Literal["capacity", "class", "placement", "subnet", "quota", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Repeats of one call. A wait is a random part of `first` seconds, doubled up to `longest`."""

    attempts: int
    first: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """The reaction to one class of errors, and the words for it.

    With neither a mark nor `stops`, the same call is made again later. Condition reasons are Karpenter's, if
    it has one for the case.
    """

    name: str
    reason: str  # of the claim's condition
    next_step: str  # a sentence
    marks: Marks = "nothing"  # the resource that is remembered as short
    lasts: timedelta | None = None  # a shortage outside reservations; None: it doubles
    stops: bool = False  # the claim waits until the configuration changes
    refresh: bool = False  # EC2 and the class are read again first
    sweep: bool = False  # unused launch templates are deleted now
    by_code: bool = False  # the reason is the error's own code
    quiet: timedelta = timedelta()  # without an event so long after the first refusal: it may end by itself
    full: bool = False  # the place has no room now
    of_reservation: bool = False  # the refusal is about the reservation itself
    gone: bool = False  # the thing does not exist (any more)
    retry: Retry | None = None  # EC2's own trouble of the moment: the same call may be repeated at once
    read_reason: str = "ProviderError"  # of a class's condition, if a description was refused
    remedy: str = ""  # the remedy that a person has for a shortage
    purchase_remedy: str = ""  # the same for a refused purchase, if the refusal is about its place

    @property
    def elsewhere(self) -> bool:
        """Whether it is remembered as a shortage, and the claim's other options are tried at once."""
        return self.marks != "nothing"


class ErrorClass(StrEnum):
    """The subject of a refusal; the class decides the reaction, never the code or the text.

    In the order of reports: if a claim has several errors, one that needs action is shown first.
    """

    policy: ErrorPolicy

    def __new__(cls, policy: ErrorPolicy) -> Self:
        member = str.__new__(cls, policy.name)
        member._value_ = policy.name
        member.policy = policy
        return member

    PERMISSION = ErrorPolicy(  # credentials or policy
        name="permission",
        stops=True,
        reason="Unauthorized",
        next_step="grant the broker's role the action, or renew its credentials",
        read_reason="Unauthorized",
    )
    CONFIGURATION = ErrorPolicy(  # the request itself is wrong
        name="configuration",
        stops=True,
        reason="InvalidLaunchConfiguration",
        next_step="EC2 rejects the request as written; correct the class or the claim",
    )
    NOT_FOUND = ErrorPolicy(  # any other thing that is not there
        name="not-found",
        stops=True,
        refresh=True,
        reason="ResourceNotFound",
        next_step="something the class names is gone from EC2; correct the class",
        gone=True,
    )
    TEMPLATE_LIMIT = ErrorPolicy(  # the limit of launch templates
        name="template-limit",
        stops=True,
        sweep=True,
        by_code=True,
        reason="LaunchTemplateLimitExceeded",
        next_step="launch templates of the broker's that nothing uses are deleted now; delete others, or "
        "ask AWS for a higher limit",
    )
    LIMIT = ErrorPolicy(  # any other limit of the account
        name="limit",
        stops=True,
        by_code=True,
        reason="AccountLimitExceeded",
        next_step="ask AWS for a higher limit in Service Quotas, or free resources under that limit",
    )
    PROFILE_UNKNOWN = ErrorPolicy(  # EC2 does not know the instance profile (yet)
        name="profile-unknown",
        refresh=True,
        quiet=timedelta(minutes=2),
        reason="InstanceProfileNotReady",
        next_step="EC2 knows a new instance profile within a minute, and the launch is tried again; "
        "correct spec.instanceProfile if there is none of that name",
    )
    QUOTA = ErrorPolicy(  # a vCPU limit of the account
        name="quota",
        marks="quota",
        reason="VCPULimitExceeded",
        next_step="ask AWS for a higher limit in Service Quotas; types under other limits are tried",
        lasts=timedelta(minutes=15),
        remedy="Request a higher limit in Service Quotas, or free instances of these families.",
        purchase_remedy="ask AWS for a higher limit in Service Quotas, or lower the quota of the reservation",
    )
    SUBNET = ErrorPolicy(  # the subnet has no free address
        name="subnet",
        marks="subnet",
        reason="InsufficientFreeAddressesInSubnet",
        next_step="other subnets and zones are tried; free addresses in the subnet or add one to the class",
        remedy="Add a subnet with free addresses in this zone to the EC2NodeClass.",
    )
    RESERVATION_GONE = ErrorPolicy(  # unknown, not shared, cancelled, expired or not usable now
        name="reservation-gone",
        marks="capacity",
        refresh=True,
        reason="ReservationNotUsable",
        next_step="reservations are described again; the claim's other options are tried",
        of_reservation=True,
        gone=True,
        remedy="Give the EC2NodeClass a reservation that is active, or allow on-demand.",
    )
    RESERVATION_FULL = ErrorPolicy(  # healthy reservation, no free slot
        name="reservation-full",
        marks="capacity",
        reason="ReservationCapacityExceeded",
        next_step="the reservation has no free slot; the claim's other options are tried",
        full=True,
        of_reservation=True,
        remedy="Free a slot, enlarge the reservation, or allow on-demand in the claim or NodePool.",
    )
    CAPACITY = ErrorPolicy(  # the type is out of capacity in that zone and market
        name="capacity",
        marks="capacity",
        reason="InsufficientCapacity",
        next_step="EC2 has none of this type there now; the claim's other options are tried",
        full=True,
        remedy=f"Wait, or allow more types, zones or capacity types in the NodePool. {EXPLAIN}",
        purchase_remedy="it is requested again, also elsewhere and for fewer: wait, or let the flavor "
        "be in more zones or of more types",
    )
    SPREAD_FULL = ErrorPolicy(  # the spread placement group has all its instances in that zone
        name="spread-full",
        marks="placement",
        reason="SpreadPlacementGroupFull",
        next_step="the spread placement group takes no more instances in this zone; other zones are tried",
        remedy="Allow another zone or placement group: this one is full in the zone.",
    )
    UNSUPPORTED = ErrorPolicy(  # EC2 does not support the class's settings with this type
        name="unsupported",
        marks="class",
        reason="InstanceTypeUnsupported",
        next_step="EC2 does not support the class's settings with this type: correct the class or "
        "exclude the type; other options are tried",
        remedy="Correct the EC2NodeClass, or exclude the type: EC2 does not support the class's settings "
        "with it.",
        purchase_remedy="correct the type, the platform or the tenancy of the request",
    )
    NOT_OFFERED = ErrorPolicy(  # the zone does not have the type
        name="not-offered",
        marks="capacity",
        reason="InstanceTypeNotOffered",
        next_step="the type is not offered there: left out for hours, a reservation for minutes; "
        "other options are tried",
        lasts=timedelta(hours=6),
        remedy="Allow other types or zones in the NodePool: EC2 does not offer this one there.",
        purchase_remedy="correct the type or the zone in the nodeLabels of the flavor",
    )
    TEMPLATE_GONE = ErrorPolicy(  # the launch template vanished
        name="template-gone",
        refresh=True,
        reason="LaunchTemplateNotFound",
        next_step="the launch template is made again, then the call",
    )
    THROTTLING = ErrorPolicy(  # the request rate, not capacity
        name="throttling",
        reason="RequestLimitExceeded",
        next_step="EC2 limits the rate of calls; the same call is made again later",
        retry=Retry(attempts=6, first=0.5, longest=10.0),
        read_reason="RequestLimitExceeded",
    )
    TRANSIENT = ErrorPolicy(  # EC2's own trouble; the same call with the same token may be repeated
        name="transient",
        reason="InternalError",
        next_step="EC2 failed; the same call is made again with the same token",
        retry=Retry(attempts=4, first=0.2, longest=5.0),
        read_reason="ProviderUnavailable",
    )

    @property
    def rank(self) -> int:
        """Its place in the order of reports."""
        return [*ErrorClass].index(self)

    @property
    def passes(self) -> bool:
        """Whether the refusal is about the moment: a later call may be accepted as it is."""
        return self.policy.retry is not None

    @property
    def of_caller(self) -> bool:
        """Whether the refusal shows nothing about the request: it is about the caller, or the moment."""
        return self is ErrorClass.PERMISSION or self.passes


CLASSES: Final[Mapping[str, ErrorClass]] = {class_.value: class_ for class_ in ErrorClass}


class ProviderError(Exception):
    """A call that the provider refused as a whole.

    `code` is the provider's own code (EC2's error code), `class_` its subject. `request_id` is for AWS
    support (empty without a response). `lost`: this call, or one that it repeats, may have been carried out
    all the same. `refused`: in a call about several resources, the refused ones with their reasons; the call
    was carried out for the others.
    """

    def __init__(
        self, code: str, message: str, *, class_: ErrorClass, request_id: str = "", operation: str = ""
    ) -> None:
        super().__init__(f"{operation or 'call'}: {code}: {message}")
        self.code = code
        self.message = message
        self.class_ = class_
        self.request_id = request_id
        self.operation = operation
        self.lost = class_ is ErrorClass.TRANSIENT
        self.refused: Mapping[str, ProviderError] = {}
