"""Starts replacements: of nodes that drifted, of claims that move, of nodes that end without the broker.

Invariant: a node ends only if its pods fit elsewhere, or a claim for them exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition, is_true, since
from broker.controllers.claim_caches import ClaimCaches, replacements
from broker.controllers.claim_status import replaced_uids
from broker.controllers.disruption.assumed import assumed_on
from broker.controllers.disruption.machines import OVER_LIMITS, MachineFinder
from broker.controllers.disruption.move_model import MoveLabel, base_gang, move_id
from broker.controllers.disruption.moves import MoveController
from broker.controllers.disruption.replacements import (
    Demand,
    Pair,
    body,
    demand,
    replacement_name,
)
from broker.controllers.disruption.report import Cause, DisruptionReporter
from broker.controllers.disruption.rollouts import ReplaceWay, replace_way, rollout_obstacle
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.disruption.sources import DisruptionSources
from broker.controllers.provisioning.preferences import BOUGHT, PLACED, WAITS
from broker.controllers.provisioning.usage import NODES, node_room
from broker.kube.cache import Cache
from broker.placement.filters import place_on_others
from broker.placement.model import PodInfo
from broker.placement.preferences import as_placed, drops_of, preferring
from broker.placement.snapshot import PlacementSnapshot
from broker.placement.spread import counting
from broker.reservations.claims import occupied_odcr
from broker.text import InvalidText


class _Plan(NamedTuple):
    """Where the pods of nodes go: `placed` on others, or to machines. `problem`: why nothing may start.

    `stops`: nor by another plan.
    """

    placed: PlacementSnapshot
    pairs: Sequence[Pair] = ()
    problem: str = ""
    stops: bool = False

    @property
    def result(self) -> int:
        if self.problem or not all(machines for _, machines in self.pairs):
            return WAITS
        slots = (needed.joins or machines[0].source for needed, machines in self.pairs)
        return PLACED if all(slots) else BOUGHT


@dataclass(frozen=True, kw_only=True)
class _ReplacementPlanner:
    """Plans the replacement of nodes in one pass, with as many preferences of their pods as in provisioning.

    `way`: by default the pool's. `broken`: the nodes end also where nothing may be made before that.
    """

    demands: Sequence[Demand]
    claims: Cache[NodeClaim]
    finder: MachineFinder
    before: PlacementSnapshot
    usable: Sequence[str]
    way: ReplaceWay | None
    broken: bool

    def best(self) -> _Plan:
        """All preferences, else those that hold now, else none. A free slot outweighs them.

        The last resort counts no domain of topology spread that only ending nodes are in.
        """
        rules = [[*self.finder.counted(item.pods)] for item in self.demands]
        every = [[preferring(pod, 0) for pod in pods] for pods in rules]
        plan = self._plan(every)
        if plan.stops:
            return plan
        if plan.result != PLACED and any(map(drops_of, chain.from_iterable(rules))):
            names_ = (node.name for node in self._nodes)
            held = [as_placed(pods, name, self.before) for pods, name in zip(rules, names_, strict=True)]
            if held not in (every, rules):
                plan = _better(plan, self._plan(held))
            plan = _better(plan, self._plan(rules))
        if (
            plan.result == WAITS
            and not plan.problem
            and any(rule.offered for pods in rules for pod in pods for rule in pod.spread)
        ):
            plan = self._plan([[counting(pod, {}) for pod in pods] for pods in rules])
        return plan

    def _plan(self, pods: Sequence[Sequence[PodInfo]]) -> _Plan:
        """`pods`: of each node."""
        placement = self.before.without_nodes({node.name for node in self._nodes} - {""})
        unplaced, placed = place_on_others([*chain.from_iterable(pods)], placement, self.usable)
        static = any(node.static for node in self._nodes)
        if not unplaced and not static:
            return _Plan(placed)
        if static or len(self._nodes) > 1:
            placed = placement
        else:
            pods = [unplaced]
        if self._over_limits:
            return _Plan(placed, problem=self._over_limits)
        try:
            way = self.way or replace_way(self._nodes[0].pool)
            obstacle = self._obstacle
        except InvalidText as error:
            obstacle = str(error)
        if obstacle:
            return _Plan(placed, problem=obstacle, stops=True)
        demands = [replace(item, pods=tuple(own)) for item, own in zip(self.demands, pods, strict=True)]
        widest = [self.finder.find(item, placed, way, unit=len(demands)) for item in demands]
        pairs = self.finder.within_limits(widest)
        problem = self._beyond_limit([needed for needed, _ in pairs])
        if problem and self.broken:
            return _Plan(placed)  # as in Karpenter: its pool makes another node once it is gone
        return _Plan(placed, pairs, problem)

    @cached_property
    def _nodes(self) -> Sequence[ManagedNode]:
        return [item.node for item in self.demands]

    @cached_property
    def _over_limits(self) -> str:
        return self.finder.over_limits(self._nodes)

    @cached_property
    def _obstacle(self) -> str:
        """Raises InvalidText."""
        return rollout_obstacle(self._nodes, self.claims, self.finder.snapshot.now)

    def _beyond_limit(self, demands: Sequence[Demand]) -> str:
        """Why a static pool may have no more nodes beside those that are replaced, as in Karpenter.

        A successor in the slot of its node is launched only once that is gone.
        """
        beside = [needed for needed in demands if needed.node.static and not needed.slot]
        pool = beside[0].node.pool if beside else None
        room = node_room(pool, self.claims.list()) if pool else None
        if pool is None or room is None or len(beside) <= room:
            return ""
        return f"spec.limits.nodes of NodePool {pool.name} is {pool.spec.limits[NODES]}: raise it"


class Replacer:
    """Starts moves of nodes to replacements. Raises ApiError."""

    def __init__(
        self,
        caches: ClaimCaches,
        sources: DisruptionSources,
        moves: MoveController,
        reporter: DisruptionReporter,
    ) -> None:
        self._caches, self._sources = caches, sources
        self._moves, self._reporter = moves, reporter

    def replaced(self, node: ManagedNode) -> bool:
        """Whether a replacement exists, also if a later step of its start was refused."""
        return any(node.claim.uid in replaced_uids(claim) for claim in replacements(self._caches.claims))

    def replace_nodes(
        self,
        nodes: Sequence[ManagedNode],
        gang: str,
        finder: MachineFinder,
        before: PlacementSnapshot,
        usable: Sequence[str],
        *,
        cause: Cause = "Drifted",
        why: str = "",
        way: ReplaceWay | None = None,
    ) -> PlacementSnapshot | None:
        """Ends drifted or broken nodes if their pods fit on others; else starts replacements.

        Of a single node, pods that fit on others need none. Each of several nodes gets a replacement for all
        its pods, so that the pods of a gang stay apart as they are. Pods that this pass moved to the nodes
        move on with the others. `usable`: the nodes that may get pods. `way`: by default the pool's. Returns
        the placement after it; None if nothing was started.
        """
        if any(names.CAPACITY_TYPE not in node.claim.labels for node in nodes):
            return None  # EC2 has not shown yet whether they are in a reservation
        demands = [demand(node, node.moving, assumed_on(node, before)) for node in nodes]
        plan = _ReplacementPlanner(
            demands=demands,
            claims=self._caches.claims,
            finder=finder,
            before=before,
            usable=usable,
            way=way,
            broken=cause == "Unhealthy",
        ).best()
        if not plan.pairs and not plan.problem:
            return plan.placed if self._moves.end(nodes, cause) else None
        if plan.problem:
            for node in nodes:
                self._reporter.blocked(node, f"Cannot replace it: {plan.problem}")
            return None
        if not self._have_machines(plan.pairs):
            return None
        drifted = condition(nodes[0].claim.status.conditions, names.DRIFTED)
        message = f"{cause}: {why or (drifted.reason if drifted else '')}; {_shown(plan.pairs[0])}"
        gang_name = base_gang(gang) if len(nodes) > 1 else ""
        begun = self.begin(plan.pairs, cause, message, finder, gang=gang_name)
        return plan.placed if begun else None

    def succeed(
        self, node: ManagedNode, finder: MachineFinder, before: PlacementSnapshot, usable: Sequence[str]
    ) -> PlacementSnapshot:
        """Creates the claim that takes over the slot of a node that ends, if its pods fit nowhere else.

        Whoever ended it: a person, its expiry, an event of EC2. Returns the placement after it.
        """
        assert node.node is not None
        needed = demand(node, node.moving)
        placement = before.without_nodes({node.node.name})
        unplaced, placed = place_on_others(needed.pods, placement, usable)
        if not unplaced:
            return placed
        widest = finder.find(replace(needed, pods=tuple(unplaced)), placement, "terminate-first")
        (pair,) = finder.within_limits([widest])
        needed, machines = pair
        if not needed.slot or not machines or finder.over_limits([node]):
            return placement  # its pods get machines as any others do
        self.begin([pair], "Ended", f"NodeClaim {node.claim.name} ends; {_shown(pair)}", finder)
        return placed

    def _have_machines(self, pairs: Sequence[Pair]) -> bool:
        """Whether all replacements can be made; reports the problem of the others."""
        for needed, machines in pairs:
            if not machines:
                problem = needed.problem or OVER_LIMITS.format(needed.node.pool.name)
                self._reporter.blocked(needed.node, f"Cannot replace it: {problem}")
        return all(machines for _, machines in pairs)

    def begin(
        self,
        pairs: Sequence[Pair],
        cause: Cause,
        message: str,
        finder: MachineFinder,
        *,
        gang: str = "",
    ) -> bool:
        olds = [node for needed, _ in pairs for node in needed.nodes]
        label = MoveLabel(id=move_id(olds, finder.snapshot.now), size=len(olds), cause=cause)
        bodies = [
            (
                needed.nodes,
                body(
                    needed,
                    machines,
                    rights=finder.observed.rights,
                    name=replacement_name(needed.node, label.id),
                    move=str(label),
                    gang=(f"{gang}.{label.id}", len(pairs)) if gang else None,
                ),
            )
            for needed, machines in pairs
        ]
        with self._sources.creating():
            if problem := finder.not_placed(body_ for _, body_ in bodies):
                self._reporter.blocked(pairs[0][0].node, f"Cannot replace it now: {problem}")
                return False
            if not finder.admit(pairs):
                self._have_machines([(needed, []) for needed, _ in pairs])
                return False
            return self._moves.start(bodies, label, message)


def _better(plan: _Plan, looser: _Plan) -> _Plan:
    """The looser one only for a slot instead of a purchase, or if nothing else goes."""
    slots = bool(looser.pairs) and looser.result < plan.result
    return looser if slots or plan.result == WAITS else plan


def leaves_slot(node: ManagedNode) -> bool:
    """Whether a node ends and leaves its slot to none: no claim is evicted for, or replaces it."""
    claim = node.claim
    return (
        claim.deleting
        and bool(occupied_odcr(claim))
        and not node.static  # the loop of static pools makes their successors
        and node.node is not None
        and node.replacement is None
        and not node.pool.deleting
        and not is_true(claim, names.PREEMPTED)
        and since(claim, names.DISRUPTION_REASON) is None
    )


def _shown(pair: Pair) -> str:
    """The way of a replacement, as its event names it."""
    needed, machines = pair
    if needed.slot:
        return f"it ends first, and its successor takes over its slot of {needed.slot}"
    if needed.joins:
        return f"its successor is launched first, beside {needed.joins}, and is counted there afterwards"
    first, slot = machines[0], occupied_odcr(needed.node.claim)
    place = f"a free slot of {first.source}" if first.source else f"{first.capacity_type} {first.zone}"
    place += f"; no slot of {slot} is free for it" if slot and not first.source else ""
    return f"its successor is launched first ({place})"
