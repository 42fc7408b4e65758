"""States the slots that waiting claims need: one demand a claim, with its rank and its gang.

Invariant: a demand does not depend on the slots that are free. A gang that cannot launch whatever is free has
none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from broker.capacity.class_catalog import FOREVER
from broker.capacity.entitlement import Entitlements
from broker.capacity.model import Claim
from broker.capacity.option_catalog import CandidateOptions
from broker.capacity.problem import ClaimDemand, Rank
from broker.lists import lists_by_key
from broker.text import counted

T = TypeVar("T")


def order(claim: Claim) -> tuple[int, datetime, str, str]:
    """The sort key of claims: higher priority first, then older, then by name."""
    return (-claim.priority, claim.created or FOREVER, claim.name, claim.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangProblem:
    """The reason why a gang does not launch: the claims (by name) without an option, or another reason."""

    lacking: Sequence[str] = ()
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingClaims:
    """The claims of a plan by uid, in order, and the claims of each gang. `candidates`: the options of each
    claim (by uid) that has been considered and may have any.
    """

    by_uid: Mapping[str, Claim]
    gangs: Mapping[str, Sequence[Claim]]
    candidates: Mapping[str, CandidateOptions]


def units(items: Iterable[T], gang: Callable[[T], str]) -> list[list[T]]:
    """The items one by one, and those of a gang together at its first one. `gang`: its name, empty without
    one.
    """
    return [*lists_by_key((gang(item) or place, item) for place, item in enumerate(items)).values()]


def gangs_of(waiting: Iterable[Claim]) -> dict[str, list[Claim]]:
    """The claims of each gang, in order."""
    return lists_by_key((claim.gang, claim) for claim in waiting if claim.gang)


def incomplete(
    gang: Sequence[Claim], candidates: Mapping[str, CandidateOptions], launched: int
) -> GangProblem | None:
    """Why a gang cannot launch, independently of other claims."""
    size = max(claim.gang_size for claim in gang)
    if len(gang) + launched < size:
        exist = counted(len(gang), "is waiting", "are waiting")
        if launched:
            exist += f" and {counted(launched, 'has launched', 'have launched')}"
        return GangProblem(message=f"gang {gang[0].gang} is to have {size} claims; {exist}")
    lacking = [claim.name for claim in gang if not _possible(candidates.get(claim.uid))]
    return GangProblem(lacking=lacking) if lacking else None


def _possible(candidates: CandidateOptions | None) -> bool:
    """Whether the claim may launch now, or after others gave slots back to it."""
    return candidates is not None and bool(candidates.usable or candidates.own or candidates.lenders)


def demands_of(
    waiting: WaitingClaims, broken: Mapping[str, GangProblem], entitlements: Entitlements
) -> dict[str, ClaimDemand]:
    """The demands to be solved: those of all claims with options, but for gangs that are `broken`."""
    ranking = _Ranking(waiting, broken, entitlements)
    return {
        uid: ranking.demand(claim)
        for uid, claim in waiting.by_uid.items()
        if uid in waiting.candidates and claim.gang not in broken
    }


class _Ranking:
    """Ranks the claims of a plan.

    A gang ranks with its first claim, and binds if one of its claims may not fall back. Nominated
    claims come first, and may take the slots lent to them together with the owners. Claims with held
    quota come before others of their priority. They come before all others if their reservation's
    claims may not preempt one another: that is the order in which slots would be taken back.
    """

    def __init__(
        self, waiting: WaitingClaims, broken: Mapping[str, GangProblem], entitlements: Entitlements
    ) -> None:
        claims, candidates, gangs = waiting.by_uid.values(), waiting.candidates, waiting.gangs
        self._candidates, self._entitlements = candidates, entitlements
        self._slots = {options: tuple(options.slots) for options in set(candidates.values())}
        prices = (options.unreserved.price for options in candidates.values() if options.unreserved)
        self._dearest = max(filter(None, prices), default=0.0)
        self._binding = {
            name
            for name, gang in gangs.items()
            if name not in broken and any(candidates[claim.uid].unreserved is None for claim in gang)
        }
        self._places = {
            name: (max(claim.priority for claim in gang), min(claim.created or FOREVER for claim in gang))
            for name, gang in gangs.items()
        }
        held = entitlements.held
        unheld = entitlements.draws.keys() - held if held else ()
        self._highest = max((claim.priority for claim in claims), default=0)
        self._highest_unheld = max((claim.priority for claim in claims if claim.uid in unheld), default=0)
        self._first = {claim.gang for claim in claims if claim.uid in entitlements.nominated} - {""}

    def demand(self, claim: Claim) -> ClaimDemand:
        rank, slots = self._rank(claim), self._slots[self._candidates[claim.uid]]
        if claim.uid in self._entitlements.nominated:
            slots += self._freed(claim.uid)
        queue = self._entitlements.draws.get(claim.uid, "")
        return ClaimDemand(slots=slots, rank=rank, queue=queue)

    def _rank(self, claim: Claim) -> Rank:
        priority, created = self._places.get(claim.gang, (claim.priority, claim.created or FOREVER))
        if claim.uid in self._entitlements.nominated or claim.gang in self._first:
            priority = self._highest + 1
        elif claim.uid in self._entitlements.held and self._entitlements.rule(claim.uid).within == "Never":
            priority = max(priority, self._highest_unheld)
        unreserved = self._candidates[claim.uid].unreserved
        # An unknown price counts as the dearest that is known.
        cost = 0.0 if unreserved is None else self._dearest if unreserved.price is None else unreserved.price
        return Rank(
            priority=-priority,
            unheld=claim.uid not in self._entitlements.held,
            falls_back=unreserved is not None,
            cost=-cost,
            created=created,
            gang=claim.gang if claim.gang in self._binding else "",
        )

    def _freed(self, uid: str) -> tuple[str, ...]:
        """The slots of other owners that a nominated claim may take with the owners: those of its slot pool.

        Victims of another slot pool may have been evicted for another claim.
        """
        slot_pool, pools = self._entitlements.nominated[uid], self._entitlements.slot_pools
        borrowable = self._candidates[uid].borrowable
        return tuple(slot for slot in borrowable if slot_pool in (None, pools[slot]))
