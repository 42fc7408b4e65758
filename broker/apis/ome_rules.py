"""The effective spec of a reservation, beyond the checks of its schema.

Invariant: the user's spec is never changed; the result is a copy. If the meaning is clear, a spec that
Kueue would refuse is corrected, and each change is listed (`notes`: a Warning, or a refusal for a strict
reservation). A spec without a clear meaning is a `problem`. A result without problems is valid for
Kueue's ClusterQueue: every covered resource has an entry in order, limits exist only within a cohort, and
the borrowing limit is 0 if the reservation may not borrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from broker.apis.ome import (
    GROUPS_RULE,
    PREEMPTION_RULE,
    BorrowWithinCohort,
    FlavorQuotas,
    FlavorResourceQuota,
    PreemptionRule,
    QuotaGroup,
    ReservationSpec,
)
from broker.text import exact

# The maximum of Kueue's ClusterQueue (apis/kueue/v1beta1/clusterqueue_types.go; in all groups together, and
# pairs within one: pkg/webhooks/clusterqueue_webhook.go).
MOST_GROUPS = 16
MOST_IN_ALL = 256
MOST_PAIRS = 512
# The default of preemptionRule.withinClusterQueue. In Kueue it is Never.
WITHIN: Final = "LowerPriority"
# A name with or without a domain, as Kubernetes qualifies names (apimachinery's IsQualifiedName).
_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_RESOURCE = re.compile(
    rf"({_PART}(\.{_PART})*/)?(?=.{{1,63}}\Z)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSpec:
    """The effective spec; it is valid only without problems."""

    spec: ReservationSpec
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def judge(spec: ReservationSpec, *, default_cohort: str = "", strict: bool = False) -> JudgedSpec:
    """The effective spec. `default_cohort` applies to a reservation that may borrow and names no cohort."""
    problems = list(_problems(spec))
    notes: list[str] = []
    cohort = spec.cohort
    if spec.allow_borrowing and not cohort:
        if default_cohort:
            notes.append(
                f"spec.allowBorrowing is true and spec.cohort is empty: it borrows in cohort {default_cohort}"
            )
            cohort = default_cohort
        else:
            problems.append(
                "spec.allowBorrowing is true and spec.cohort is empty: name a cohort to borrow from, or "
                "set allowBorrowing to false"
            )
    groups = []
    for at, group in enumerate(spec.resource_groups):
        where = f"spec.resourceGroups[{at}]"
        flavors = []
        for flavor in group.flavors:
            resources = [
                _resource(quota, flavor, spec.allow_borrowing, bool(cohort), where, notes)
                for quota in _covered(group, flavor, where, notes)
            ]
            flavors.append(flavor.model_copy(update={"resources": tuple(resources)}))
        groups.append(group.model_copy(update={"flavors": tuple(flavors)}))
    rule = _preemption(spec.preemption_rule or PreemptionRule(), notes)
    effective = spec.model_copy(
        update={"resource_groups": tuple(groups), "cohort": cohort, "preemption_rule": rule}
    )
    if strict:
        return JudgedSpec(spec=effective, problems=(*problems, *notes))
    return JudgedSpec(spec=effective, notes=tuple(notes), problems=tuple(problems))


def _covered(
    group: QuotaGroup, flavor: FlavorQuotas, where: str, notes: list[str]
) -> Iterator[FlavorResourceQuota]:
    """The flavor's quotas in the order of the group's resources; 0 for a resource without one."""
    known = {quota.name: quota for quota in flavor.resources}
    covered = group.covered_resources
    if [name for name in known if name in covered] != [name for name in covered if name in known]:
        notes.append(
            f"{where}: flavor {flavor.name} has its resources in another order than coveredResources; "
            "the order of coveredResources is used"
        )
    for name in group.covered_resources:
        if name not in known:
            notes.append(
                f"{where}: flavor {flavor.name} has no quota of {name}, which the group covers: 0 of it"
            )
        yield known.get(name, FlavorResourceQuota(name=name, nominal_quota="0"))


def _resource(
    given: FlavorResourceQuota,
    flavor: FlavorQuotas,
    borrows: bool,
    shares: bool,
    where: str,
    notes: list[str],
) -> FlavorResourceQuota:
    """The limits that Kueue accepts: none outside a cohort, and 0 for a reservation that may not borrow."""
    subject = f"{where}: flavor {flavor.name}, {given.name}"
    borrow, lend = given.borrowing_limit, given.lending_limit
    if not borrows and borrow is not None and _more_than_nothing(borrow):
        notes.append(f"{subject}: borrowingLimit {borrow} is 0, since spec.allowBorrowing is not true")
    elif not shares and borrow is not None:
        notes.append(f"{subject}: borrowingLimit {borrow} has no effect without spec.cohort")
    if not shares and lend is not None:
        notes.append(f"{subject}: lendingLimit {lend} has no effect without spec.cohort")
    if not shares:
        borrow = lend = None
    elif not borrows:
        borrow = "0"
    return given.model_copy(update={"borrowing_limit": borrow, "lending_limit": lend})


def _preemption(rule: PreemptionRule, notes: list[str]) -> PreemptionRule:
    borrow = rule.borrow_within_cohort or BorrowWithinCohort()
    if borrow.policy == "Any":
        notes.append(
            "spec.preemptionRule.borrowWithinCohort.policy Any is LowerPriority: borrowing "
            "preempts lower priority only"
        )
        borrow = borrow.model_copy(update={"policy": "LowerPriority"})
    return PreemptionRule(
        reclaim_within_cohort=rule.reclaim_within_cohort or "Never",
        borrow_within_cohort=borrow,
        within_cluster_queue=rule.within_cluster_queue or WITHIN,
    )


def _problems(spec: ReservationSpec) -> Iterator[str]:
    groups = spec.resource_groups
    if not groups:
        yield f"spec.resourceGroups: {GROUPS_RULE.message}"
    if len(groups) > MOST_GROUPS:
        yield f"spec.resourceGroups has {len(groups)} groups; Kueue takes at most {MOST_GROUPS}: join some"
    for items, count in (
        ("flavors", sum(len(group.flavors) for group in groups)),
        ("covered resources", sum(len(group.covered_resources) for group in groups)),
    ):
        if count > MOST_IN_ALL:
            yield f"spec.resourceGroups has {count} {items} in all; Kueue takes at most {MOST_IN_ALL}"
    yield from _twice("flavor", [flavor.name for group in groups for flavor in group.flavors])
    yield from _twice("resource", [name for group in groups for name in group.covered_resources])
    for at, group in enumerate(groups):
        for name in group.covered_resources:
            if len(name.rpartition("/")[0]) > 253 or not _RESOURCE.fullmatch(name):
                yield (
                    f"spec.resourceGroups[{at}].coveredResources: {name!r} is not a resource name: write "
                    "one such as nvidia.com/gpu, cpu or memory"
                )
        if (pairs := len(group.flavors) * len(group.covered_resources)) > MOST_PAIRS:
            yield (
                f"spec.resourceGroups[{at}] has {pairs} pairs of flavor and resource; Kueue takes at most "
                f"{MOST_PAIRS} in a group: split it in two"
            )
        for flavor in group.flavors:
            where = f"spec.resourceGroups[{at}]: flavor {flavor.name}"
            names = [quota.name for quota in flavor.resources]
            for name in names:
                if name not in group.covered_resources:
                    yield f"{where} has quota of {name}, which is not in coveredResources: add it there"
            for name in sorted({name for name in names if names.count(name) > 1}):
                yield f"{where} has quota of {name} twice; keep one"
            for quota in flavor.resources:
                yield from _amounts(quota, f"{where}, {quota.name}")
    rule = spec.preemption_rule
    if (
        rule is not None
        and rule.borrow_within_cohort is not None
        and rule.borrow_within_cohort.policy != "Never"
        and rule.reclaim_within_cohort in (None, "Never")
    ):
        yield f"spec.preemptionRule: {PREEMPTION_RULE.message}"


def _twice(item: str, names: Sequence[str]) -> Iterator[str]:
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"spec.resourceGroups: {item} {name} is in more than one place; keep it in one group"


def _amounts(quota: FlavorResourceQuota, where: str) -> Iterator[str]:
    values: dict[str, Decimal] = {}
    for name, text in (
        ("nominalQuota", quota.nominal_quota),
        ("borrowingLimit", quota.borrowing_limit),
        ("lendingLimit", quota.lending_limit),
    ):
        if text is None:
            continue
        try:
            values[name] = exact(text)
        except ValueError as error:
            yield f"{where}: {name}: {error}"
            continue
        if values[name] < 0:
            yield f"{where}: {name} {text} is negative; use 0 for none"
    nominal, lend = values.get("nominalQuota"), values.get("lendingLimit")
    if nominal is not None and lend is not None and lend > max(nominal, Decimal(0)):
        yield (
            f"{where}: lendingLimit {quota.lending_limit} is more than nominalQuota {quota.nominal_quota}; "
            "lower it, or leave it out to lend everything"
        )


def _more_than_nothing(text: str) -> bool:
    try:
        return exact(text) > 0
    except ValueError:
        return False  # which is a problem of its own
