"""Preemption by priority and nominal quota (Kueue's classical preemption).

Invariant: the victims make room, and each is needed: giving one back in the order of the last pass leaves
no room. A workload of another queue is a victim only if its queue, and every cohort up to the common one,
is over quota at that moment. The tree is unchanged on return.

Kueue's rule (pkg/scheduler/preemption/classical): the incoming workload has the advantage over workloads
in subtrees outside one with enough quota for it, and may preempt those while borrowing. For the others it
may borrow only as `borrow` and its threshold allow. Evicted workloads come first, then those under the
advantage, then by priority from other queues, then its own queue's. One rule is not Kueue's: of other
queues, workloads on the preemptor's machines come first, if known, since any other victim frees no
machine of its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat

from broker.quota.candidates import Keys, allowed, below_threshold, borrowers, by_policy, fits
from broker.quota.ledger import Entry, MergedWorkloads, QuotaLedger
from broker.quota.model import AdmittedWorkload, Amounts, PreemptionTarget, QuotaRequest, Reason
from broker.quota.tree import QuotaNode


@dataclass(frozen=True, slots=True)
class _Source:
    """Queues to take from: the borrowing ones below `cohort` but not below `besides`.

    Without a cohort, the preemptor's own queue. `cohort`: the lowest that they share with the
    preemptor.
    """

    cohort: QuotaNode | None
    besides: QuotaNode
    advantage: bool


@dataclass(frozen=True, slots=True)
class _Case:
    """One decision: the request, its missing resources, and the sources in three classes."""

    ledger: QuotaLedger
    request: QuotaRequest
    needed: Keys
    node: QuotaNode
    classes: tuple[list[_Source], list[_Source], list[_Source]]

    def entries(self, source: _Source, *, evicted: bool, near: bool | None = None) -> Iterator[Entry]:
        """The candidates of a source. `near`: only those that may be on the preemptor's machines, or only
        the others."""
        rule, ledger, cohort = self.node.preemption, self.ledger, source.cohort
        if cohort is None:
            return allowed(
                ledger, self.node.name, self.needed, evicted=evicted, policy=rule.within, request=self.request
            )
        entries = (entry for entry in self.merged(cohort, evicted=evicted) if self._from(source, entry[3]))
        if near is not None:
            entries = (
                entry
                for entry in entries
                if near is (not entry[3].occupied_queues or self.request.queue in entry[3].occupied_queues)
            )
        return by_policy(entries, rule.reclaim, self.request)

    def merged(self, cohort: QuotaNode, *, evicted: bool) -> MergedWorkloads:
        queues = borrowers(cohort, self.needed)
        return self.ledger.merged(cohort, self.needed, queues, evicted=evicted)

    def _from(self, source: _Source, workload: AdmittedWorkload) -> bool:
        """Whether a workload below the source's cohort belongs to the source, borrows, and is not on its
        own slots."""
        if workload.on_own_slots or workload.queue == self.node.name:
            return False
        node = self.ledger.node(workload.queue)
        if not node.over_quota(self.needed):
            return False
        return source.besides is self.node or source.besides not in node.path()

    def any_of(self, sources: list[_Source]) -> bool:
        return any(
            next(self.entries(source, evicted=evicted), None) is not None
            for source in sources
            for evicted in self.ledger.turns
        )


def preempt(ledger: QuotaLedger, request: QuotaRequest, needed: Keys) -> tuple[PreemptionTarget, ...]:
    """The victims that make room for `request`, which does not fit now; none if nothing would help."""
    node = ledger.node(request.queue)
    advantaged, others = _sources(node, request.amounts)
    case = _Case(ledger, request, needed, node, (advantaged, others, [_Source(None, node, False)]))
    with ledger.stable():
        for source in (*advantaged, *others):
            for evicted in ledger.turns:
                if source.cohort is not None:
                    case.merged(source.cohort, evicted=evicted)  # as it is before the first victim
        for borrow in _attempts(case):
            if targets := _attempt(case, borrow=borrow):
                return targets
    return ()


def _attempts(case: _Case) -> tuple[bool, ...]:
    """Whether to try with borrowing, without, or both, and in which order."""
    advantaged, others, _ = case.classes
    with_advantage = case.any_of(advantaged)
    if not with_advantage and not case.any_of(others):
        return (True,)
    if case.node.preemption.borrow != "Never":
        return (True, False)
    if any(case.node.uses(key) >= case.node.quota(key) for key in case.needed):
        return (True,)
    return (True, False) if with_advantage else (False, True)


def _sources(node: QuotaNode, amounts: Amounts) -> tuple[list[_Source], list[_Source]]:
    """The borrowing queues of the tree: those under the advantage of the incoming workload, and the
    others."""
    advantaged: list[_Source] = []
    others: list[_Source] = []
    if node.preemption.reclaim == "Never":
        return advantaged, others
    advantage, rest = node.holds(amounts)
    visited = node
    for ancestor in node.path():
        (advantaged if advantage else others).append(_Source(ancestor, visited, advantage))
        held, rest = ancestor.holds(rest)
        advantage = advantage or held
        visited = ancestor
    return advantaged, others


def _attempt(case: _Case, *, borrow: bool) -> tuple[PreemptionTarget, ...]:
    if not borrow and not case.ledger.evicted and not case.node.covers(case.request.amounts):
        targets = _own_first(case)
        if targets is not None:
            return targets
    taken: list[PreemptionTarget] = []
    try:
        for evicted in case.ledger.turns:
            for target in _walks(case, evicted=evicted, borrow=borrow):
                case.ledger.node(target.workload.queue).remove(target.workload.usage)
                taken.append(target)
                if fits(case.node, case.request.amounts, borrow=borrow):
                    give_back(case.ledger, case.node, case.request.amounts, taken, borrow=borrow)
                    return tuple(taken)
        return ()
    finally:
        for target in taken:
            case.ledger.node(target.workload.queue).add(target.workload.usage)


def _own_first(case: _Case) -> tuple[PreemptionTarget, ...] | None:
    """The attempt without borrowing, if the queue's own quota has no room: only its own workloads make
    it.

    The attempt itself would first take all allowed victims of others, and then give back those not
    needed. Here the needed victims of others are found after the queue's own; None if they are not
    enough.
    """
    node, amounts = case.node, case.request.amounts
    own: list[PreemptionTarget] = []
    others: list[PreemptionTarget] = []
    try:
        walk = _walk(case, case.classes[-1], evicted=False, borrow=False, near=None)
        while not node.covers(amounts):
            if (target := next(walk, None)) is None:
                return ()
            node.remove(target.workload.usage)
            own.append(target)
        _give_back(case.ledger, own, lambda: node.covers(amounts))
        walk = _of_others(case, evicted=False, borrow=False)
        while not fits(node, amounts, borrow=False):
            if (target := next(walk, None)) is None:
                return None
            case.ledger.node(target.workload.queue).remove(target.workload.usage)
            others.append(target)
        give_back(case.ledger, node, amounts, others, borrow=False)
        return (*others, *own)
    finally:
        for target in (*own, *others):
            case.ledger.node(target.workload.queue).add(target.workload.usage)


def _walks(case: _Case, *, evicted: bool, borrow: bool) -> Iterator[PreemptionTarget]:
    """The candidates of one class after another."""
    yield from _of_others(case, evicted=evicted, borrow=borrow)
    yield from _walk(case, case.classes[-1], evicted=evicted, borrow=borrow, near=None)


def _of_others(case: _Case, *, evicted: bool, borrow: bool) -> Iterator[PreemptionTarget]:
    """The candidates of other queues; in each class, those on the preemptor's machines first."""
    for sources in case.classes[:-1]:
        for near in (True, False) if case.ledger.placed else (None,):
            yield from _walk(case, sources, evicted=evicted, borrow=borrow, near=near)


def _walk(
    case: _Case, sources: list[_Source], *, evicted: bool, borrow: bool, near: bool | None
) -> Iterator[PreemptionTarget]:
    """The candidates of one class in order. A queue that may no longer be taken from is skipped for good.

    Usage only falls during an attempt, and the priorities of a queue's candidates only rise.
    """
    streams = [
        zip(case.entries(source, evicted=evicted, near=near), repeat(number))
        for number, source in enumerate(sources)
        if not _closed(case, source, borrow=borrow)
    ]
    exhausted: set[str] = set()
    for (_, _, _, workload), number in streams[0] if len(streams) == 1 else heapq.merge(*streams):
        if workload.queue in exhausted:
            continue
        if (reason := _reason(case, sources[number], workload, borrow=borrow)) is None:
            exhausted.add(workload.queue)
        else:
            yield PreemptionTarget(workload, reason)


def _closed(case: _Case, source: _Source, *, borrow: bool) -> bool:
    """Whether the policy allows no victim from this source, so that its workloads are not read."""
    return (
        source.cohort is not None
        and not source.advantage
        and borrow
        and case.node.preemption.borrow == "Never"
    )


def _reason(case: _Case, source: _Source, workload: AdmittedWorkload, *, borrow: bool) -> Reason | None:
    """The reason for which the workload may be preempted now, or None."""
    if source.cohort is None:
        return Reason.IN_QUEUE
    reason = Reason.RECLAIM
    if not source.advantage:
        if below_threshold(case.node.preemption, workload.priority, case.request.priority):
            reason = Reason.RECLAIM_WHILE_BORROWING
        elif borrow:
            return None
    node = case.ledger.node(workload.queue)
    if not node.over_quota(case.needed):
        return None
    for cohort in node.path():
        if cohort is source.cohort:
            break
        if not cohort.over_quota(case.needed):
            return None
    return reason


def give_back(
    ledger: QuotaLedger, node: QuotaNode, amounts: Amounts, taken: list[PreemptionTarget], *, borrow: bool
) -> None:
    """Gives back victims that are not needed, the last first; the very last one always is needed."""
    _give_back(ledger, taken, lambda: fits(node, amounts, borrow=borrow))


def _give_back(ledger: QuotaLedger, taken: list[PreemptionTarget], enough: Callable[[], bool]) -> None:
    for index in range(len(taken) - 2, -1, -1):
        workload = taken[index].workload
        owner = ledger.node(workload.queue)
        owner.add(workload.usage)
        if enough():
            taken[index] = taken[-1]
            taken.pop()
        else:
            owner.remove(workload.usage)
