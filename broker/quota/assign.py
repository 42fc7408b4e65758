"""Chooses the flavors of a request for quota.

Invariant: the resources of one group take one flavor, chosen in the queue's order. A flavor is as good as the
worst of its resources. The search stops at the first flavor that fits, also by borrowing; otherwise the best
is taken. A request is as good as its worst resource.

The rules are Kueue's for one pod set of one pod in a queue of the default fungibility
(pkg/scheduler/flavorassigner/flavorassigner.go): modes are compared first, then the distance borrowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from broker.quota.classical import preempt
from broker.quota.flavors import Flavor, FlavorRequest, misfit
from broker.quota.ledger import QuotaLedger
from broker.quota.model import (
    Amounts,
    FlavorGroup,
    FlavorResource,
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
    """The flavor of one resource, and the distance that it would borrow."""

    flavor: str
    mode: Mode
    level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorAssignment:
    """The flavors of a request by resource; empty, with the reasons, if there are none.

    `level`: the distance that it would borrow, 0 for none.
    """

    choices: Mapping[str, FlavorChoice] = field(default_factory=dict)
    usage: Mapping[FlavorResource, int] = field(default_factory=dict)
    mode: Mode = Mode.NO_FIT
    level: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def needed(self) -> frozenset[FlavorResource]:
        """The flavors and resources that need preemption."""
        return frozenset(
            FlavorResource(choice.flavor, resource)
            for resource, choice in self.choices.items()
            if choice.mode is Mode.PREEMPT
        )


class Simulation:
    """The result of preemption for a workload, computed once for the same amounts."""

    def __init__(self, ledger: QuotaLedger, queue: str, priority: int, queued: float) -> None:
        self._ledger = ledger
        self._request = QuotaRequest(queue=queue, amounts={}, priority=priority, queued=queued)
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
        """The possibility for one flavor and resource alone, and the distance borrowed afterwards."""
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
    node: QuotaNode, request: FlavorRequest, flavors: Mapping[str, Flavor], oracle: Oracle
) -> FlavorAssignment:
    """The best flavors for a request in a queue now. `flavors`: those that exist, by name."""
    wanted = dict(request.requests)
    if any(PODS in group.resources for group in node.groups):
        wanted[PODS] = 1
    choices: dict[str, FlavorChoice] = {}
    reasons: list[str] = []
    for resource in sorted(wanted):
        group = next((group for group in node.groups if resource in group.resources), None)
        # A request of nothing is not counted by a queue that does not know the resource.
        if resource in choices or (group is None and wanted[resource] == 0):
            continue
        if group is None:
            why_not = f"resource {resource} is unavailable in queue {node.name}"
            return FlavorAssignment(reasons=(*dict.fromkeys(reasons), why_not))
        chosen, why = _flavor(node, request, wanted, group, flavors, oracle)
        reasons += why
        if not chosen:
            return FlavorAssignment(reasons=tuple(dict.fromkeys(reasons)))
        choices |= chosen
    return FlavorAssignment(
        choices=choices,
        usage={FlavorResource(choice.flavor, name): wanted[name] for name, choice in choices.items()},
        mode=min((choice.mode for choice in choices.values()), default=Mode.FIT),
        level=max((choice.level for choice in choices.values()), default=0),
        reasons=tuple(dict.fromkeys(reasons)),
    )


def _flavor(
    node: QuotaNode,
    request: FlavorRequest,
    wanted: Mapping[str, int],
    group: FlavorGroup,
    flavors: Mapping[str, Flavor],
    oracle: Oracle,
) -> tuple[dict[str, FlavorChoice], list[str]]:
    """The flavor of a resource group, and why others were not taken."""
    best: dict[str, FlavorChoice] = {}
    best_rank = (Possibility.NO_FIT, 0)
    reasons: list[str] = []
    for name in group.flavors:
        known = flavors.get(name)
        if why := f"flavor {name} not found" if known is None else misfit(request, known):
            reasons.append(why)
            continue
        rank = (Possibility.FIT, 0)
        choices: dict[str, FlavorChoice] = {}
        for resource in sorted(wanted.keys() & group.resources):
            possibility, level, why = _room(node, FlavorResource(name, resource), wanted[resource], oracle)
            choices[resource] = FlavorChoice(flavor=name, mode=possibility.mode, level=level)
            reasons += [why] if why else []
            rank = min(rank, (possibility, -level))
        if rank[0] is Possibility.FIT:
            return choices, []
        if rank[0] is not Possibility.NO_FIT and rank > best_rank:
            best, best_rank = choices, rank
    return best, reasons


def _room(node: QuotaNode, key: FlavorResource, value: int, oracle: Oracle) -> tuple[Possibility, int, str]:
    """The possibility of one flavor for one resource, the distance borrowed, and the shortage."""
    most = node.potential(key)
    if value > most:
        return Possibility.NO_FIT, 0, f"{value} {key} is more than the {most} the queue can ever have"
    level, higher = node.level(key, value)
    free = max(0, node.available(key))
    if value <= free:
        return Possibility.FIT, level, ""
    why = f"{value - free} more of {key} is needed"
    if node.quota(key) >= value or higher or node.preemption.borrow != "Never":
        possibility, level = oracle(key, value)
        return possibility, level, why
    return Possibility.NO_FIT, level, why
