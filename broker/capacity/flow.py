"""Matching takers to slots so that no usable slot stays idle.

Invariant: after `add` has been called for every taker in order of importance, the number of takers matched is
the largest that any assignment reaches, no slot holds more than it has room for, and a taker is only left out
for takers added before it. (Augmenting paths in a bipartite graph; the sets of takers that can be matched
together form a transversal matroid, for which greedy in order of weight is optimal: Edmonds and Fulkerson,
1965.)

Takers of one kind have equal edges and are counted, not listed, so a thousand equal ones cost as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound=Hashable)


class FlowState(NamedTuple, Generic[K, S]):
    """What `restore` goes back to."""

    room: dict[S, int]
    held: dict[S, dict[K, int]]
    closed: set[K]


class Flow(Generic[K, S]):
    """`edges` gives each kind its slots, the preferred first; `room` is how many each slot takes."""

    def __init__(self, edges: Mapping[K, Sequence[S]], room: Mapping[S, int]) -> None:
        self._edges = edges
        self._room = {slot: max(0, count) for slot, count in room.items()}
        self._held: dict[S, dict[K, int]] = {slot: {} for slot in room}
        self._closed: set[K] = set()
        self._next: dict[K, int] = {}  # kind → its first slot that may be free: slots only fill up
        self.filled: S | None = None  # the slot that holds one more since the last match

    def add(self, kind: K) -> bool:
        """Matches one more taker of this kind if that is possible without leaving out another."""
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
        for moved, slot, left in path:
            self._take(moved, slot, 1)
            if left is not None:
                self._take(moved, left, -1)
        self.filled = path[-1][1]
        self._room[self.filled] -= 1
        return True

    def taken(self, kind: K) -> dict[S, int]:
        """Slots that takers of this kind hold, the preferred first."""
        return {slot: count for slot in self._edges[kind] if (count := self._held[slot].get(kind, 0))}

    def narrow(self, slot: S, room: int) -> None:
        """The slot takes at most so many more."""
        self._room[slot] = min(self._room[slot], max(0, room))

    def holds(self, slot: S) -> int:
        """How many takers the slot has."""
        return sum(self._held[slot].values())

    def left(self, slot: S) -> int:
        """Room that nobody took."""
        return self._room[slot]

    def state(self) -> FlowState[K, S]:
        return FlowState(
            dict(self._room), {slot: dict(held) for slot, held in self._held.items()}, set(self._closed)
        )

    def restore(self, state: FlowState[K, S]) -> None:
        """Undoes every `add` since `state` was taken."""
        self._room, self._held, self._closed = (
            dict(state.room),
            {slot: dict(held) for slot, held in state.held.items()},
            set(state.closed),
        )
        self._next = {}

    def _take(self, kind: K, slot: S, count: int) -> None:
        held = self._held[slot]
        held[kind] = held.get(kind, 0) + count
        if not held[kind]:
            del held[kind]

    def _path(self, kind: K) -> list[tuple[K, S, S | None]]:
        """The shortest way to make room: (who, takes which slot, leaves which), from the newcomer on."""
        reached: dict[S, tuple[K, S | None]] = {}
        seen = {kind}
        queue: deque[tuple[K, S | None]] = deque([(kind, None)])
        while queue:
            mover, left = queue.popleft()
            for slot in self._edges[mover]:
                if slot in reached or slot not in self._room:
                    continue
                reached[slot] = (mover, left)
                if self._room[slot] > 0:
                    return _walk(reached, slot)
                for holder in self._held[slot]:
                    if holder not in seen:
                        seen.add(holder)
                        queue.append((holder, slot))
        # Nobody who was reached can move, now or after any later match: they need not be asked again.
        self._closed |= seen
        return []


def _walk(reached: Mapping[S, tuple[K, S | None]], last: S) -> list[tuple[K, S, S | None]]:
    path: list[tuple[K, S, S | None]] = []
    slot: S | None = last
    while slot is not None:
        mover, left = reached[slot]
        path.append((mover, slot, left))
        slot = left
    return path[::-1]
