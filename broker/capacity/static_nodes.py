"""The nodes that a static NodePool can get now, planned together with all claims that wait; and the
reservations in which the nodes of a following pool stay.

Invariant: a node is granted only if a plan places it beside every claim that waits. So it takes no slot that
another claim was promised, and no claim is made that would wait for a slot. The plan is not recorded: the
launch loop plans again. What a launch needs, such as room for DaemonSets or an image, ends no running node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from broker.apis.names import INSTANCE_TENANCY, RESERVATION_ID
from broker.capacity.domains import LaunchedGangs
from broker.capacity.matching import expiring, leaves_at, selected
from broker.capacity.model import Claim, Plan
from broker.capacity.option_catalog import OptionCatalog
from broker.capacity.options import PLACE_KEYS
from broker.capacity.plan import plan
from broker.capacity.requirements import Requirements
from broker.capacity.supply import LaunchSupply
from broker.capacity.types import WELL_KNOWN, reservation_labels, type_labels, zone_labels
from broker.capacity.ways import ways
from providers.model import Odcr

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
    slots = {
        way.odcr_id: way.free + way.lent
        for way in ways(claim, OptionCatalog(supply).candidates(claim), supply)
        if way.odcr_id
    }
    usable = frozenset(odcr_id for odcr_id in slots if usable_for(claim, odcr_id, supply))
    return UsableSlots(
        odcr_ids=usable,
        open=sum(slots[odcr_id] for odcr_id in usable),
        avoided=tuple(sorted(slots.keys() - usable)),
    )


def usable_for(claim: Claim, odcr_id: str, supply: LaunchSupply) -> bool:
    """Whether a claim of a following pool may be launched into a reservation that is among its ways."""
    right = supply.entitlements.right(supply.entitlements.draws.get(claim.uid, ""), odcr_id)
    return right in _RIGHTS and not expiring(supply.inventory.odcrs[odcr_id], supply.now)


def staying(claim: Claim, supply: LaunchSupply) -> frozenset[str]:
    """The reservations (by id) in which running nodes of a following pool stay.

    The pool's class selects them, its requirements allow them, no other owns them, and they have not ended.
    Of a group that is not known, all described reservations count.
    """
    odcrs, entitlements = supply.inventory.odcrs, supply.entitlements
    chosen = selected(supply.classes[claim.node_class].selection, supply.inventory)
    queue = entitlements.draws.get(claim.uid, "")
    return frozenset(
        odcr.id
        for odcr in (odcrs.values() if chosen is None else chosen)
        if not odcr.over and not expiring(odcr, supply.now)
        if not entitlements.foreign(queue, odcr.id) and _allows(claim, odcr, supply)
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


def next_departure(odcrs: Mapping[str, Odcr], ids: Iterable[str], now: datetime) -> datetime | None:
    """The next time at which a following pool leaves one of these reservations."""
    times = (leaves_at(odcrs[odcr_id]) for odcr_id in ids if odcr_id in odcrs)
    return min((at for at in times if at is not None and at > now), default=None)


def _allows(claim: Claim, odcr: Odcr, supply: LaunchSupply) -> bool:
    """Whether the claim's requirements allow a node there. Labels of an unknown type do not count."""
    labels = {**zone_labels(odcr.zone, odcr.zone_id), **reservation_labels(odcr)}
    if (type_ := supply.types.get(odcr.instance_type)) is None:
        return not claim.requirements.unmet(labels, among=PLACE_KEYS)
    labels |= {**type_labels(type_), INSTANCE_TENANCY: odcr.tenancy}
    return not claim.requirements.unmet(labels, among=WELL_KNOWN)
