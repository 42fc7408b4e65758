"""Starts disruptions in Karpenter's order: broken, empty, drifted, underused nodes; then moves to idle slots.

Source: Karpenter, pkg/controllers/disruption (repair.go, emptiness.go, drift.go, controller.go).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

import structlog

from broker.apis import names
from broker.apis.meta import is_true, since
from broker.capacity.demand import units
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.disruption.assumed import after_endings, assumed_on
from broker.controllers.disruption.candidates import (
    PODS_ARRIVE_WITHIN,
    awaits_pods,
    newly_consolidatable,
    nominated_for,
    ready_to_go,
    usable_soon,
)
from broker.controllers.disruption.confirmation import Confirmation
from broker.controllers.disruption.consolidation import Consolidator
from broker.controllers.disruption.gangs import drifted_units, running_gangs
from broker.controllers.disruption.machines import MachineFinder
from broker.controllers.disruption.move_model import base_gang
from broker.controllers.disruption.moves import MoveController
from broker.controllers.disruption.permission import Permission
from broker.controllers.disruption.reboots import RebootController
from broker.controllers.disruption.repair_view import RepairReader
from broker.controllers.disruption.repairs import Repairs
from broker.controllers.disruption.replacing import Replacer, leaves_slot
from broker.controllers.disruption.report import DisruptionReporter
from broker.controllers.disruption.returning import (
    ReturnSelector,
    consolidates,
    return_obstacle,
    returns,
)
from broker.controllers.disruption.rollouts import unreadable
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.controllers.disruption.sources import DisruptionSources
from broker.controllers.disruption.standing import DRAINED_WITHIN, StandingNodes
from broker.controllers.disruption.usable import closed_nodes, leaving_soon, usable_nodes
from broker.controllers.newest import pods_on
from broker.controllers.provisioning.unused import UnusedNodes
from broker.kube.context import ControllerContext
from broker.placement.disruption_budgets import BudgetLedger
from broker.placement.disruption_pods import reschedulable
from broker.placement.snapshot import PlacementSnapshot
from broker.reservations.claims import occupied_odcr
from providers.errors import ProviderError

# Seconds of a pass for drifted nodes: each that cannot be replaced is compared with all nodes.
TRYING: Final = 5.0

_log = structlog.get_logger("disruption")


class DisruptionMethods:
    """`run` starts disruptions. Raises ApiError."""

    def __init__(
        self,
        context: ControllerContext,
        caches: ClaimCaches,
        sources: DisruptionSources,
        moves: MoveController,
        reporter: DisruptionReporter,
        confirmation: Confirmation,
    ) -> None:
        self._client, self._clock = context.client, context.clock
        self._caches, self._sources = caches, sources
        self._moves, self._reporter = moves, reporter
        self._replacer = Replacer(caches, sources, moves, reporter)
        self._permission = Permission(caches.pods, reporter)
        self._repairs = Repairs(
            context.client,
            caches.claims,
            RepairReader(context, caches.pools),
            RebootController(context, caches, sources.health, confirmation),
            self._replacer,
            self._permission,
            reporter,
        )
        self._consolidator = Consolidator(
            moves,
            self._replacer,
            self._permission,
            reporter,
            self._clock.monotonic,
        )
        self._unused = UnusedNodes(context, caches)
        self._expecting: dict[str, datetime] = {}  # reserved nodes (by claim): when pods last moved to them
        self._failed: dict[str, float] = {}  # by claim, when it was tried last and could not be replaced
        self._began: datetime | None = None
        self.unsettled: set[str] = set()
        self.returns = ReturnSelector(sources, lambda: context.clock.monotonic())

    def run(self, snapshot: DisruptionSnapshot) -> None:
        """Starts the disruptions that the budgets allow now."""
        ledger = snapshot.ledger()
        finder = MachineFinder(
            caches=self._caches,
            sources=self._sources,
            snapshot=snapshot,
            observed=self._sources.slots.snapshot(),
        )
        free = [node for node in snapshot.nodes if ready_to_go(node, snapshot.now)]
        leaving = leaving_soon(snapshot, finder.observed.inventory.odcrs)
        closed = closed_nodes(snapshot, self._caches).union(leaving.values())
        # None are needed where Karpenter launches the claims of all pools.
        usable = usable_nodes(self._caches.nodes.list(), closed) if snapshot.nodes else ()
        settled = after_endings(snapshot, usable)
        self._succeed(snapshot, finder, usable)
        in_repair, settled = self._repairs.run(finder, settled, usable, ledger)
        free = [node for node in free if node.claim.uid not in in_repair]
        staying = [node for node in free if node.claim.uid not in leaving]
        moved, placement, partial_hosts = self._move_to_standing(finder, settled, staying, usable, ledger)
        free = [node for node in free if node.claim.uid not in moved]
        ended = self._empty(snapshot, [node for node in free if node.claim.uid not in partial_hosts], ledger)
        free = [node for node in free if node.claim.uid not in ended]
        for node in free:
            if node.claim.uid in leaving and since(node.claim, names.DRIFTED) is not None:
                block = occupied_odcr(node.claim)
                self._reporter.blocked(
                    node, f"Cannot replace it: {block} drains within an hour, before its end"
                )
        free = [node for node in free if node.claim.uid not in leaving]
        started, placement = self._drifted(finder, placement, free, ledger, closed)
        # Pods that this pass moved to a node would have to move again.
        ended |= started | {
            node.claim.uid for node in free if assumed_on(node, placement) != assumed_on(node, settled)
        }
        # What it has read is read again: the replacements that this pass started wait for slots, too.
        free = [node for node in free if node.claim.uid not in ended]
        consolidated = self._consolidator.run(
            replace(finder),
            placement,
            free,
            lambda: usable_nodes(self._caches.nodes.list(), closed),
            ledger,
            promised=moved | ended,
        )
        if consolidated:
            self._expecting |= dict.fromkeys(partial_hosts, snapshot.now)
        free = [node for node in free if node.claim.uid not in consolidated]
        self._return(replace(finder), free, ledger)
        for pool, error in ledger.errors.items():
            self._reporter.pool_blocked(snapshot.pools[pool], "", error)

    def _succeed(self, snapshot: DisruptionSnapshot, finder: MachineFinder, usable: Sequence[str]) -> None:
        """Creates the successors of nodes that end; `unsettled` has the claims for which that was refused."""
        self.unsettled = {node.claim.uid for node in snapshot.nodes if leaves_slot(node)}
        placement = snapshot.occupancy.placement
        for node in snapshot.nodes:
            if node.claim.uid in self.unsettled:
                with self._reporter.isolated(node):
                    if (full := self._with_pods(node)).moving:
                        placement = self._replacer.succeed(full, finder, placement, usable)
                    self.unsettled.discard(node.claim.uid)

    def _with_pods(self, node: ManagedNode) -> ManagedNode:
        """The node; before its only decision also with pods that the cache may lack."""
        if node.moving or not self._sources.successions.undecided(node.claim, self._clock.now()):
            return node
        assert node.node is not None
        return replace(node, pods=pods_on(self._client, node.node.name))

    def _move_to_standing(
        self,
        finder: MachineFinder,
        placement: PlacementSnapshot,
        free: Sequence[ManagedNode],
        usable: Collection[str],
        ledger: BudgetLedger,
    ) -> tuple[set[str], PlacementSnapshot, set[str]]:
        """Ends nodes outside reservations if their pods fit on reserved nodes that stand.

        Returns the uids of these nodes and of reserved nodes that await pods, the placement after it, and the
        uids of empty reserved nodes that consolidation may fill.
        """
        snapshot = finder.snapshot
        standing = StandingNodes(snapshot, placement, free, usable, self._caches, finder.observed.rights)
        # A successor may come some time after the node of its pod is gone.
        awaiting = standing.awaiting()
        self._expecting |= dict.fromkeys(awaiting, snapshot.now)
        empty = {host.claim.uid for host in standing.reserved if not host.moving}
        self._expecting = {
            uid: at
            for uid, at in self._expecting.items()
            if uid in empty and snapshot.now - at < PODS_ARRIVE_WITHIN
        }
        touched = {*self._expecting, *self._of_predecessor(standing, snapshot.now)}
        promised = self._expecting.keys() - awaiting
        if not standing.reserved:
            return touched, standing.placement, set()
        gangs = running_gangs(snapshot, self._caches.owned())
        pods_wait = self._permission.pods_wait(snapshot.now)
        until = self._clock.monotonic() + TRYING
        for move in standing.moves(gangs, promised):
            if self._clock.monotonic() > until:
                touched |= standing.kept(standing.reserved)  # any of them may be a host of the moves to come
                break
            touched |= standing.kept(move.hosts, standing.patience(move.nodes))
            if pods_wait or finder.values.rejection(move.nodes):
                continue
            if not all(self._may_move(node, snapshot) for node in move.nodes):
                continue
            if not self._permission.all_allowed(move.nodes, ledger, "Underutilized"):
                if all(ledger.limit(node.pool.name, "Underutilized") for node in move.nodes):
                    touched |= standing.kept(move.hosts, DRAINED_WITHIN)
                continue
            standing.placement = move.placed
            touched |= {node.claim.uid for node in (*move.nodes, *move.hosts)}
            with self._reporter.isolated(move.nodes[0]):
                if not self._moves.end(move.nodes, "ReturnToReservation"):
                    continue
                self._expecting |= {host.claim.uid: snapshot.now for host in move.hosts}
                for node in move.nodes:
                    ledger.take(node.pool.name, "Underutilized")
                    saving = f"saves ${finder.values.by_uid[node.claim.uid].price:.4f} an hour"
                    self._reporter.returning(node.claim, move.hosts[0].claim, f"{move.message}: {saving}")
        return touched, standing.placement, standing.partial_hosts(lambda: self._clock.monotonic() > until)

    def _of_predecessor(self, standing: StandingNodes, now: datetime) -> set[str]:
        """The uids of nodes that were empty as this process began: pods may be on their way to them."""
        self._began = self._began or now
        if now - self._began >= PODS_ARRIVE_WITHIN:
            return set()
        times = {
            node.claim.uid: since(node.claim, names.CONSOLIDATABLE)
            for node in standing.reserved
            if not node.moving
        }
        return {uid for uid, at in times.items() if at is not None and at < self._began}

    def _may_move(self, node: ManagedNode, snapshot: DisruptionSnapshot) -> bool:
        """Whether nothing but budgets keeps the pods where they are."""
        return (
            consolidates(node.pool)
            and is_true(node.claim, names.CONSOLIDATABLE)
            and self._permission.may(node, snapshot)
        )

    def _empty(
        self, snapshot: DisruptionSnapshot, free: Iterable[ManagedNode], ledger: BudgetLedger
    ) -> set[str]:
        """Ends nodes without pods that need another. Returns the uids of their claims."""
        ended: set[str] = set()
        # A pod that went since the pass began makes its node wait for consolidateAfter anew.
        occupied = {pod.spec.node_name for pod in snapshot.occupancy.pods if reschedulable(pod)}
        empty = [
            node
            for node in free
            if not node.moving
            and node.node is not None
            and node.node.name not in occupied
            and is_true(node.claim, names.CONSOLIDATABLE)
            and not awaits_pods(node.claim, self._caches.claims, snapshot.now)
            and self._permission.may(node, snapshot)
        ]
        fresh = [node for node in empty if newly_consolidatable(node, snapshot.now)]
        usable = usable_soon(fresh, self._caches, snapshot.occupancy)
        for node in empty:
            if node.node is not None and (pod := usable.get(node.node.name)):
                self._reporter.blocked(node, nominated_for(pod))
                continue
            if not self._permission.allowed(node, ledger, "Empty"):
                continue
            with self._reporter.isolated(node):
                if self._moves.end_empty(node, partial(self._keeps_no_room, node)):
                    ledger.take(node.pool.name, "Empty")
                    ended.add(node.claim.uid)
                    self._unused.record(node.claim, snapshot.now)
        return ended

    def _keeps_no_room(self, node: ManagedNode) -> bool:
        """Reads the API server, since the caches may lack the newest reservations."""
        assert node.node is not None
        return not self._sources.reads.occupancy.keeps_room(self._client, node.node.name, self._clock.now())

    def _drifted(
        self,
        finder: MachineFinder,
        placement: PlacementSnapshot,
        free: Sequence[ManagedNode],
        ledger: BudgetLedger,
        closed: Collection[str],
    ) -> tuple[set[str], PlacementSnapshot]:
        """Replaces drifted nodes, those that drifted first in front, and those of a gang together.

        A unit that could not be replaced comes last in the next passes, and a pass tries units for `TRYING`
        seconds. Returns the uids of the claims, and the placement with the pods that it moved.
        """
        snapshot = finder.snapshot
        started: set[str] = set()
        units = [*drifted_units(snapshot, free, self._caches.owned(), self._reporter)]
        uids = {node.claim.uid for _, unit in units for node in unit}
        self._failed = {uid: at for uid, at in self._failed.items() if uid in uids}
        units.sort(key=lambda pair: max(self._failed.get(node.claim.uid, 0.0) for node in pair[1]))
        spent = 0.0
        for gang, unit in units:
            unit = [
                n for n in unit if n.moving or not awaits_pods(n.claim, self._caches.claims, snapshot.now)
            ]
            # Empty ones of a gang get no replacement: they end once the others have theirs.
            nodes = [node for node in unit if node.moving or node.holds or node.static] or unit
            if not all(self._permission.may(node, snapshot, eventual=True) for node in nodes):
                continue
            if not nodes or not self._permission.all_allowed(nodes, ledger, "Drifted"):
                continue
            if spent > TRYING:
                break
            began = self._clock.monotonic()
            self._failed |= dict.fromkeys((node.claim.uid for node in nodes), began)
            with self._reporter.isolated(nodes[0]):
                placed = self._replacer.replace_nodes(
                    nodes, gang, finder, placement, usable_nodes(self._caches.nodes.list(), closed)
                )
                if placed is not None:
                    placement = placed
                    started |= {node.claim.uid for node in nodes}
            spent += self._clock.monotonic() - began
            for node in nodes:
                if node.claim.uid in started or self._replacer.replaced(node):
                    ledger.take(node.pool.name, "Drifted")
                    del self._failed[node.claim.uid]
        return started, placement

    # ---- return to reservations

    def _return(self, finder: MachineFinder, free: Sequence[ManagedNode], ledger: BudgetLedger) -> None:
        """Moves claims into idle slots."""
        snapshot = finder.snapshot
        inventory = finder.observed.inventory
        if inventory.described is None:
            return
        self.returns.observe(inventory, snapshot.now)
        idle = self.returns.idle(snapshot.now)
        blocked: set[str] = set()
        for pool in snapshot.pools.values():
            for problem in unreadable(pool):
                self._reporter.annotation_refused(pool, problem)
            if reason := return_obstacle(pool):
                self._reporter.annotation_refused(pool, reason)
                blocked.add(pool.name)
        if not idle or self._permission.pods_wait(snapshot.now):
            return
        candidates = [
            node
            for node in free
            if node.pool.name not in blocked
            and returns(node)
            and node.moving
            and is_true(node.claim, names.CONSOLIDATABLE)
            and not occupied_odcr(node.claim)
            and self._permission.may(node, snapshot)
            and self._may_grow(node, finder)
        ]
        pools = {node.pool.name for node in candidates}
        budgets = {pool: ledger.remaining(pool, "Underutilized") for pool in pools}
        try:
            moves = self.returns.select(finder, candidates, idle, budgets)
        except ProviderError as error:
            _log.warning("no claim returns to a reservation: types are unknown", error=str(error))
            return
        for unit in units(moves, lambda move: move.gang):
            counts = Counter(move.demand.node.pool.name for move in unit)
            pairs = finder.within_limits([(move.demand, move.machines) for move in unit])
            if all(machines for _, machines in pairs) and all(
                ledger.remaining(name, "Underutilized") >= count for name, count in counts.items()
            ):
                for name, count in counts.items():
                    ledger.take(name, "Underutilized", count)
                with self._reporter.isolated(unit[0].demand.node):
                    self._replacer.begin(
                        pairs,
                        "ReturnToReservation",
                        "; ".join(move.message for move in unit),
                        finder,
                        gang=base_gang(unit[0].gang),
                    )

    def _may_grow(self, node: ManagedNode, finder: MachineFinder) -> bool:
        if problem := finder.over_limits([node]):
            self._reporter.blocked(node, f"Cannot return to a reservation: {problem}")
        return not problem
