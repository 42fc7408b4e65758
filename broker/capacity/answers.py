"""The broker's response to a refusal, by the policy of its class (providers.errors).

Invariant: a refused call is handled like the refusal of a single pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final

from broker.capacity.inventory import Inventory
from broker.capacity.launches import Distribution, LaunchGroup
from broker.capacity.model import Option, Pool
from broker.capacity.shortages import Scope, Shortages, class_scope, placement_scope, quota_scope
from providers.errors import ErrorClass, ErrorPolicy, ProviderError
from providers.launch import LaunchError

SPILLED: Final = "SpilledToOnDemand"  # no code of EC2's: it launches elsewhere without an error


def answer(class_: ErrorClass, *, option: Option | None = None, code: str = "") -> ErrorPolicy:
    """The policy for an error of this class.

    With the option, a spot limit is reported by its name; with the code, any other limit by its code.
    """
    policy = class_.policy
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
    match class_.policy.marks:
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
    if spills and not class_.policy.of_reservation:
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
        free = inventory.unused(scope.key) if scope.kind == "reservation" else 0
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
        if error.class_.policy.of_reservation
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
    return min(errors, key=lambda error: (error.class_.rank, error.code), default=None)
