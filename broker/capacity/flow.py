"""Matches takers to slots so that no usable slot stays idle.

Invariant: `add` is called for every taker in order of importance. Then as many takers are matched as in any
assignment, and no slot exceeds its room. A taker is left out only in favour of takers added before it.

The method is augmenting paths in a bipartite graph. The sets of takers that can be matched together form a
transversal matroid. For a matroid, greedy in order of weight is optimal (Edmonds and Fulkerson, 1965).
Takers of one kind have equal edges and are counted, so a thousand equal takers cost as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound=Hashable)


class Flow(Generic[K, S]):
    """`edges` gives each kind its slots, the preferred first; `room` is the capacity of each slot."""

    def __init__(self, edges: Mapping[K, Sequence[S]], room: Mapping[S, int]) -> None:
        self._edges = edges
        self._room = {slot: max(0, count) for slot, count in room.items()}
        self._held: dict[S, dict[K, int]] = {slot: {} for slot in room}
        self._closed: set[K] = set()
        self._next: dict[K, int] = {}  # kind → its first slot that may be free: slots only fill up
        self.filled: S | None = None  # the slot that holds one more since the last match

    def add(self, kind: K) -> bool:
        """Matches one more taker of this kind if that leaves out no other taker."""
        if kind in self._closed:
            return False
        slots = self._edges[kind]
        for place in range(self._next.get(kind, 0), len(slots)):
            if self._room.get(slots[place], 0) > 0:
                self._next[kind] = place
                self._take(kind, slots[place], 1)
                self._room[slots[place]] -= 1
                self.filled = slots[place]
                return True
        self._next[kind] = len(slots)
        path = self._path(kind)
        if not path:
            return False
        for moved, slot, vacated in path:
            self._take(moved, slot, 1)
            if vacated is not None:
                self._take(moved, vacated, -1)
        self.filled = path[-1][1]
        self._room[self.filled] -= 1
        return True

    def taken(self, kind: K) -> dict[S, int]:
        """The slots that takers of this kind hold, the preferred first."""
        return {slot: count for slot in self._edges[kind] if (count := self._held[slot].get(kind, 0))}

    def close(self, slot: S) -> None:
        """Lets no more takers into the slot."""
        if slot in self._room:
            self._room[slot] = 0

    def add_all(self, kinds: Iterable[K]) -> bool:
        """Matches one more taker of each of these kinds, or none at all."""
        room, closed = dict(self._room), set(self._closed)
        held = {slot: dict(holders) for slot, holders in self._held.items()}
        if all(map(self.add, kinds)):
            return True
        self._room, self._held, self._closed, self._next = room, held, closed, {}
        return False

    def _take(self, kind: K, slot: S, count: int) -> None:
        held = self._held[slot]
        held[kind] = held.get(kind, 0) + count
        if not held[kind]:
            del held[kind]

    def _path(self, kind: K) -> list[tuple[K, S, S | None]]:
        """The shortest way to make room, from the newcomer on: (taker, slot it takes, slot it leaves)."""
        reached: dict[S, tuple[K, S | None]] = {}
        seen = {kind}
        queue: deque[tuple[K, S | None]] = deque([(kind, None)])
        while queue:
            mover, vacated = queue.popleft()
            for slot in self._edges[mover]:
                if slot in reached or slot not in self._room:
                    continue
                reached[slot] = (mover, vacated)
                if self._room[slot] > 0:
                    return _walk(reached, slot)
                for holder in self._held[slot]:
                    if holder not in seen:
                        seen.add(holder)
                        queue.append((holder, slot))
        # No reached taker can move, now or after any later match: they are not searched again.
        self._closed |= seen
        return []


def _walk(reached: Mapping[S, tuple[K, S | None]], last: S) -> list[tuple[K, S, S | None]]:
    path: list[tuple[K, S, S | None]] = []
    slot: S | None = last
    while slot is not None:
        mover, vacated = reached[slot]
        path.append((mover, slot, vacated))
        slot = vacated
    return path[::-1]
