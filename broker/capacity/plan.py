"""Assigns the claims that wait at one moment to pools, together.

Invariant: no reservation is planned beyond its free slots, by id, group or open match. A gang is assigned
whole or not at all. The result does not depend on the order of the input.

Of all such assignments this one is the best, in this order: most claims in reservations, the higher priority
first; fewest claims that wait; least on-demand cost; smallest instances; soonest-ending reservations; the
older claim before the newer. If time is too short, `Plan.solution` records that, and how far the plan may be
from the best. For owned reservations this holds within the share that `entitlements` leave each queue;
unused slots of owners are lent afterwards (see `lending`). A claim that would launch outside reservations
waits if a reservation that begins within minutes has a slot for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from broker.capacity import reasons
from broker.capacity.allocation import allocate, lacking
from broker.capacity.class_catalog import FOREVER
from broker.capacity.entitlement import NO_ENTITLEMENTS, Entitlements, SlotPool
from broker.capacity.flow import Flow
from broker.capacity.lending import Borrowed, lend, rationed
from broker.capacity.model import Assignment, Claim, Inventory, NodeClass, Option, Plan, Skipped, Unplaced
from broker.capacity.option_catalog import CandidateOptions, OptionCatalog
from broker.capacity.problem import ClaimDemand, Rank, problem_of
from broker.capacity.requirements import Requirements
from broker.capacity.shortages import Shortages
from broker.capacity.solve import SECONDS, solve
from providers.model import InstanceType, Odcr


def plan(
    claims: Iterable[Claim],
    node_classes: Mapping[str, NodeClass],
    types: Mapping[str, InstanceType],
    inventory: Inventory,
    shortages: Shortages,
    now: datetime,
    *,
    launched: Mapping[str, int] | None = None,
    entitlements: Entitlements = NO_ENTITLEMENTS,
    seconds: float = SECONDS,
    timer: Callable[[], float] = float,
) -> Plan:
    """Assigns each claim to an option now, or gives the reason why it waits.

    `launched` counts the claims of each gang that have their instance. `timer` returns seconds since
    some moment, and solving takes at most `seconds`; without a timer no time passes.
    """
    waiting = sorted(claims, key=order)
    catalog = OptionCatalog(node_classes, types, inventory, shortages, now, entitlements=entitlements)
    candidates_by_claim: dict[str, CandidateOptions] = {}
    unplaced: dict[str, Unplaced] = {}
    for claim in waiting:
        if refusal := reasons.refusal(claim, node_classes):
            unplaced[claim.uid] = refusal
        else:
            candidates_by_claim[claim.uid] = catalog.candidates(claim)
    gangs = _gangs(waiting)
    broken: dict[str, _Broken] = {}
    for name, gang in gangs.items():
        if found := _hopeless(gang, candidates_by_claim, (launched or {}).get(name, 0)):
            broken[name] = found
    demands = _demands(waiting, candidates_by_claim, gangs, broken, entitlements)
    room = rationed(demands, entitlements, inventory) if entitlements.owned else inventory
    problem = problem_of(demands, room, types)
    solved = solve(problem, seconds=seconds, timer=timer)
    absent = solved.absent
    if (
        nominated_gangs := frozenset(
            demands[uid].gang for uid in entitlements.nominated.keys() & demands.keys()
        )
        & absent
    ):
        # A nominated gang keeps the slots that are already free for it, before all other claims.
        room = _kept_for(nominated_gangs, demands, room)
        rest = {uid: demand for uid, demand in demands.items() if demand.gang not in nominated_gangs}
        problem = problem_of(rest, room, types)
        solved = solve(problem, seconds=seconds, timer=timer)
        absent = solved.absent | nominated_gangs
    dealt = allocate(problem, solved.taken, demands, room)
    lent, solution = Borrowed(), solved.solution
    named = {claim.uid: claim for claim in waiting}
    if entitlements.owned:
        lent = lend(named, demands, candidates_by_claim, entitlements, inventory, dealt=dealt, absent=absent)
        dealt |= lent.dealt
        if more := len(lent.dealt):
            solver = f"{solution.solver}, then lending" if problem.bundles else "lending"
            reserved, bound = solution.reserved + more, solution.bound + more
            solution = replace(solution, solver=solver, reserved=reserved, bound=bound)
    for name in sorted(absent - lent.whole):
        rank = min(demands[claim.uid].rank for claim in gangs[name])
        broken[name] = _Broken(lacking=lacking(gangs[name], rank, demands, dealt, room))
    chosen: dict[str, Option] = {}
    for claim in waiting:
        if claim.uid in demands and claim.gang not in broken and claim.uid not in lent.awaited:
            candidates = candidates_by_claim[claim.uid]
            option = candidates.drawing(dealt[claim.uid]) if claim.uid in dealt else candidates.unreserved
            if option is not None:
                chosen[claim.uid] = option
    pending = _pending(waiting, chosen, candidates_by_claim, broken, lent.awaited)
    for name in sorted({named[uid].gang for uid in pending} - {""}):
        lacks = [claim.name for claim in gangs[name] if claim.uid in pending]
        broken[name] = _Broken(lacking=[*(broken[name].lacking if name in broken else ()), *lacks])
    for claim in waiting:
        if claim.uid in pending or claim.gang in broken:
            chosen.pop(claim.uid, None)
    alike: dict[tuple[int, Requirements, frozenset[tuple[str, float]]], Unplaced] = {}
    for claim in waiting:
        if claim.uid not in unplaced and claim.uid not in chosen:
            candidates, known = candidates_by_claim[claim.uid], catalog.known(claim)
            asked = (id(candidates), claim.requirements, frozenset(claim.requests.items()))
            if asked not in alike:
                alike[asked] = reasons.unplaced(claim, candidates, known, inventory)
            unplaced[claim.uid] = replace(alike[asked], claim=claim)
            if claim.uid in pending:
                unplaced[claim.uid] = reasons.pending(unplaced[claim.uid], *pending[claim.uid])
    for name, found in broken.items():
        considered = [claim for claim in gangs[name] if claim.uid in candidates_by_claim]
        unplaced |= reasons.gang_incomplete(name, considered, found.lacking, unplaced, found.message)
    for uid, awaited in lent.awaited.items():
        unplaced[uid] = reasons.reclaiming(
            named[uid], candidates_by_claim[uid], awaited, entitlements, inventory
        )
    assignments, skipped = _explained(waiting, chosen, candidates_by_claim, catalog, inventory)
    return Plan(
        assignments=assignments,
        unplaced=tuple(unplaced[claim.uid] for claim in waiting if claim.uid in unplaced),
        skipped=skipped,
        solution=solution,
        awaited=lent.awaited,
        kept=lent.kept,
    )


def order(claim: Claim) -> tuple[int, datetime, str, str]:
    """The sort key of claims: higher priority first, then older, then by name."""
    return (-claim.priority, claim.created or FOREVER, claim.name, claim.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Broken:
    """Why a gang does not launch: the claims (by name) without an option, or another reason."""

    lacking: Sequence[str] = ()
    message: str = ""


def _gangs(waiting: Iterable[Claim]) -> dict[str, list[Claim]]:
    """The claims of each gang, in order."""
    gangs: dict[str, list[Claim]] = defaultdict(list)
    for claim in waiting:
        if claim.gang:
            gangs[claim.gang].append(claim)
    return gangs


def _hopeless(
    gang: Sequence[Claim], candidates_by_claim: Mapping[str, CandidateOptions], launched: int
) -> _Broken | None:
    """Why a gang cannot launch, independently of other claims."""
    size = max(claim.gang_size for claim in gang)
    if len(gang) + launched < size:
        exist = f"{len(gang)} wait" + (f" and {launched} have launched" if launched else "")
        return _Broken(message=f"gang {gang[0].gang} is to have {size} claims; {exist}")
    stuck = [claim.name for claim in gang if not _possible(candidates_by_claim.get(claim.uid))]
    return _Broken(lacking=stuck) if stuck else None


def _possible(candidates: CandidateOptions | None) -> bool:
    return candidates is not None and bool(candidates.usable)


def _demands(
    waiting: Iterable[Claim],
    candidates_by_claim: Mapping[str, CandidateOptions],
    gangs: Mapping[str, Sequence[Claim]],
    broken: Mapping[str, _Broken],
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
            each.unreserved.price
            for each in candidates_by_claim.values()
            if each.unreserved and each.unreserved.price
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
    others = entitlements.draws.keys() - held if held else ()
    top = max((each.priority for each in waiting if each.uid in others), default=0)
    most = max((each.priority for each in waiting), default=0)
    first = {gang for gang, some in gangs.items() if any(claim.uid in nominated for claim in some)}
    lends = _Lends(entitlements) if nominated else None
    demands: dict[str, ClaimDemand] = {}
    for claim in waiting:
        if claim.uid not in candidates_by_claim or claim.gang in broken:
            continue
        candidates = candidates_by_claim[claim.uid]
        gang = claim.gang if claim.gang in binding else ""
        priority, created = places[claim.gang] if claim.gang else (claim.priority, claim.created or FOREVER)
        if claim.uid in nominated or claim.gang in first:
            priority = most + 1
        elif claim.uid in held and not entitlements.rule(claim.uid).within:
            priority = max(priority, top)
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
        if lends is not None and claim.uid in nominated:
            slots = (*slots, *lends.to(claim.uid, candidates))
        demands[claim.uid] = ClaimDemand(slots=slots, rank=rank, gang=gang)
    return demands


def _kept_for(gangs: frozenset[str], demands: Mapping[str, ClaimDemand], inventory: Inventory) -> Inventory:
    """The inventory without the free slots that these gangs can use."""
    debits = Counter(inventory.debits)
    for demand in demands.values():
        if demand.gang in gangs:
            left = replace(inventory, debits=debits)
            if slot := next((each for each in demand.slots if left.free(each) > 0), ""):
                debits[slot] += 1
    return replace(inventory, debits=debits)


class _Lends:
    """Slots of other owners that nominated claims may take together with the owners."""

    def __init__(self, entitlements: Entitlements) -> None:
        self._entitlements = entitlements
        self._lendable = {lot: terms.lendable for lot, terms in entitlements.terms.items()}
        self._borrow = dict(entitlements.borrow)

    def to(self, uid: str, candidates: CandidateOptions) -> Sequence[str]:
        """Slots of the lot that the claim is nominated for, or else of the first that still lends to it.

        The limits of both the owner and the borrower apply.
        """
        queue, place = self._entitlements.draws.get(uid, ""), self._entitlements.nominated.get(uid)
        for lot in dict.fromkeys(self._entitlements.lots[each] for each in candidates.lent):
            limit = SlotPool(queue, lot.flavor)
            if place not in (None, lot):
                continue
            if self._lendable[lot] > 0 and self._borrow.get(limit, 0) > 0:
                self._lendable[lot] -= 1
                self._borrow[limit] -= 1
                return [each for each in candidates.lent if self._entitlements.lots[each] == lot]
        return ()


def _pending(
    waiting: Iterable[Claim],
    chosen: Mapping[str, Option],
    candidates_by_claim: Mapping[str, CandidateOptions],
    broken: Mapping[str, _Broken],
    awaited: Collection[str],
) -> dict[str, tuple[Odcr, datetime]]:
    """Claims without a slot that wait for a reservation, which begins within minutes, and until when.

    An on-demand instance launched in the meantime would be paid for twice.
    """

    def waits(claim: Claim) -> bool:
        if (
            claim.uid not in candidates_by_claim
            or claim.uid in awaited
            or not candidates_by_claim[claim.uid].soon
        ):
            return False
        if claim.gang in broken and broken[claim.gang].message:
            return False  # the gang is not complete yet
        return claim.uid not in chosen or chosen[claim.uid].pool.capacity_type != "reserved"

    claims = [claim for claim in waiting if waits(claim)]
    found = {odcr.id: (odcr, by) for claim in claims for odcr, by in candidates_by_claim[claim.uid].soon}
    flow: Flow[str, str] = Flow(
        {claim.uid: [odcr.id for odcr, _ in candidates_by_claim[claim.uid].soon] for claim in claims},
        {id_: odcr.total for id_, (odcr, _) in found.items()},
    )
    held = [claim for claim in claims if flow.add(claim.uid)]
    return {claim.uid: found[next(iter(flow.taken(claim.uid)))] for claim in held}


def _explained(
    waiting: Iterable[Claim],
    chosen: Mapping[str, Option],
    candidates_by_claim: Mapping[str, CandidateOptions],
    catalog: OptionCatalog,
    inventory: Inventory,
) -> tuple[tuple[Assignment, ...], dict[str, tuple[Skipped, ...]]]:
    """The assignments, and for each claim the better options that it did not get."""
    explained: dict[tuple[int, int], tuple[tuple[Option, ...], tuple[Skipped, ...]]] = {}
    assignments: list[Assignment] = []
    skipped: dict[str, tuple[Skipped, ...]] = {}
    for claim in waiting:
        if (option := chosen.get(claim.uid)) is None:
            continue
        candidates = candidates_by_claim[claim.uid]
        key = (id(candidates), id(option))
        if key not in explained:
            explained[key] = reasons.passed(claim, candidates, option, catalog.known(claim), inventory)
        rest, better = explained[key]
        assignments.append(Assignment(claim=claim, option=option, rest=rest))
        if better:
            skipped[claim.uid] = better
    return tuple(assignments), skipped
