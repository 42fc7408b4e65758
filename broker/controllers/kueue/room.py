"""Decides whether pods fit the reserved instances of a flavor.

Invariant: pods are counted by the resources that EC2 sells, as quota is sized: by their accelerator if they
request one. An instance's other resources are its raw amounts, which are rarely short. Nothing else that pods
request is a lack of machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from broker.capacity.types import ACCELERATORS
from broker.reservations.sizing import SOLD

Amount = Mapping[str, float]
Left = tuple[tuple[str, float], ...]  # the free amounts of an instance, by resource


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSlots:
    """The instances of an ODCR: their number, and the resources of each."""

    odcr: str
    count: int
    resources: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """A number of equal pods, and the requests of each. `optional`: they take room and are not waited for."""

    count: int
    requests: Amount
    optional: bool = False

    @property
    def deciding(self) -> Amount:
        """The requests that decide the fit: the accelerators if there are any, else all that EC2 sells."""
        requested = {name: amount for name, amount in self.requests.items() if amount > 0 and name in SOLD}
        return {name: requested[name] for name in ACCELERATORS if name in requested} or requested


def is_accelerated(pods: PodGroup) -> bool:
    """Whether the pods are counted by an accelerator."""
    return any(name in ACCELERATORS for name in pods.deciding)


Placed = list[tuple[Left, Left, int]]  # free amounts before and after, and the number of instances


class InstanceRoom:
    """The free room on instances, filled in the order of calls.

    Instances with equal free amounts are one entry with a count: there are thousands of instances, but few
    different fill levels.
    """

    def __init__(self, slots: Iterable[InstanceSlots]) -> None:
        self._free: Counter[Left] = Counter()
        for instances in slots:
            self._free[tuple(sorted(instances.resources.items()))] += instances.count

    def fill(self, pods: Iterable[PodGroup]) -> tuple[PodGroup, ...]:
        """Takes as much room as exists; returns the pods that have it."""
        taken = ((group, self._take(group)[1]) for group in pods)
        return tuple(replace(group, count=group.count - left) for group, left in taken)

    def place(self, pods: Iterable[PodGroup]) -> Placed | None:
        """Takes the room for all pods; returns None, and takes nothing, if they do not all fit."""
        done: Placed = []
        for group in sorted(pods, key=_order):
            moves, left = self._take(group)
            done += moves
            if left and not group.optional:
                self.free(done)
                return None
        return done

    def free(self, placed: Placed) -> None:
        """Gives back the room of the placements, in reverse order."""
        for before, after, count in reversed(placed):
            self._move(after, before, count)

    def _take(self, pods: PodGroup) -> tuple[Placed, int]:
        """The room taken, and the number of pods without room. Instances in use are filled first, so that
        whole ones stay free."""
        request, left = pods.deciding, pods.count
        if not request:
            return [], 0
        moves: Placed = []
        for before in sorted(
            self._free, key=lambda free_: sum(amount for name, amount in free_ if name in request)
        ):
            free = dict(before)
            # An instance has the resources that EC2 sells it with, and none that are unknown.
            most = min(int(free.get(name, 0.0) / amount) for name, amount in request.items())
            if not most or not left:
                continue
            whole = min(self._free[before], left // most)
            last = left - whole * most if whole < self._free[before] else 0
            for instances, per_instance in ((whole, most), (1 if last else 0, last)):
                if instances:
                    moves.append((before, _less(free, request, per_instance), instances))
                    left -= instances * per_instance
        for before, after, count in moves:
            self._move(before, after, count)
        return moves, left

    def _move(self, before: Left, after: Left, count: int) -> None:
        self._free[before] -= count
        if not self._free[before]:
            del self._free[before]
        self._free[after] += count


def _order(pods: PodGroup) -> tuple[bool, float]:
    """The largest first, after them those that nothing waits for."""
    return pods.optional, -max(pods.deciding.values(), default=0.0)


def _less(free: Amount, request: Amount, pods: int) -> Left:
    return tuple((name, amount - pods * request.get(name, 0.0)) for name, amount in sorted(free.items()))
