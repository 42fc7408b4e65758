"""In which order workloads that wait get a cycle's quota.

Invariant: without fair sharing, who borrows from less far comes first, then higher priority, then who
waits longer. With it, each cohort's members compete from the bottom up: who would not borrow of what it
asks for comes first, then the smaller share after admission, then priority, then waiting; shares are
taken anew after each winner. The rules are Kueue's (pkg/scheduler/scheduler.go,
fair_sharing_iterator.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from broker.quota.model import Amounts
from broker.quota.shares import borrows_of, share
from broker.quota.tree import Node


class Entry(Protocol):
    """What can be put in order."""

    @property
    def name(self) -> str: ...
    @property
    def node(self) -> Node: ...
    @property
    def usage(self) -> Amounts: ...
    @property
    def level(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def queued(self) -> float: ...


E = TypeVar("E", bound=Entry)
# Whether it would borrow of what it asks for, its share then, its rank.
_Key = tuple[bool, tuple[bool, float], tuple[int, float, str]]


def classical(entries: Sequence[E]) -> Iterator[E]:
    """Nearer quota, higher priority, longer wait."""
    return iter(sorted(entries, key=lambda each: (each.level, *_rank(each))))


def fairly(entries: Sequence[E]) -> Iterator[E]:
    """One winner at a time; between two of them the tree is to hold what the first one got.

    At most one entry a queue.
    """
    waiting: dict[Node, dict[Node, E]] = {}
    for each in sorted(entries, key=_rank):
        *_, root = (each.node, *each.node.path())
        waiting.setdefault(root, {})[each.node] = each
    for root, left in waiting.items():
        while left:
            winner = next(iter(left.values())) if len(left) == 1 else _winner(root, left)
            del left[winner.node]
            yield winner


def _winner(root: Node, left: Mapping[Node, E]) -> E:
    """The best of each cohort's members goes up against the best of its siblings."""
    keys: dict[Node, list[tuple[Node, E, _Key]]] = {}
    for each in left.values():
        each.node.add(each.usage)
        child = each.node
        for cohort in each.node.path():
            key = (borrows_of(child, each.usage), share(child).order, _rank(each))
            keys.setdefault(cohort, []).append((child, each, key))
            child = cohort
        each.node.remove(each.usage)
    return _best(root, keys)


def _best(cohort: Node, keys: Mapping[Node, Sequence[tuple[Node, E, _Key]]]) -> E:
    sent: dict[Node, E] = {}
    contenders: dict[_Key, E] = {}
    for child, each, key in keys[cohort]:
        if child not in sent:
            sent[child] = each if child.queue is not None else _best(child, keys)
        if sent[child] is each:
            contenders[key] = each
    return contenders[min(contenders)]


def _rank(entry: Entry) -> tuple[int, float, str]:
    return -entry.priority, entry.queued, entry.name
