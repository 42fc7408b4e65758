"""States the slots that waiting claims need: one demand a claim, with its rank and its gang.

Invariant: a demand does not depend on the slots that are free. A gang that cannot launch whatever is free has
none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from broker.capacity.class_catalog import FOREVER
from broker.capacity.entitlement import Entitlements
from broker.capacity.model import Claim
from broker.capacity.option_catalog import CandidateOptions
from broker.capacity.problem import ClaimDemand, Rank
from broker.text import counted


def order(claim: Claim) -> tuple[int, datetime, str, str]:
    """The sort key of claims: higher priority first, then older, then by name."""
    return (-claim.priority, claim.created or FOREVER, claim.name, claim.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangProblem:
    """The reason why a gang does not launch: the claims (by name) without an option, or another reason."""

    lacking: Sequence[str] = ()
    message: str = ""


def gangs_of(waiting: Iterable[Claim]) -> dict[str, list[Claim]]:
    """The claims of each gang, in order."""
    gangs: dict[str, list[Claim]] = defaultdict(list)
    for claim in waiting:
        if claim.gang:
            gangs[claim.gang].append(claim)
    return gangs


def incomplete(
    gang: Sequence[Claim], candidates_by_claim: Mapping[str, CandidateOptions], launched: int
) -> GangProblem | None:
    """Why a gang cannot launch, independently of other claims."""
    size = max(claim.gang_size for claim in gang)
    if len(gang) + launched < size:
        exist = counted(len(gang), "waits", "wait")
        if launched:
            exist += f" and {counted(launched, 'has launched', 'have launched')}"
        return GangProblem(message=f"gang {gang[0].gang} is to have {size} claims; {exist}")
    lacking = [claim.name for claim in gang if not _possible(candidates_by_claim.get(claim.uid))]
    return GangProblem(lacking=lacking) if lacking else None


def _possible(candidates: CandidateOptions | None) -> bool:
    return candidates is not None and bool(candidates.usable)


def demands_of(
    waiting: Iterable[Claim],
    candidates_by_claim: Mapping[str, CandidateOptions],
    gangs: Mapping[str, Sequence[Claim]],
    broken: Mapping[str, GangProblem],
    entitlements: Entitlements,
) -> dict[str, ClaimDemand]:
    """The demands to be solved.

    A gang ranks with its first claim, and binds if one of its claims may not fall back. Nominated
    claims come first, and may take the slots lent to them together with the owners. Claims with held
    quota come before others of their priority. They come before all others if their reservation's
    claims may not preempt one another: that is the order in which slots would be taken back.
    """
    dearest = max(
        (
            candidates.unreserved.price
            for candidates in candidates_by_claim.values()
            if candidates.unreserved and candidates.unreserved.price
        ),
        default=0.0,
    )
    binding = {
        name: gang
        for name, gang in gangs.items()
        if name not in broken and any(candidates_by_claim[claim.uid].unreserved is None for claim in gang)
    }
    places = {
        name: (max(claim.priority for claim in gang), min(claim.created or FOREVER for claim in gang))
        for name, gang in gangs.items()
    }
    held, nominated = entitlements.held, entitlements.nominated
    unheld = entitlements.draws.keys() - held if held else ()
    highest_unheld = max((claim.priority for claim in waiting if claim.uid in unheld), default=0)
    highest = max((claim.priority for claim in waiting), default=0)
    first = {gang for gang, members in gangs.items() if any(claim.uid in nominated for claim in members)}
    demands: dict[str, ClaimDemand] = {}
    for claim in waiting:
        if claim.uid not in candidates_by_claim or claim.gang in broken:
            continue
        candidates = candidates_by_claim[claim.uid]
        gang = claim.gang if claim.gang in binding else ""
        priority, created = places[claim.gang] if claim.gang else (claim.priority, claim.created or FOREVER)
        if claim.uid in nominated or claim.gang in first:
            priority = highest + 1
        elif claim.uid in held and entitlements.rule(claim.uid).within == "Never":
            priority = max(priority, highest_unheld)
        unreserved = candidates.unreserved
        # An unknown price counts as the dearest that is known.
        cost = 0.0 if unreserved is None else dearest if unreserved.price is None else unreserved.price
        rank = Rank(
            priority=-priority,
            unheld=claim.uid not in held,
            falls_back=unreserved is not None,
            cost=-cost,
            created=created,
            gang=gang,
        )
        slots: Collection[str] = candidates.slots
        if claim.uid in nominated:
            slots = (*slots, *lendable(claim.uid, candidates, entitlements))
        queue = entitlements.draws.get(claim.uid, "")
        demands[claim.uid] = ClaimDemand(slots=slots, rank=rank, gang=gang, queue=queue)
    return demands


def lendable(uid: str, candidates: CandidateOptions, entitlements: Entitlements) -> Sequence[str]:
    """The slots of other owners that the claim may take; of a nominated claim, those of its slot pool.

    Victims of another slot pool may have been evicted for another claim.
    """
    slot_pool = entitlements.nominated.get(uid)
    if slot_pool is None:
        return tuple(candidates.borrowable)
    return [slot for slot in candidates.borrowable if entitlements.slot_pools[slot] == slot_pool]
