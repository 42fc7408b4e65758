"""Preemption by the letter: nothing is cached, everything is added up and searched again at each step.

The quota package is compared with it: the same rules over plain lists, without indexes, without kept
usage, and without leaving a search early.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from broker.quota.model import (
    AdmittedWorkload,
    FlavorResource,
    Queue,
    Quota,
    QuotaCohort,
    QuotaRequest,
    Reason,
)

Targets = set[tuple[str, Reason]]
Keys = frozenset[FlavorResource]


@dataclass
class World:
    """Names identify queues and cohorts (which have separate names). `gone` are evicted workloads, `come` are
    admitted requests."""

    queues: dict[str, Queue]
    cohorts: dict[str, QuotaCohort]
    workloads: list[AdmittedWorkload]
    gone: dict[str, AdmittedWorkload] = field(default_factory=dict)
    come: list[QuotaRequest] = field(default_factory=list)
    # Quotas do not change: each sum is computed once.
    _quotas: dict[tuple[str, FlavorResource], int] = field(default_factory=dict)

    def spec(self, name: str) -> Queue | QuotaCohort:
        return self.queues[name] if name in self.queues else self.cohorts[name]

    def quota(self, name: str, key: FlavorResource) -> Quota:
        return self.spec(name).quotas.get(key, Quota())

    def parent(self, name: str) -> str:
        return self.queues[name].cohort if name in self.queues else self.cohorts[name].parent

    def path(self, name: str) -> list[str]:
        path = []
        while name := self.parent(name):
            path.append(name)
        return path

    def children(self, name: str) -> list[str]:
        return [node for node in (*self.queues, *self.cohorts) if self.parent(node) == name]

    def subtree(self, name: str, key: FlavorResource) -> int:
        if (name, key) not in self._quotas:
            lent = (self.subtree(child, key) - self.local(child, key) for child in self.children(name))
            self._quotas[name, key] = self.quota(name, key).nominal + sum(lent)
        return self._quotas[name, key]

    def local(self, name: str, key: FlavorResource) -> int:
        lend = self.quota(name, key).lending_limit
        return 0 if lend is None else max(0, self.subtree(name, key) - lend)

    def used(self, name: str, key: FlavorResource) -> int:
        if name in self.queues:
            held = [
                workload.usage
                for workload in self.workloads
                if workload.queue == name and workload.name not in self.gone
            ]
            held += [request.amounts for request in self.come if request.queue == name]
            return sum(amounts.get(key, 0) for amounts in held)
        return sum(max(0, self.used(child, key) - self.local(child, key)) for child in self.children(name))

    def spare(self, name: str, key: FlavorResource) -> int:
        return max(0, self.local(name, key) - self.used(name, key))

    def available(self, name: str, key: FlavorResource, *, empty: bool = False) -> int:
        parent = self.parent(name)
        used = 0 if empty else self.used(name, key)
        if not parent:
            return self.subtree(name, key) - used
        free = self.available(parent, key, empty=empty)
        limit = self.quota(name, key).borrowing_limit
        if limit is not None:
            local = self.local(name, key)
            free = min(free, self.subtree(name, key) - local - max(0, used - local) + limit)
        return max(0, self.local(name, key) - used) + free

    def over(self, name: str, keys: Iterable[FlavorResource]) -> bool:
        return any(self.used(name, key) > self.subtree(name, key) for key in keys)

    def fits(self, request: QuotaRequest, *, borrow: bool) -> bool:
        return all(
            value <= max(0, self.available(request.queue, key))
            and (borrow or self.used(request.queue, key) + value <= self.subtree(request.queue, key))
            for key, value in request.amounts.items()
        )

    def known(self, name: str) -> set[FlavorResource]:
        """The flavors and resources with quota in the node or below it."""
        return set(self.spec(name).quotas).union(*(self.known(child) for child in self.children(name)))

    def rank(self, workload: AdmittedWorkload, queue: str) -> tuple[object, ...]:
        return (
            not workload.evicted,
            workload.queue == queue,
            workload.priority,
            -workload.reserved,
            workload.name,
        )

    def candidates(self, request: QuotaRequest, keys: Keys, queues: Iterable[str]) -> list[AdmittedWorkload]:
        rule = self.queues[request.queue].preemption
        eligible = []
        for workload in self.workloads:
            policy = rule.within if workload.queue == request.queue else rule.reclaim
            lower = workload.priority < request.priority
            newer = workload.priority == request.priority and request.queued < workload.queued
            may = {
                "Never": False,
                "LowerPriority": lower,
                "LowerOrNewerEqualPriority": lower or newer,
                "Any": True,
            }[policy]
            if may and workload.queue in queues and keys & set(workload.usage):
                eligible.append(workload)
        return sorted(eligible, key=lambda workload: self.rank(workload, request.queue))

    def give_back(
        self, request: QuotaRequest, taken: list[tuple[AdmittedWorkload, Reason]], *, borrow: bool
    ) -> Targets:
        for entry in taken[-2::-1]:
            del self.gone[entry[0].name]
            if self.fits(request, borrow=borrow):
                taken.remove(entry)
            else:
                self.gone[entry[0].name] = entry[0]
        return {(workload.name, reason) for workload, reason in taken}


def below(world: World, name: str) -> list[str]:
    """The queues in a cohort's subtree."""
    names = [child for child in world.children(name) if child in world.queues]
    for child in world.children(name):
        if child in world.cohorts:
            names += below(world, child)
    return names


def preempt(world: World, request: QuotaRequest, keys: Keys) -> Targets:
    queue = world.queues[request.queue]
    rule = queue.preemption
    rest = dict(request.amounts)
    advantage = all(
        world.used(queue.name, key) + value <= world.subtree(queue.name, key) for key, value in rest.items()
    )
    rest = {key: max(0, value - world.spare(queue.name, key)) for key, value in rest.items()}
    meets: dict[str, tuple[str, bool]] = {}
    for cohort in world.path(queue.name):
        for other in below(world, cohort):
            if other != queue.name and other not in meets:
                meets[other] = (cohort, advantage)
        held = all(
            world.used(cohort, key) + value <= world.subtree(cohort, key) for key, value in rest.items()
        )
        rest = {key: max(0, value - world.spare(cohort, key)) for key, value in rest.items()}
        advantage = advantage or held

    def outside(name: str) -> bool:
        """Whether the queue and all between it and the common cohort are over their quota."""
        path = world.path(name)
        between = path[: path.index(meets[name][0])]
        return all(world.over(node, keys) for node in (name, *between))

    eligible = [name for name in meets if outside(name)]
    ordered = world.candidates(request, keys, [*eligible, queue.name])
    hierarchical = [
        workload for workload in ordered if workload.queue != queue.name and meets[workload.queue][1]
    ]
    others = [
        workload for workload in ordered if workload.queue != queue.name and not meets[workload.queue][1]
    ]
    own = [workload for workload in ordered if workload.queue == queue.name]
    classes = (hierarchical, others, own)
    order = [
        workload
        for evicted in (True, False)
        for workloads in classes
        for workload in workloads
        if workload.evicted == evicted
    ]
    below_quota = all(world.used(queue.name, key) < world.subtree(queue.name, key) for key in keys)
    forbidden = rule.borrow == "Never"
    if not (hierarchical or others) or (forbidden and not below_quota):
        attempts = [True]
    elif forbidden and not hierarchical:
        attempts = [False, True]
    else:
        attempts = [True, False]
    for borrow in attempts:
        taken: list[tuple[AdmittedWorkload, Reason]] = []
        world.gone.clear()
        for workload in order:
            reason = Reason.IN_QUEUE
            if workload.queue != queue.name:
                reason = Reason.RECLAIM
                if not meets[workload.queue][1]:
                    low = workload.priority < request.priority and workload.priority <= (
                        inf if rule.threshold is None else rule.threshold
                    )
                    if rule.borrow != "Never" and low:
                        reason = Reason.RECLAIM_WHILE_BORROWING
                    elif borrow:
                        continue
                if not outside(workload.queue):
                    continue
            world.gone[workload.name] = workload
            taken.append((workload, reason))
            if world.fits(request, borrow=borrow):
                return world.give_back(request, taken, borrow=borrow)
    return set()
