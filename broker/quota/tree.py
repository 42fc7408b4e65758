"""The quota tree: queues in cohorts in cohorts, and the usage of each.

Invariant: a queue's usage is the sum of its additions less its removals. A cohort's usage is the sum,
over its children, of their usage beyond the quota that they do not lend. Every change walks from the
queue to the first ancestor that it does not reach, so `available` computes no sums. `over` names the
children over their quota, updated at every change.

The arithmetic is Kueue's (pkg/cache/scheduler/resource_node.go): a node's subtree quota is its nominal
quota plus its children's lendable quota. The quota that a child does not lend (`local`) is not counted in
its parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from broker.quota.model import Amounts, FlavorGroup, FlavorResource, Preemption, Queue, Quota, QuotaCohort

_NONE = Quota()


class QuotaNode:
    """A queue or a cohort; `queue` is None for a cohort."""

    __slots__ = (
        "cohorts",
        "height",
        "local",
        "name",
        "over",
        "parent",
        "preemption",
        "queue",
        "queues",
        "quotas",
        "subtree",
        "usage",
    )

    def __init__(self, name: str, quotas: Mapping[FlavorResource, Quota], queue: Queue | None = None) -> None:
        self.name = name
        self.queue = queue
        self.preemption = queue.preemption if queue is not None else Preemption()
        self.quotas = quotas
        self.parent: QuotaNode | None = None
        self.cohorts: list[QuotaNode] = []
        self.queues: list[QuotaNode] = []
        self.subtree: dict[FlavorResource, int] = {}
        self.local: dict[FlavorResource, int] = {}
        self.usage: dict[FlavorResource, int] = {}
        self.over: dict[FlavorResource, dict[QuotaNode, None]] = {}
        # Layers below: 0 without children, 1 above queues, one more for each layer of cohorts.
        self.height = 0

    def __repr__(self) -> str:
        return f"<{'cohort' if self.queue is None else 'queue'} {self.name}>"

    @property
    def groups(self) -> tuple[FlavorGroup, ...]:
        return self.queue.groups if self.queue is not None else ()

    @property
    def path_text(self) -> str:
        """The path from the root to this node, as Kueue writes it into the condition of a preempted
        workload."""
        return "/" + "/".join(node.name for node in (*reversed([*self.path()]), self))

    def path(self) -> Iterator[QuotaNode]:
        """The ancestors, from the parent to the root."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def root(self) -> QuotaNode:
        """The top of the tree, which may be the node itself."""
        *_, root = (self, *self.path())
        return root

    def members(self) -> Iterator[QuotaNode]:
        """The queues below."""
        yield from self.queues
        for cohort in self.cohorts:
            yield from cohort.members()

    def uses(self, key: FlavorResource) -> int:
        return self.usage.get(key, 0)

    def quota(self, key: FlavorResource) -> int:
        """The amount that this node and everything below it may use without borrowing."""
        return self.subtree.get(key, 0)

    def over_quota(self, keys: Iterable[FlavorResource]) -> bool:
        """Whether the node exceeds its quota of any of these."""
        return any(self.usage.get(key, 0) > self.subtree.get(key, 0) for key in keys)

    def local_free(self, key: FlavorResource) -> int:
        """The free part of the quota that the node does not lend."""
        return max(0, self.local.get(key, 0) - self.usage.get(key, 0))

    def available(self, key: FlavorResource) -> int:
        """The free amount for this node, including borrowing. Negative if admissions exceed the quota."""
        parent = self.parent
        if parent is None:
            return self.subtree.get(key, 0) - self.usage.get(key, 0)
        free = parent.available(key)
        quota = self.quotas.get(key, _NONE)
        if quota.borrowing_limit is not None:
            local = self.local.get(key, 0)
            stored = self.subtree.get(key, 0) - local
            used = max(0, self.usage.get(key, 0) - local)
            free = min(free, stored - used + quota.borrowing_limit)
        return self.local_free(key) + free

    def potential(self, key: FlavorResource) -> int:
        """The available amount if nothing were used."""
        if self.parent is None:
            return self.quota(key)
        most = self.local.get(key, 0) + self.parent.potential(key)
        limit = self.quotas.get(key, _NONE).borrowing_limit
        return most if limit is None else min(most, self.quota(key) + limit)

    def level(self, key: FlavorResource, value: int) -> tuple[int, bool]:
        """The distance up the tree from which `value` more must be borrowed, and whether a larger subtree
        exists.

        0 is the node's own quota; otherwise the height of the lowest subtree with a quota that covers
        it, or the root's.
        """
        if self.parent is None or self.uses(key) + value <= self.quota(key):
            return 0, self.parent is not None
        rest = value - self.local_free(key)
        node = self
        while node.parent is not None:
            node = node.parent
            if node.uses(key) + rest <= node.quota(key):
                break
            rest -= node.local_free(key)
        return node.height, node.parent is not None

    def covers(self, amounts: Amounts) -> bool:
        """Whether the node's quota covers the amounts, even if others have borrowed it."""
        return all(self.uses(key) + value <= self.quota(key) for key, value in amounts.items())

    def holds(self, amounts: Amounts) -> tuple[bool, dict[FlavorResource, int]]:
        """Whether the node's quota covers the amounts, and the rest for the parent to cover."""
        return self.covers(amounts), {
            key: max(0, value - self.local_free(key)) for key, value in amounts.items()
        }

    def add(self, amounts: Amounts) -> None:
        for key, value in amounts.items():
            node = self
            while True:
                spare = node.local_free(key)
                node._set(key, node.usage.get(key, 0) + value)
                if node.parent is None or value <= spare:
                    break
                value -= spare
                node = node.parent

    def remove(self, amounts: Amounts) -> None:
        for key, value in amounts.items():
            node = self
            while True:
                used = node.usage.get(key, 0)
                stored = used - node.local.get(key, 0)
                node._set(key, used - value)
                if node.parent is None or stored <= 0:
                    break
                value = min(value, stored)
                node = node.parent

    def _set(self, key: FlavorResource, value: int) -> None:
        before = self.usage.get(key, 0)
        self.usage[key] = value
        quota = self.subtree.get(key, 0)
        if self.parent is not None and (before > quota) != (value > quota):
            over = self.parent.over.setdefault(key, {})
            if value > quota:
                over[self] = None
            else:
                del over[self]


class Tree:
    """All queues and cohorts. `inactive`: for each queue under a cycle of cohorts, the cycle."""

    def __init__(self, queues: Iterable[Queue], cohorts: Iterable[QuotaCohort] = ()) -> None:
        self.queues: dict[str, QuotaNode] = {}
        self.cohorts: dict[str, QuotaNode] = {}
        self.inactive: dict[str, str] = {}
        # By name, so that no result depends on the order of the input.
        named = {queue.name: queue for queue in sorted(queues, key=lambda queue: queue.name)}
        parents = {cohort.name: cohort.parent for cohort in sorted(cohorts, key=lambda cohort: cohort.name)}
        specs = {cohort.name: cohort for cohort in cohorts}
        implied = {queue.cohort for queue in named.values()} | set(parents.values())
        for name in sorted(set(parents) | (implied - {""})):
            spec = specs.get(name, QuotaCohort(name=name))
            self.cohorts[name] = QuotaNode(name, spec.quotas)
        for name, node in self.cohorts.items():
            if parent := parents.get(name, ""):
                node.parent = self.cohorts[parent]
                node.parent.cohorts.append(node)
        cycles = {name: ring for name in self.cohorts if (ring := cycle(name, parents))}
        for queue in named.values():
            if ring := cycles.get(queue.cohort, ()):
                self.inactive[queue.name] = f"cohorts form a cycle: {' → '.join(ring)}; change a parent"
                continue
            node = QuotaNode(queue.name, queue.quotas, queue)
            self.queues[queue.name] = node
            if queue.cohort:
                node.parent = self.cohorts[queue.cohort]
                node.parent.queues.append(node)
        for name in cycles:
            del self.cohorts[name]
        for node in (*self.cohorts.values(), *self.queues.values()):
            if node.parent is None:
                _set_subtree_quotas(node)


def cycle(name: str, parents: Mapping[str, str]) -> tuple[str, ...]:
    """The cycle of cohorts that one is in, or below; its first name is repeated at the end. Empty without."""
    path: list[str] = []
    while name:
        if name in path:
            return (*path[path.index(name) :], name)
        path.append(name)
        name = parents.get(name, "")
    return ()


def _set_subtree_quotas(node: QuotaNode) -> None:
    """Subtree quotas from the leaves up."""
    subtree = {key: quota.nominal for key, quota in node.quotas.items()}
    for child in (*node.cohorts, *node.queues):
        _set_subtree_quotas(child)
        for key, value in child.subtree.items():
            subtree[key] = subtree.get(key, 0) + value - child.local.get(key, 0)
        node.height = max(node.height, child.height + 1)
    node.subtree = subtree
    node.local = {
        key: max(0, subtree[key] - quota.lending_limit)
        for key, quota in node.quotas.items()
        if quota.lending_limit is not None
    }
