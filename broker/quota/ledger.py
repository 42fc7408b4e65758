"""Who holds quota: the tree with the workloads in it.

Invariant: the tree's usage is the sum of the workloads' usage, evicted ones included until they are
released. Each queue keeps its workloads by flavor and resource in the order in which they would be
preempted (lower priority first, then the one that got its quota last, then by name), evicted ones apart:
a decision reads as many as it takes, not all there are. Firm ones are in no order: nobody comes upon them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

from broker.quota.model import FlavorResource, Workload
from broker.quota.tree import Node, Tree

# Priority, minus the time of its reservation, name: unique, so a comparison never reaches the workload.
Entry = tuple[int, float, str, Workload]

_Index = dict[FlavorResource, list[Entry]]


class Ledger:
    """A tree and the workloads that hold quota in it."""

    def __init__(self, tree: Tree, workloads: Iterable[Workload] = ()) -> None:
        self.tree = tree
        self.workloads: dict[str, Workload] = {}
        self.evicted = 0  # how many of them are on their way out
        self.placed = 0  # of how many it is known in whose machines they are
        self._indexes: dict[tuple[str, bool], _Index] = {}
        self._merged: dict[tuple[Node, frozenset[FlavorResource], bool], Merged] | None = None
        for workload in workloads:
            self.admit(workload)

    def admit(self, workload: Workload) -> None:
        """Counts a workload against its queue; one that is there already must be released first."""
        if workload.name in self.workloads:
            raise ValueError(f"workload {workload.name} holds quota already; release it first")
        self.node(workload.queue).add(workload.usage)
        self.workloads[workload.name] = workload
        self.evicted += workload.evicted
        self.placed += bool(workload.at)
        if workload.firm:
            return
        index = self._indexes.setdefault((workload.queue, workload.evicted), {})
        for key in workload.usage:
            insort(index.setdefault(key, []), entry(workload))

    def release(self, name: str) -> Workload:
        """Gives a workload's quota back."""
        workload = self.workloads.pop(name)
        self.evicted -= workload.evicted
        self.placed -= bool(workload.at)
        self.node(workload.queue).remove(workload.usage)
        if workload.firm:
            return workload
        index = self._indexes[workload.queue, workload.evicted]
        wanted = entry(workload)
        for key in workload.usage:
            entries = index[key]
            del entries[bisect_left(entries, wanted)]
        return workload

    def evict(self, name: str) -> Workload:
        """Marks a workload as on its way out; it holds its quota until it is released."""
        evicted = replace(self.release(name), evicted=True)
        self.admit(evicted)
        return evicted

    @property
    def turns(self) -> tuple[bool, ...]:
        """Whether to look at evicted workloads, in the order of preemption: them first, if there are any."""
        return (True, False) if self.evicted else (False,)

    def node(self, queue: str) -> Node:
        if node := self.tree.queues.get(queue):
            return node
        why = self.tree.inactive.get(queue, "there is no such queue")
        raise LookupError(f"queue {queue}: {why}")

    @contextmanager
    def still(self) -> Iterator[None]:
        """While nothing is admitted, released or added to the tree for good, `merged` is worked out once."""
        outermost = self._merged is None
        self._merged = {} if self._merged is None else self._merged
        try:
            yield
        finally:
            self._merged = None if outermost else self._merged

    def merged(
        self, cohort: Node, keys: Collection[FlavorResource], queues: Iterable[Node], *, evicted: bool
    ) -> Merged:
        """As `using`, of all these queues together. `queues`: always the same for one cohort and these
        keys."""
        known = {} if self._merged is None else self._merged
        key = (cohort, frozenset(keys), evicted)
        if key not in known:
            known[key] = Merged([self.using(each.name, keys, evicted=evicted) for each in queues])
        return known[key]

    def using(self, queue: str, keys: Collection[FlavorResource], *, evicted: bool) -> Iterator[Entry]:
        """The queue's workloads that use any of these, in the order in which they would be preempted."""
        index = self._indexes.get((queue, evicted))
        if not index:
            return iter(())
        lists = [entries for key in keys if (entries := index.get(key))]
        return iter(lists[0]) if len(lists) == 1 else _distinct(lists)


class Merged:
    """Several queues' workloads in one order, each looked up when it is first asked for."""

    def __init__(self, several: Iterable[Iterator[Entry]]) -> None:
        self._rest = heapq.merge(*several)
        self._known: list[Entry] = []

    def __iter__(self) -> Iterator[Entry]:
        for place in count():
            if place == len(self._known):
                if (following := next(self._rest, None)) is None:
                    return
                self._known.append(following)
            yield self._known[place]


def entry(workload: Workload) -> Entry:
    return workload.priority, -workload.reserved, workload.name, workload


def _distinct(lists: Sequence[list[Entry]]) -> Iterator[Entry]:
    before = None
    for each in heapq.merge(*lists, key=lambda each: each[:3]):
        if each[2] != before:
            before = each[2]
            yield each
