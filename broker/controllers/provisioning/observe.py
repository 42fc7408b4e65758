"""The inputs of a provisioning run: one immutable observation of pods, pools, nodes and free slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.capacity.domains import LaunchedGangs
from broker.capacity.entitlement import RECLAIMING, SlotPool
from broker.capacity.model import RESERVATION_PENDING, Claim, Plan
from broker.capacity.plan import plan
from broker.capacity.reasons import HELD_FOR_GANG
from broker.capacity.successors import AWAITS_REPLACED
from broker.capacity.supply import LaunchSupply
from broker.placement.claims import BadClaim, planned, waiting_since

# The reasons of claims that a slot, or the next plan, serves in a moment.
WAITS_FOR_SLOT: Final = frozenset(
    {RECLAIMING, HELD_FOR_GANG, AWAITS_REPLACED, RESERVATION_PENDING, "PlannedLater"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchForecast:
    """`taken`: the free slots of each reservation that waiting claims take or hold. `reclaimed`: the lent
    slots of each slot pool that they wait to get back. `drawn`: the queue and the reservation of those that
    take slots.

    `stuck`: the claims (by uid) that nothing can launch now, and for which no slot is held or given back.
    """

    taken: Counter[str]
    stuck: frozenset[str]
    reclaimed: Mapping[SlotPool, int] = field(default_factory=dict)
    drawn: Sequence[tuple[str, str]] = ()


def forecast(
    waiting: Sequence[NodeClaim],
    supply: LaunchSupply,
    *,
    launched: LaunchedGangs,
    pod: Callable[[str], Pod | None],
    seconds: float,
    timer: Callable[[], float],
) -> LaunchForecast:
    """The results of a launch plan for claims without an instance. `launched`: as in `plan`.

    `pod`: by `namespace/name`.
    """
    claims = launchable(waiting, pod)
    taken: Counter[str] = Counter()
    if not claims:
        return LaunchForecast(taken=taken, stuck=frozenset())
    result = plan(claims.values(), supply, launched=launched, seconds=seconds, timer=timer)
    for hold in result.holds:
        taken.update(hold.slots)
    kept = supply.inventory.kept
    for assignment in result.assignments:
        if kept.get(assignment.claim.uid) in assignment.option.odcr_ids:
            continue  # its slot is free for no other
        ids = [id_ for id_ in assignment.option.odcr_ids if supply.inventory.free(id_) > taken[id_]]
        taken.update(ids[:1])
    reclaimed = Counter(slot.slot_pool for slot in result.nominated.values())
    draws = supply.entitlements.draws
    drawn = [(draws.get(a.claim.uid, ""), id_) for a in result.assignments for id_ in a.option.odcr_ids[:1]]
    return LaunchForecast(taken=taken, stuck=stuck_claims(result), reclaimed=reclaimed, drawn=drawn)


def launchable(claims: Iterable[NodeClaim], pod: Callable[[str], Pod | None]) -> dict[str, Claim]:
    """The waiting claims of these as the launch loop plans them, by uid. `pod`: by `namespace/name`."""
    planned_claims: dict[str, Claim] = {}
    for claim in claims:
        if not claim.waits:
            continue
        try:
            since = waiting_since(claim, pod)
            planned_claims[claim.uid] = planned(claim, since=since)
        except BadClaim:
            continue  # it is never launched as it is
    return planned_claims


def stuck_claims(result: Plan) -> frozenset[str]:
    """The claims without an option, except those that wait for a slot or for the next plan.

    Claims of a gang are stuck together or not at all.
    """
    waits = {hold.gang for hold in result.holds}
    waits |= {item.claim.gang for item in result.unplaced if item.reason in WAITS_FOR_SLOT} - {""}
    return frozenset(
        item.claim.uid
        for item in result.unplaced
        if item.reason not in WAITS_FOR_SLOT
        and item.claim.uid not in result.nominated
        and (not item.claim.gang or item.claim.gang not in waits)
    )
