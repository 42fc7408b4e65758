"""Sorts the queue into units: a gang that is bound whole or not at all, or one pod or reservation.

Invariant: a gang that has begun comes before those that have not. Only a failed write or a restart leaves a
gang in part; its other pods then get their room before another gang takes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass

from broker.apis.core import Pod
from broker.capacity.demand import units
from broker.controllers.scheduler.queue import Waiting, in_turn
from broker.placement.gangs import (
    ALONE,
    GroupSizes,
    PodGang,
    gang_of,
    is_member,
    unread,
    waits_for_pods,
)
from broker.text import counted


@dataclass(frozen=True, slots=True)
class PlacementUnit:
    """`started`: the members that have or had their place. `obstacle`: why none may be placed yet."""

    items: tuple[Waiting, ...]
    gang: PodGang = ALONE
    started: int = 0
    obstacle: str = ""

    @property
    def needed(self) -> int:
        """The number of items that must have a place, so that any is bound."""
        return max(1, self.gang.size - self.started) if self.gang.size else len(self.items)

    @property
    def pods(self) -> tuple[Pod, ...]:
        return tuple(item for item in self.items if isinstance(item, Pod))


def units_in_turn(
    waiting: Collection[Waiting], pods: Iterable[Pod], sizes: GroupSizes, assumed: Container[str]
) -> list[PlacementUnit]:
    """The units in the order in which they are tried: a gang at the turn of its first pod.

    `pods`: all that exist. `assumed`: the uids of pods with a place that the caches do not show.
    """
    gangs = {item.uid: gang_of(item, sizes) for item in waiting if isinstance(item, Pod)}
    members = _Members.of(gangs.values(), pods, sizes, assumed)
    begun = {uid for uid, gang in gangs.items() if members.started[gang.name] and not members.whole(gang)}

    def together(item: Waiting) -> str:
        gang = gangs.get(item.uid, ALONE)
        return "" if members.whole(gang) else gang.name

    return [
        members.unit(items, gangs.get(items[0].uid, ALONE))
        for items in units(in_turn(waiting, begun), together)
    ]


@dataclass(frozen=True, slots=True)
class _Members:
    """Members by the name of their gang: all that exist, and those with a place. `unread`: see there."""

    present: Counter[str]
    started: Counter[str]
    unread: Mapping[str, PodGang]

    @classmethod
    def of(
        cls,
        gangs: Iterable[PodGang],
        pods: Iterable[Pod],
        sizes: GroupSizes,
        assumed: Container[str],
    ) -> _Members:
        names = {gang.name for gang in gangs if gang.name}
        started, known = Counter[str](), list[PodGang]()
        for pod in pods if names else ():
            gang = gang_of(pod, sizes)
            if gang.name in names and is_member(pod):
                known.append(gang)
                started[gang.name] += bool(pod.spec.node_name) or pod.uid in assumed
        return cls(Counter(gang.name for gang in known), started, unread(known))

    def whole(self, gang: PodGang) -> bool:
        """Whether so many members have a place that others are placed one by one."""
        return 0 < gang.size <= self.started[gang.name]

    def unit(self, items: list[Waiting], gang: PodGang) -> PlacementUnit:
        if not gang.name or self.whole(gang):
            return PlacementUnit(tuple(items))
        started = self.started[gang.name]
        obstacle = waits_for_pods(
            self.unread.get(gang.name, gang), self.present[gang.name], started + len(items)
        )
        return PlacementUnit(tuple(items), gang, started, obstacle)


def whole_or_not(unit: PlacementUnit, without: int) -> str:
    """Why a pod of the gang waits, although it has a place itself. `without`: the pods that have none."""
    pods = counted(without, "pod")
    return f"gang {unit.gang.name} is placed whole or not at all: {pods} of it cannot be placed now"
