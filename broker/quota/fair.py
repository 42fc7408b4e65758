"""Preemption with fair sharing.

Invariant: a workload of another queue is taken only where its side of the tree borrows, and only if
afterwards the preemptor's side does not have the larger share (the first strategy), or had the smaller
one before (the second); a preemptor that stays within its own quota takes what others borrowed whatever
the shares. What is returned makes room and each part of it is needed. The tree is as before on return.

Kueue's rule (pkg/scheduler/preemption/fairsharing, KEP-1714): the incoming workload counts as admitted
while shares are compared; from the root down, the child with the largest share is the one to take from.
Shares are compared where the two queues' paths to the root part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Final

from broker.quota.candidates import Keys, allowed, borrowers, fits
from broker.quota.classical import give_back
from broker.quota.ledger import Entry, Ledger
from broker.quota.model import Ask, Policy, Reason, Strategy, Target
from broker.quota.shares import Share, share
from broker.quota.tree import Node

DEFAULT: Final[tuple[Strategy, ...]] = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")
# What Kueue's configuration allows as fairSharing.preemptionStrategies (pkg/config/validation.go).
ALLOWED: Final[tuple[tuple[Strategy, ...], ...]] = (DEFAULT, DEFAULT[:1], DEFAULT[1:])

# Of a queue to take from: its share, then its first candidate.
_Key = tuple[bool, float, bool, bool, int, float, str]


class _Stream:
    """A queue's candidates, of which the first can be looked at."""

    __slots__ = ("_rest", "head")

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._rest = entries
        self.head = next(entries, None)

    def pop(self) -> Entry:
        head = self.head
        if head is None:
            raise LookupError("no candidate is left in this queue")
        self.head = next(self._rest, None)
        return head


class _Decision:
    """One decision under way: the tree with what is taken so far, and the incoming workload in it."""

    def __init__(self, ledger: Ledger, ask: Ask, needed: Keys) -> None:
        self.ledger = ledger
        self.ask = ask
        self.needed = needed
        self.node = ledger.node(ask.queue)
        self.ancestors = frozenset(self.node.path())
        self.taken: list[Target] = []
        self._shares: dict[Node, Share] = {}

    def share(self, node: Node) -> Share:
        known = self._shares.get(node)
        if known is None:
            known = self._shares[node] = share(node)
        return known

    def take(self, node: Node, entry: Entry, reason: Reason) -> bool:
        """Takes a workload; whether the incoming one then fits."""
        self._change(node, entry, taken=True)
        self.taken.append(Target(entry[3], reason))
        self.node.remove(self.ask.amounts)
        try:
            return fits(self.node, self.ask.amounts, borrow=True)
        finally:
            self.node.add(self.ask.amounts)

    def sides(self, target: Node) -> tuple[Node, Node]:
        """Where the preemptor's and the target's paths to the root part: the two last nodes before they
        meet.
        """
        meeting = next(each for each in target.path() if each in self.ancestors)
        return _below(self.node, meeting), _below(target, meeting)

    def share_without(self, side: Node, node: Node, entry: Entry) -> Share:
        self._change(node, entry, taken=True)
        try:
            return self.share(side)
        finally:
            self._change(node, entry, taken=False)

    def _change(self, node: Node, entry: Entry, *, taken: bool) -> None:
        (node.remove if taken else node.add)(entry[3].usage)
        self._shares.pop(node, None)
        for each in node.path():
            self._shares.pop(each, None)


def preempt_fairly(
    ledger: Ledger, ask: Ask, needed: Keys, strategies: Sequence[Strategy] = DEFAULT
) -> tuple[Target, ...]:
    """Whom to preempt so that `ask`, which does not fit now, does; nobody when nothing fair would help."""
    decision = _Decision(ledger, ask, needed)
    candidates = _candidates(decision)
    if not candidates:
        return ()
    node = decision.node
    node.add(ask.amounts)
    try:
        done, refused = _first(decision, candidates, strategies[0])
        if not done and len(strategies) > 1:
            done = _second(decision, refused)
    finally:
        node.remove(ask.amounts)
    try:
        if not done:
            return ()
        give_back(ledger, node, ask.amounts, decision.taken, borrow=True)
        return tuple(decision.taken)
    finally:
        for target in decision.taken:
            ledger.node(target.workload.queue).add(target.workload.usage)


def _candidates(decision: _Decision) -> dict[Node, _Stream]:
    node, needed = decision.node, decision.needed
    rule = node.preemption
    sources = [(node, rule.within)]
    if decision.ancestors and rule.reclaim != "Never":
        *_, root = node.path()
        sources += [(each, rule.reclaim) for each in _borrowing(root, needed) if each is not node]
    streams = {each: _Stream(_in_order(decision, each, policy)) for each, policy in sources}
    return {each: stream for each, stream in streams.items() if stream.head is not None}


def _in_order(decision: _Decision, node: Node, policy: Policy) -> Iterator[Entry]:
    """A queue's candidates, evicted ones first."""
    for evicted in decision.ledger.turns:
        yield from allowed(
            decision.ledger, node.name, decision.needed, evicted=evicted, policy=policy, ask=decision.ask
        )


def _borrowing(cohort: Node, needed: Keys) -> Iterator[Node]:
    """Every queue of the tree beyond its quota, whether or not its cohorts are."""
    yield from borrowers(cohort, needed, besides=frozenset(cohort.cohorts))
    for child in cohort.cohorts:
        yield from _borrowing(child, needed)


def _first(
    decision: _Decision, candidates: Mapping[Node, _Stream], strategy: Strategy
) -> tuple[bool, dict[Node, _Stream]]:
    """Takes while the strategy allows; whether that made room, and what it would not take."""
    refused: dict[Node, list[Entry]] = {}
    entitled = not decision.node.over_quota(decision.needed)
    order = _Order(decision, candidates)
    while (node := order.next()) is not None:
        stream = candidates[node]
        if node is decision.node or entitled:
            reason = Reason.IN_QUEUE if node is decision.node else Reason.RECLAIM
            if decision.take(node, stream.pop(), reason):
                return True, {}
            continue
        ours, theirs = decision.sides(node)
        mine, before = decision.share(ours).order, decision.share(theirs).order
        while stream.head is not None:
            entry = stream.pop()
            if strategy == "LessThanInitialShare":
                fair = mine < before
            else:
                fair = mine <= before and mine <= decision.share_without(theirs, node, entry).order
            if fair:
                if decision.take(node, entry, Reason.FAIR_SHARING):
                    return True, {}
                break
            refused.setdefault(node, []).append(entry)
    return False, {node: _Stream(iter(entries)) for node, entries in refused.items()}


def _second(decision: _Decision, refused: Mapping[Node, _Stream]) -> bool:
    """Takes at most one workload of each queue whose side had the larger share; whether that made room."""
    order = _Order(decision, refused)
    while (node := order.next()) is not None:
        ours, theirs = decision.sides(node)
        entry = refused[node].pop()
        if decision.share(ours).order < decision.share(theirs).order and decision.take(
            node, entry, Reason.FAIR_SHARING
        ):
            return True
        order.drop(node)
    return False


class _Order:
    """Which queue to take from next: from the root, the child with the largest share, down to a queue.

    Shares only fall, so a subtree that stopped borrowing is left for good, unless it is the preemptor's
    own path, and a queue found at the top of its heap under its present share is the one. Between equal
    shares a cohort comes before a queue, and of two queues the one with the better candidate.
    """

    def __init__(self, decision: _Decision, candidates: Mapping[Node, _Stream]) -> None:
        self._decision = decision
        self._candidates = candidates
        self._queues: dict[Node, list[tuple[_Key, str, Node]]] = {}
        self._cohorts: dict[Node, list[Node]] = {}
        self._root: Node | None = None
        self._dropped: set[Node] = set()
        for node in candidates:
            child = node
            for cohort in node.path():
                if child is node:
                    if (key := self._key(node)) is not None:
                        self._queues.setdefault(cohort, []).append((key, node.name, node))
                elif child in self._cohorts.setdefault(cohort, []):
                    break
                else:
                    self._cohorts[cohort].append(child)
                child = cohort
        for queues in self._queues.values():
            heapify(queues)
        for cohorts in self._cohorts.values():
            cohorts.sort(key=lambda each: each.name)
        for self._root in decision.node.path():
            pass

    def next(self) -> Node | None:
        """The queue to take from; None when nothing is left."""
        if self._root is None:
            own = self._candidates.get(self._decision.node)
            return self._decision.node if own is not None and own.head is not None else None
        return self._find(self._root)

    def drop(self, node: Node) -> None:
        """Takes nothing more from a queue."""
        self._dropped.add(node)

    def _find(self, cohort: Node) -> Node | None:
        while True:
            queue, queue_share = self._largest_queue(cohort)
            child, child_share = self._largest_cohort(cohort)
            if child is None or (queue is not None and child_share < queue_share):
                return queue
            found = self._find(child)
            if found is not None:
                return found
            self._cohorts[cohort].remove(child)

    def _key(self, node: Node) -> _Key | None:
        """Smaller is sooner; None for a queue that nothing is taken from any more."""
        head = self._candidates[node].head
        known = self._decision.share(node)
        own = node is self._decision.node
        if head is None or node in self._dropped or not (known.borrows or own):
            return None
        return not known.weightless, -known.value, not head[3].evicted, own, *head[:3]

    def _largest_queue(self, cohort: Node) -> tuple[Node | None, tuple[bool, float]]:
        queues = self._queues.get(cohort)
        while queues:
            kept, name, node = queues[0]
            key = self._key(node)
            if key is None:
                heappop(queues)
            elif key != kept:
                heapreplace(queues, (key, name, node))
            else:
                return node, self._decision.share(node).order
        return None, (False, -1.0)

    def _largest_cohort(self, cohort: Node) -> tuple[Node | None, tuple[bool, float]]:
        best: Node | None = None
        best_share = (False, -1.0)
        for node in list(self._cohorts.get(cohort, ())):
            known = self._decision.share(node)
            if not known.borrows and node not in self._decision.ancestors:
                self._cohorts[cohort].remove(node)
            elif known.order >= best_share:
                best, best_share = node, known.order
        return best, best_share


def _below(node: Node, ancestor: Node) -> Node:
    """The node itself or the ancestor of it whose parent is `ancestor`."""
    while node.parent is not None and node.parent is not ancestor:
        node = node.parent
    return node
