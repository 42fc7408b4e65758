"""Which nodes of a pass are broken, and which pools have too many of them; reports both.

Why a limit: if much of a pool breaks at once, a network, an image or a driver is broken rather than the
nodes, and fresh nodes would break as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.meta import ConditionUpdate, condition, is_true
from broker.controllers.disruption.repair_history import (
    BrokenCount,
    broken_count,
    recent_repairs,
    repairs_update,
)
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.controllers.pool_conditions import try_conditions
from broker.kube.cache import Cache
from broker.kube.context import ControllerContext
from broker.kube.events import Reference
from broker.lists import lists_by_key
from broker.oncall.broken import next_step
from broker.oncall.metrics import GaugeTable
from broker.placement.repair import Diagnosis, diagnose, obstacle_of_repair
from broker.placement.repair_policies import AT_MOST, RepairRules, most_broken, rules_of
from broker.text import InvalidText, counted, format_time

UNHEALTHY: Final = "NodeUnhealthy"
STOPPED: Final = "NodeRepairBlocked"  # Karpenter's
INVALID: Final = "InvalidRepairRules"
TOO_MANY: Final = "TooManyUnhealthy"

BROKEN = GaugeTable(
    "capacity_broker_nodes_broken",
    "Nodes with a sign of a broken node, by NodePool and sign.",
    ["nodepool", "sign"],
)
STOPPED_POOLS = GaugeTable(
    "capacity_broker_repair_stopped",
    "The number of broken nodes of each NodePool that is not repaired because they are too many.",
    ["nodepool"],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairView:
    """The broken nodes of one pass. `diagnoses`: by the uid of the claim. `stopped`: pools, by name.

    `draining`: nodes that end already, and have a sign of which the repair is due.
    """

    nodes: Sequence[ManagedNode]
    draining: Sequence[ManagedNode]
    rules: Mapping[str, RepairRules]
    diagnoses: Mapping[str, Diagnosis]
    stopped: frozenset[str]

    def treatable(self, node: ManagedNode) -> Diagnosis | None:
        """The diagnosis of a broken node that may be repaired; None of any other."""
        diagnosis = self.diagnoses.get(node.claim.uid)
        if diagnosis is None or node.node is None or node.pool.name in self.stopped:
            return None
        rules = self.rules[node.pool.name]
        return None if obstacle_of_repair(node.node, node.claim, rules) else diagnosis

    @property
    def broken(self) -> frozenset[str]:
        """The names of broken nodes."""
        broken = (node.node for node in self.nodes if node.claim.uid in self.diagnoses)
        return frozenset(node.name for node in broken if node is not None)


class RepairReader:
    """Diagnoses all nodes, and reports what is broken. Raises nothing of Kubernetes'."""

    def __init__(self, context: ControllerContext, pools: Cache[NodePool]) -> None:
        self._client, self._recorder = context.client, context.recorder
        self._pools = pools
        self._reported: dict[Reference, None] = {}  # objects with an event of a broken node that lasts

    def read(self, snapshot: DisruptionSnapshot) -> RepairView:
        nodes = [node for node in snapshot.nodes if joined(node)]
        rules = {name: rules_of(pool) for name, pool in snapshot.pools.items()}
        diagnoses = {
            node.claim.uid: diagnosis
            for node in nodes
            if node.node is not None
            and (diagnosis := diagnose(node.node, node.claim, rules[node.pool.name], snapshot.now))
        }
        draining = [
            node
            for node in snapshot.nodes
            if node.node is not None
            and node.claim.deleting
            and (known := diagnose(node.node, node.claim, rules[node.pool.name], snapshot.now))
            and known.sign.due <= snapshot.now
            and not obstacle_of_repair(node.node, node.claim, rules[node.pool.name])
        ]
        counts = self._counts(snapshot, nodes, diagnoses)
        stopped = {
            name: count.counted
            for name, count in counts.items()
            if rules[name].on and self._stops(snapshot.pools[name], count, snapshot.now)
        }
        view = RepairView(
            nodes=nodes,
            draining=[node for node in draining if node.pool.name not in stopped],
            rules=rules,
            diagnoses=diagnoses,
            stopped=frozenset(stopped),
        )
        STOPPED_POOLS.show({(name,): count for name, count in stopped.items()})
        self._report(view, snapshot)
        return view

    def _counts(
        self,
        snapshot: DisruptionSnapshot,
        nodes: Sequence[ManagedNode],
        diagnoses: Mapping[str, Diagnosis],
    ) -> Mapping[str, BrokenCount]:
        """Writes the recent repairs of each pool without those that are over."""
        claims = lists_by_key((node.pool.name, node.claim) for node in snapshot.nodes)
        own = lists_by_key((node.pool.name, node) for node in nodes)
        counts: dict[str, BrokenCount] = {}
        for name, known in snapshot.pools.items():
            pool = self._pools.get(name) or known
            repairs = recent_repairs(pool, claims.get(name, ()), snapshot.now)
            update, without = repairs_update(repairs), names.RECENT_REPAIRS
            try_conditions(self._client, self._pools, pool, update, now=snapshot.now, without=without)
            counts[name] = broken_count(own.get(name, ()), diagnoses, repairs)
        return counts

    def _stops(self, pool: NodePool, count: BrokenCount, now: datetime) -> bool:
        """Whether too many nodes of the pool are broken; writes its condition and its event."""
        most = self._most(pool, count.nodes)
        stops = count.broken > 0 and count.counted > most
        update = ConditionUpdate(type=names.REPAIR_ALLOWED, status="True", reason="Allowed")
        if stops:
            ended = f" and {counted(count.repaired, 'node')} ended by repair lately" if count.repaired else ""
            message = (
                f"{count.broken} of {counted(count.nodes, 'node')} of NodePool {pool.name} are broken"
                f"{ended}, and at most {most} may be: none is repaired until fewer are. Find their common "
                f"cause, or raise {names.REPAIR_AT_MOST} on the NodePool"
            )
            update = ConditionUpdate(
                type=names.REPAIR_ALLOWED, status="False", reason=TOO_MANY, message=message
            )
            self._recorder.event(pool, "Warning", STOPPED, message, topic=STOPPED)
        else:
            self._recorder.ended(pool, STOPPED)
        if stops or condition(pool.status.conditions, names.REPAIR_ALLOWED) is not None:
            try_conditions(self._client, self._pools, pool, update, now=now)
        return stops

    def _most(self, pool: NodePool, nodes: int) -> int:
        try:
            return most_broken(pool.annotations.get(names.REPAIR_AT_MOST, AT_MOST), nodes)
        except InvalidText as error:
            message = f"{error}; {AT_MOST} holds"
            self._recorder.event(pool, "Warning", INVALID, message, topic=message)
            return most_broken(AT_MOST, nodes)

    def _report(self, view: RepairView, snapshot: DisruptionSnapshot) -> None:
        """Events of what is broken, and of rules that cannot be read."""
        counts: Counter[tuple[str, ...]] = Counter()
        for name, rules in view.rules.items():
            if rules.problem:
                pool = snapshot.pools[name]
                self._recorder.event(pool, "Warning", INVALID, rules.problem, topic=rules.problem)
        before, self._reported = self._reported, {}
        for node in view.nodes:
            diagnosis = view.diagnoses.get(node.claim.uid)
            if diagnosis is None or node.node is None:
                continue
            counts.update((node.pool.name, sign) for sign in {item.policy.sign for item in diagnosis.signs})
            next_, at = next_step(node.claim, node.node, node.pool, diagnosis, snapshot.now)
            due = f" ({format_time(at)})" if at is not None else ""
            message = f"{diagnosis.text}: {next_}{due}"
            for subject in (node.claim, node.node):
                self._recorder.event(subject, "Warning", UNHEALTHY, message, topic=UNHEALTHY)
                self._reported[Reference.of(subject)] = None
        for reference in before.keys() - self._reported.keys():
            self._recorder.ended(reference, UNHEALTHY)
        BROKEN.show(dict(counts))


def joined(node: ManagedNode) -> bool:
    """Whether the node is registered, known, and does not end."""
    return (
        node.node is not None
        and not node.unreadable
        and not node.claim.deleting
        and not node.node.deleting
        and is_true(node.claim, names.REGISTERED_CONDITION)
    )
