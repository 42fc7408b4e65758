"""Packs pods into machines to open: together, over instance types and reserved slots, in one program.

Objectives, in this order: pods of higher priority have a machine; NodePools of more weight serve first; the
least cost, in which a reserved slot costs next to nothing, so that on-demand machines are few. A gang gets
all its machines, as many as it needs at least, or none.

Invariant: no machine exceeds its allocatable, every pod passes kube-scheduler's filters on its machine, and
neither a reservation's free slots nor a NodePool's limits are exceeded. Two exceptions: beyond
`MOST_VERIFIED` pods under rules between pods, a zone that the plan opens late is not counted; and a machine
for pods of lower priority, weight or another gang may make the spread of earlier pods over host names uneven,
so that kube-scheduler binds one of them to that machine instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from broker.apis import names
from broker.apis.names import HOSTNAME
from broker.placement.machines import MachineTable, Mask, places_of, topology_keys
from broker.placement.packing_model import MachineOption, PackedBin, Packing, PendingPod
from broker.placement.packing_reasons import packing_reasons
from broker.placement.packing_state import BrokenGang, OpenBin, PackingState, Supply
from broker.placement.sequential import close_blocking, place_in_order, place_on_open, take_rejected
from broker.placement.shapes import PodShape, by_domain, over_domains, shapes_of
from broker.placement.snapshot import PlacementSnapshot
from broker.placement.spread import counting
from broker.placement.together import place_units, units_of
from broker.placement.type_reasons import PoolReason

SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tier:
    """The machines that pods may get; a program takes about `seconds`.

    `upto`: the same and those of more weight, for pods that affinity keeps together; with `whole`, they get
    machines all together or not at all.
    """

    options: Sequence[MachineOption]
    upto: Sequence[MachineOption]
    seconds: float
    timer: Callable[[], float]
    whole: bool = True

    @property
    def ready(self) -> _Tier:
        """Without machines that wait."""
        options, upto = ([item for item in items if not item.waits] for items in (self.options, self.upto))
        return replace(self, options=options, upto=upto)


def pack(
    pods: Iterable[PendingPod],
    options: Iterable[MachineOption],
    *,
    room: Mapping[str, int],
    refused: Iterable[MachineOption] = (),
    limits: Mapping[str, Mapping[str, int]] | None = None,
    whole_limits: Mapping[str, Mapping[str, int]] | None = None,
    needed: Mapping[str, int] | None = None,
    snapshot: PlacementSnapshot | None = None,
    seconds: float = SECONDS,
    timer: Callable[[], float] = float,
) -> Packing:
    """The machines to open for the pods, and why the others get none.

    `room`: free slots by source. `refused`: machines that cannot be opened now, for reasons alone. `limits`:
    the amounts that each NodePool may still add, and `whole_limits` those that reasons name. `needed`: how
    many of these pods a gang needs at least, if not all. `snapshot`:
    existing nodes with their pods, which rules between pods count. `timer` returns seconds since some moment;
    the program takes about `seconds`.
    """
    state = PackingState(
        snapshot=snapshot or PlacementSnapshot(),
        supply=Supply(
            room=dict(room), limits={pool: dict(remaining) for pool, remaining in (limits or {}).items()}
        ),
        needed=needed or {},
    )
    offered = [*options]
    originals = {pod.key: pod for pod in pods}
    waiting = _spread_over([*originals.values()], offered, state)
    weights = sorted({option.weight for option in offered}, reverse=True) or [0]  # existing nodes may do
    tiers = [
        _Tier(
            options=[option for option in offered if option.weight == weight],
            upto=[option for option in offered if option.weight >= weight],
            seconds=seconds / len(weights),
            timer=timer,
        )
        for weight in weights
    ]
    waiting = _by_weight(waiting, tiers, state)
    if apart := _of_units(waiting, state) if waiting else set():
        # No domain has machines for all pods of a unit: so those that one has.
        others = [pod for pod in waiting if pod.key not in apart]
        again = [pod for pod in waiting if pod.key in apart]
        every = _Tier(options=offered, upto=offered, seconds=seconds, timer=timer, whole=False)
        waiting = others + _pack_tier(again, every, state)
    by_pool: dict[str, Mapping[str, PoolReason]] = {}
    held: set[str] = set()
    whole = whole_limits or limits or {}
    reasons = packing_reasons(waiting, [*offered, *refused], state, whole, by_pool, held) if waiting else {}
    placed = [PodShape(pods=(pod,)) for item in state.bins for pod in item.pods]
    table = MachineTable(offered, placed, state.snapshot.storage)
    larger = state.supply.larger(item.option for item in state.bins)
    bins = tuple(_finished(item, table, state, larger[item.option.pool]) for item in state.bins)
    bins = tuple(replace(item, pods=tuple(originals[pod.key] for pod in item.pods)) for item in bins)
    cost = sum(item.option.cost for item in bins)
    return Packing(
        bins=bins,
        taken={key: node for key, (_, node) in state.taken.items()},
        reasons=reasons,
        by_pool=by_pool,
        held=frozenset(held),
        cost=cost,
        bound=min(state.bound, cost),
        unsolved=state.unsolved,
    )


def _spread_over(
    pods: Sequence[PendingPod], options: Sequence[MachineOption], state: PackingState
) -> list[PendingPod]:
    """The pods with the domains that machines offer them, without those that are a last resort.

    As in Karpenter, the NodePools of every weight count
    (https://karpenter.sh/docs/concepts/scheduling/#topology-spread).
    """
    shapes = shapes_of((pod for pod in pods if over_domains(pod.info)), state.snapshot)
    if not shapes:
        return [*pods]
    usual = [option for option in options if option.weight >= 0 and state.supply.has(option)]
    table = MachineTable(usual, shapes, state.snapshot.storage)
    domains: dict[str, Mapping[str, frozenset[str]]] = {}
    for shape in shapes:
        fitting = [usual[place].node.labels for place in places_of(table.fits(shape))]
        keys = {rule.topology_key for rule in over_domains(shape.example)}
        offered = {key: frozenset(labels[key] for labels in fitting if key in labels) for key in keys}
        domains |= {pod.key: offered for pod in shape.pods}
    return [replace(pod, info=counting(pod.info, domains.get(pod.key, {}))) for pod in pods]


def _by_weight(pods: Sequence[PendingPod], tiers: Sequence[_Tier], state: PackingState) -> list[PendingPod]:
    """Packs the pods into machines of the most weight first. Returns those without a machine.

    Pods of lower priority may take the machines that a gang needs of one weight beside those of another: then
    the gang and the pods that precede it are packed first.
    """
    empty = state.copy()
    waiting = _in_tiers(pods, tiers, state)
    outranked = {pod.priority for pod in waiting if pod.gang and state.splits(pod.gang)} - {
        min((pod.priority for pod in pods), default=0)
    }
    for priority in sorted(outranked, reverse=True) if len(tiers) > 1 else ():
        first = [pod for pod in pods if pod.priority >= priority]
        other = empty.copy()
        left = _in_tiers(first, tiers, other)
        if len(left) < sum(pod.priority >= priority for pod in waiting):
            left += _in_tiers([pod for pod in pods if pod.priority < priority], tiers, other)
            state.adopt(other)
            return left
    return waiting


def _in_tiers(pods: Sequence[PendingPod], tiers: Sequence[_Tier], state: PackingState) -> list[PendingPod]:
    waiting = [*pods]
    for tier in tiers:
        waiting = _ready_first(waiting, tier, state)
    apart = _of_units(waiting, state) if waiting and len(tiers) > 1 else set()
    for gang in dict.fromkeys(pod.gang for pod in waiting if pod.gang and pod.key not in apart):
        if len(tiers) > 1 and state.splits(gang):
            waiting = _of_all_weights(gang, waiting, tiers, state)
    return waiting


def _ready_first(pods: Sequence[PendingPod], tier: _Tier, state: PackingState) -> list[PendingPod]:
    """Packs pods that can have a machine now apart from machines that wait, unless others lose their machine
    by it; then the other pods. Returns those without a machine.
    """
    if early := _at_once(pods, tier.options, state):
        apart = state.copy()
        left = _pack_tier([pod for pod in pods if pod.key in early], tier.ready, apart)
        left = _pack_tier([*(pod for pod in pods if pod.key not in early), *left], tier, apart)
    unplaced = _pack_tier(pods, tier, state) if not early or left else []
    if not early or not {pod.key for pod in left} <= {pod.key for pod in unplaced}:
        return unplaced
    state.adopt(apart)
    return left


def _at_once(
    pods: Sequence[PendingPod], options: Sequence[MachineOption], state: PackingState
) -> Collection[str]:
    """The pods, by key, that are not to join others on a machine that waits: their cheapest one does not.

    Empty if no machine waits. Pods that affinity keeps with others, and those of gangs, stay with them.
    """
    if not any(option.waits for option in options):
        return ()
    shapes = [shape for shape in shapes_of(pods, state.snapshot) if not shape.example.affinity]
    table = MachineTable(options, shapes, state.snapshot.storage)
    early: set[str] = set()
    for shape in shapes:
        fitting = filter(state.supply.has, (options[place] for place in places_of(table.fits(shape))))
        cheapest = min(fitting, key=lambda option: option.cost, default=None)
        if cheapest is not None and not cheapest.waits:
            early.update(pod.key for pod in shape.pods if not pod.gang)
    return early


def _pack_tier(pods: Sequence[PendingPod], tier: _Tier, state: PackingState) -> list[PendingPod]:
    """Packs the pods that the tier can take; returns the others. Pods of higher priority come first."""
    before, taken = {item.name for item in state.bins}, {*state.taken}
    unplaced = _attempt(pods, tier, state)
    same = len({pod.priority for pod in pods}) == 1
    if not unplaced or same or not _fitting(unplaced, tier.options, state):
        return unplaced
    # Not all that could have a machine: so each priority by itself, the highest first.
    state.close([item for item in state.bins if item.name not in before])
    state.leave(state.taken.keys() - taken)
    unplaced = []
    for priority in sorted({pod.priority for pod in pods}, reverse=True):
        kept = state.placed
        of_priority = [pod for pod in pods if pod.priority == priority and pod.key not in kept]
        unplaced += _attempt(of_priority, tier, state)
    return unplaced


def _fitting(pods: Sequence[PendingPod], options: Sequence[MachineOption], state: PackingState) -> bool:
    """Whether a machine could host one of the pods, if no other pod took it."""
    shapes = shapes_of(pods, state.snapshot)
    table = MachineTable(options, shapes, state.snapshot.storage)
    return any(table.fits(shape).any() for shape in shapes)


def _of_units(pods: Sequence[PendingPod], state: PackingState) -> set[str]:
    """The pods (by key) that affinity keeps together, and the other pods of their gangs."""
    together = {pod.key: pod.gang for unit in units_of(pods, state.snapshot) for pod in unit.pods}
    gangs = {*together.values()} - {""}
    return {pod.key for pod in pods if pod.key in together or pod.gang in gangs}


def _attempt(pods: Sequence[PendingPod], tier: _Tier, state: PackingState) -> list[PendingPod]:
    """Packs pods without splitting a gang: one with fewer machines than it needs gives them back."""
    place = partial(_placed, tier=tier, state=state)
    before = {item.name for item in state.bins}
    unplaced = place(pods)
    broken = {gang for gang in {pod.gang for pod in unplaced} - {""} if state.splits(gang)}
    if not broken:
        return unplaced
    state.close([b for b in state.bins if b.name not in before and b.pods and b.pods[0].gang in broken])
    state.leave(pod.key for pod in pods if pod.gang in broken)
    single = [pod for pod in unplaced if not pod.gang]
    if single:  # the machines that a broken gang gave back may serve others
        place(single)
    # Broken gangs are tried again by themselves, in order: two may have blocked one another.
    for gang in dict.fromkeys(pod.gang for pod in pods if pod.gang in broken):
        members = [pod for pod in pods if pod.gang == gang]
        opened = {item.name for item in state.bins}
        if (without := place(members)) and state.splits(gang):
            state.broken.setdefault(gang, []).append(BrokenGang(state.supply.copy(), without))
            state.close([b for b in state.bins if b.name not in opened])
            state.leave(pod.key for pod in members)
    kept = state.placed
    return [pod for pod in pods if pod.key not in kept]


def _of_all_weights(
    gang: str, waiting: Sequence[PendingPod], tiers: Sequence[_Tier], state: PackingState
) -> list[PendingPod]:
    """Gives a gang that the machines of no one weight are enough for those of all weights, the most weight
    first. Returns the pods without a machine.
    """
    members = [pod for pod in waiting if pod.gang == gang]
    before, without = {item.name for item in state.bins}, members
    for tier in tiers:
        without = _placed(without, tier, state) if without else []
    if without and state.splits(gang):
        state.broken[gang] = [BrokenGang(state.supply.copy(), without)]
        state.close([item for item in state.bins if item.name not in before])
        state.leave(pod.key for pod in members)
    kept = state.placed
    return [pod for pod in waiting if pod.key not in kept]


def _placed(pods: Sequence[PendingPod], tier: _Tier, state: PackingState) -> list[PendingPod]:
    """Places pods that affinity keeps together after the others; before them, if more pods get machines so.
    Returns pods without a machine.
    """
    place = partial(_in_steps, pods, tier)
    trial = state.copy()
    unplaced = place(trial, units_first=False)
    stuck = units_of(unplaced, state.snapshot)
    alone = place_units(stuck, tier.upto, state.copy(), whole=tier.whole)
    if len(alone) < sum(len(unit.pods) for unit in stuck):  # others have the only machines of their domain
        other = state.copy()
        fewer = place(other, units_first=True)
        if _lost(pods, fewer) < _lost(pods, unplaced):
            trial, unplaced = other, fewer
    state.adopt(trial)
    return unplaced


def _lost(pods: Sequence[PendingPod], unplaced: Sequence[PendingPod]) -> int:
    """How many pods get no machine, with all pods of their gangs."""
    gangs = {pod.gang for pod in unplaced} - {""}
    return sum(not pod.gang for pod in unplaced) + sum(pod.gang in gangs for pod in pods)


def _in_steps(
    pods: Sequence[PendingPod], tier: _Tier, state: PackingState, *, units_first: bool
) -> list[PendingPod]:
    """One program for all pods that it can take; those that affinity keeps together, before or after it; then
    the others in order. Returns pods without a machine.
    """
    shapes = shapes_of(place_on_open(pods, state), state.snapshot)
    table = MachineTable(tier.options, shapes, state.snapshot.storage)
    together: list[PodShape] = []
    for shape in (shape for shape in shapes if not shape.ordered):
        fitting = (tier.options[place] for place in places_of(table.fits(shape)))
        machines = (option.node.labels for option in fitting if state.supply.has(option))
        together += by_domain(shape, machines, state.snapshot)
    units = units_of((pod for shape in shapes if shape.ordered for pod in shape.pods), state.snapshot)
    in_units = {pod.key for unit in units for pod in unit.pods}
    first = len(state.bins)
    unplaced = place_units(units, tier.upto, state, whole=tier.whole) if units_first else []
    from broker.placement.program import packed_together  # its solver takes 18 MB

    state.bound += packed_together(together, table, state, seconds=tier.seconds, timer=tier.timer)
    unplaced += [pod for pod in take_rejected(state, first) if pod.key in in_units]
    if not units_first:
        unplaced += place_units(units, tier.upto, state, whole=tier.whole)
    kept = state.placed
    rest = [pod for shape in shapes for pod in shape.pods if pod.key not in kept]
    unplaced += place_in_order([pod for pod in rest if pod.key not in in_units], table, state)
    if (rest or units) and (rejected := take_rejected(state, first)):
        unplaced += place_in_order(rejected, table, state)
        unplaced += take_rejected(state, first)
    return [*unplaced, *close_blocking(state, first)]


def _finished(
    item: OpenBin, table: MachineTable, state: PackingState, larger: Mapping[str, int]
) -> PackedBin:
    """The machine with the other options that its pods fit. `larger`: see `Supply.larger`."""
    own = item.option
    need = np.zeros(len(table.resources), dtype=np.int64)
    for pod in item.pods:
        need += table.requests(pod.info)
    mask: Mask = np.all(need <= table.room, axis=1)
    for shape in shapes_of(item.pods, PlacementSnapshot()):
        mask &= table.accepts(shape)
    domain = _domain(item, state) if item.coupled else {}
    also = tuple(
        option
        for option in (table.options[place] for place in places_of(mask))
        if option.pool == own.pool
        and all(option.node.labels.get(key) == value for key, value in domain.items())
        and option.uses_no_more(own, larger)
    )
    return PackedBin(option=own, pods=tuple(item.pods), also=also)


def _domain(item: OpenBin, state: PackingState) -> dict[str, str | None]:
    """The labels that rules between pods read on the machine; another machine would be in another domain."""
    keys = {names.ZONE}.union(*(topology_keys(pod.info) for pod in item.pods))
    keys |= {term.topology_key for terms in state.snapshot.repelling for term in terms}
    return {key: item.option.node.labels.get(key) for key in keys - {HOSTNAME}}
