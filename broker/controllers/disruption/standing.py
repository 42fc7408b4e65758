"""Finds reserved nodes that stand already for the pods of nodes outside reservations.

Why: at scale-in, reserved nodes may be the ones that become empty. To end them and then to move the other
pods into their slots would launch again what stood there a minute before. So the pods move first: the node
outside ends, and no instance is launched.

Invariant: a reserved node that awaits such pods does not end, but no longer than pods may take to come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.controllers.disruption.candidates import awaits_pods, newly_consolidatable
from broker.controllers.disruption.replacements import demand, place_on_others
from broker.controllers.disruption.returning import enabled, return_obstacle
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.kube.cache import Cache
from broker.placement.model import PodInfo
from broker.placement.quantities import CPU
from broker.placement.resources import node_resources_fit
from broker.placement.snapshot import PlacementSnapshot

_RESERVED = "reserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingMove:
    """A node outside reservations with pods that all fit on these reserved nodes. `placed`: after it."""

    node: ManagedNode
    hosts: tuple[ManagedNode, ...]
    placed: PlacementSnapshot

    @property
    def message(self) -> str:
        hosts = ", ".join(host.claim.name for host in self.hosts)
        return f"NodeClaim {self.node.claim.name} ends: its pods fit on reserved nodes that stand ({hosts})"


class StandingNodes:
    """The reserved nodes of one pass, in pools that return to reservations."""

    def __init__(
        self, snapshot: DisruptionSnapshot, free: Sequence[ManagedNode], claims: Cache[NodeClaim]
    ) -> None:
        """`free`: the nodes that are in no disruption. A replacement that awaits its pods has no room."""
        self._snapshot = snapshot
        self._pools = {
            pool.name for pool in snapshot.pools.values() if enabled(pool) and not return_obstacle(pool)
        }
        self._free = [node for node in free if node.pool.name in self._pools]
        self.reserved = [
            node
            for node in self._free
            if _kind(node) == _RESERVED and not awaits_pods(node, claims, snapshot.now)
        ]
        self.placement = snapshot.occupancy.placement

    def moves(self, gangs: Collection[str]) -> Iterator[StandingMove]:
        """The possible moves one after another; a move that is made sets `placement`.

        `gangs`: the uids of claims with pods of gangs, which move together or not at all.
        """
        for node in self._free if self.reserved else ():
            if _kind(node) == _RESERVED or not node.moving or node.claim.uid in gangs or node.node is None:
                continue
            alike = [host for host in self.reserved if _draws(host) == _draws(node)]
            usable = {host.node.name for host in alike if host.node is not None}
            pods, before = demand(node, node.moving).pods, self.placement
            if not _may_hold(usable, pods, before):
                continue
            unplaced, placed = place_on_others(pods, before.without_nodes({node.node.name}), usable)
            if not unplaced:
                taken = {name for name in usable if placed.states.get(name) is not before.states.get(name)}
                hosts = tuple(host for host in alike if host.node is not None and host.node.name in taken)
                yield StandingMove(node=node, hosts=hosts, placed=placed)

    def awaiting(self) -> set[str]:
        """The uids of empty reserved nodes that the pods of ending nodes may come to."""
        ending = {
            node.pool.name
            for node in self._snapshot.nodes
            if node.claim.deleting and _kind(node) != _RESERVED and node.claim.status.provider_id
        }
        return self.kept(host for host in self.reserved if host.pool.name in ending)

    def kept(self, hosts: Iterator[ManagedNode] | Sequence[ManagedNode]) -> set[str]:
        """The uids of those that have not been empty for too long."""
        return {host.claim.uid for host in hosts if newly_consolidatable(host, self._snapshot.now)}


def _may_hold(usable: Iterable[str], pods: Sequence[PodInfo], placement: PlacementSnapshot) -> bool:
    """Whether a node has the resources of the largest pod: full nodes are not tried any further."""
    largest = max(pods, key=lambda pod: pod.requests.get(CPU, 0))
    lacks = node_resources_fit(largest, placement)
    return any(not lacks(placement.states[name]) for name in usable if name in placement.states)


def _kind(node: ManagedNode) -> str:
    return node.claim.labels.get(names.CAPACITY_TYPE, "")


def _draws(node: ManagedNode) -> str:
    return node.claim.annotations.get(names.DRAWS_FROM, "")
