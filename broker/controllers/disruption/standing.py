"""Finds reserved nodes that stand already for the pods of nodes outside reservations.

Why: at scale-in, reserved nodes may be the ones that become empty. To end them and then to move the other
pods into their slots would launch again what stood there a minute before. So the pods move first: the node
outside ends, and no instance is launched.

Invariant: a reserved node that awaits such pods does not end, but no longer than pods may take to come.
If only some pods of a node outside fit, consolidation finds room for the others; the reserved node waits for
it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Final

from broker.apis import names
from broker.apis.meta import is_true, since
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.disruption.assumed import assumed_on, moving_pods
from broker.controllers.disruption.candidates import (
    PODS_ARRIVE_WITHIN,
    newly_consolidatable,
    usable_soon,
)
from broker.controllers.disruption.gangs import RunningGangs
from broker.controllers.disruption.returning import consolidates
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.placement.filters import place_on_others
from broker.placement.model import PodInfo
from broker.placement.quantities import CPU, MEMORY
from broker.placement.snapshot import PlacementSnapshot
from broker.reservations.claims import occupied_odcr
from broker.reservations.drawing import DrawRights

# How long an empty reserved node waits while other nodes drain, or become quiet: budgets start moves one
# after another.
DRAINED_WITHIN: Final = timedelta(minutes=30)
_SUMMED: Final = (CPU, MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingMove:
    """Nodes outside reservations with pods that all fit on these reserved nodes. `placed`: after it.

    They are one node, or those of a gang.
    """

    nodes: tuple[ManagedNode, ...]
    hosts: tuple[ManagedNode, ...]
    placed: PlacementSnapshot

    @property
    def message(self) -> str:
        hosts = ", ".join(host.claim.name for host in self.hosts)
        ending = ", ".join(node.claim.name for node in self.nodes)
        return f"NodeClaim {ending} ends: its pods fit on reserved nodes that stand ({hosts})"


class StandingNodes:
    """The reserved nodes of one pass."""

    def __init__(
        self,
        snapshot: DisruptionSnapshot,
        placement: PlacementSnapshot,
        free: Sequence[ManagedNode],
        usable: Collection[str],
        caches: ClaimCaches,
        rights: DrawRights,
    ) -> None:
        """`free`: the nodes that are in no disruption; `usable`: those that may get pods. `placement`: with
        the pods that ending nodes had.

        Pods that moved to a drifted node would move again.
        """
        self._snapshot, self._caches, self._rights = snapshot, caches, rights
        self._outside = {node.claim.uid: node for node in free if not occupied_odcr(node.claim)}
        self.reserved = [
            node
            for node in free
            if occupied_odcr(node.claim) and node.name in usable and since(node.claim, names.DRIFTED) is None
        ]
        self.placement = placement
        self._stuck: list[ManagedNode] = []  # single nodes that consolidation may end, without room for all

    def moves(self, gangs: RunningGangs, promised: Container[str]) -> Iterator[StandingMove]:
        """The possible moves one after another; a move that is made sets `placement`.

        Nodes with pods of one gang move together or not at all. `promised`: claims (by uid) of which the room
        is for pods that are not made anew yet.
        """
        for unit in self._units(gangs) if self.reserved else ():
            alike = [host for host in self._alike(unit) if host.claim.uid not in promised]
            pods = [pod for node in unit for pod in moving_pods(node, node.moving)]
            placed = None
            if self._may_hold(alike, pods):
                alike = [host for host in alike if host.name not in self._expecting]
                rest = self.placement.without_nodes({node.name for node in unit})
                placed = _all_placed(pods, rest, [host.name for host in alike])
            if placed is None and len(unit) == 1 and consolidates(unit[0].pool):
                self._stuck += unit
            if placed is not None:
                hosts = tuple(
                    host for host in alike if assumed_on(host, placed) != assumed_on(host, self.placement)
                )
                yield StandingMove(nodes=unit, hosts=hosts, placed=placed)

    def partial_hosts(self, timed_out: Callable[[], bool]) -> set[str]:
        """The uids of empty reserved nodes with room for some pods of a node that `moves` found no room for.

        Once the time is over, those that were not compared count, too.
        """
        empty = [host for host in self.reserved if not host.moving and not assumed_on(host, self.placement)]
        partial: set[str] = set()
        for node in self._stuck:
            hosts = [host for host in empty if host.claim.uid not in partial]
            waiting = self.kept(hosts, self.patience([node]))
            if timed_out():
                partial |= waiting
                continue
            for host in self._alike([node]):
                pods = moving_pods(node, node.moving) if host.claim.uid in waiting else []
                small = [pod for pod in pods if self._may_hold([host], [pod])]
                if len(place_on_others(small, self.placement, [host.name])[0]) < len(small):
                    partial.add(host.claim.uid)
        return partial

    def awaiting(self) -> set[str]:
        """The uids of empty reserved nodes that the pods of ending nodes may come to."""
        return self.kept([host for host in self.reserved if assumed_on(host, self.placement)], DRAINED_WITHIN)

    def kept(self, hosts: Iterable[ManagedNode], within: timedelta = PODS_ARRIVE_WITHIN) -> set[str]:
        """The uids of those that have not been empty for too long."""
        return {host.claim.uid for host in hosts if newly_consolidatable(host, self._snapshot.now, within)}

    def patience(self, nodes: Iterable[ManagedNode]) -> timedelta:
        """How long an empty reserved node waits for pods of these nodes, beside budgets."""
        quiet = all(is_true(node.claim, names.CONSOLIDATABLE) for node in nodes if consolidates(node.pool))
        return PODS_ARRIVE_WITHIN if quiet else DRAINED_WITHIN

    def _alike(self, unit: Iterable[ManagedNode]) -> list[ManagedNode]:
        """The reserved nodes that draw from the same reservation as all these nodes."""
        drawn = {node.drawn(self._rights) for node in unit}
        return [host for host in self.reserved if {host.drawn(self._rights)} == drawn]

    def _units(self, gangs: RunningGangs) -> Iterator[tuple[ManagedNode, ...]]:
        """Nodes that may end together; drifted ones of all pools, since these end in any case."""
        ending = {node.claim.uid for node in self._snapshot.nodes if node.claim.deleting}
        seen: set[str] = set()
        for uid in self._outside:
            members = gangs.unit(uid) - ending
            if uid in seen or not members <= self._outside.keys():
                continue
            seen |= members
            unit = tuple(self._outside[member] for member in sorted(members))
            if any(node.moving for node in unit) and all(map(_goes, unit)):
                yield unit

    def _may_hold(self, hosts: Sequence[ManagedNode], pods: Sequence[PodInfo]) -> bool:
        """Whether the hosts have the sums that the pods need: in a full cluster no more is tried."""
        room = dict.fromkeys(_SUMMED, 0)
        for host in hosts:
            for name, amount in self._room(host).items():
                room[name] += amount
        return all(sum(pod.requests.get(name, 0) for pod in pods) <= room[name] for name in _SUMMED)

    def _room(self, host: ManagedNode) -> Mapping[str, int]:
        state = self.placement.states.get(host.name)
        if state is None:
            return {}
        free = {name: state.node.allocatable.get(name, 0) - state.requested.get(name, 0) for name in _SUMMED}
        return {name: max(0, amount) for name, amount in free.items()}

    @cached_property
    def _expecting(self) -> Mapping[str, str]:
        """The hosts that waiting pods may use, by name of their node."""
        return usable_soon(self.reserved, self._caches, self._snapshot.occupancy)


def _all_placed(
    pods: Iterable[PodInfo], placement: PlacementSnapshot, hosts: Sequence[str]
) -> PlacementSnapshot | None:
    """The placement with all pods on these hosts; None if one does not fit."""
    for pod in pods:
        unplaced, placement = place_on_others([pod], placement, hosts)
        if unplaced:
            return None
    return placement


def _goes(node: ManagedNode) -> bool:
    return consolidates(node.pool) or (not node.static and since(node.claim, names.DRIFTED) is not None)
