"""Whether pods fit the instances of a flavor that are reserved.

Invariant: what a reservation has itself is its own first: its workloads fit where its own instances have
room for them beside its other workloads, whoever has borrowed them meanwhile (borrowers make room). Beyond
that, one that may borrow fits where its whole cohort tree's instances have room beside everybody's workloads.
Pods are counted by their accelerator where they ask for one, as quota is sized; an instance's other
resources are raw and nearly never what is short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broker.reservations.sizing import ACCELERATORS

Amount = Mapping[str, float]
Left = tuple[tuple[str, float], ...]  # what is left on an instance, by resource


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSlots:
    """Instances of one of EC2's reservations: how many, and what each supplies."""

    odcr: str
    count: int
    each: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """So many equal pods, and what each asks for."""

    count: int
    each: Amount

    @property
    def counted(self) -> Amount:
        """By what it is decided whether they fit."""
        asked = {name: amount for name, amount in self.each.items() if amount > 0}
        return {name: asked[name] for name in ACCELERATORS if name in asked} or asked


def is_accelerated(pods: PodGroup) -> bool:
    """Whether they are counted by an accelerator."""
    return any(name in ACCELERATORS for name in pods.counted)


Placed = list[tuple[Left, Left, int]]  # so many instances, from this to that


class InstanceRoom:
    """Free room on instances, filled in the order in which pods come.

    Instances with the same left on them are one entry with a count: there are thousands of instances and few
    ways to be filled.
    """

    def __init__(self, slots: Iterable[InstanceSlots]) -> None:
        self._free: Counter[Left] = Counter()
        for each in slots:
            self._free[tuple(sorted(each.each.items()))] += each.count

    def fill(self, pods: Iterable[PodGroup]) -> Placed:
        """Takes what there is of it: these are there already, or will have it."""
        return [move for each in pods for move in self._take(each)[0]]

    def place(self, pods: Iterable[PodGroup]) -> Placed | None:
        """Takes the room for all of them, or for none."""
        done: Placed = []
        for each in sorted(pods, key=lambda one: -max(one.counted.values(), default=0.0)):
            moves, left = self._take(each)
            done += moves
            if left:
                self.free(done)
                return None
        return done

    def free(self, placed: Placed) -> None:
        """Gives back what was taken, by whoever took it last."""
        for before, after, count in reversed(placed):
            self._move(after, before, count)

    def _take(self, pods: PodGroup) -> tuple[Placed, int]:
        """What was taken, and for how many there was no room. Instances in use come first, so that whole
        ones stay free."""
        asked, left = pods.counted, pods.count
        if not asked:
            return [], 0
        moves: Placed = []
        for before in sorted(
            self._free, key=lambda one: sum(amount for name, amount in one if name in asked)
        ):
            free = dict(before)
            # An instance has what EC2 sells it with; of what is not known of it, it has none.
            most = min(int(free.get(name, 0.0) / amount) for name, amount in asked.items())
            if not most or not left:
                continue
            whole = min(self._free[before], left // most)
            last = left - whole * most if whole < self._free[before] else 0
            for instances, each in ((whole, most), (1 if last else 0, last)):
                if instances:
                    moves.append((before, _less(free, asked, each), instances))
                    left -= instances * each
        for before, after, count in moves:
            self._move(before, after, count)
        return moves, left

    def _move(self, before: Left, after: Left, count: int) -> None:
        self._free[before] -= count
        if not self._free[before]:
            del self._free[before]
        self._free[after] += count


def _less(free: Amount, asked: Amount, pods: int) -> Left:
    return tuple((name, amount - pods * asked.get(name, 0.0)) for name, amount in sorted(free.items()))
