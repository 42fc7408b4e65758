"""The broker's claims with their nodes, pods and pools, as one disruption pass reads them.

Invariant: only claims that the broker launches, with an existing NodePool, are in it. Claims of dedicated
clusters and claims without a pool are never disrupted here, except when they expire.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool, pods_of
from broker.apis.meta import is_true
from broker.apis.policy import PodDisruptionBudget
from broker.apis.static_pools import static
from broker.controllers.claim_caches import BY_NODE, ClaimCaches, replacements
from broker.controllers.claim_status import replaced_uids, replaces
from broker.controllers.nodereservation.occupancy import NodeOccupancy
from broker.kube.cache import Cache
from broker.kube.derived import Derived
from broker.placement.binding import tied
from broker.placement.claims import hold_over, successor_units, taken_over
from broker.placement.disruption_budgets import BudgetLedger, PoolNodes
from broker.placement.disruption_pods import reschedulable
from broker.placement.storage import Storage
from broker.quota.usage import ReservationKey
from broker.reservations.drawing import DrawRights


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedNode:
    """A claim of a NodePool, with its Node once it has joined, and the pods on that.

    `unreadable`: a Node of it is left out of the cache. `replacement`: the claim that is to replace it.
    `holds`: the names of the reservations that keep room on the Node for pods to come. `tied`: the keys of
    the pods whose volumes keep them in its zone.
    """

    claim: NodeClaim
    pool: NodePool
    node: Node | None = None
    pods: tuple[Pod, ...] = ()
    holds: tuple[str, ...] = ()
    tied: frozenset[str] = frozenset()
    unreadable: bool = False
    replacement: NodeClaim | None = None

    @property
    def name(self) -> str:
        """The Node's name; empty before it has joined."""
        return self.node.name if self.node is not None else ""

    @property
    def zone(self) -> str:
        return self.claim.labels.get(names.ZONE, "")

    def drawn(self, rights: DrawRights) -> ReservationKey | None:
        """The owner of slots that the claim draws from. A refused name has no effect."""
        owner = rights.of_claim(self.claim)
        return owner if isinstance(owner, ReservationKey) else None

    @property
    def place(self) -> str:
        """The claim's capacity type, instance type and zone."""
        keys = (names.CAPACITY_TYPE, names.INSTANCE_TYPE, names.ZONE)
        return ", ".join(self.claim.labels.get(key, "?") for key in keys)

    @property
    def initialized(self) -> bool:
        return self.node is not None and is_true(self.claim, names.INITIALIZED_CONDITION)

    @property
    def static(self) -> bool:
        """Whether the pool holds a fixed number of nodes."""
        return static(self.pool)

    @property
    def moving(self) -> tuple[Pod, ...]:
        """The pods that need another node if this one ends."""
        return tuple(pod for pod in self.pods if reschedulable(pod))


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionSnapshot:
    """All managed nodes at one moment. `occupancy`: all nodes of the cluster at the beginning of the pass.

    `cached`: the nodes without holds; the same object while nothing in the caches has changed.
    """

    now: datetime
    nodes: tuple[ManagedNode, ...] = ()
    pools: Mapping[str, NodePool] = field(default_factory=dict)
    budgets: Sequence[PodDisruptionBudget] = ()
    occupancy: NodeOccupancy = field(default_factory=NodeOccupancy)
    cached: Sequence[ManagedNode] = ()

    def by_uid(self, uid: str) -> ManagedNode | None:
        return next((node for node in self.nodes if node.claim.uid == uid), None)

    def ledger(self) -> BudgetLedger:
        """The disruptions that are allowed now, by pool."""
        return BudgetLedger(
            {name: pool.spec.disruption.budgets for name, pool in self.pools.items()},
            {name: self._counts(name) for name in self.pools},
            self.now,
        )

    def _counts(self, pool: str) -> PoolNodes:
        """Initialized nodes count until their instance ends, and from then on the successors in their slots.
        Of them, those that go, are not there yet or are not Ready.
        """
        counted = [
            node
            for node in self.nodes
            if node.pool.name == pool
            and node.initialized
            and not is_true(node.claim, names.INSTANCE_TERMINATING)
        ]
        leaving = [
            node
            for node in counted
            if node.claim.deleting
            or node.replacement is not None
            or (node.node is not None and (node.node.deleting or node.node.rebooting))
        ]
        standing = {node.claim.uid for node in counted}
        units = successor_units(node.claim for node in self.nodes)
        kept = {claim.uid for unit in units if not hold_over(unit, self.now) for claim in unit}
        away = [
            node
            for node in self.nodes
            if node.pool.name == pool and _away(node, kept) and replaces(node.claim)[1] not in standing
        ]
        unready = [node for node in counted if node.node is not None and not node.node.ready]
        disrupted = {node.claim.uid for node in (*leaving, *unready, *away)}
        return PoolNodes(
            total=len(counted) + len(away), disrupted=len(disrupted), leaving=len(leaving) + len(away)
        )


def _away(node: ManagedNode, kept: Collection[str]) -> bool:
    """Whether it takes over the slot of another node, and is not there yet. `kept`: claims with a hold."""
    claim = node.claim
    if not taken_over(claim)[0] or node.initialized or claim.deleting:
        return False
    return not claim.waits or claim.uid in kept


class DisruptionSnapshotBuilder:
    """Builds snapshots from caches."""

    def __init__(
        self,
        caches: ClaimCaches,
        budgets: Cache[PodDisruptionBudget],
        *,
        storage: Callable[[], Storage],
        disrupts: Callable[[NodePool], bool],
    ) -> None:
        """`disrupts`: the broker launches the pool's claims, and so disrupts them."""
        self._caches = caches
        self._budgets = budgets
        self._storage = storage
        self._disrupts = disrupts
        self._known = Derived(
            self._read,
            *(caches.claims, caches.nodes, caches.pods, caches.pools),
            also=lambda: (caches.taken(), storage()),
        )

    def current(self, snapshot: DisruptionSnapshot) -> DisruptionSnapshot:
        """The snapshot as the caches have it now; a pass reads it again after its writes."""
        return self.read(snapshot.now, snapshot.occupancy)

    def read(self, now: datetime, occupancy: NodeOccupancy) -> DisruptionSnapshot:
        pools, nodes = self._known()
        return DisruptionSnapshot(
            now=now,
            nodes=tuple(_with_holds(node, occupancy) for node in nodes),
            pools=pools,
            budgets=self._budgets.list(),
            occupancy=occupancy,
            cached=nodes,
        )

    def _read(self) -> tuple[Mapping[str, NodePool], tuple[ManagedNode, ...]]:
        pools = {pool.name: pool for pool in self._caches.pools.list() if self._disrupts(pool)}
        successors = (claim for claim in replacements(self._caches.claims) if self._caches.owns(claim))
        replaced = {uid: claim for claim in successors if not claim.deleting for uid in replaced_uids(claim)}
        return pools, tuple(
            self._node(claim, pools[pool], replaced.get(claim.uid))
            for claim in self._caches.owned()
            if (pool := claim.node_pool) in pools and names.DEDICATED not in claim.labels
        )

    def _node(self, claim: NodeClaim, pool: NodePool, replacement: NodeClaim | None) -> ManagedNode:
        nodes, left_out = self._caches.nodes_of(claim)
        known: dict[str, Any] = {"claim": claim, "pool": pool, "replacement": replacement}
        if left_out is not None or len(nodes) != 1:
            return ManagedNode(**known, unreadable=left_out is not None)
        pods = self._caches.pods.by(BY_NODE, nodes[0].name)
        storage = self._storage()
        return ManagedNode(
            **known,
            node=nodes[0],
            pods=tuple(pods),
            tied=frozenset(pod.key for pod in pods if tied(pod, storage)),
        )


def _with_holds(node: ManagedNode, occupancy: NodeOccupancy) -> ManagedNode:
    """The node with its holds, and with the reservations that it was made for and that are not placed yet."""
    if node.node is None or not (occupancy.unplaced or occupancy.held):
        return node
    unplaced = (occupancy.unplaced[key].name for key in pods_of(node.claim) if key in occupancy.unplaced)
    return replace(node, holds=(*occupancy.held.get(node.name, ()), *unplaced))
