"""Finds reserved nodes that stand already for the pods of nodes outside reservations.

Why: at scale-in, reserved nodes may be the ones that become empty. To end them and then to move the other
pods into their slots would launch again what stood there a minute before. So the pods move first: the node
outside ends, and no instance is launched.

Invariant: a reserved node that awaits such pods does not end, but no longer than pods may take to come.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Final

from broker.apis import names
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.claim_status import since
from broker.controllers.disruption.assumed import assumed_on, moving_pods
from broker.controllers.disruption.candidates import (
    PODS_ARRIVE_WITHIN,
    awaits_pods,
    newly_consolidatable,
    nominated,
    usable_soon,
)
from broker.controllers.disruption.gangs import RunningGangs
from broker.controllers.disruption.returning import consolidates
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.placement.model import PodInfo
from broker.placement.moving import place_on_others
from broker.placement.quantities import CPU, MEMORY
from broker.placement.snapshot import PlacementSnapshot
from broker.quota.usage import ReservationKey
from broker.reservations.drawing import DrawRights

# How long an empty reserved node waits while other nodes drain: budgets start moves one after another.
DRAINED_WITHIN: Final = timedelta(minutes=30)
_RESERVED: Final = "reserved"
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
        caches: ClaimCaches,
        rights: DrawRights,
    ) -> None:
        """`free`: the nodes that are in no disruption. `placement`: with the pods that ending nodes had.

        A replacement that awaits its pods has no room, nor has a node with a pod to come. Pods that moved
        to a drifted node would move again.
        """
        self._snapshot, self._caches, self._rights = snapshot, caches, rights
        self._outside = {node.claim.uid: node for node in free if not _reserved(node)}
        self.reserved = [
            node
            for node in free
            if _reserved(node)
            and node.node is not None
            and node.node.ready
            and since(node.claim, names.DRIFTED) is None
            and not awaits_pods(node.claim, caches.claims, snapshot.now)
            and not nominated(node, caches.pods.find)
        ]
        self.placement = placement

    def moves(self, gangs: RunningGangs, promised: Container[str]) -> Iterator[StandingMove]:
        """The possible moves one after another; a move that is made sets `placement`.

        Nodes with pods of one gang move together or not at all. `promised`: claims (by uid) of which the room
        is for pods that are not made anew yet.
        """
        for unit in self._units(gangs) if self.reserved else ():
            drawn = {self._drawn(node) for node in unit}
            alike = [
                host
                for host in self.reserved
                if {self._drawn(host)} == drawn and host.claim.uid not in promised
            ]
            pods = [pod for node in unit for pod in moving_pods(node, node.moving)]
            if not self._may_hold(alike, pods):
                continue
            alike = [host for host in alike if _name(host) not in self._expecting]
            ending = {_name(node) for node in unit}
            placed = _all_placed(pods, self.placement.without_nodes(ending), [_name(host) for host in alike])
            if placed is not None:
                hosts = tuple(
                    host for host in alike if assumed_on(host, placed) != assumed_on(host, self.placement)
                )
                yield StandingMove(nodes=unit, hosts=hosts, placed=placed)

    def awaiting(self) -> set[str]:
        """The uids of empty reserved nodes that the pods of ending nodes may come to."""
        return self.kept([host for host in self.reserved if assumed_on(host, self.placement)], DRAINED_WITHIN)

    def kept(self, hosts: Iterable[ManagedNode], within: timedelta = PODS_ARRIVE_WITHIN) -> set[str]:
        """The uids of those that have not been empty for too long."""
        return {host.claim.uid for host in hosts if newly_consolidatable(host, self._snapshot.now, within)}

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

    def _drawn(self, node: ManagedNode) -> ReservationKey | None:
        """The owner of slots that the claim draws from. A refused name has no effect."""
        drawn = self._rights.of_claim(node.claim)
        return drawn if isinstance(drawn, ReservationKey) else None

    def _may_hold(self, hosts: Sequence[ManagedNode], pods: Sequence[PodInfo]) -> bool:
        """Whether the hosts have the sums that the pods need: in a full cluster no more is tried."""
        room = dict.fromkeys(_SUMMED, 0)
        for host in hosts:
            for name, amount in self._room(host).items():
                room[name] += amount
        return all(sum(pod.requests.get(name, 0) for pod in pods) <= room[name] for name in _SUMMED)

    def _room(self, host: ManagedNode) -> Mapping[str, int]:
        state = self.placement.states.get(_name(host))
        if state is None:
            return {}
        free = {name: state.node.allocatable.get(name, 0) - state.requested.get(name, 0) for name in _SUMMED}
        return {name: max(0, amount) for name, amount in free.items()}

    @cached_property
    def _expecting(self) -> Mapping[str, str]:
        """The hosts that waiting pods may use, by name of their node."""
        return usable_soon(self.reserved, self._caches.pods.list(), self._snapshot.occupancy)


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


def _reserved(node: ManagedNode) -> bool:
    return node.claim.labels.get(names.CAPACITY_TYPE, "") == _RESERVED


def _name(node: ManagedNode) -> str:
    return node.node.name if node.node is not None else ""
