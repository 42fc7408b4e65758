"""Preemption without fair sharing.

Invariant: what is returned makes room, each part of it is needed (giving any one back in the order of the
last pass leaves no room), and nothing is taken from outside the queue unless the queue it is in, and
every cohort between it and the common one, uses more than its quota at that moment. The tree is as before
on return.

Kueue's rule (pkg/scheduler/preemption/classical): the incoming workload has the advantage over workloads
in subtrees beyond one whose quota holds it, and may take those while borrowing; over the others it may
borrow only as `borrow` and its threshold allow. Evicted ones come first, then those with the advantage,
then by priority from other queues, then its own queue's. Not Kueue's is that of other queues those come
first who are in the preemptor's machines, where that is known: what another leaves is no machine of his.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from broker.quota.candidates import Keys, allowed, borrowers, fits
from broker.quota.ledger import Entry, Ledger
from broker.quota.model import Amounts, Ask, Reason, Target, Workload
from broker.quota.tree import Node


@dataclass(frozen=True, slots=True)
class _Source:
    """A queue to take from. `common`: the lowest cohort that it shares with the preemptor's."""

    node: Node
    common: Node | None
    advantage: bool


@dataclass(frozen=True, slots=True)
class _Case:
    """One decision: what comes, what it lacks, and the queues that it may take from, in three classes."""

    ledger: Ledger
    ask: Ask
    needed: Keys
    node: Node
    classes: tuple[list[_Source], list[_Source], list[_Source]]

    def entries(self, source: _Source, *, evicted: bool, near: bool | None = None) -> Iterator[Entry]:
        """`near`: those alone that may be in the preemptor's machines, or those that are not."""
        rule = self.node.preemption
        policy = rule.within if source.node is self.node else rule.reclaim
        found = allowed(
            self.ledger, source.node.name, self.needed, evicted=evicted, policy=policy, ask=self.ask
        )
        if near is None:
            return found
        return (each for each in found if near is (not each[3].at or self.ask.queue in each[3].at))

    def any_of(self, sources: list[_Source]) -> bool:
        return any(
            next(self.entries(source, evicted=evicted), None) is not None
            for source in sources
            for evicted in self.ledger.turns
        )


def preempt(ledger: Ledger, ask: Ask, needed: Keys) -> tuple[Target, ...]:
    """Whom to preempt so that `ask`, which does not fit now, does; nobody when nothing would help."""
    node = ledger.node(ask.queue)
    advantaged, others = _sources(node, ask.amounts, needed)
    case = _Case(ledger, ask, needed, node, (advantaged, others, [_Source(node, None, False)]))
    for borrow in _attempts(case):
        if targets := _attempt(case, borrow=borrow):
            return targets
    return ()


def _attempts(case: _Case) -> tuple[bool, ...]:
    """Whether to try with borrowing, without, or both, and which first."""
    advantaged, others, _ = case.classes
    with_advantage = case.any_of(advantaged)
    if not with_advantage and not case.any_of(others):
        return (True,)
    if case.node.preemption.borrow != "Never":
        return (True, False)
    if any(case.node.uses(key) >= case.node.quota(key) for key in case.needed):
        return (True,)
    return (True, False) if with_advantage else (False, True)


def _sources(node: Node, amounts: Amounts, needed: Keys) -> tuple[list[_Source], list[_Source]]:
    """The borrowing queues of the tree: those over which the incoming workload has the advantage, the
    others.
    """
    advantaged: list[_Source] = []
    others: list[_Source] = []
    if node.preemption.reclaim == "Never":
        return advantaged, others
    advantage, rest = node.holds(amounts)
    visited = node
    for ancestor in node.path():
        found = advantaged if advantage else others
        for each in borrowers(ancestor, needed, besides=(visited, node)):
            found.append(_Source(each, ancestor, advantage))
        held, rest = ancestor.holds(rest)
        advantage = advantage or held
        visited = ancestor
    return advantaged, others


def _attempt(case: _Case, *, borrow: bool) -> tuple[Target, ...]:
    taken: list[Target] = []
    try:
        for evicted in case.ledger.turns:
            for target in _walks(case, evicted=evicted, borrow=borrow):
                case.ledger.node(target.workload.queue).remove(target.workload.usage)
                taken.append(target)
                if fits(case.node, case.ask.amounts, borrow=borrow):
                    give_back(case.ledger, case.node, case.ask.amounts, taken, borrow=borrow)
                    return tuple(taken)
        return ()
    finally:
        for target in taken:
            case.ledger.node(target.workload.queue).add(target.workload.usage)


def _walks(case: _Case, *, evicted: bool, borrow: bool) -> Iterator[Target]:
    """The candidates of one class after another; of other queues first those in the preemptor's machines."""
    *others, own = case.classes
    for sources in others:
        for near in (True, False) if case.ledger.placed else (None,):
            yield from _walk(case, sources, evicted=evicted, borrow=borrow, near=near)
    yield from _walk(case, own, evicted=evicted, borrow=borrow, near=None)


def _walk(
    case: _Case, sources: list[_Source], *, evicted: bool, borrow: bool, near: bool | None
) -> Iterator[Target]:
    """The candidates of one class in order. A queue that may no longer be taken from is left for good:
    usage only falls during an attempt, and the priorities of a queue's candidates only rise.
    """
    heads: list[tuple[Entry, int, Iterator[Entry]]] = []
    for number, source in enumerate(sources):
        entries = case.entries(source, evicted=evicted, near=near)
        if (first := next(entries, None)) is not None:
            heads.append((first, number, entries))
    heapq.heapify(heads)
    while heads:
        (_, _, _, workload), number, entries = heads[0]
        if (reason := _reason(case, sources[number], workload, borrow=borrow)) is None:
            heapq.heappop(heads)
            continue
        if (following := next(entries, None)) is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (following, number, entries))
        yield Target(workload, reason)


def _reason(case: _Case, source: _Source, workload: Workload, *, borrow: bool) -> Reason | None:
    """Why the workload may be taken now, or None."""
    if source.node is case.node:
        return Reason.IN_QUEUE
    reason = Reason.RECLAIM
    if not source.advantage:
        if _below_threshold(case, workload):
            reason = Reason.RECLAIM_WHILE_BORROWING
        elif borrow:
            return None
    if not source.node.over_quota(case.needed):
        return None
    for cohort in source.node.path():
        if cohort is source.common:
            break
        if not cohort.over_quota(case.needed):
            return None
    return reason


def _below_threshold(case: _Case, workload: Workload) -> bool:
    rule = case.node.preemption
    if rule.borrow == "Never" or workload.priority >= case.ask.priority:
        return False
    return rule.threshold is None or workload.priority <= rule.threshold


def give_back(ledger: Ledger, node: Node, amounts: Amounts, taken: list[Target], *, borrow: bool) -> None:
    """Puts back, last taken first, whatever is not needed after all; the very last one always is."""
    for index in range(len(taken) - 2, -1, -1):
        workload = taken[index].workload
        owner = ledger.node(workload.queue)
        owner.add(workload.usage)
        if fits(node, amounts, borrow=borrow):
            taken[index] = taken[-1]
            taken.pop()
        else:
            owner.remove(workload.usage)
