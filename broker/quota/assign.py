"""Chooses the flavor of each resource of a workload.

Invariant: the resources of one group take one flavor, chosen for a pod set (or a group of pod sets) in
the queue's order. A flavor is as good as the worst of its resources. The search stops at the first flavor
beyond which the queue's fungibility does not look; otherwise the best is taken. Amounts of earlier pod
sets count. A workload is as good as its worst pod set, and the search ends at the first pod set without a
flavor.

The rules are Kueue's (pkg/scheduler/flavorassigner/flavorassigner.go). Kueue's API comment and its code
disagree on BorrowingOverPreemption. This follows the code: modes are compared first, then the distance
borrowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from broker.quota.classical import preempt
from broker.quota.flavors import Flavor, PodSetRequest, misfit
from broker.quota.ledger import QuotaLedger
from broker.quota.model import (
    Amounts,
    FlavorGroup,
    FlavorResource,
    Fungibility,
    Mode,
    Possibility,
    PreemptionTarget,
    QuotaRequest,
)
from broker.quota.tree import QuotaNode

PODS: Final = "pods"
_Targets = tuple[PreemptionTarget, ...]

# The possibility of preemption for one flavor and resource, and the distance borrowed afterwards.
Oracle = Callable[[FlavorResource, int], tuple[Possibility, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorChoice:
    """The flavor of one resource. `tried`: the index of the last flavor considered, -1 after the last one."""

    flavor: str
    mode: Mode
    level: int = 0
    tried: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A pod set's flavors by resource; empty, with the reasons, if there is none."""

    name: str
    count: int
    choices: Mapping[str, FlavorChoice]
    mode: Mode
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorAssignment:
    """A workload's flavors; `level`: the distance that it would borrow, 0 for none."""

    pod_sets: tuple[Assigned, ...] = ()
    usage: Mapping[FlavorResource, int] = field(default_factory=dict)
    mode: Mode = Mode.NO_FIT
    level: int = 0

    @property
    def needed(self) -> frozenset[FlavorResource]:
        """The flavors and resources that need preemption."""
        return frozenset(
            FlavorResource(choice.flavor, resource)
            for pods in self.pod_sets
            for resource, choice in pods.choices.items()
            if choice.mode is Mode.PREEMPT
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(reason for pods in self.pod_sets for reason in pods.reasons))


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRules:
    """The rules for every queue of a cluster."""

    flavors: Mapping[str, Flavor]


class Simulation:
    """The result of preemption for a workload, computed once for the same amounts."""

    def __init__(
        self, ledger: QuotaLedger, queue: str, priority: int, queued: float, rules: SharingRules
    ) -> None:
        self._ledger = ledger
        self._request = QuotaRequest(queue=queue, amounts={}, priority=priority, queued=queued)
        self._rules = rules
        self._known: dict[
            tuple[frozenset[tuple[FlavorResource, int]], frozenset[FlavorResource]], _Targets
        ] = {}

    def targets(self, amounts: Amounts, needed: frozenset[FlavorResource]) -> _Targets:
        """The victims for these amounts."""
        key = (frozenset(amounts.items()), needed)
        if key not in self._known:
            request = replace(self._request, amounts=amounts)
            self._known[key] = preempt(self._ledger, request, needed)
        return self._known[key]

    def __call__(self, key: FlavorResource, value: int) -> tuple[Possibility, int]:
        """For one flavor and resource alone: the possibility, and the distance borrowed afterwards."""
        node = self._ledger.node(self._request.queue)
        victims = self.targets({key: value}, frozenset((key,)))
        if not victims:
            return Possibility.NO_CANDIDATES, node.level(key, value)[0]
        for victim in victims:
            self._ledger.node(victim.workload.queue).remove(victim.workload.usage)
        level, _ = node.level(key, value)
        for victim in victims:
            self._ledger.node(victim.workload.queue).add(victim.workload.usage)
        own = any(victim.workload.queue == node.name for victim in victims)
        return (Possibility.PREEMPT if own else Possibility.RECLAIM), level


def assign(
    node: QuotaNode,
    pod_sets: Sequence[PodSetRequest],
    rules: SharingRules,
    oracle: Oracle,
    *,
    after: Mapping[tuple[str, str], int] | None = None,
) -> FlavorAssignment:
    """The best flavors for a workload in a queue now.

    `after`: by pod set and resource, the `FlavorChoice.tried` of an earlier assignment, from which to
    continue.
    """
    search = _FlavorSearch(node, rules, oracle, after or {})
    if node.queue is not None:
        for group in _grouped(pod_sets):
            if not search.group(group):
                break
    done = search.done
    mode = min((assigned.mode for assigned in done), default=Mode.NO_FIT)
    return FlavorAssignment(pod_sets=tuple(done), usage=search.usage, mode=mode, level=search.level)


@dataclass(slots=True)
class _FlavorSearch:
    node: QuotaNode
    rules: SharingRules
    oracle: Oracle
    after: Mapping[tuple[str, str], int]
    usage: dict[FlavorResource, int] = field(default_factory=dict)
    done: list[Assigned] = field(default_factory=list)
    level: int = 0

    def group(self, members: Sequence[PodSetRequest]) -> bool:
        """Assigns pod sets that share their flavors; returns whether that succeeded."""
        groups = self.node.queue.groups if self.node.queue is not None else ()
        requests = [_requests(pods, groups) for pods in members]
        total: dict[str, int] = {}
        for requested in requests:
            for resource, value in requested.items():
                total[resource] = total.get(resource, 0) + value
        choices: dict[str, FlavorChoice] = {}
        reasons: list[str] = []
        could = True
        for resource in sorted(total):
            group = next((group for group in groups if resource in group.resources), None)
            if resource in choices or (group is None and total[resource] == 0):
                continue
            if group is None:
                chosen: dict[str, FlavorChoice] = {}
                why_not = [f"resource {resource} is unavailable in queue {self.node.name}"]
            else:
                chosen, why_not = self._flavor(members, total, resource, group)
            reasons += why_not
            if not chosen:
                could, choices = False, {}
                break
            choices |= chosen
        for pods, wanted in zip(members, requests, strict=True):
            own = {resource: choices[resource] for resource in sorted(wanted) if resource in choices}
            # Zero requests for unknown resources are not counted; a pod set of nothing else fits.
            mode = min((choice.mode for choice in own.values()), default=Mode.FIT if could else Mode.NO_FIT)
            self.done.append(
                Assigned(name=pods.name, count=pods.count, choices=own, mode=mode, reasons=tuple(reasons))
            )
            for resource, choice in own.items():
                key = FlavorResource(choice.flavor, resource)
                self.usage[key] = self.usage.get(key, 0) + wanted[resource]
                self.level = max(self.level, choice.level)
        return could

    def _flavor(
        self, members: Sequence[PodSetRequest], total: Mapping[str, int], resource: str, group: FlavorGroup
    ) -> tuple[dict[str, FlavorChoice], list[str]]:
        """The flavor of a resource group for the total of these pod sets, and why others were not taken."""
        assert self.node.queue is not None
        rule = self.node.queue.fungibility
        best: dict[str, tuple[Possibility, int]] = {}
        best_rank, best_flavor, tried = (Possibility.NO_FIT, 0), "", -1
        reasons: list[str] = []
        first = self.after.get((members[0].name, resource), -1) + 1
        for index in range(first, len(group.flavors)):
            tried, flavor = index, group.flavors[index]
            if why := self._misfit(members, flavor):
                reasons.append(why)
                continue
            possibilities: dict[str, tuple[Possibility, int]] = {}
            rank = (Possibility.FIT, 0)
            for name in sorted(total):
                if name in group.resources:
                    possibility, level, why = self._room(FlavorResource(flavor, name), total[name])
                    possibilities[name] = (possibility, level)
                    reasons += [why] if why else []
                    if _better(rank, (possibility, level), rule):
                        rank = (possibility, level)
            if not _try_next(rank, rule):
                best, best_rank, best_flavor = possibilities, rank, flavor
                break
            if _better(rank, best_rank, rule):
                best, best_rank, best_flavor = possibilities, rank, flavor
        if tried == len(group.flavors) - 1:
            tried = -1
        choices = {
            name: FlavorChoice(flavor=best_flavor, mode=possibility.mode, level=level, tried=tried)
            for name, (possibility, level) in best.items()
        }
        return choices, [] if best_rank[0] is Possibility.FIT else reasons

    def _misfit(self, members: Sequence[PodSetRequest], flavor: str) -> str:
        known = self.rules.flavors.get(flavor)
        if known is None:
            return f"flavor {flavor} not found"
        return next((why for pods in members if (why := misfit(pods, known))), "")

    def _room(self, key: FlavorResource, wanted: int) -> tuple[Possibility, int, str]:
        """The possibility of one flavor for one resource, the distance borrowed, and the shortage."""
        node = self.node
        taken = self.usage.get(key, 0)
        value = taken + wanted
        most = node.potential(key)
        if value > most:
            before = f", {taken} of it for earlier pod sets," if taken else ""
            return (
                Possibility.NO_FIT,
                0,
                f"{value} {key}{before} is more than the {most} the queue can ever have",
            )
        level, higher = node.level(key, value)
        free = max(0, node.available(key))
        if value <= free:
            return Possibility.FIT, level, ""
        why = f"{value - free} more of {key} is needed"
        rule = node.preemption
        while_borrowing = rule.borrow != "Never"
        if node.quota(key) >= value or higher or while_borrowing:
            possibility, level = self.oracle(key, value)
            return possibility, level, why
        return Possibility.NO_FIT, level, why


def _requests(pods: PodSetRequest, groups: Sequence[FlavorGroup]) -> dict[str, int]:
    """The total request of a pod set; its pods themselves if the queue counts them."""
    wanted = {resource: value * pods.count for resource, value in pods.requests.items()}
    if any(PODS in group.resources for group in groups):
        wanted[PODS] = pods.count
    return wanted


def _grouped(pod_sets: Sequence[PodSetRequest]) -> list[list[PodSetRequest]]:
    groups: dict[tuple[bool, str], list[PodSetRequest]] = {}
    for index, pods in enumerate(pod_sets):
        groups.setdefault((True, pods.group) if pods.group else (False, str(index)), []).append(pods)
    return list(groups.values())


def _better(left: tuple[Possibility, int], right: tuple[Possibility, int], rule: Fungibility) -> bool:
    """Whether one possibility, at its borrowing distance, is better than another for a queue of this
    fungibility."""
    if Possibility.NO_FIT in (left[0], right[0]):
        return left[0] > right[0]
    if (left[0] is Possibility.NO_CANDIDATES) != (right[0] is Possibility.NO_CANDIDATES):
        return right[0] is Possibility.NO_CANDIDATES
    if rule.preference == "PreemptionOverBorrowing":
        return (-left[1], left[0]) > (-right[1], right[0])
    return (left[0], -left[1]) > (right[0], -right[1])


def _try_next(rank: tuple[Possibility, int], rule: Fungibility) -> bool:
    possibility, level = rank
    if possibility <= Possibility.NO_CANDIDATES:
        return True
    if possibility < Possibility.FIT and rule.when_can_preempt == "TryNextFlavor":
        return True
    return level > 0 and rule.when_can_borrow == "TryNextFlavor"
