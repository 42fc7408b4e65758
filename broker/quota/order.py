"""The order in which waiting workloads get a cycle's quota.

Invariant: without fair sharing, the shorter borrowing distance comes first, then higher priority, then
the longer wait. With it, each cohort's members compete from the bottom up. A member that would not borrow
of its request comes first, then the smaller share after admission, then priority, then the wait. Shares
changed by a winner are computed again before the next one. The rules are Kueue's
(pkg/scheduler/scheduler.go, fair_sharing_iterator.go).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from broker.quota.assign import FlavorAssignment
from broker.quota.flavors import PodSetRequest
from broker.quota.model import PreemptionTarget
from broker.quota.shares import borrows_of, share
from broker.quota.tree import QuotaNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A workload that waits for quota, the first of its queue."""

    name: str
    queue: str
    pod_sets: tuple[PodSetRequest, ...]
    priority: int = 0
    queued: float = 0.0


@dataclass(frozen=True, slots=True)
class HeadEntry:
    """A head with its possible assignment, and the victims that this needs."""

    head: Head
    node: QuotaNode
    assignment: FlavorAssignment
    targets: tuple[PreemptionTarget, ...]


# Whether it would borrow of its request, its share then, its rank.
_Key = tuple[bool, tuple[bool, float], tuple[int, float, str]]


def classical(entries: Sequence[HeadEntry]) -> Iterator[HeadEntry]:
    """Shorter borrowing distance, higher priority, longer wait."""
    return iter(sorted(entries, key=lambda entry: (entry.assignment.level, *_rank(entry))))


def fairly(
    entries: Sequence[HeadEntry], changed: Callable[[], Iterable[QuotaNode]] = tuple
) -> Iterator[HeadEntry]:
    """One winner at a time; the caller adds its usage to the tree before the next one.

    At most one entry a queue. `changed`: the queues with other usage than before the last winner.
    """
    waiting: dict[QuotaNode, dict[QuotaNode, HeadEntry]] = {}
    for entry in sorted(entries, key=_rank):
        waiting.setdefault(entry.node.root(), {})[entry.node] = entry
    for root, remaining in waiting.items():
        if len(remaining) == 1:
            yield from remaining.values()
            continue
        tournament = _Tournament(root, remaining)
        while (winner := tournament.winner) is not None:
            tournament.out(winner)
            yield winner
            for queue in changed():
                tournament.update(queue)


class _Tournament:
    """The best of each cohort's members competes with the best of its siblings.

    A member's key depends on its own usage alone. So after a change, only the members between the
    changed queue and the root compete again.
    """

    def __init__(self, root: QuotaNode, entries: Mapping[QuotaNode, HeadEntry]) -> None:
        self._root = root
        self._best: dict[QuotaNode, HeadEntry] = dict(entries)  # by queue or cohort, the best below it
        self._keys: dict[QuotaNode, _Key] = {}
        self._heaps: dict[QuotaNode, list[tuple[_Key, str, QuotaNode]]] = {}
        for cohort in self._cohorts(entries):
            for child in (*cohort.cohorts, *cohort.queues):
                self._update_key(child, cohort)
            self._update_best(cohort)

    @property
    def winner(self) -> HeadEntry | None:
        return self._best.get(self._root)

    def out(self, winner: HeadEntry) -> None:
        """Removes the winner from the competition."""
        del self._best[winner.node]
        self.update(winner.node)

    def update(self, queue: QuotaNode) -> None:
        child = queue
        for cohort in queue.path():
            if cohort not in self._heaps:
                return
            self._update_key(child, cohort)
            self._update_best(cohort)
            child = cohort

    def _cohorts(self, queues: Iterable[QuotaNode]) -> list[QuotaNode]:
        """The cohorts above these queues, each after those below it."""
        cohorts = {cohort: None for queue in queues for cohort in queue.path()}
        self._heaps = {cohort: [] for cohort in cohorts}
        return sorted(cohorts, key=lambda cohort: cohort.height)

    def _update_key(self, child: QuotaNode, cohort: QuotaNode) -> None:
        """Puts a member's key into the heap of its cohort; an older entry there becomes invalid."""
        sent = self._best.get(child)
        if sent is None:
            self._keys.pop(child, None)
            return
        sent.node.add(sent.assignment.usage)
        key = (borrows_of(child, sent.assignment.usage), share(child).order, _rank(sent))
        sent.node.remove(sent.assignment.usage)
        if self._keys.get(child) != key:
            self._keys[child] = key
            heappush(self._heaps[cohort], (key, child.name, child))

    def _update_best(self, cohort: QuotaNode) -> None:
        heap = self._heaps[cohort]
        while heap and self._keys.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        if heap:
            self._best[cohort] = self._best[heap[0][2]]
        else:
            self._best.pop(cohort, None)


def _rank(entry: HeadEntry) -> tuple[int, float, str]:
    return -entry.head.priority, entry.head.queued, entry.head.name
