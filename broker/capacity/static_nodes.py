"""The nodes that a static NodePool can get now, planned together with all claims that wait.

Invariant: a node is granted only if a plan places it beside every claim that waits. So it takes no slot that
another claim was promised, and no claim is made that would wait for a slot. The plan is not recorded: the
launch loop plans again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from broker.apis.names import RESERVATION_ID
from broker.capacity.domains import LaunchedGangs
from broker.capacity.matching import ends_at
from broker.capacity.model import Claim, Inventory, Plan
from broker.capacity.option_catalog import OptionCatalog
from broker.capacity.plan import plan
from broker.capacity.requirements import Requirements
from broker.capacity.supply import LaunchSupply
from broker.capacity.ways import ways
from providers.model import Odcr

# A following pool leaves a reservation so long before its end, after which EC2 would bill the instances.
LEAVES_BEFORE: Final = timedelta(minutes=10)
_RIGHTS: Final = ("free", "own")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableSlots:
    """The reservations (by id) whose slots the nodes of a following pool may have: free, or its owner's.

    `open`: the number of their slots that are free, or that the owner gets back from borrowers. `avoided`:
    other reservations that a launch could take: another owner's, or one that ends soon.
    """

    odcr_ids: frozenset[str] = frozenset()
    open: int = 0
    avoided: tuple[str, ...] = ()

    def narrowed(self, claim: Claim) -> Claim:
        """The claim without the reservations that are to be avoided."""
        if not self.avoided:
            return claim
        others = Requirements.of(((RESERVATION_ID, "NotIn", self.avoided),))
        return replace(claim, requirements=claim.requirements & others)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticGrant:
    """`count` nodes that can be had now. `problem`: why no more. `plan`: the plan with all claims."""

    count: int = 0
    problem: str = ""
    plan: Plan = field(default_factory=Plan)


def usable_slots(claim: Claim, supply: LaunchSupply) -> UsableSlots:
    """The slots for claims like this one, which allow reservations only."""
    queue = supply.entitlements.draws.get(claim.uid, "")
    staying = replace(supply, inventory=_without_ending(supply.inventory, supply.now))
    usable = {
        way.odcr_id: way.free + way.lent
        for way in ways(claim, staying, OptionCatalog(staying))
        if way.odcr_id and supply.entitlements.right(queue, way.odcr_id) in _RIGHTS
    }
    options = OptionCatalog(supply).candidates(claim).options
    reachable = {odcr_id for option in options for odcr_id in option.odcr_ids}
    return UsableSlots(
        odcr_ids=frozenset(usable),
        open=sum(usable.values()),
        avoided=tuple(sorted(reachable - usable.keys())),
    )


def granted(
    claim: Claim,
    count: int,
    waiting: Sequence[Claim],
    supply: LaunchSupply,
    *,
    launched: LaunchedGangs | None = None,
    seconds: float,
    timer: Callable[[], float] = float,
) -> StaticGrant:
    """How many of `count` claims like this one a plan places beside the claims that wait.

    A slot that its owner gets back from a borrower counts. `supply` has the entitlements of `claim`, which
    its copies share.
    """
    last = min((other.priority for other in waiting), default=0) - 1
    copies = {f"{claim.uid}/{number}": number for number in range(count)}
    new = [replace(claim, uid=uid, name=f"{claim.name}-{n}", priority=last) for uid, n in copies.items()]
    queue = supply.entitlements.draws.get(claim.uid)
    draws = {} if queue is None else dict.fromkeys(copies, queue)
    entitlements = replace(supply.entitlements, draws={**supply.entitlements.draws, **draws})
    result = plan(
        [*waiting, *new],
        replace(supply, entitlements=entitlements),
        launched=launched,
        seconds=seconds,
        timer=timer,
    )
    served = {assignment.claim.uid for assignment in result.assignments} | result.nominated.keys()
    problem = next((item.message for item in result.unplaced if item.claim.uid in copies), "")
    return StaticGrant(count=len(served & copies.keys()), problem=problem, plan=result)


def leaves_at(odcr: Odcr) -> datetime | None:
    """When a following pool leaves the reservation: a Capacity Block as its drain begins."""
    if odcr.end is None or odcr.prepaid:
        return ends_at(odcr)
    return odcr.end - LEAVES_BEFORE


def next_departure(odcrs: Mapping[str, Odcr], ids: Iterable[str], now: datetime) -> datetime | None:
    """The next time at which a following pool leaves one of these reservations."""
    times = (leaves_at(odcrs[odcr_id]) for odcr_id in ids if odcr_id in odcrs)
    return min((at for at in times if at is not None and at > now), default=None)


def _without_ending(inventory: Inventory, now: datetime) -> Inventory:
    """The inventory in which nothing is launched into reservations that a following pool leaves by now."""
    return replace(
        inventory,
        odcrs={
            odcr_id: replace(odcr, unlaunchable=True)
            if (at := leaves_at(odcr)) is not None and at <= now
            else odcr
            for odcr_id, odcr in inventory.odcrs.items()
        },
    )
