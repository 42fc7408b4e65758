"""Preemption with fair sharing.

Invariant: a workload of another queue is a victim only if its side of the tree borrows. Afterwards the
preemptor's side must not have the larger share (first strategy), or it had the smaller one before (second
strategy). A preemptor within its own quota takes borrowed quota whatever the shares. The victims make
room and each is needed. The tree is unchanged on return.

Kueue's rule (pkg/scheduler/preemption/fairsharing, KEP-1714): the incoming workload counts as admitted
while shares are compared. From the root down, victims come from the child with the largest share. Shares
are compared at the point where the two queues' paths to the root part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from typing import Any, Final

from broker.quota.board import Board, CohortKey, CohortRow, Key, Order, ReverseName, board, queue_key
from broker.quota.candidates import Keys, allowed, fits
from broker.quota.classical import give_back
from broker.quota.ledger import Entry, QuotaLedger
from broker.quota.model import Policy, PreemptionTarget, QuotaRequest, Reason, Strategy
from broker.quota.shares import DominantShare, share
from broker.quota.tree import QuotaNode

DEFAULT: Final[tuple[Strategy, ...]] = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")
# Kueue's allowed values of fairSharing.preemptionStrategies (pkg/config/validation.go).
ALLOWED: Final[tuple[tuple[Strategy, ...], ...]] = (DEFAULT, DEFAULT[:1], DEFAULT[1:])


class _Stream:
    """A queue's candidates, with access to the first."""

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

    def rest(self) -> Iterator[Entry]:
        return iter(()) if self.head is None else chain((self.head,), self._rest)


class _FairPreemption:
    """One decision: the tree less the victims so far, with the incoming workload in it."""

    def __init__(self, ledger: QuotaLedger, request: QuotaRequest, needed: Keys) -> None:
        self.ledger = ledger
        self.request = request
        self.needed = needed
        self.node = ledger.node(request.queue)
        self.ancestors = frozenset(self.node.path())
        self.taken: list[PreemptionTarget] = []
        self._shares: dict[QuotaNode, DominantShare] = {}

    def share(self, node: QuotaNode) -> DominantShare:
        known = self._shares.get(node)
        if known is None:
            known = self._shares[node] = share(node)
        return known

    def take(self, node: QuotaNode, entry: Entry, reason: Reason) -> bool:
        """Takes a workload; returns whether the incoming one then fits."""
        self._change(node, entry, taken=True)
        self.taken.append(PreemptionTarget(entry[3], reason))
        self.node.remove(self.request.amounts)
        try:
            return fits(self.node, self.request.amounts, borrow=True)
        finally:
            self.node.add(self.request.amounts)

    def sides(self, target: QuotaNode) -> tuple[QuotaNode, QuotaNode]:
        """The last nodes of the preemptor's and the target's paths to the root before they meet."""
        meeting = next(ancestor for ancestor in target.path() if ancestor in self.ancestors)
        return _below(self.node, meeting), _below(target, meeting)

    def share_without(self, side: QuotaNode, node: QuotaNode, entry: Entry) -> DominantShare:
        self._change(node, entry, taken=True)
        try:
            return self.share(side)
        finally:
            self._change(node, entry, taken=False)

    def _change(self, node: QuotaNode, entry: Entry, *, taken: bool) -> None:
        (node.remove if taken else node.add)(entry[3].usage)
        self._shares.pop(node, None)
        for ancestor in node.path():
            self._shares.pop(ancestor, None)


def preempt_fairly(
    ledger: QuotaLedger, request: QuotaRequest, needed: Keys, strategies: Sequence[Strategy] = DEFAULT
) -> tuple[PreemptionTarget, ...]:
    """The victims that make room for `request`, which does not fit now; none if nothing fair would help."""
    decision = _FairPreemption(ledger, request, needed)
    node = decision.node
    with ledger.stable():
        streams = _Streams(decision)
        if not streams.any_candidates:
            return ()
        node.add(request.amounts)
        try:
            done = _first(decision, streams, strategies[0])
            if not done and len(strategies) > 1:
                done = _second(decision, streams)
        finally:
            node.remove(request.amounts)
        try:
            if not done:
                return ()
            give_back(ledger, node, request.amounts, decision.taken, borrow=True)
            return tuple(decision.taken)
        finally:
            for target in decision.taken:
                ledger.node(target.workload.queue).add(target.workload.usage)


class _Streams:
    """The candidates of each queue, read at its turn: the preemptor's own, and those on the board.

    `refused`: the candidates of a queue that the first strategy did not take.
    """

    def __init__(self, decision: _FairPreemption) -> None:
        node, rule = decision.node, decision.node.preemption
        self._decision = decision
        self.board = Board()
        if decision.ancestors and rule.reclaim != "Never":
            self.board = board(decision.ledger, node.root(), decision.needed, rule.reclaim, decision.request)
        self.known: dict[QuotaNode, _Stream] = {node: _Stream(self._in_order(node, rule.within))}
        self.refused: dict[QuotaNode, list[Entry]] = {}

    @property
    def any_candidates(self) -> bool:
        """Whether there may be any candidate."""
        node = self._decision.node
        if self.known[node].head is not None:
            return True
        rows = self.board.rows.values()
        return any(len(row) > 1 or row.nodes != [node] for row in rows)

    def of(self, node: QuotaNode) -> _Stream:
        if node not in self.known:
            self.known[node] = _Stream(self._in_order(node, self._decision.node.preemption.reclaim))
        return self.known[node]

    def restart(self) -> None:
        """Starts over with the refused candidates and those not yet considered."""
        del self.known[self._decision.node]
        self.known = {
            node: _Stream(chain(self.refused.get(node, ()), stream.rest()))
            for node, stream in self.known.items()
        }

    def _in_order(self, node: QuotaNode, policy: Policy) -> Iterator[Entry]:
        """A queue's candidates, evicted ones first."""
        ledger, request = self._decision.ledger, self._decision.request
        for evicted in ledger.turns:
            yield from allowed(
                ledger, node.name, self._decision.needed, evicted=evicted, policy=policy, request=request
            )


def _first(decision: _FairPreemption, streams: _Streams, strategy: Strategy) -> bool:
    """Takes victims while the strategy allows; returns whether that made room."""
    entitled = not decision.node.over_quota(decision.needed)
    order = _Order(decision, streams, None if entitled else strategy)
    while (node := order.next()) is not None:
        stream = streams.of(node)
        if node is decision.node or entitled:
            reason = Reason.IN_QUEUE if node is decision.node else Reason.RECLAIM
            if decision.take(node, stream.pop(), reason):
                return True
            continue
        own_side, other_side = decision.sides(node)
        own_share, before = decision.share(own_side).order, decision.share(other_side).order
        while stream.head is not None:
            entry = stream.pop()
            if strategy == "LessThanInitialShare":
                fair = own_share < before
            else:
                fair = (
                    own_share <= before and own_share <= decision.share_without(other_side, node, entry).order
                )
            if fair:
                if decision.take(node, entry, Reason.FAIR_SHARING):
                    return True
                break
            streams.refused.setdefault(node, []).append(entry)
    return False


def _second(decision: _FairPreemption, streams: _Streams) -> bool:
    """Takes at most one workload of each queue on a side with the larger share; returns whether that made
    room."""
    streams.restart()
    order = _Order(decision, streams, "LessThanInitialShare")
    while (node := order.next()) is not None:
        own_side, other_side = decision.sides(node)
        entry = streams.of(node).pop()
        if decision.share(own_side).order < decision.share(other_side).order and decision.take(
            node, entry, Reason.FAIR_SHARING
        ):
            return True
        order.drop(node)
    return False


_Queued = tuple[Key, str, QuotaNode]


class _Order:
    """The next queue to take from: from the root, the child with the largest share, down to a queue.

    Shares only fall, so a subtree that stopped borrowing is skipped for good, unless it is the
    preemptor's own path. A queue at the top of its heap under its present share is the next one.
    Between equal shares a cohort comes before a queue, and of two queues the one with the better
    candidate. Queues move from the board into the heap at their turn. `strategy`: the preemptor's
    siblings that it refuses are skipped as if considered.
    """

    def __init__(self, decision: _FairPreemption, streams: _Streams, strategy: Strategy | None) -> None:
        self._decision = decision
        self._streams = streams
        self._strategy = strategy
        # If age matters, the board only has the candidates of a queue that may be the first.
        self._exact = decision.node.preemption.reclaim != "LowerOrNewerEqualPriority"
        self._queues: dict[QuotaNode, list[_Queued]] = {}
        self._cohorts: dict[QuotaNode, list[tuple[CohortKey, str, QuotaNode]]] = {}
        self._places: dict[QuotaNode, int] = {}
        self._closed: set[QuotaNode] = set()
        self._own_child: dict[
            QuotaNode, QuotaNode
        ] = {}  # of each ancestor of the preemptor, the child on the way to it
        self._root: QuotaNode | None = None
        for node, stream in streams.known.items():
            if stream.head is not None:
                self._feed(node)
        child = decision.node
        for self._root in decision.node.path():
            self._own_child[self._root] = child
            child = self._root

    def next(self) -> QuotaNode | None:
        """The queue to take from; None when nothing is left."""
        if self._root is None:
            own = self._streams.known.get(self._decision.node)
            return self._decision.node if own is not None and own.head is not None else None
        return self._find(self._root)

    def drop(self, node: QuotaNode) -> None:
        """Takes nothing more from a queue."""
        self._closed.add(node)

    def _find(self, cohort: QuotaNode) -> QuotaNode | None:
        while True:
            child, child_share = self._largest_cohort(cohort)
            least = (not child_share[0], -child_share[1]) if child is not None else ()
            top = self._largest_queue(cohort, least)
            if child is None or (top is not None and child_share < self._decision.share(top[2]).order):
                if top is None:
                    return None
                self._pass_over(cohort, top[0])
                return top[2]
            self._pass_over(cohort, least)
            queue = None if self._refuses(cohort, child, child_share) else self._find(child)
            if queue is not None:
                return queue
            self._closed.add(child)

    def _refuses(self, cohort: QuotaNode, child: QuotaNode, of: Order) -> bool:
        """Whether the strategy takes nothing from a side with this share."""
        own_child = self._own_child.get(cohort)
        if self._strategy is None or own_child is None or own_child is child:
            return False
        own_share = self._decision.share(own_child).order
        return of <= own_share if self._strategy == "LessThanInitialShare" else of < own_share

    def _key(self, node: QuotaNode) -> Key | None:
        """The sort key, the smaller first; None for a queue that is skipped from now on."""
        head = self._streams.of(node).head
        known = self._decision.share(node)
        own = node is self._decision.node
        if head is None or node in self._closed or not (known.borrows or own):
            return None
        return queue_key(known, head, own=own)

    def _largest_queue(self, cohort: QuotaNode, before: tuple[Any, ...]) -> _Queued | None:
        """The queue to take from. `before`: queues on the board that do not come before this stay there."""
        row = self._streams.board.rows.get(cohort)
        end = 0 if row is None else bisect_left(row.keys, before) if before else len(row)
        while True:
            top = self._top(cohort)
            place = end if row is None else self._following(cohort, row)
            if row is None or place >= end or (top is not None and top[0] < row.keys[place]):
                return top
            self._places[cohort] = place + 1
            if row.nodes[place] not in self._streams.known:
                self._feed(row.nodes[place])

    def _top(self, cohort: QuotaNode) -> _Queued | None:
        queues = self._queues.get(cohort)
        while queues:
            stored_key, name, node = queues[0]
            key = self._key(node)
            if key is None:
                heappop(queues)
            elif key != stored_key:
                heapreplace(queues, (key, name, node))
            else:
                return queues[0]
        return None

    def _following(self, cohort: QuotaNode, row: CohortRow) -> int:
        """The position of the next queue on the board that the strategy may take from."""
        place, own_child = self._places.get(cohort, 0), self._own_child.get(cohort)
        if self._strategy is None or not self._exact or own_child is None or place >= len(row):
            return place
        own_share = self._decision.share(own_child).order
        if self._strategy == "LessThanInitialShare":
            return place if own_share < row.order(place) else len(row)
        return row.following(place, own_share)

    def _pass_over(self, cohort: QuotaNode, key: tuple[Any, ...]) -> None:
        """Skips the queues on the board before this key."""
        if (row := self._streams.board.rows.get(cohort)) is not None:
            self._places[cohort] = max(self._places.get(cohort, 0), bisect_left(row.keys, key))

    def _feed(self, node: QuotaNode) -> None:
        if node.parent is not None and (key := self._key(node)) is not None:
            heappush(self._queues.setdefault(node.parent, []), (key, node.name, node))

    def _largest_cohort(self, cohort: QuotaNode) -> tuple[QuotaNode | None, Order]:
        if cohort not in self._cohorts:
            own_child = self._own_child.get(cohort)
            below = {
                *self._streams.board.cohorts.get(cohort, ()),
                *((own_child,) if own_child in self._own_child else ()),
            }
            keys = ((self._cohort_key(child), child.name, child) for child in below if child is not None)
            self._cohorts[cohort] = [(key, name, child) for key, name, child in keys if key is not None]
            heapify(self._cohorts[cohort])
        cohorts = self._cohorts[cohort]
        while cohorts:
            stored_key, name, node = cohorts[0]
            key = self._cohort_key(node)
            if key is None:
                heappop(cohorts)
            elif key != stored_key:
                heapreplace(cohorts, (key, name, node))
            else:
                return node, self._decision.share(node).order
        return None, (False, -1.0)

    def _cohort_key(self, node: QuotaNode) -> CohortKey | None:
        known = self._decision.share(node)
        if node in self._closed or not (known.borrows or node in self._own_child):
            return None
        return not known.weightless, -known.value, ReverseName(node.name)


def _below(node: QuotaNode, ancestor: QuotaNode) -> QuotaNode:
    """The node itself, or its ancestor below `ancestor`."""
    while node.parent is not None and node.parent is not ancestor:
        node = node.parent
    return node
