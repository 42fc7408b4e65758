"""Reservations as queues of the quota tree.

Invariant: the judged spec is counted (`broker.apis.ome_rules`). Kueue's ClusterQueue is made of the same one,
so both ways of deciding have the same limits. Cohorts are flat, as
OME has them: a cohort exists if a member names it, and has no quota of its own. A queue that fails with one
flavor tries the next before it preempts, Kueue's default (`flavorFungibility`).
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.apis.ome import FlavorResourceQuota, PreemptionRule, ReservationSpec
from broker.apis.ome_rules import WITHIN
from broker.apis.units import units, written
from broker.quota.hardware import beyond
from broker.quota.model import (
    UNLIMITED,
    Amounts,
    FlavorGroup,
    FlavorResource,
    Preemption,
    Queue,
    Quota,
    amount,
)
from broker.quota.usage import ReservationKey


def queues(reservations: Mapping[ReservationKey, ReservationSpec]) -> tuple[Queue, ...]:
    """A queue for each reservation, by `ReservationKey.queue`. The specs are judged and have no problem."""
    return tuple(queue(reserved, spec) for reserved, spec in sorted(reservations.items()))


def queue(reserved: ReservationKey, spec: ReservationSpec) -> Queue:
    """One reservation's queue. Raises ValueError for an invalid quantity."""
    return Queue(
        name=reserved.queue,
        cohort=spec.cohort,
        groups=tuple(
            FlavorGroup(frozenset(group.covered_resources), tuple(flavor.name for flavor in group.flavors))
            for group in spec.resource_groups
        ),
        quotas={
            FlavorResource(flavor.name, resource.name): _quota(resource)
            for group in spec.resource_groups
            for flavor in group.flavors
            for resource in flavor.resources
        },
        preemption=preemption(spec),
    )


def limits(quota_queue: Queue, spec: ReservationSpec) -> Amounts:
    """The most that a reservation may use of each flavor and resource; nothing of any other flavor."""
    borrows = spec.allow_borrowing and bool(quota_queue.cohort)
    amounts = {}
    for key, quota in quota_queue.quotas.items():
        more = UNLIMITED if quota.borrowing_limit is None else quota.borrowing_limit
        amounts[key] = quota.nominal + (more if borrows else 0)
    return amounts


def excess(used: Amounts, limit: Amounts) -> str:
    """The quota that a reservation's users hold beyond its limits, as text; empty if none.

    Such as of a flavor that was renamed: nothing more is admitted until its users have left. A resource that
    a present flavor no longer counts has no limit.
    """
    named = {key.flavor for key in limit}
    used = {key: value for key, value in used.items() if key in limit or key.flavor not in named}
    return ", ".join(
        f"{written(key.resource, used[key])} of {key.resource} in {key.flavor} used"
        + (
            ""
            if key in limit
            else f" (quota that its users hold; its machines are counted in {_others(limit)})"
        )
        + f", {written(key.resource, value)} more than it may"
        for key, value in sorted(beyond(used, limit).items())
    )


def replaced(used: Amounts, limit: Amounts) -> str:
    """The `excess` in flavors that the reservation no longer has, as text; empty if none.

    Of its present flavors the decision itself admits no more than there is.
    """
    named = {key.flavor for key in limit}
    text = excess({key: value for key, value in used.items() if key.flavor not in named}, limit)
    return f"{text}; nothing more is admitted until it fits" if text else ""


def _others(limit: Amounts) -> str:
    """The present flavors."""
    return ", ".join(sorted({key.flavor for key in limit})) or "no flavor"


def _quota(resource: FlavorResourceQuota) -> Quota:
    return Quota(
        nominal=amount(units(resource.name, resource.nominal_quota)),
        borrowing_limit=_limit(resource.name, resource.borrowing_limit),
        lending_limit=_limit(resource.name, resource.lending_limit),
    )


def _limit(resource: str, text: str | None) -> int | None:
    return None if text is None else amount(units(resource, text))


def preemption(spec: ReservationSpec) -> Preemption:
    """The rule of a reservation's queue."""
    rule = spec.preemption_rule or PreemptionRule()
    borrow = rule.borrow_within_cohort
    return Preemption(
        within=rule.within_cluster_queue or WITHIN,
        reclaim=rule.reclaim_within_cohort or "Never",
        borrow="Never" if borrow is None or borrow.policy == "Never" else "LowerPriority",
        threshold=None if borrow is None else borrow.max_priority_threshold,
    )
