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

Claims that take over the slot of a node come before all others (see `successors`).

A claim that would launch outside reservations waits if a reservation that begins within
minutes has a slot for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from broker.capacity import reasons
from broker.capacity.allocation import lacking
from broker.capacity.assign import AssignedSlots, SlotAssigner
from broker.capacity.class_catalog import named
from broker.capacity.demand import GangProblem, WaitingClaims, demands_of, gangs_of, incomplete, order
from broker.capacity.domains import LaunchedGangs, in_domains
from broker.capacity.explanations import Explanations
from broker.capacity.flow import Flow
from broker.capacity.gang_hold import HoldingGang, holding, open_windows
from broker.capacity.model import Assignment, Claim, Option, Plan, Skipped, Solution, Unplaced
from broker.capacity.option_catalog import CandidateOptions, OptionCatalog, awaited
from broker.capacity.overlap import opted_out, separated
from broker.capacity.problem import ClaimDemand
from broker.capacity.solve import SECONDS
from broker.capacity.successors import succeed
from broker.capacity.supply import LaunchSupply
from broker.capacity.time_budget import ALL, DOMAINS, OPTIONS, SLOTS, PlanAdmission, TimeBudget
from broker.text import counted
from providers.model import Odcr


def plan(
    claims: Iterable[Claim],
    supply: LaunchSupply,
    *,
    launched: LaunchedGangs | None = None,
    seconds: float = SECONDS,
    timer: Callable[[], float] = float,
) -> Plan:
    """Assigns each claim to an option now, or gives the reason why it waits.

    `launched`: the claims of each gang that have their instance. `timer` returns seconds since
    some moment; without a timer no time passes. The whole plan takes at most `seconds`: claims that do not
    fit into them are planned later.
    """
    budget = TimeBudget(seconds, timer)
    succession = succeed(sorted(claims, key=order), supply)
    launched = succession.beside(launched or {}, supply.inventory)
    all_claims, supply = [*succession.others], succession.rest
    if any(claim.domain for claim in all_claims):

        def anywhere(part: Sequence[Claim]) -> Plan:
            free = [replace(claim, domain="") for claim in part]
            return plan(free, supply, launched=launched, seconds=seconds / 10, timer=timer)

        def in_time() -> bool:
            return budget.seconds_left(DOMAINS) >= 0

        narrowed = in_domains(all_claims, supply.classes, launched, anywhere, in_time)
        all_claims = sorted(narrowed, key=order)
    catalog = OptionCatalog(supply)
    waiting, refused = _with_options(all_claims, catalog, supply, budget.until(OPTIONS))
    broken = _incomplete_gangs(waiting, launched)
    demands = demands_of(waiting, broken, supply.entitlements)
    slots = _assigned_slots(SlotAssigner(waiting=waiting, supply=supply, budget=budget), demands, broken)
    draft = _Draft(supply=supply, waiting=waiting, demands=demands, slots=slots, broken=broken)
    draft.keep_gangs_whole()
    draft.choose_options()
    draft.wait_for_reservations()
    explanations = Explanations(waiting, supply, slots.holds, budget.until(ALL))
    unplaced = draft.unplaced(explanations, refused)
    assignments, skipped = draft.assignments(explanations)
    later = _later(all_claims, unplaced, assignments)
    unplaced |= later
    return Plan(
        assignments=(*succession.assignments, *draft.as_launched(assignments, catalog, succession.odcr_ids)),
        unplaced=(
            *succession.unplaced.values(),
            *(
                reasons.in_words(unplaced[claim.uid]) if claim.domain else unplaced[claim.uid]
                for claim in all_claims
                if claim.uid in unplaced
            ),
        ),
        skipped=skipped,
        solution=_in_part(slots.solution, len(later), len(all_claims), seconds) if later else slots.solution,
        nominated=slots.nominations.nominated,
        kept=draft.kept,
        later=frozenset(later),
        holds=slots.holds,
    )


def _with_options(
    claims: Iterable[Claim], catalog: OptionCatalog, supply: LaunchSupply, admission: PlanAdmission
) -> tuple[WaitingClaims, dict[str, Unplaced]]:
    """The claims that are considered in time, with their options, and those that no option can serve."""
    considered: dict[str, Claim] = {}
    candidates: dict[str, CandidateOptions] = {}
    refused: dict[str, Unplaced] = {}
    too_few: dict[tuple[object, ...], Unplaced | None] = {}
    for claim in claims:
        computed = catalog.computed(claim)
        if not admission.admits(claim, free=computed is not None):
            continue
        considered[claim.uid] = claim
        # A refusal follows from what a claim shares with all that have its options.
        if computed is None and (refusal := reasons.refusal(claim, supply.classes)):
            refused[claim.uid] = refusal
            continue
        options = computed or catalog.candidates(claim)
        values_key = (options, claim.min_values)
        if claim.min_values and values_key not in too_few:
            too_few[values_key] = reasons.too_few_values(claim, options)
        if short := too_few.get(values_key):
            refused[claim.uid] = replace(short, claim=claim)
        else:
            candidates[claim.uid] = options
    gangs = gangs_of(considered.values())
    return WaitingClaims(by_uid=considered, gangs=gangs, candidates=candidates), refused


def _incomplete_gangs(waiting: WaitingClaims, launched: LaunchedGangs) -> dict[str, GangProblem]:
    """The gangs that cannot launch, whatever slots are free."""
    problems = {
        name: incomplete(gang, waiting.candidates, len(launched.get(name, ())))
        for name, gang in waiting.gangs.items()
    }
    return {name: problem for name, problem in problems.items() if problem is not None}


def _assigned_slots(
    slots: SlotAssigner, demands: Mapping[str, ClaimDemand], broken: Mapping[str, GangProblem]
) -> AssignedSlots:
    """The assignment in which waiting gangs with an open window hold free slots.

    A gang that waits only because another gang holds its slots holds slots itself, against those that it
    outranks. So does one with a claim that no free slot suits.
    """
    stuck = frozenset(name for name, problem in broken.items() if not problem.message)
    gangs = slots.waiting.gangs
    windows = open_windows(gangs, slots.supply.classes, slots.supply.now)
    assigned = slots.assign(demands)
    holders: dict[str, HoldingGang] = {}
    while slots.budget.seconds_left(SLOTS) >= 0:
        waits = (assigned.waits | stuck) & windows.keys() - holders.keys() - assigned.nominated_gangs
        more = {
            name: gang
            for name in sorted(waits)
            if (gang := holding(gangs[name], windows[name], slots.waiting.candidates, slots.supply.inventory))
        }
        if not more:
            break
        holders |= more
        assigned = slots.assign(demands, holders)
    return assigned


@dataclass(kw_only=True)
class _Draft:
    """A plan in the making: the slots are assigned, and each step decides about more claims.

    `broken`: the gangs that do not launch. `kept`: the reservation of each claim that keeps a slot while its
    gang waits. `pending`: the reservations that claims wait for, and until when.
    """

    supply: LaunchSupply
    waiting: WaitingClaims
    demands: Mapping[str, ClaimDemand]
    slots: AssignedSlots
    broken: dict[str, GangProblem]
    kept: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, Option] = field(default_factory=dict)
    pending: dict[str, tuple[Odcr, datetime]] = field(default_factory=dict)

    def keep_gangs_whole(self) -> None:
        """Keeps back the gangs that lack slots, and those that wait for a nominated slot.

        A gang that could launch without the nominated slot waits for it too, and keeps the others.
        """
        for name in sorted(self.slots.waits - self.broken.keys()):
            self.broken[name] = GangProblem(lacking=self._lacking(name))
        nominations, allocated = self.slots.nominations, self.slots.allocated
        self.kept = dict(nominations.kept)
        for name in self._gangs_of(nominations.nominated) - self.broken.keys():
            gang = self.waiting.gangs[name]
            self.broken[name] = GangProblem(
                lacking=[claim.name for claim in gang if claim.uid in nominations.nominated]
            )
            self.kept |= {claim.uid: allocated[claim.uid] for claim in gang if claim.uid in allocated}

    def _lacking(self, name: str) -> list[str]:
        """The claims of a gang (by name) for which other claims leave no slot."""
        gang, slots = self.waiting.gangs[name], self.slots
        rank = min(self.demands[claim.uid].rank for claim in gang)
        hold = next((hold for hold in slots.holds if hold.gang == name), None)
        room = slots.room.returned(hold.slots) if hold else slots.room
        return lacking(gang, rank, self.demands, slots.allocated, room, self.supply.entitlements)

    def _gangs_of(self, uids: Iterable[str]) -> set[str]:
        return {self.waiting.by_uid[uid].gang for uid in uids} - {""}

    def choose_options(self) -> None:
        """Chooses the option that draws from the assigned reservation, or the best one outside them."""
        for uid in self.demands.keys() - self.slots.nominations.nominated.keys():
            if self.waiting.by_uid[uid].gang not in self.broken:
                candidates, odcr_id = self.waiting.candidates[uid], self.slots.allocated.get(uid)
                option = candidates.unreserved if odcr_id is None else candidates.drawing(odcr_id)
                if option is not None:
                    self.chosen[uid] = option

    def wait_for_reservations(self) -> None:
        """Has claims without a slot wait for a reservation that begins within minutes.

        An on-demand instance launched in the meantime would be paid for twice.
        """
        candidates = self.waiting.candidates.items()
        begins = {uid: options.soon for uid, options in candidates if options.soon and self._may_wait(uid)}
        if not begins:
            return
        starting = {odcr.id: (odcr, by) for soon in begins.values() for odcr, by in soon}
        flow: Flow[str, str] = Flow(
            {uid: [odcr.id for odcr, _ in soon] for uid, soon in begins.items()},
            {id_: odcr.total for id_, (odcr, _) in starting.items()},
        )
        served = [uid for uid in begins if flow.add(uid)]
        self.pending = {uid: starting[next(iter(flow.taken(uid)))] for uid in served}
        for name in self._gangs_of(self.pending):
            before = self.broken[name].lacking if name in self.broken else ()
            lacks = [claim.name for claim in self.waiting.gangs[name] if claim.uid in self.pending]
            self.broken[name] = GangProblem(lacking=[*before, *lacks])
        self.chosen = {
            uid: option
            for uid, option in self.chosen.items()
            if uid not in self.pending and self.waiting.by_uid[uid].gang not in self.broken
        }

    def _may_wait(self, uid: str) -> bool:
        problem = self.broken.get(self.waiting.by_uid[uid].gang)
        if problem and problem.message:
            return False  # its gang is not complete yet
        served = uid in self.chosen and self.chosen[uid].pool.reserved
        return not served and uid not in self.slots.nominations.nominated

    def unplaced(self, explanations: Explanations, refused: Mapping[str, Unplaced]) -> dict[str, Unplaced]:
        """Why claims wait, as far as there is time to explain it; `refused`: those without any option."""
        unplaced = dict(refused)
        for uid in self.waiting.candidates:
            if uid not in self.chosen and (waits := explanations.unplaced(self.waiting.by_uid[uid])):
                unplaced[uid] = reasons.pending(waits, *self.pending[uid]) if uid in self.pending else waits
        for name, problem in self.broken.items():
            unplaced |= explanations.gang(name, problem, unplaced)
        for uid, nominated_slot in self.slots.nominations.nominated.items():
            unplaced[uid] = explanations.reclaiming(self.waiting.by_uid[uid], nominated_slot)
        return unplaced

    def assignments(
        self, explanations: Explanations
    ) -> tuple[tuple[Assignment, ...], dict[str, tuple[Skipped, ...]]]:
        """The assignments, and for each claim the better options that it did not get."""
        assignments: list[Assignment] = []
        skipped: dict[str, tuple[Skipped, ...]] = {}
        for uid, claim in self.waiting.by_uid.items():
            option = self.chosen.get(uid)
            if option is None or (choice := explanations.choice(claim, option)) is None:
                continue
            rest, better = choice
            assignments.append(Assignment(claim=claim, option=option, rest=rest))
            if better:
                skipped[uid] = better
        return tuple(assignments), skipped

    def as_launched(
        self, assignments: tuple[Assignment, ...], catalog: OptionCatalog, held: frozenset[str]
    ) -> tuple[Assignment, ...]:
        """The assignments, so that EC2 takes the slots of the plan and no other; `held`: by successors."""
        supply = self.supply
        kept = frozenset(self.kept.values()) | held | self.slots.kept | supply.inventory.left_ids
        joining = frozenset(id_ for id_, count in supply.inventory.joining.items() if count)

        def member(claim: Claim, odcr_id: str) -> Option:
            return named(supply.inventory.odcrs[odcr_id], catalog.known(claim))

        assignments = separated(assignments, self.slots.allocated, kept | joining, supply, member)
        nominated = {id_ for slot in self.slots.nominations.nominated.values() for id_ in slot.odcr_ids}
        return opted_out(assignments, kept | nominated | self._awaited(), supply)

    def _awaited(self) -> frozenset[str]:
        """The reservations in which claims wait for a slot without another way: EC2 gives a slot that becomes
        free to an instance that runs by then.
        """
        waiting = self.waiting.candidates
        stuck = {waiting[uid] for uid in waiting.keys() - self.chosen.keys()}
        return awaited(stuck) | {odcr.id for odcr, _ in self.pending.values()}


def _later(
    claims: Iterable[Claim], unplaced: Mapping[str, Unplaced], assignments: Iterable[Assignment]
) -> dict[str, Unplaced]:
    """The claims for which the time was too short."""
    planned = unplaced.keys() | {assignment.claim.uid for assignment in assignments}
    by_uid = {claim.uid: claim for claim in claims}
    return {
        uid: reasons.later(claim, len(planned), len(by_uid))
        for uid, claim in by_uid.items()
        if uid not in planned
    }


def _in_part(solution: Solution, later: int, count: int, seconds: float) -> Solution:
    note = (
        f"{seconds:g} s were too short: {later} of {counted(count, 'claim is', 'claims are')} planned later"
    )
    return replace(solution, optimal=False, note="; ".join(filter(None, (solution.note, note))))
