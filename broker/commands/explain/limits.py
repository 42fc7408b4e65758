"""The limits of NodePools in `explain pod`: the pools and the options that they rule out now.

The amounts are those of provisioning: a claim in flight counts with its largest machine. Limits of what
follows from settings of the class, such as `pods`, are not judged here: the pod's report names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from broker.apis.karpenter import NodePool
from broker.apis.units import whole
from broker.capacity.model import ANY_CLASS
from broker.capacity.reasons import OVER_LIMIT
from broker.capacity.types import OF_CLASS, capacity
from broker.controllers.provisioning.usage import (
    NODES,
    LargestMachines,
    limit_amounts,
    pool_limits,
    unreadable,
)
from broker.oncall.situation import Situation
from broker.placement.model import PodInfo
from broker.placement.pool_choice import PoolVerdict, of_broker, pool_node
from broker.placement.type_reasons import OVER_LIMIT as POOL_LIMIT
from broker.placement.type_reasons import limits_exceeded


def _beyond(row: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    return {**row, "verdict": "unfit", "reason": OVER_LIMIT, "message": text}


def all_beyond(rows: Iterable[Mapping[str, Any]], resource: str) -> list[Mapping[str, Any]]:
    """The options of a pod whose report says that the pool's limit of the resource admits none: a gang's
    machines together exceed a limit that each alone does not.
    """
    text = f"{POOL_LIMIT}{resource} has no room for the machines of the pod and its gang"
    return [row if row["verdict"] == "unfit" else _beyond(row, text) for row in rows]


@dataclass(frozen=True)
class PoolLimits:
    """What the limits of the broker's NodePools leave."""

    situation: Situation

    def judged(self, verdict: PoolVerdict, pod: PodInfo) -> PoolVerdict:
        """The verdict, with a rejection if the limits leave room for no type that could have the pod."""
        if verdict.rejection or verdict.pool.name not in self._left:
            return verdict
        suits, selections = self.situation.around.room.suits, [*pool_node(verdict.pool).selections(pod)]
        names = [name for name in self.situation.types if suits(name, pod, selections)]
        exceeded = {name: self.exceeded(verdict.pool, [name]) for name in names}
        if not names or not all(exceeded.values()):
            return verdict
        return replace(verdict, rejection=self.exceeded(verdict.pool, names))

    def options(self, pool: NodePool, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """The options of a claim that the pool would make; those beyond its limits are unfit."""
        for row in rows:
            text = self.exceeded(pool, [row["instance_type"]])
            yield _beyond(row, text) if text else row

    def beyond(self, pool: NodePool) -> frozenset[str]:
        """The instance types of which the limits leave room for none."""
        return frozenset(name for name in self.situation.types if self.exceeded(pool, [name]))

    def exceeded(self, pool: NodePool, types: Iterable[str]) -> str:
        """The limits that the smallest of these types exceeds; empty if none, or no type is known."""
        known = self.situation.types
        machines = {
            name: {**whole(capacity(known[name], ANY_CLASS)), NODES: 1} for name in types if name in known
        }
        left = {name: most for name, most in self._left.get(pool.name, {}).items() if name not in OF_CLASS}
        if not machines or not left:
            return ""
        return "; ".join(limits_exceeded(machines, left, left, limit_amounts(pool.spec.limits)))

    @cached_property
    def _left(self) -> Mapping[str, Mapping[str, int]]:
        """By the name of each pool with limits."""
        situation = self.situation
        pools = [pool for pool in situation.pools if of_broker(pool) and not unreadable(pool)]
        largest = LargestMachines(situation.types, lambda _: None)
        return pool_limits(pools, situation.claims, situation.nodes, largest)
