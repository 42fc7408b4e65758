"""Selects claims that move into reserved slots which stay idle, with the savings of each move.

A claim moves if its pool asks for it, or if the broker itself launched it outside reservations. An instance
that EC2 can count in the slot as it runs moves only after EC2 had time for that: nothing restarts then.

Invariant: claims that wait come first. The moves are planned together with them, as launches are, and only a
move that gets a slot beside all of them is made. The plan is not recorded: the launch loop plans again.
Prices are the provider's; a claim without a known price does not move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import condition
from broker.apis.static_pools import number_of_nodes, static
from broker.capacity.absorption import absorbs
from broker.capacity.inventory import Inventory
from broker.capacity.matching import expiring
from broker.capacity.model import Claim, Option
from broker.capacity.plan import plan
from broker.capacity.requirements import InvalidRequirement
from broker.capacity.returning import (
    IdleSince,
    ReturnCandidate,
    choose_moves,
    idle_for,
    observe_idle,
)
from broker.controllers.claim_status import LIMIT_EXCEEDED
from broker.controllers.disruption.conditions import NEVER
from broker.controllers.disruption.gangs import running_gangs
from broker.controllers.disruption.machines import MachineFinder
from broker.controllers.disruption.replacements import (
    Demand,
    beside_daemons,
    demand,
    planned,
)
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.disruption.sources import DisruptionSources
from broker.placement.claims import in_gangs
from broker.placement.packing_model import MachineOption

# How long a slot must have been idle at least: by then a claim that needs it has requested it.
LEAST_IDLE: Final = timedelta(minutes=1)
# How long a node could stay at least: pods that must leave a Capacity Block at its end would move twice, and
# one in another reservation that ends saves nothing any more.
LEAST_STAY: Final = timedelta(hours=1)
_RESERVED: Final = (names.CAPACITY_TYPE, "In", ("reserved",))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnMove:
    """A claim that moves, and the machines of the option that it moves into. `saving`: dollars an hour.

    `gang`: it moves together with the others of it; empty for none.
    """

    demand: Demand
    option: Option
    machines: list[MachineOption]
    saving: float
    gang: str = ""

    @property
    def message(self) -> str:
        node, pool = self.demand.node, self.option.pool
        slot = ", ".join(self.option.odcr_ids)
        return (
            f"NodeClaim {node.claim.name} ({node.place}) moves into an idle slot of {slot} "
            f"({pool.instance_type}, {pool.zone}): saves ${self.saving:.4f} an hour"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnOffer:
    """The machines in idle slots that hold the pods of a claim, by reservation; `claim`: as it is planned."""

    demand: Demand
    claim: Claim
    slots: Mapping[str, MachineOption]

    def move(self, option: Option, candidate: ReturnCandidate) -> ReturnMove:
        return ReturnMove(
            demand=self.demand,
            option=option,
            machines=[machine for id_, machine in self.slots.items() if id_ in option.odcr_ids],
            saving=candidate.saving,
            gang=candidate.gang,
        )


class ReturnSelector:
    """Remembers since when slots are idle; a new process waits anew."""

    def __init__(self, sources: DisruptionSources, timer: Callable[[], float]) -> None:
        self._sources, self._timer = sources, timer
        self._idle: IdleSince = {}
        self._seen = Inventory()
        self._free: Mapping[str, int] = {}

    def observe(self, inventory: Inventory, now: datetime) -> None:
        """Notes the free slots. A use between two calls goes unseen if the slot is free again."""
        if inventory != self._seen:
            self._free = {id_: count for id_ in inventory.odcrs if (count := inventory.free(id_))}
        self._seen = inventory
        until = now + LEAST_STAY
        free = {id_: count for id_, count in self._free.items() if not expiring(inventory.odcrs[id_], until)}
        self._idle = observe_idle(self._idle, free, now)

    def idle(self, now: datetime) -> Mapping[str, int]:
        """The slots of each ODCR that were idle for long enough to move into."""
        return idle_for(self._idle, LEAST_IDLE, now)

    def select(
        self,
        finder: MachineFinder,
        candidates: Sequence[ManagedNode],
        idle: Mapping[str, int],
        budgets: Mapping[str, int],
    ) -> list[ReturnMove]:
        """The moves to start now. `candidates` may be disrupted; `budgets`: moves by pool.

        Raises ProviderError.
        """
        if not candidates or not any(budgets.values()):
            return []
        supply, waiting = finder.supply, finder.waiting
        values = finder.values
        savings = {node.claim.uid: values.by_uid[node.claim.uid].price for node in candidates}
        rated = [n for n in candidates if savings[n.claim.uid] > 0.0 and not values.rejection([n])]
        if not rated:
            return []
        gangs = running_gangs(finder.snapshot, finder.owned)
        offers: dict[str, ReturnOffer] = {}
        for node in rated:
            alone = len(gangs.of.get(node.claim.uid, ())) < 2  # to move both would need more than whole gangs
            if alone and (offer := _offer(node, finder, self._left_by_ec2(node, finder, idle))) is not None:
                offers[node.claim.uid] = offer
        possible = [
            ReturnCandidate(
                uid=uid,
                name=offer.demand.node.claim.name,
                pool=offer.demand.node.pool.name,
                saving=savings[uid],
                slots=tuple(offer.slots),
                gang=min(gangs.of.get(uid, ()), default=""),
            )
            for uid, offer in offers.items()
        ]
        chosen = choose_moves(gangs.whole(possible), idle, budgets)
        if not chosen:
            return []
        # Claims that wait are planned first, since every move is ranked behind them.
        last = min((claim.priority for claim in waiting.values()), default=0) - 1
        movers = [
            replace(offers[item.uid].claim, priority=last, gang=item.gang and f"{item.gang}\0move")
            for item in chosen
        ]
        result = plan(
            [*waiting.values(), *movers],
            supply,
            launched=in_gangs(finder.owned),
            seconds=self._sources.reads.settings.plan_seconds,
            timer=self._timer,
        )
        placed = {
            assignment.claim.uid: assignment.option
            for assignment in result.assignments
            if (offer := offers.get(assignment.claim.uid)) is not None
            and not offer.slots.keys().isdisjoint(assignment.option.odcr_ids)
        }
        whole = gangs.whole([item for item in chosen if item.uid in placed])
        return [offers[item.uid].move(placed[item.uid], item) for item in whole]

    def _left_by_ec2(
        self, node: ManagedNode, finder: MachineFinder, idle: Mapping[str, int]
    ) -> Mapping[str, int]:
        """The idle slots in which EC2 cannot count the node's instance, or did not in time."""
        instance = self._sources.instances().get(node.claim.instance_id)
        if instance is None:
            return idle
        inventory = finder.observed.inventory
        waited = idle_for(self._idle, max(LEAST_IDLE, self._sources.absorption), finder.snapshot.now)
        return {
            id_: count
            for id_, count in idle.items()
            if id_ in waited or not absorbs(inventory.odcrs[id_], instance, inventory.groups)
        }


def returns(node: ManagedNode) -> bool:
    """Whether the node may move: as its pool says, otherwise if the broker put it outside."""
    text = node.pool.annotations.get(names.RETURN_TO_RESERVATIONS)
    if text is not None:
        return text == "true"
    return consolidates(node.pool) and _put_outside(node.claim)


def _put_outside(claim: NodeClaim) -> bool:
    """Whether the broker launched the claim outside because its reservations were full."""
    current = condition(claim.status.conditions, names.CAPACITY_RESERVATION)
    return current is not None and (current.status, current.reason) == ("False", LIMIT_EXCEEDED)


def consolidates(pool: NodePool) -> bool:
    """Whether nodes of the pool may end although they have pods that fit elsewhere."""
    disruption = pool.spec.disruption
    return (
        disruption.consolidation_policy != "WhenEmpty"
        and disruption.consolidate_after != NEVER
        and not static(pool)
    )


def return_obstacle(pool: NodePool) -> str:
    """The reason why a pool that enables returns gets none; empty if it gets them, or enables none."""
    text = pool.annotations.get(names.RETURN_TO_RESERVATIONS)
    if text is None or text == "false":
        return ""
    field = f"metadata.annotations[{names.RETURN_TO_RESERVATIONS}]"
    if text != "true":
        return f"{field} is {text!r}: write true or false"
    disruption = pool.spec.disruption
    if disruption.consolidation_policy == "WhenEmpty":
        return (
            f"{field} is true, but spec.disruption.consolidationPolicy is WhenEmpty, which keeps nodes with "
            "pods: use WhenEmptyOrUnderutilized"
        )
    if disruption.consolidate_after == NEVER:
        return f"{field} is true, but spec.disruption.consolidateAfter is Never: set a duration such as 5m"
    if number := number_of_nodes(pool):
        return f"{field} is true, but {number}: such a pool is not consolidated"
    return ""


def _offer(node: ManagedNode, finder: MachineFinder, idle: Mapping[str, int]) -> ReturnOffer | None:
    """The idle slots that hold all pods of the node; None without one.

    A slot of another owner is none of them: the claim would have to leave it again. A return evicts no
    borrower.
    """
    assert node.node is not None
    needed = demand(node, node.moving)
    try:
        claim = planned(needed, uid=node.claim.uid, name=f"{node.claim.name}-moved", only=(_RESERVED,))
    except InvalidRequirement:
        return None
    if claim.requirements.problems() or claim.node_class not in finder.supply.classes:
        return None
    if finder.catalog.candidates(claim).slots.keys().isdisjoint(idle):
        return None
    placement = finder.snapshot.occupancy.placement.without_nodes({node.node.name})
    fitting, unfit = finder.fitting(needed, claim, placement)
    usable = {item.machine.source for item in fitting if item.open and not item.way.borrows} & idle.keys()
    needed = replace(needed, unfit=tuple(unfit))
    ((_, allowed),) = finder.within_limits([(needed, [item.machine for item in fitting])])
    slots = {machine.source: machine for machine in allowed if machine.source in usable}
    if not slots:
        return None
    claim = beside_daemons(claim, needed, next(iter(slots.values())))
    return ReturnOffer(demand=needed, claim=claim, slots=slots)
