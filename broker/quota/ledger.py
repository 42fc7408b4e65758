"""The holders of quota: the tree with the workloads in it.

Invariant: the tree's usage is the sum of the workloads' usage, including evicted ones until they are
released. Each queue keeps its workloads by flavor and resource in the order of preemption, evicted ones
apart: lower priority first, then the last to get its quota, then by name. So a decision reads as many
workloads as it takes. Non-preemptible workloads are in no order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

from broker.quota.model import AdmittedWorkload, Amounts, FlavorResource
from broker.quota.tree import QuotaNode, Tree

# Priority, minus the time of its reservation, name: unique, so a comparison never reaches the workload.
Entry = tuple[int, float, str, AdmittedWorkload]

# A cohort, flavors and resources, and whether evicted.
_Key = tuple[QuotaNode, frozenset[FlavorResource], bool]

_Index = dict[FlavorResource, list[Entry]]


class QuotaLedger:
    """A tree and the workloads that hold quota in it."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.workloads: dict[str, AdmittedWorkload] = {}
        self.evicted = 0  # how many of them are evicted
        self.placed = 0  # how many of them have known machines
        self._indexes: dict[tuple[str, bool], _Index] = {}
        self._cache: dict[_Key, MergedWorkloads] | None = None

    def admit(self, workload: AdmittedWorkload) -> None:
        """Counts a workload against its queue; one that is already admitted must be released first."""
        if workload.name in self.workloads:
            raise ValueError(f"workload {workload.name} holds quota already; release it first")
        node = self.node(workload.queue)
        before = self._over(node, workload.usage) if self._cache else frozenset()
        node.add(workload.usage)
        if self._cache and (more := self._over(node, workload.usage) - before):
            # The merged workloads of these lack the new candidates.
            keys = {key for _, key in more}
            self._cache = {key: value for key, value in self._cache.items() if not key[1] & keys}
        self.workloads[workload.name] = workload
        self.evicted += workload.evicted
        self.placed += bool(workload.occupied_queues)
        if workload.non_preemptible:
            return
        index = self._indexes.setdefault((workload.queue, workload.evicted), {})
        for key in workload.usage:
            insort(index.setdefault(key, []), entry(workload))

    def release(self, name: str) -> AdmittedWorkload:
        """Gives a workload's quota back."""
        workload = self.workloads.pop(name)
        self.evicted -= workload.evicted
        self.placed -= bool(workload.occupied_queues)
        self.node(workload.queue).remove(workload.usage)
        if workload.non_preemptible:
            return workload
        index = self._indexes[workload.queue, workload.evicted]
        wanted = entry(workload)
        for key in workload.usage:
            entries = index[key]
            place = bisect_left(entries, wanted)
            # A new list, since a cached iterator may be in the middle of the old one.
            index[key] = [*entries[:place], *entries[place + 1 :]]
        return workload

    @staticmethod
    def _over(node: QuotaNode, usage: Amounts) -> frozenset[tuple[QuotaNode, FlavorResource]]:
        """The node and its ancestors over quota, with the exceeded flavors and resources."""
        nodes = (node, *node.path())
        return frozenset((node, key) for node in nodes for key in usage if node.over_quota((key,)))

    @property
    def turns(self) -> tuple[bool, ...]:
        """Whether to read evicted workloads, in the order of preemption: they come first, if there are
        any."""
        return (True, False) if self.evicted else (False,)

    def node(self, queue: str) -> QuotaNode:
        if node := self.tree.queues.get(queue):
            return node
        why = self.tree.inactive.get(queue, "there is no such queue")
        raise LookupError(f"queue {queue}: {why}")

    @contextmanager
    def stable(self) -> Iterator[None]:
        """Declares that candidates are stable: inside, `merged` reads each cohort once.

        Inside, no candidate is admitted, and the tree grows only by that. Workloads may be
        released.
        """
        outermost = self._cache is None
        self._cache = {} if self._cache is None else self._cache
        try:
            yield
        finally:
            self._cache = None if outermost else self._cache

    def merged(
        self,
        cohort: QuotaNode,
        keys: Collection[FlavorResource],
        queues: Iterable[QuotaNode],
        *,
        evicted: bool,
    ) -> MergedWorkloads:
        """Sums `using` for all these queues together. `queues` must be the same for one cohort and these
        keys."""
        known = {} if self._cache is None else self._cache
        key = cohort, frozenset(keys), evicted
        if key not in known:
            several = [self.using(queue.name, keys, evicted=evicted) for queue in queues]
            known[key] = MergedWorkloads(several, self.workloads)
        return known[key]

    def using(self, queue: str, keys: Collection[FlavorResource], *, evicted: bool) -> Iterator[Entry]:
        """The queue's workloads that use any of these, in the order of preemption."""
        index = self._indexes.get((queue, evicted))
        if not index:
            return iter(())
        lists = [entries for key in keys if (entries := index.get(key))]
        return iter(lists[0]) if len(lists) == 1 else _distinct(lists)


class MergedWorkloads:
    """Several queues' workloads in one order, read on demand, without those no longer in `present`."""

    def __init__(self, several: Iterable[Iterator[Entry]], present: Mapping[str, AdmittedWorkload]) -> None:
        self._rest = heapq.merge(*several)
        self._present = present
        self._known: list[Entry] = []
        self._first = 0  # entries before this are gone

    def __iter__(self) -> Iterator[Entry]:
        while self._first < len(self._known) and self._known[self._first][2] not in self._present:
            self._first += 1
        for place in count(self._first):
            if place == len(self._known):
                if (following := next(self._rest, None)) is None:
                    return
                self._known.append(following)
            if self._known[place][2] in self._present:
                yield self._known[place]


def entry(workload: AdmittedWorkload) -> Entry:
    return workload.priority, -workload.reserved, workload.name, workload


def _distinct(lists: Sequence[list[Entry]]) -> Iterator[Entry]:
    before = None
    for workload_entry in heapq.merge(*lists, key=lambda listed: listed[:3]):
        if workload_entry[2] != before:
            before = workload_entry[2]
            yield workload_entry
