"""Assigns the claims that wait at one moment to pools, together.

Invariant: no reservation is planned beyond its free slots, by id, group or open match. A gang is assigned
whole or not at all. The result does not depend on the order of the input.

Of all such assignments this one is the best, in this order: most claims in reservations, the higher priority
first; most claims with held quota among them; fewest claims that wait; least on-demand cost; fewest lent
slots; smallest instances; soonest-ending reservations; the older claim before the newer, where a gang is as
old as its oldest claim; lent slots to lower priorities, since owners take them back. Own and unowned slots
come first, within the share that `entitlements` leave each queue. Slots are lent afterwards: a claim that has
a slot keeps one, though maybe another, and of all such assignments the best one follows, in the same order.

A minimum-cost flow is exact unless gangs, borrowing or lending limits bind (`network`); then constraint
programming is (`slot_model`). With more than 500 ways from claims to slots it is too slow for gangs: branch
and bound chooses those that launch (`gangs`), and does not compare their age. If time is too short,
`Plan.solution` records that, and how far the plan may be from the best; `Plan.later` has the claims that were
not considered.

A claim that would launch outside reservations waits if a reservation that begins within
minutes has a slot for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from broker.capacity import reasons
from broker.capacity.allocation import lacking
from broker.capacity.assign import AssignedSlots, SlotAssigner
from broker.capacity.class_catalog import named
from broker.capacity.demand import GangProblem, demands_of, gangs_of, incomplete, order
from broker.capacity.entitlement import NO_ENTITLEMENTS, Entitlements
from broker.capacity.flow import Flow
from broker.capacity.gang_hold import HoldingGang, holding, open_windows, returned
from broker.capacity.model import (
    Assignment,
    Claim,
    GangHold,
    Inventory,
    NodeClass,
    Option,
    Plan,
    Skipped,
    Solution,
    Unplaced,
)
from broker.capacity.option_catalog import CandidateOptions, OptionCatalog
from broker.capacity.overlap import opted_out, separated
from broker.capacity.problem import ClaimDemand
from broker.capacity.shortages import Shortages
from broker.capacity.solve import SECONDS
from broker.capacity.time_budget import ALL, OPTIONS, SLOTS, PlanAdmission, TimeBudget
from broker.text import counted
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
    some moment; without a timer no time passes. The whole plan takes at most `seconds`: claims that do not
    fit into them are planned later.
    """
    budget = TimeBudget(seconds, timer)
    all_claims = sorted(claims, key=order)
    catalog = OptionCatalog(node_classes, types, inventory, shortages, now, entitlements=entitlements)
    candidates_by_claim, unplaced = _candidates(all_claims, node_classes, catalog, budget.until(OPTIONS))
    waiting = all_claims
    if len(candidates_by_claim) + len(unplaced) < len(all_claims):
        waiting = [claim for claim in all_claims if claim.uid in candidates_by_claim or claim.uid in unplaced]
    gangs = gangs_of(waiting)
    broken: dict[str, GangProblem] = {}
    for name, gang in gangs.items():
        if problem := incomplete(gang, candidates_by_claim, (launched or {}).get(name, 0)):
            broken[name] = problem
    demands = demands_of(waiting, candidates_by_claim, gangs, broken, entitlements)
    by_uid = {claim.uid: claim for claim in waiting}
    slots = SlotAssigner(
        claims=by_uid,
        gangs=gangs,
        candidates=candidates_by_claim,
        entitlements=entitlements,
        inventory=inventory,
        types=types,
        budget=budget,
        timer=timer,
    )
    stuck = frozenset(name for name, problem in broken.items() if not problem.message)
    assigned = _with_holds(slots, demands, stuck, open_windows(gangs, node_classes, now))
    allocated, nominations, solution = assigned.allocated, assigned.nominations, assigned.solution
    holds = {hold.gang: hold for hold in assigned.holds}
    for name in sorted(assigned.waits - broken.keys()):
        rank = min(demands[claim.uid].rank for claim in gangs[name])
        room = returned(assigned.room, holds[name].slots) if name in holds else assigned.room
        broken[name] = GangProblem(lacking=lacking(gangs[name], rank, demands, allocated, room, entitlements))
    keeps = dict(nominations.kept)
    for name in sorted({by_uid[uid].gang for uid in nominations.nominated} - {"", *broken}):
        # A gang that could launch without the nominated slot waits for it too, and keeps the others.
        broken[name] = GangProblem(
            lacking=[claim.name for claim in gangs[name] if claim.uid in nominations.nominated]
        )
        keeps |= {claim.uid: allocated[claim.uid] for claim in gangs[name] if claim.uid in allocated}
    chosen = {
        claim.uid: option
        for claim in waiting
        if claim.uid in demands and claim.gang not in broken and claim.uid not in nominations.nominated
        if (option := _choice(candidates_by_claim[claim.uid], allocated.get(claim.uid))) is not None
    }
    pending = _pending(waiting, chosen, candidates_by_claim, broken, nominations.nominated)
    for name in sorted({by_uid[uid].gang for uid in pending} - {""}):
        lacks = [claim.name for claim in gangs[name] if claim.uid in pending]
        broken[name] = GangProblem(lacking=[*(broken[name].lacking if name in broken else ()), *lacks])
    for claim in waiting:
        if claim.uid in pending or claim.gang in broken:
            chosen.pop(claim.uid, None)
    explained, outbid = budget.until(ALL), reasons.OutbidOptions(inventory)
    unplaced_by_key: dict[tuple[object, ...], Unplaced] = {}
    for claim in waiting:
        if claim.uid not in unplaced and claim.uid not in chosen:
            candidates, known = candidates_by_claim[claim.uid], catalog.known(claim)
            held = _holds_about(claim, assigned.holds)
            key = (id(candidates), claim.requirements, frozenset(claim.requests.items()), *map(id, held))
            if not explained.admits(claim, free=key in unplaced_by_key):
                continue
            if key not in unplaced_by_key:
                unplaced_by_key[key] = reasons.unplaced(claim, candidates, known, outbid, held)
            unplaced[claim.uid] = replace(unplaced_by_key[key], claim=claim)
            if claim.uid in pending:
                unplaced[claim.uid] = reasons.pending(unplaced[claim.uid], *pending[claim.uid])
    for name, problem in broken.items():
        members = [claim for claim in gangs[name] if claim.uid in candidates_by_claim]
        others = [hold for hold in assigned.holds if hold.gang != name]
        unplaced |= reasons.gang_incomplete(
            name, members, problem.lacking, unplaced, problem.message, holds.get(name), others
        )
    for uid, nominated_slot in nominations.nominated.items():
        unplaced[uid] = reasons.reclaiming(
            by_uid[uid], candidates_by_claim[uid], nominated_slot, entitlements, outbid
        )
    assignments, skipped = _explained(
        waiting, chosen, candidates_by_claim, catalog, outbid, explained, assigned.holds
    )
    later: set[str] = set()
    if len(unplaced) + len(assignments) < len(all_claims):
        later = (
            {claim.uid for claim in all_claims}
            - unplaced.keys()
            - {assignment.claim.uid for assignment in assignments}
        )
        count = len(all_claims) - len(later)
        unplaced |= {
            claim.uid: reasons.later(claim, count, len(all_claims))
            for claim in all_claims
            if claim.uid in later
        }
    kept = frozenset(keeps.values()) | assigned.kept
    assignments = separated(
        assignments,
        allocated,
        kept,
        entitlements,
        inventory,
        lambda claim, odcr_id: named(inventory.odcrs[odcr_id], catalog.known(claim)),
    )
    assignments = opted_out(assignments, node_classes, kept, entitlements, inventory)
    return Plan(
        assignments=assignments,
        unplaced=tuple(unplaced[claim.uid] for claim in all_claims if claim.uid in unplaced),
        skipped=skipped,
        solution=_in_part(solution, len(later), len(all_claims), seconds) if later else solution,
        nominated=nominations.nominated,
        kept=keeps,
        later=frozenset(later),
        holds=assigned.holds,
    )


def _candidates(
    claims: Iterable[Claim],
    node_classes: Mapping[str, NodeClass],
    catalog: OptionCatalog,
    admission: PlanAdmission,
) -> tuple[dict[str, CandidateOptions], dict[str, Unplaced]]:
    """The options of each claim, and the claims that no option can serve; both by uid."""
    candidates_by_claim: dict[str, CandidateOptions] = {}
    unplaced: dict[str, Unplaced] = {}
    too_few: dict[tuple[int, tuple[tuple[str, int], ...]], Unplaced | None] = {}
    for claim in claims:
        computed = catalog.computed(claim)
        if not admission.admits(claim, free=computed is not None):
            continue
        # A refusal follows from what a claim shares with all that have its options.
        if computed is None and (refusal := reasons.refusal(claim, node_classes)):
            unplaced[claim.uid] = refusal
            continue
        candidates = computed or catalog.candidates(claim)
        if claim.min_values:
            values_key = (id(candidates), claim.min_values)
            if values_key not in too_few:
                too_few[values_key] = reasons.too_few_values(claim, candidates, catalog.known(claim))
            if short := too_few[values_key]:
                unplaced[claim.uid] = replace(short, claim=claim)
                continue
        candidates_by_claim[claim.uid] = candidates
    return candidates_by_claim, unplaced


def _with_holds(
    slots: SlotAssigner,
    demands: Mapping[str, ClaimDemand],
    stuck: frozenset[str],
    windows: Mapping[str, datetime],
) -> AssignedSlots:
    """The assignment in which waiting gangs with an open window hold free slots.

    `stuck`: gangs with a claim that no free slot suits. A gang that waits only because another gang holds its
    slots holds slots itself, against those that it outranks.
    """
    assigned = slots.assign(demands)
    holders: dict[str, HoldingGang] = {}
    while slots.budget.seconds_left(SLOTS) >= 0:
        more = {
            name: gang
            for name in sorted(
                (assigned.waits | stuck) & windows.keys() - holders.keys() - assigned.nominated_gangs
            )
            if (gang := holding(slots.gangs[name], windows[name], slots.candidates, slots.inventory))
        }
        if not more:
            break
        holders |= more
        assigned = slots.assign(demands, holders)
    return assigned


def _in_part(solution: Solution, later: int, count: int, seconds: float) -> Solution:
    note = (
        f"{seconds:g} s were too short: {later} of {counted(count, 'claim is', 'claims are')} planned later"
    )
    return replace(solution, optimal=False, note="; ".join(filter(None, (solution.note, note))))


def _choice(candidates: CandidateOptions, odcr_id: str | None) -> Option | None:
    """The option that draws from the assigned reservation, or the best one outside reservations."""
    return candidates.unreserved if odcr_id is None else candidates.drawing(odcr_id)


def _pending(
    waiting: Iterable[Claim],
    chosen: Mapping[str, Option],
    candidates_by_claim: Mapping[str, CandidateOptions],
    broken: Mapping[str, GangProblem],
    nominated: Collection[str],
) -> dict[str, tuple[Odcr, datetime]]:
    """Claims without a slot that wait for a reservation, which begins within minutes, and until when.

    An on-demand instance launched in the meantime would be paid for twice.
    """

    def waits(claim: Claim) -> bool:
        if (
            claim.uid not in candidates_by_claim
            or claim.uid in nominated
            or not candidates_by_claim[claim.uid].soon
        ):
            return False
        if claim.gang in broken and broken[claim.gang].message:
            return False  # the gang is not complete yet
        return claim.uid not in chosen or chosen[claim.uid].pool.capacity_type != "reserved"

    claims = [claim for claim in waiting if waits(claim)]
    starting = {odcr.id: (odcr, by) for claim in claims for odcr, by in candidates_by_claim[claim.uid].soon}
    flow: Flow[str, str] = Flow(
        {claim.uid: [odcr.id for odcr, _ in candidates_by_claim[claim.uid].soon] for claim in claims},
        {id_: odcr.total for id_, (odcr, _) in starting.items()},
    )
    served = [claim for claim in claims if flow.add(claim.uid)]
    return {claim.uid: starting[next(iter(flow.taken(claim.uid)))] for claim in served}


def _holds_about(claim: Claim, holds: Sequence[GangHold]) -> tuple[GangHold, ...]:
    return tuple(hold for hold in holds if hold.applies(claim))


def _explained(
    waiting: Iterable[Claim],
    chosen: Mapping[str, Option],
    candidates_by_claim: Mapping[str, CandidateOptions],
    catalog: OptionCatalog,
    outbid: reasons.OutbidOptions,
    admission: PlanAdmission,
    holds: Sequence[GangHold],
) -> tuple[tuple[Assignment, ...], dict[str, tuple[Skipped, ...]]]:
    """The assignments, and for each claim the better options that it did not get."""
    explained: dict[tuple[object, ...], tuple[tuple[Option, ...], tuple[Skipped, ...]]] = {}
    assignments: list[Assignment] = []
    skipped: dict[str, tuple[Skipped, ...]] = {}
    for claim in waiting:
        if (option := chosen.get(claim.uid)) is None:
            continue
        candidates = candidates_by_claim[claim.uid]
        held = _holds_about(claim, holds) if holds else ()
        key: tuple[int, ...] = (id(candidates), id(option))
        if held:
            key += tuple(map(id, held))
        if not admission.admits(claim, free=key in explained):
            continue
        if key not in explained:
            explained[key] = reasons.rest_and_skipped(
                claim, candidates, option, catalog.known(claim), outbid, held
            )
        rest, better = explained[key]
        assignments.append(Assignment(claim=claim, option=option, rest=rest))
        if better:
            skipped[claim.uid] = better
    return tuple(assignments), skipped
