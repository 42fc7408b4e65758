"""The queues that fair preemption may take from, in order, computed once for all heads of a round.

Invariant: it describes the tree between two decisions. The victims of a decision and the incoming
workload change the position only of the queues that they touch and of their own side of the tree. A
decision sorts these queues itself, and reads the others from here as far as it needs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from broker.quota.candidates import Keys, allowed, borrowers
from broker.quota.ledger import Entry, QuotaLedger
from broker.quota.model import Amounts, FlavorResource, Policy, QuotaRequest
from broker.quota.shares import DominantShare, share
from broker.quota.tree import QuotaNode

# The order of queues to take from: the share, then the first candidate. The smaller comes first.
Key = tuple[bool, float, bool, bool, int, float, str]
Order = tuple[bool, float]

_NOTHING: Final[Order] = (False, -1.0)


class ReverseName(str):
    """A name that sorts in reverse order."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)


# The order of cohorts: the share, then the name.
CohortKey = tuple[bool, float, ReverseName]


def queue_key(known: DominantShare, head: Entry, *, own: bool) -> Key:
    return not known.weightless, -known.value, not head[3].evicted, own, *head[:3]


class CohortRow:
    """The queues of one cohort, in the order of preemption.

    The largest share that each could have after losing a workload is computed on first use, from its
    usage then.
    """

    def __init__(
        self, queues: Sequence[tuple[Key, QuotaNode]], least: Callable[[QuotaNode], Amounts]
    ) -> None:
        in_order = sorted(queues, key=lambda entry: entry[0])
        self.keys = [key for key, _ in in_order]
        self.nodes = [node for _, node in in_order]
        self._least = least
        self._used = [dict(node.usage) for node in self.nodes]
        self._size = 1 << max(0, len(in_order) - 1).bit_length()
        self._tree: list[Order] = []

    def __len__(self) -> int:
        return len(self.keys)

    def order(self, place: int) -> Order:
        weighs, value, *_ = self.keys[place]
        return not weighs, -value

    def following(self, place: int, least: Order) -> int:
        """The first queue from this position on that may keep at least this share; without one, the
        number of queues."""
        if place >= len(self.keys):
            return len(self.keys)
        if not self._tree:
            self._grow()
        at = place + self._size
        while self._tree[at] < least:
            while at & 1:  # the last of its parent's two
                at >>= 1
                if at <= 1:
                    return len(self.keys)
            at += 1
        while at < self._size:
            at *= 2
            if self._tree[at] < least:
                at += 1
        return at - self._size

    def _grow(self) -> None:
        most = [self._most(node, used) for node, used in zip(self.nodes, self._used, strict=True)]
        self._tree = [_NOTHING] * self._size + most + [_NOTHING] * (self._size - len(most))
        for place in range(self._size - 1, 0, -1):
            self._tree[place] = max(self._tree[2 * place], self._tree[2 * place + 1])

    def _most(self, node: QuotaNode, used: Amounts) -> Order:
        """A share that the queue does not exceed after the loss of any one workload."""
        least, now = self._least(node), node.usage
        node.usage = {key: value - least.get(key, 0) for key, value in used.items()}
        try:
            return share(node).order
        finally:
            node.usage = now


@dataclass(frozen=True, slots=True)
class Board:
    """By cohort: its queues, and the cohorts below it that have queues."""

    rows: dict[QuotaNode, CohortRow] = field(default_factory=dict)
    cohorts: dict[QuotaNode, list[QuotaNode]] = field(default_factory=dict)


def board(ledger: QuotaLedger, root: QuotaNode, needed: Keys, policy: Policy, request: QuotaRequest) -> Board:
    """The candidates of `request` in other queues, cached while the ledger does not change.

    If age matters, it includes the candidates for a workload of any age.
    """
    any_age = replace(request, queue="", queued=-math.inf)
    priority = None if policy == "Any" else request.priority

    def compute() -> Board:
        queues: dict[QuotaNode, list[tuple[Key, QuotaNode]]] = {}
        result = Board()
        for node in _borrowing(root, needed):
            heads = (
                next(
                    allowed(ledger, node.name, needed, evicted=evicted, policy=policy, request=any_age), None
                )
                for evicted in ledger.turns
            )
            if node.parent is None or (head := next((head for head in heads if head), None)) is None:
                continue
            key = queue_key(share(node), head, own=False)
            queues.setdefault(node.parent, []).append((key, node))
        for cohort in queues:
            child = cohort
            for above in cohort.path():
                known = result.cohorts.setdefault(above, [])
                if child in known:
                    break
                known.append(child)
                child = above
        for cohort, row in queues.items():
            result.rows[cohort] = CohortRow(row, lambda node: _least(ledger, node, needed))
        return result

    return ledger.cached((root, frozenset(needed), (policy, priority)), compute)


def _least(ledger: QuotaLedger, node: QuotaNode, needed: Keys) -> Amounts:
    """The least usage among a queue's workloads."""
    least: dict[FlavorResource, int] | None = None
    for evicted in ledger.turns:
        for _, _, _, workload in ledger.using(node.name, needed, evicted=evicted):
            usage = workload.usage
            if least is None:
                least = dict(usage)
                continue
            for key, value in [*least.items()]:
                if (other := usage.get(key, 0)) < value:
                    least[key] = other
    return least or {}


def _borrowing(cohort: QuotaNode, needed: Keys) -> Iterator[QuotaNode]:
    """Every queue of the tree over its quota, also if its cohort is within quota."""
    yield from borrowers(cohort, needed, besides=frozenset(cohort.cohorts))
    for child in cohort.cohorts:
        yield from _borrowing(child, needed)
