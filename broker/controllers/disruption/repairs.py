"""Repairs broken nodes: reboots them or replaces them in their slots, by the rules of their pools.

Source: Karpenter, pkg/controllers/disruption/repair.go. Pods that may not be disrupted hold no repair up,
since its drain has a bound. The budgets for `Unhealthy` pace it; a node that never was ready needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import since
from broker.controllers.disruption.conditions import backing_off
from broker.controllers.disruption.machines import MachineFinder
from broker.controllers.disruption.permission import Permission
from broker.controllers.disruption.reboots import RebootController
from broker.controllers.disruption.repair_history import bound_drain
from broker.controllers.disruption.repair_view import RepairReader, RepairView
from broker.controllers.disruption.replacing import Replacer
from broker.controllers.disruption.report import DisruptionReporter
from broker.controllers.disruption.rollouts import ReplaceWay
from broker.controllers.disruption.snapshot import ManagedNode
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.placement.disruption_budgets import BudgetLedger
from broker.placement.reboots import reboots_of
from broker.placement.repair import Diagnosis, obstacle_of_repair
from broker.placement.snapshot import PlacementSnapshot


class Repairs:
    """`run` starts repairs, and takes reboots further. Raises ApiError."""

    def __init__(
        self,
        client: Client,
        claims: Cache[NodeClaim],
        reader: RepairReader,
        reboots: RebootController,
        replacer: Replacer,
        permission: Permission,
        reporter: DisruptionReporter,
    ) -> None:
        self._client, self._claims = client, claims
        self._reader, self._reboots = reader, reboots
        self._replacer, self._permission, self._reporter = replacer, permission, reporter

    def run(
        self,
        finder: MachineFinder,
        placement: PlacementSnapshot,
        usable: Sequence[str],
        ledger: BudgetLedger,
    ) -> tuple[set[str], PlacementSnapshot]:
        """Returns the uids of the claims in repair, and the placement with the pods that it moved."""
        now, view = finder.snapshot.now, self._reader.read(finder.snapshot)
        for node in view.draining:  # its sign may have come since its drain began
            with self._reporter.isolated(node):
                bound_drain(self._client, self._claims, node, now)
        in_repair = self._rebooting(view, now)
        usable = [name for name in usable if name not in view.broken]
        for node, diagnosis in _due(view, now):
            if node.claim.uid in in_repair or not self._may(node, view, now):
                continue
            if node.initialized and not self._permission.allowed(node, ledger, "Unhealthy"):
                continue
            with self._reporter.isolated(node):
                placement = self._repair(node, diagnosis, finder, placement, usable)
            if self._begun(node):
                in_repair.add(node.claim.uid)
                if node.initialized:
                    ledger.take(node.pool.name, "Unhealthy")
        return in_repair, placement

    def _rebooting(self, view: RepairView, now: datetime) -> set[str]:
        """Takes the reboots further. Returns the uids of the claims with one under way."""
        uids: set[str] = set()
        for node in view.nodes:
            with self._reporter.isolated(node):
                if not self._reboots.advance(node, view.treatable(node), now):
                    continue
            uids.add(node.claim.uid)  # also if a step was refused: the next pass goes on
        return uids

    def _may(self, node: ManagedNode, view: RepairView, now: datetime) -> bool:
        """Whether the node may be repaired at all."""
        doubted = since(node.claim, names.INSTANCE_LISTED, "False") is not None  # its end is not certain
        if doubted or node.replacement is not None or backing_off(node.claim, now):
            return False
        if node.node is None or node.pool.name in view.stopped:
            return False
        if why := obstacle_of_repair(node.node, node.claim, view.rules[node.pool.name]):
            self._reporter.blocked(node, f"Cannot repair it: {why}")
        return not why

    def _repair(
        self,
        node: ManagedNode,
        diagnosis: Diagnosis,
        finder: MachineFinder,
        placement: PlacementSnapshot,
        usable: Sequence[str],
    ) -> PlacementSnapshot:
        """Returns the placement after it."""
        if diagnosis.sign.action == "reboot":
            self._reboots.start(node, diagnosis, finder.snapshot.now)
            return placement
        way: ReplaceWay | None = "terminate-first" if diagnosis.ends_first else None
        placed = self._replacer.replace_nodes(
            [node], "", finder, placement, usable, cause="Unhealthy", why=diagnosis.text, way=way
        )
        return placement if placed is None else placed

    def _begun(self, node: ManagedNode) -> bool:
        """Whether its repair began, also if a later step of its start was refused."""
        claim = self._claims.get(node.claim.name)
        if claim is None or claim.deleting or self._replacer.replaced(node):
            return True
        return reboots_of(claim).current is not None


def _due(view: RepairView, now: datetime) -> list[tuple[ManagedNode, Diagnosis]]:
    """The nodes of which a repair is due, those first that are due longest."""
    known = [(node, view.diagnoses.get(node.claim.uid)) for node in view.nodes]
    due = [(node, item) for node, item in known if item is not None and item.sign.due <= now]
    return sorted(due, key=lambda pair: (pair[1].sign.due, pair[0].claim.name))
