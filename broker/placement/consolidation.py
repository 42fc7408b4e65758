"""Which nodes end because the others have room for their pods, or because a cheaper machine holds these.

A slot is paid for in any case, so that a node in a reservation has no price: to end it saves nothing, and a
bought one never takes its place.

Invariant: the nodes cost less after each step, all pods that move have room, and no reserved node ends. A
node that gets pods in a pass stays in that pass.

Source: Karpenter 1.15, pkg/controllers/disruption (consolidation.go, multinodeconsolidation.go, balanced.go).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker.placement.filters import place_on_others
from broker.placement.model import PodInfo
from broker.placement.preferences import as_placed
from broker.placement.snapshot import PlacementSnapshot

ON_DEMAND: Final = "on-demand"
SPOT: Final = "spot"
# The least score of a move under the policy Balanced (Karpenter: 1/BalancedK).
LEAST_SCORE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeValue:
    """What a node costs, in dollars an hour: 0 in a reservation, or if no price is known.

    `disruption`: the cost of moving its pods, at least 1. `balanced`: its pool has the policy Balanced.
    """

    uid: str
    pool: str
    instance_type: str
    capacity_type: str
    price: float
    disruption: float
    balanced: bool = False

    @property
    def bought(self) -> bool:
        return self.capacity_type in (ON_DEMAND, SPOT) and self.price > 0


class Score(NamedTuple):
    """The shares of a pool's cost that a move saves, and of its disruption that it causes."""

    saved: float
    disrupted: float

    @property
    def value(self) -> float:
        if self.saved <= 0:
            return 0.0
        return self.saved / self.disrupted if self.disrupted else math.inf

    def __str__(self) -> str:
        return (
            f"score {self.value:.2f}, at least {LEAST_SCORE:.2f} is needed (savings {self.saved:.1%}, "
            f"disruption {self.disrupted:.1%})"
        )


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """The cost and the disruption of all nodes of each pool, reserved ones too."""

    cost: Mapping[str, float] = field(default_factory=dict)
    disruption: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[NodeValue]) -> PoolTotals:
        cost: defaultdict[str, float] = defaultdict(float)
        disruption: defaultdict[str, float] = defaultdict(float)
        for node in nodes:
            cost[node.pool] += node.price
            disruption[node.pool] += node.disruption
        return cls(cost, disruption)

    def rejection(self, ending: Sequence[NodeValue], after: float = 0.0) -> str:
        """Why the policy Balanced of a pool forbids to end these nodes; empty if it does not.

        `after`: the price of the machine in their place. Each pool has its share of the savings by its share
        of the price before.
        """
        before = sum(node.price for node in ending)
        for pool in sorted({node.pool for node in ending if node.balanced}):
            nodes = [node for node in ending if node.pool == pool]
            share = sum(node.price for node in nodes) / before if before else 0.0
            score = Score(
                saved=_part((before - after) * share, self.cost.get(pool, 0.0)),
                disrupted=_part(sum(node.disruption for node in nodes), self.disruption.get(pool, 0.0)),
            )
            if score.value < LEAST_SCORE:
                return f"consolidationPolicy of NodePool {pool} is Balanced: {score}"
        return ""


def ranked(nodes: Iterable[NodeValue]) -> list[NodeValue]:
    """The nodes that save the most for the least disruption in front."""
    return sorted(nodes, key=lambda node: (-node.price / node.disruption, node.uid))


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A node that may end, with the pods that move, and the nodes that may get them, preferred ones first."""

    value: NodeValue
    node: str
    pods: tuple[PodInfo, ...]
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A node of which all pods fit on others: these `hosts`."""

    leaving: Leaving
    hosts: tuple[str, ...]


def plan_deletions(
    candidates: Sequence[Leaving],
    placement: PlacementSnapshot,
    budgets: Mapping[str, int],
    totals: PoolTotals,
    may_end: Callable[[Leaving], bool],
) -> tuple[list[Deletion], PlacementSnapshot]:
    """The nodes that end, of candidates in order, and the placement after it.

    `budgets`: nodes by pool. `may_end`: whether nothing keeps the node; it is called where its pods fit.
    """
    left, used, ended = dict(budgets), set[str](), set[str]()
    deletions: list[Deletion] = []
    for leaving in candidates:
        value = leaving.value
        if leaving.node in used or left.get(value.pool, 0) <= 0:
            continue
        if not value.bought or totals.rejection([value]):
            continue
        hosts = [name for name in leaving.hosts if name not in ended and name != leaving.node]
        without = placement.without_nodes({leaving.node})
        unplaced, placed = place_on_others(leaving.pods, without, hosts)
        if not unplaced and any(pod.preferences for pod in leaving.pods):
            preferring = as_placed(leaving.pods, leaving.node, placement)
            unplaced, placed = place_on_others(preferring, without, hosts)
        if unplaced or not may_end(leaving):
            continue
        taking = tuple(name for name in hosts if _more(name, placement, placed))
        deletions.append(Deletion(leaving=leaving, hosts=taking))
        placement = placed
        used.update(taking)
        ended.add(leaving.node)
        left[value.pool] -= 1
    return deletions, placement


class MachineOffer(NamedTuple):
    """A machine outside reservations, and its dollars an hour; None if unknown."""

    instance_type: str
    zone: str
    capacity_type: str
    price: float | None


def cheaper(
    ending: Sequence[NodeValue], offers: Iterable[MachineOffer], allowed: Collection[str]
) -> list[MachineOffer]:
    """The offers that may take the place of these nodes. `allowed`: the capacity types of the pool.

    Spot nodes stay where the new one could be a spot node again. If spot is cheaper, the new node is one:
    where spot capacity is short, the old ones stay. Several nodes do not end for one of their own types that
    is no cheaper than to keep it.
    """
    if not all(node.bought for node in ending):
        return []
    if SPOT in allowed and all(node.capacity_type == SPOT for node in ending):
        return []
    below = _below(offers, sum(node.price for node in ending))
    if len(ending) > 1:
        types = {offer.instance_type for offer in below}
        kept = [node.price for node in ending if node.instance_type in types]
        below = _below(below, min(kept, default=math.inf))
    spot = [offer for offer in below if offer.capacity_type == SPOT]
    return spot or below


def _below(offers: Iterable[MachineOffer], limit: float) -> list[MachineOffer]:
    kinds = (ON_DEMAND, SPOT)
    return [o for o in offers if o.capacity_type in kinds and o.price is not None and o.price < limit]


def _more(node: str, before: PlacementSnapshot, after: PlacementSnapshot) -> bool:
    return len(after.states[node].pods) > len(before.states[node].pods)


def _part(amount: float, whole: float) -> float:
    return amount / whole if whole > 0 else 0.0
