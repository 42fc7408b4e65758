"""Whether pods fit the instances of a flavor that are reserved.

Invariant: what a reservation has itself is its own first: its workloads fit where its own instances have
room for them beside its other workloads, whoever has borrowed them meanwhile (borrowers make room). Beyond
that, one that may borrow fits where the whole cohort's instances have room beside everybody's workloads.
Pods are counted by their accelerator where they ask for one, as quota is sized; an instance's other
resources are raw and nearly never what is short.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broker.capacity.sizing import ACCELERATORS

Amount = Mapping[str, float]
Spread = Mapping[int, int]  # instance → pods on it


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Instances of one of EC2's reservations: how many, and what each supplies."""

    odcr: str
    count: int
    each: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """So many equal pods, and what each asks for."""

    count: int
    each: Amount

    @property
    def counted(self) -> Amount:
        """By what it is decided whether they fit."""
        asked = {name: amount for name, amount in self.each.items() if amount > 0}
        return {name: asked[name] for name in ACCELERATORS if name in asked} or asked


Placed = list[tuple[Pods, Spread]]


class Room:
    """Free room on instances, filled in the order in which pods come."""

    def __init__(self, slots: Iterable[Slots]) -> None:
        self._free = [dict(each.each) for each in slots for _ in range(each.count)]

    def fill(self, pods: Iterable[Pods]) -> Placed:
        """Takes what there is of it: these are there already, or will have it."""
        return [self._take(each, self._spread(each)) for each in pods]

    def place(self, pods: Iterable[Pods]) -> Placed | None:
        """Takes the room for all of them, or for none."""
        done: Placed = []
        for each in sorted(pods, key=lambda one: -max(one.counted.values(), default=0.0)):
            spread = self._spread(each)
            if sum(spread.values()) < each.count:
                self.free(done)
                return None
            done.append(self._take(each, spread))
        return done

    def free(self, placed: Placed) -> None:
        """Gives back what was taken."""
        for pods, spread in placed:
            self._take(pods, spread, sign=-1)

    def _spread(self, pods: Pods) -> Spread:
        """How many go where: on instances in use first, so that whole ones stay free."""
        asked, left, found = pods.counted, pods.count, dict[int, int]()
        order = sorted(range(len(self._free)), key=lambda at: sum(self._free[at].get(n, 0.0) for n in asked))
        for at in order:
            if not left:
                break
            free = self._free[at]
            # An instance has what EC2 sells it with; of what is not known of it, it has none.
            most = min((int(free.get(name, 0.0) / amount) for name, amount in asked.items()), default=left)
            if count := min(most, left):
                found[at] = count
                left -= count
        return found

    def _take(self, pods: Pods, spread: Spread, *, sign: int = 1) -> tuple[Pods, Spread]:
        for at, count in spread.items():
            for name, amount in pods.counted.items():
                self._free[at][name] -= sign * count * amount
        return pods, spread
