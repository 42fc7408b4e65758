"""The broker's response to a refusal: one policy for each class of error.

Invariant: a policy marks only the resource that the error is about. A quota or a subnet never marks a
reservation. A throttled or failed call marks nothing, nor does a limit other than a vCPU quota. An invalid
or forbidden request stops the claim instead of being tried elsewhere. A refused call is handled like the
refusal of a single pool. Condition reasons are Karpenter's, if it has one for the case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal

from broker.capacity.launches import Distribution, LaunchGroup
from broker.capacity.model import Inventory, Option, Pool
from broker.capacity.shortages import Scope, Shortages, class_scope, placement_scope, quota_scope
from providers.errors import ErrorClass, ProviderError
from providers.launch import LaunchError

SPILLED: Final = "SpilledToOnDemand"  # no code of EC2's: it launches elsewhere without an error

Marks = Literal["capacity", "class", "placement", "subnet", "quota", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """The reaction to one class of errors.

    `marks`: the resource that is remembered as short. `elsewhere`: the claim's other options are tried at
    once. `stops`: the claim waits until the configuration changes. With neither, the same call is made again
    later. `refresh`: EC2 is described again first. `sweep`: unused launch templates are deleted now.
    `reason` is the condition's; with `by_code` it is the error's own code. `quiet`: no event, since the
    condition is transient. `next_step` is a sentence.
    """

    marks: Marks
    reason: str
    next_step: str
    elsewhere: bool = False
    stops: bool = False
    refresh: bool = False
    sweep: bool = False
    by_code: bool = False
    quiet: bool = False


ANSWERS: Final[Mapping[ErrorClass, ErrorPolicy]] = {
    ErrorClass.CAPACITY: ErrorPolicy(
        marks="capacity",
        elsewhere=True,
        reason="InsufficientCapacity",
        next_step="EC2 has none of this type there now; the claim's other options are tried",
    ),
    ErrorClass.RESERVATION_FULL: ErrorPolicy(
        marks="capacity",
        elsewhere=True,
        reason="ReservationCapacityExceeded",
        next_step="the reservation has no free slot; the claim's other options are tried",
    ),
    ErrorClass.RESERVATION_GONE: ErrorPolicy(
        marks="capacity",
        elsewhere=True,
        refresh=True,
        reason="ReservationNotUsable",
        next_step="reservations are described again; the claim's other options are tried",
    ),
    ErrorClass.NOT_OFFERED: ErrorPolicy(
        marks="capacity",
        elsewhere=True,
        reason="InstanceTypeNotOffered",
        next_step="the type is not offered there: left out for hours, a reservation for minutes; "
        "other options are tried",
    ),
    ErrorClass.UNSUPPORTED: ErrorPolicy(
        marks="class",
        elsewhere=True,
        reason="InstanceTypeUnsupported",
        next_step="EC2 does not support the class's settings with this type: correct the class or exclude "
        "the type; other options are tried",
    ),
    ErrorClass.SPREAD_FULL: ErrorPolicy(
        marks="placement",
        elsewhere=True,
        reason="SpreadPlacementGroupFull",
        next_step="the spread placement group takes no more instances in this zone; other zones are tried",
    ),
    ErrorClass.SUBNET: ErrorPolicy(
        marks="subnet",
        elsewhere=True,
        reason="InsufficientFreeAddressesInSubnet",
        next_step="other subnets and zones are tried; free addresses in the subnet or add one to the class",
    ),
    ErrorClass.QUOTA: ErrorPolicy(
        marks="quota",
        elsewhere=True,
        reason="VCPULimitExceeded",
        next_step="ask AWS for a higher limit in Service Quotas; types under other limits are tried",
    ),
    ErrorClass.LIMIT: ErrorPolicy(
        marks="nothing",
        stops=True,
        by_code=True,
        reason="AccountLimitExceeded",
        next_step="ask AWS for a higher limit in Service Quotas, or free resources under that limit",
    ),
    ErrorClass.TEMPLATE_LIMIT: ErrorPolicy(
        marks="nothing",
        stops=True,
        sweep=True,
        by_code=True,
        reason="LaunchTemplateLimitExceeded",
        next_step="launch templates of the broker's that nothing uses are deleted now; delete others, or ask "
        "AWS for a higher limit",
    ),
    ErrorClass.THROTTLING: ErrorPolicy(
        marks="nothing",
        reason="RequestLimitExceeded",
        next_step="EC2 limits the rate of calls; the same call is made again later",
    ),
    ErrorClass.TRANSIENT: ErrorPolicy(
        marks="nothing",
        reason="InternalError",
        next_step="EC2 failed; the same call is made again with the same token",
    ),
    ErrorClass.TEMPLATE_GONE: ErrorPolicy(
        marks="nothing",
        refresh=True,
        reason="LaunchTemplateNotFound",
        next_step="the launch template is made again, then the call",
    ),
    ErrorClass.PROFILE_UNKNOWN: ErrorPolicy(
        marks="nothing",
        quiet=True,
        reason="InstanceProfileNotReady",
        next_step="EC2 knows a new instance profile within a minute, and the launch is tried again; correct "
        "spec.instanceProfile if there is none of that name",
    ),
    ErrorClass.NOT_FOUND: ErrorPolicy(
        marks="nothing",
        stops=True,
        refresh=True,
        reason="ResourceNotFound",
        next_step="something the class names is gone from EC2; correct the class",
    ),
    ErrorClass.CONFIGURATION: ErrorPolicy(
        marks="nothing",
        stops=True,
        reason="InvalidLaunchConfiguration",
        next_step="EC2 rejects the request as written; correct the class or the claim",
    ),
    ErrorClass.PERMISSION: ErrorPolicy(
        marks="nothing",
        stops=True,
        reason="Unauthorized",
        next_step="grant the broker's role the action, or renew its credentials",
    ),
}


def answer(class_: ErrorClass, *, option: Option | None = None, code: str = "") -> ErrorPolicy:
    """The policy for an error of this class.

    With the option, a spot limit is reported by its name; with the code, any other limit by its code.
    """
    policy = ANSWERS[class_]
    if class_ is ErrorClass.QUOTA and option is not None and option.pool.capacity_type == "spot":
        return replace(policy, reason="SpotQuotaExceeded")
    if policy.by_code and code:
        # A condition's reason has no full stop, a code may have.
        return replace(policy, reason=code.replace(".", ""))
    return policy


def scopes(
    class_: ErrorClass,
    option: Option,
    *,
    node_class: str = "",
    subnet_id: str = "",
    spills: bool = False,
) -> tuple[Scope, ...]:
    """The scopes that an error of this class marks as short for this option; empty if it marks nothing.

    `node_class`: the class of the launch. A full group or open match means that all its reservations of
    the type and zone are full. `spills`: EC2 could go on to On-Demand, so its refusal covers that pool
    too.
    """
    match ANSWERS[class_].marks:
        case "nothing":
            return ()
        case "subnet":
            return (Scope("subnet", subnet_id),) if subnet_id else ()
        case "quota":
            return (quota_scope(option.pool),)
        case "class":
            pools = (option.pool, _on_demand(option.pool)) if spills else (option.pool,)
            return tuple(class_scope(node_class, pool) for pool in pools)
        case "placement" if scope := placement_scope(option.pool):
            return (scope,)
    pool = option.pool
    if pool.capacity_type != "reserved":
        return (Scope("pool", str(pool)),)
    named = option.odcr_ids or ((pool.reservation,) if pool.reservation else ())
    marked = tuple(Scope("reservation", odcr_id) for odcr_id in named) or (Scope("pool", str(pool)),)
    if spills and class_ in (ErrorClass.CAPACITY, ErrorClass.NOT_OFFERED):
        return (*marked, Scope("pool", str(_on_demand(pool))))
    return marked


def _on_demand(pool: Pool) -> Pool:
    """The on-demand pool that EC2 falls back to without a request."""
    return replace(pool, capacity_type="on-demand", reservation="")


def remember(
    shortages: Shortages,
    error: LaunchError | ProviderError,
    option: Option,
    *,
    inventory: Inventory,
    now: datetime,
    node_class: str = "",
    subnet_id: str = "",
    spills: bool = False,
) -> Shortages:
    """The shortages after this error about this option; `subnet_id` if the error does not name it."""
    subnet = error.subnet_id if isinstance(error, LaunchError) and error.subnet_id else subnet_id
    for scope in scopes(error.class_, option, node_class=node_class, subnet_id=subnet, spills=spills):
        free = inventory.free(scope.key) if scope.kind == "reservation" else 0
        shortages = shortages.record(
            scope, class_=error.class_, code=error.code, now=now, free=free, message=error.message
        )
    return shortages


def launched(
    shortages: Shortages,
    option: Option,
    *,
    reservation_id: str,
    node_class: str = "",
    subnet_id: str = "",
) -> Shortages:
    """The shortages after a launch of this option into `reservation_id` (or into none)."""
    through: list[Scope] = [quota_scope(option.pool), class_scope(node_class, option.pool)]
    if placed := placement_scope(option.pool):
        through.append(placed)
    if reservation_id:
        through.append(Scope("reservation", reservation_id))
    elif option.pool.capacity_type != "reserved":
        through.append(Scope("pool", str(option.pool)))
    if subnet_id:
        through.append(Scope("subnet", subnet_id))
    return shortages.succeeded(through)


def spilled(shortages: Shortages, option: Option, *, now: datetime) -> Shortages:
    """The shortages after EC2 launched outside the option's reservations, which means that they are full."""
    for scope in scopes(ErrorClass.RESERVATION_FULL, option):
        shortages = shortages.record(scope, class_=ErrorClass.RESERVATION_FULL, code=SPILLED, now=now)
    return shortages


def learn(
    shortages: Shortages,
    group: LaunchGroup,
    distribution: Distribution,
    errors: Iterable[LaunchError],
    *,
    inventory: Inventory,
    now: datetime,
) -> Shortages:
    """The shortages after a call. Launches are applied first.

    A pool that gave some instances and refused the rest is short, and so are reservations that EC2
    passed over.
    """
    for pair in distribution.pairs:
        instance = pair.instance
        option = group.option(instance.instance_type, instance.zone)
        shortages = launched(
            shortages,
            option,
            reservation_id=instance.reservation_id,
            node_class=group.node_class,
            subnet_id=instance.subnet_id,
        )
    for option in dict.fromkeys(passed_by(group, distribution)):
        shortages = spilled(shortages, option, now=now)
    for error in errors:
        shortages = remember(
            shortages,
            error,
            group.option(error.instance_type, error.zone),
            inventory=inventory,
            now=now,
            node_class=group.node_class,
            subnet_id=group.subnet(error.instance_type, error.zone),
            spills=group.spills,
        )
    return shortages


def full(group: LaunchGroup, distribution: Distribution, errors: Iterable[LaunchError]) -> frozenset[str]:
    """The reservations that a call showed to be full, even if the inventory differs."""
    short = [
        group.option(error.instance_type, error.zone)
        for error in errors
        if error.class_ in (ErrorClass.RESERVATION_FULL, ErrorClass.RESERVATION_GONE)
    ]
    return frozenset(id_ for option in (*short, *passed_by(group, distribution)) for id_ in option.odcr_ids)


def passed_by(group: LaunchGroup, distribution: Distribution) -> list[Option]:
    """The options for which EC2 launched an instance outside every reservation."""
    return [
        group.option(pair.instance.instance_type, pair.instance.zone)
        for pair in distribution.pairs
        if pair.spilled and not pair.instance.reservation_id
    ]


def foremost(errors: Iterable[LaunchError]) -> LaunchError | None:
    """The error to report for a claim. If there are several, one that needs action is shown first."""
    return min(errors, key=lambda error: (_FOREMOST.index(error.class_), error.code), default=None)


_FOREMOST: Final = (
    ErrorClass.PERMISSION,
    ErrorClass.CONFIGURATION,
    ErrorClass.NOT_FOUND,
    ErrorClass.TEMPLATE_LIMIT,
    ErrorClass.LIMIT,
    ErrorClass.PROFILE_UNKNOWN,
    ErrorClass.QUOTA,
    ErrorClass.SUBNET,
    ErrorClass.RESERVATION_GONE,
    ErrorClass.RESERVATION_FULL,
    ErrorClass.CAPACITY,
    ErrorClass.SPREAD_FULL,
    ErrorClass.UNSUPPORTED,
    ErrorClass.NOT_OFFERED,
    ErrorClass.TEMPLATE_GONE,
    ErrorClass.THROTTLING,
    ErrorClass.TRANSIENT,
)
