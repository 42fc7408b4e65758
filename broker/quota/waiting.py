"""Workloads that wait for quota, by queue.

Invariant: a queue returns one head at a time: the highest priority, then the longest wait, then by name.
A head that could not be admitted is set aside until its cohort tree changes, so that those behind it have
their turn; in a strict queue it stays in front of them. The rule is Kueue's (pkg/cache/queue).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from broker.quota.order import Head
from broker.quota.tree import QuotaNode, Tree

_Item = tuple[int, float, str, Head]


class WaitingHeads:
    """Every waiting workload, under the queues of a tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._heaps: dict[str, list[_Item]] = {}
        self._aside: dict[str, dict[str, Head]] = {}
        # Queues with something set aside, by the root of their tree.
        self._stuck: dict[QuotaNode, set[str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._heaps.values())) + sum(map(len, self._aside.values()))

    def push(self, head: Head) -> None:
        item = (-head.priority, head.queued, head.name, head)
        heapq.heappush(self._heaps.setdefault(head.queue, []), item)

    def heads(self) -> Iterator[Head]:
        """Takes each queue's head out; the caller pushes it again, sets it aside, or drops it."""
        for heap in self._heaps.values():
            if heap:
                yield heapq.heappop(heap)[3]

    def set_aside(self, head: Head) -> None:
        """Sets aside a head that could not be admitted; a strict queue keeps it in front."""
        node = self._tree.queues.get(head.queue)
        if node is not None and node.queue is not None and node.queue.strict:
            self.push(head)
            return
        self._aside.setdefault(head.queue, {})[head.name] = head
        if node is not None:
            self._stuck.setdefault(node.root(), set()).add(head.queue)

    def wake(self, queues: Iterable[str]) -> None:
        """After quota was given back in these queues: tries all of their trees again."""
        for root in dict.fromkeys(n.root() for name in sorted(queues) if (n := self._tree.queues.get(name))):
            for name in sorted(self._stuck.pop(root, ())):
                for head in self._aside.pop(name).values():
                    self.push(head)
