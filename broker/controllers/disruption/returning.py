"""Selects claims that move into reserved slots which stay idle, with the savings of each move.

Invariant: claims that wait come first. The moves are planned together with them, as launches are, and only a
move that gets a slot beside all of them is made. The plan is not recorded: the launch loop plans again.
Prices are the provider's; a claim without a known price does not move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.capacity.entitlement import Entitlements
from broker.capacity.model import Claim, Inventory, NodeClass, Option
from broker.capacity.option_catalog import OptionCatalog
from broker.capacity.plan import plan
from broker.capacity.requirements import InvalidRequirement
from broker.capacity.returning import (
    IdleSince,
    ReturnCandidate,
    choose_moves,
    idle_for,
    observe_idle,
)
from broker.capacity.shortages import Shortages
from broker.controllers.disruption.conditions import NEVER
from broker.controllers.disruption.gangs import running_gangs
from broker.controllers.disruption.replacements import Demand, demand, fitting, planned
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.controllers.nodeclaim.planning import in_gangs
from broker.controllers.nodeclass.resolve import LINUX, LaunchClass
from broker.controllers.provisioning.observe import launchable
from broker.placement.snapshot import PlacementSnapshot
from providers.model import InstanceType

# How long a slot must have been idle at least: by then a claim that needs it has requested it.
LEAST_IDLE: Final = timedelta(minutes=1)
MOVABLE: Final = ("on-demand", "spot")
_RESERVED: Final = (names.CAPACITY_TYPE, "In", ("reserved",))


class SlotRights(Protocol):
    """Entitlements of claims to slots, by uid, without recording anything."""

    def entitlements(
        self, claims: Mapping[str, NodeClaim], inventory: Inventory, types: Mapping[str, InstanceType]
    ) -> Entitlements: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnInputs:
    """The inputs of the selection beside the snapshot. `claims`: all claims of the broker. `pod`: by key."""

    claims: Sequence[NodeClaim]
    pod: Callable[[str], Pod | None]
    classes: Callable[[str], LaunchClass | None]
    types: Mapping[str, InstanceType]
    inventory: Inventory
    shortages: Shortages
    seconds: float
    timer: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnMove:
    """A claim that moves, the option that it moves into, and the dollars an hour that this saves.

    `gang`: it moves together with the others of it; empty for none.
    """

    demand: Demand
    option: Option
    saving: float
    gang: str = ""

    @property
    def message(self) -> str:
        claim, pool = self.demand.node.claim, self.option.pool
        before = ", ".join(
            claim.labels.get(key, "?") for key in (names.CAPACITY_TYPE, names.INSTANCE_TYPE, names.ZONE)
        )
        slot = ", ".join(self.option.odcr_ids)
        return (
            f"NodeClaim {claim.name} ({before}) moves into an idle slot of {slot} "
            f"({pool.instance_type}, {pool.zone}): saves ${self.saving:.4f} an hour"
        )


class ReturnSelector:
    """Remembers since when slots are idle; a new process waits anew."""

    def __init__(self, slots: SlotRights) -> None:
        self._slots = slots
        self._idle: IdleSince = {}

    def observe(self, inventory: Inventory, now: datetime) -> None:
        """Notes the free slots. A use between two calls goes unseen if the slot is free again."""
        free = {id_: inventory.free(id_) for id_ in inventory.odcrs}
        self._idle = observe_idle(self._idle, free, now)

    def idle(self, now: datetime) -> Mapping[str, int]:
        """The slots of each ODCR that were idle for long enough to move into."""
        return idle_for(self._idle, LEAST_IDLE, now)

    def select(
        self,
        snapshot: DisruptionSnapshot,
        candidates: Sequence[ManagedNode],
        inputs: ReturnInputs,
        read_placement: Callable[[], PlacementSnapshot],
        budgets: Mapping[str, int],
    ) -> list[ReturnMove]:
        """The moves to start now. `candidates` may be disrupted; `budgets`: moves by pool."""
        idle = self.idle(snapshot.now)
        if not idle or not candidates or not any(budgets.values()):
            return []
        priced = {node.claim.uid: _saving(node, inputs) for node in candidates}
        rated = [node for node in candidates if (priced[node.claim.uid] or 0.0) > 0.0]
        if not rated:
            return []
        waiting = _waiting(inputs)
        objects = {node.claim.uid: node.claim for node in rated}
        entitlements = self._slots.entitlements(
            {**{claim.uid: claim for claim in inputs.claims if claim.uid in waiting}, **objects},
            inputs.inventory,
            inputs.types,
        )
        return _moves(snapshot, rated, inputs, read_placement, budgets, waiting, entitlements, idle, priced)


def enabled(pool: NodePool) -> bool:
    return pool.annotations.get(names.RETURN_TO_RESERVATIONS) == "true"


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
    if pool.spec.replicas is not None:
        return f"{field} is true, but spec.replicas is set: such a pool is not consolidated"
    return ""


def _moves(
    snapshot: DisruptionSnapshot,
    rated: Sequence[ManagedNode],
    inputs: ReturnInputs,
    read_placement: Callable[[], PlacementSnapshot],
    budgets: Mapping[str, int],
    waiting: Mapping[str, Claim],
    entitlements: Entitlements,
    idle: Mapping[str, int],
    priced: Mapping[str, float | None],
) -> list[ReturnMove]:
    plans = _plans(rated, waiting, inputs)
    catalog = OptionCatalog(
        plans, inputs.types, inputs.inventory, inputs.shortages, snapshot.now, entitlements=entitlements
    )
    placement = read_placement()
    offers: dict[str, tuple[Demand, Claim, dict[str, Option]]] = {}
    candidates: list[ReturnCandidate] = []
    gangs = running_gangs(snapshot, inputs.claims)
    for node in rated:
        if len(gangs.of.get(node.claim.uid, ())) > 1:
            continue  # to move both would need more than whole gangs
        offer = _offer(node, catalog, placement, idle)
        if offer is None:
            continue
        claim = node.claim
        offers[claim.uid] = offer
        candidates.append(
            ReturnCandidate(
                uid=claim.uid,
                name=claim.name,
                pool=node.pool.name,
                saving=priced[claim.uid] or 0.0,
                slots=tuple(offer[2]),
                gang=min(gangs.of.get(claim.uid, ()), default=""),
            )
        )
    chosen = choose_moves(gangs.whole(candidates), idle, budgets)
    if not chosen:
        return []
    # Claims that wait are planned first, since every move is ranked behind them.
    last = min((claim.priority for claim in waiting.values()), default=0) - 1
    movers = [_mover(offers[candidate.uid][1], candidate, last) for candidate in chosen]
    result = plan(
        [*waiting.values(), *movers],
        plans,
        inputs.types,
        inputs.inventory,
        inputs.shortages,
        snapshot.now,
        launched=in_gangs(inputs.claims),
        entitlements=entitlements,
        seconds=inputs.seconds,
        timer=inputs.timer,
    )
    placed = {
        assignment.claim.uid: assignment.option
        for assignment in result.assignments
        if assignment.option.pool.reserved
    }
    moves = [
        ReturnMove(
            demand=offers[candidate.uid][0],
            option=placed[candidate.uid],
            saving=candidate.saving,
            gang=candidate.gang,
        )
        for candidate in chosen
        if candidate.uid in placed and set(placed[candidate.uid].odcr_ids) & offers[candidate.uid][2].keys()
    ]
    kept = {
        candidate.uid
        for candidate in gangs.whole([candidate for candidate in chosen if _in(moves, candidate.uid)])
    }
    return [move for move in moves if move.demand.node.claim.uid in kept]


def _in(moves: Sequence[ReturnMove], uid: str) -> bool:
    return any(move.demand.node.claim.uid == uid for move in moves)


def _mover(claim: Claim, candidate: ReturnCandidate, priority: int) -> Claim:
    return Claim(
        name=claim.name,
        uid=claim.uid,
        node_class=claim.node_class,
        requirements=claim.requirements,
        requests=claim.requests,
        priority=priority,
        created=claim.created,
        gang=candidate.gang and f"{candidate.gang}\0move",
    )


def _offer(
    node: ManagedNode, catalog: OptionCatalog, placement: PlacementSnapshot, idle: Mapping[str, int]
) -> tuple[Demand, Claim, dict[str, Option]] | None:
    """The idle slots that hold all pods of the node, by reservation; None without one."""
    assert node.node is not None
    needed = demand(node, node.moving)
    try:
        claim = planned(needed, uid=node.claim.uid, name=f"{node.claim.name}-moved", only=(_RESERVED,))
    except InvalidRequirement:
        return None
    if claim.requirements.problems():
        return None
    options = catalog.candidates(claim).slots
    usable = {id_: option for id_, option in options.items() if id_ in idle}
    if not usable:
        return None
    holds = {
        (option.pool.instance_type, option.pool.zone)
        for option in fitting(needed, claim, catalog.known(claim), placement.without_nodes({node.node.name}))
    }
    fitting_options = {
        id_: option
        for id_, option in usable.items()
        if (option.pool.instance_type, option.pool.zone) in holds
    }
    return (needed, claim, fitting_options) if fitting_options else None


def _plans(
    rated: Sequence[ManagedNode], waiting: Mapping[str, Claim], inputs: ReturnInputs
) -> dict[str, NodeClass]:
    class_names = {node.pool.spec.template.spec.node_class_ref.name for node in rated}
    class_names |= {claim.node_class for claim in waiting.values()}
    ready_classes = {name: inputs.classes(name) for name in class_names}
    return {name: ready.plan for name, ready in ready_classes.items() if ready is not None}


def _waiting(inputs: ReturnInputs) -> dict[str, Claim]:
    """The claims that wait for an instance, as they are planned."""
    planned_claims = launchable(inputs.claims, inputs.pod)
    return {uid: claim for uid, claim in planned_claims.items() if inputs.classes(claim.node_class)}


def _saving(node: ManagedNode, inputs: ReturnInputs) -> float | None:
    """The price of the claim's instance now, in dollars an hour. None: unknown, or not outside reservations.

    The slot is paid for in any case.
    """
    labels = node.claim.labels
    kind = labels.get(names.CAPACITY_TYPE, "")
    type_ = inputs.types.get(labels.get(names.INSTANCE_TYPE, ""))
    ready = inputs.classes(node.pool.spec.template.spec.node_class_ref.name)
    if kind not in MOVABLE or type_ is None or ready is None:
        return None
    if kind == "spot":
        return type_.spot_prices.get(labels.get(names.ZONE, ""))
    platform = next(
        (image.platform for image in ready.plan.images if image.id == node.claim.status.image_id), LINUX
    )
    return type_.price(platform, labels.get(names.INSTANCE_TENANCY, "default"))
