"""Packs pods into machines to open: together, over instance types and reserved slots, in one program.

Objectives, in this order: pods of higher priority have a machine; NodePools of more weight serve first; the
least cost, in which a reserved slot costs next to nothing, so that on-demand machines are few. A gang gets
all its machines or none.

Invariant: no machine exceeds its allocatable, every pod passes kube-scheduler's filters on its machine, and
neither a reservation's free slots nor a NodePool's limits are exceeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from broker.placement.machines import MachineTable, Yes, places_of
from broker.placement.packing_model import MachineOption, PackedBin, Packing, PendingPod
from broker.placement.packing_state import OpenBin, PackingState, Supply
from broker.placement.program import packed_together
from broker.placement.sequential import place_in_order, verified
from broker.placement.shapes import PodShape, by_zone, shapes_of
from broker.placement.snapshot import PlacementSnapshot

SECONDS: Final = 5.0
NO_ROOM: Final = "machines would fit, but their reserved slots are taken or the NodePool's limits are reached"
SPREAD: Final = "more machines would not help: its rules about other pods hold on none of them"
GANG: Final = "the gang {gang} needs machines for all its pods at once, and {count} of them have none"


def pack(
    pods: Iterable[PendingPod],
    options: Iterable[MachineOption],
    *,
    room: Mapping[str, int],
    limits: Mapping[str, Mapping[str, int]] | None = None,
    snapshot: PlacementSnapshot | None = None,
    seconds: float = SECONDS,
    timer: Callable[[], float] = float,
) -> Packing:
    """The machines to open for the pods, and why the others get none.

    `room`: free slots by source. `limits`: what each NodePool may still add. `snapshot`: existing nodes with
    their pods, which rules between pods count. `timer` returns seconds since some moment; the program takes
    about `seconds`.
    """
    state = PackingState(
        snapshot=snapshot or PlacementSnapshot(),
        supply=Supply(room=dict(room), limits={pool: dict(left) for pool, left in (limits or {}).items()}),
    )
    offered = [*options]
    waiting = [*pods]
    weights = sorted({option.weight for option in offered}, reverse=True)
    for weight in weights:
        tier = [option for option in offered if option.weight == weight]
        waiting = _pack_tier(waiting, tier, state, seconds=seconds / len(weights), timer=timer)
    reasons = _reasons(waiting, offered, state) if waiting else {}
    placed = [PodShape(pods=(pod,)) for item in state.bins for pod in item.pods]
    table = MachineTable(offered, placed, state.snapshot.storage)
    bins = tuple(_finished(item, table, state.supply) for item in state.bins)
    return Packing(bins=bins, reasons=reasons, cost=sum(item.option.cost for item in bins), bound=state.bound)


def _pack_tier(
    pods: Sequence[PendingPod],
    options: Sequence[MachineOption],
    state: PackingState,
    *,
    seconds: float,
    timer: Callable[[], float],
) -> list[PendingPod]:
    """Packs what these options can take; returns the other pods. Pods of higher priority come first."""
    left = _attempt(pods, options, state, seconds=seconds, timer=timer)
    if not left or len({pod.priority for pod in pods}) == 1:
        return left
    # Not all have a machine: so each priority by itself, the highest first.
    state.close([item for item in state.bins if item.option in options])
    left = []
    for priority in sorted({pod.priority for pod in pods}, reverse=True):
        some = [pod for pod in pods if pod.priority == priority]
        left += _attempt(some, options, state, seconds=seconds, timer=timer)
    return left


def _attempt(
    pods: Sequence[PendingPod],
    options: Sequence[MachineOption],
    state: PackingState,
    *,
    seconds: float,
    timer: Callable[[], float],
) -> list[PendingPod]:
    """Packs pods without splitting a gang: gangs that do not fit whole give their machines back."""
    before = set(map(id, state.bins))
    left = _placed(pods, options, state, seconds=seconds, timer=timer)
    broken = {pod.gang for pod in left if pod.gang}
    if not broken:
        return left
    state.close([b for b in state.bins if id(b) not in before and b.pods and b.pods[0].gang in broken])
    kept = {pod.key for b in state.bins for pod in b.pods}
    others = [pod for pod in left if not pod.gang]
    if others:  # the machines that a broken gang gave back may serve others
        _placed(others, options, state, seconds=seconds, timer=timer)
        kept = {pod.key for b in state.bins for pod in b.pods}
    # Broken gangs are tried again by themselves, in order: two may have blocked one another.
    for gang in dict.fromkeys(pod.gang for pod in pods if pod.gang in broken):
        members = [pod for pod in pods if pod.gang == gang]
        here = set(map(id, state.bins))
        if _placed(members, options, state, seconds=seconds, timer=timer):
            state.close([b for b in state.bins if id(b) not in here])
        else:
            kept |= {pod.key for pod in members}
    return [pod for pod in pods if pod.key not in kept]


def _placed(
    pods: Sequence[PendingPod],
    options: Sequence[MachineOption],
    state: PackingState,
    *,
    seconds: float,
    timer: Callable[[], float],
) -> list[PendingPod]:
    """One program for all pods that it can take; then the others in order. Returns pods without a machine."""
    shapes = shapes_of(pods, state.snapshot)
    table = MachineTable(options, shapes, state.snapshot.storage)
    together: list[PodShape] = []
    for shape in shapes:
        if shape.ordered:
            continue
        zones = {options[place].zone for place in places_of(table.fits(shape))}
        together += by_zone(shape, zones, state.snapshot)
    first = len(state.bins)
    state.bound += packed_together(together, table, state, seconds=seconds, timer=timer)
    verified(state, first)
    kept = {pod.key for item in state.bins for pod in item.pods}
    rest = [pod for shape in shapes for pod in shape.pods if pod.key not in kept]
    return place_in_order(rest, table, state)


def _finished(item: OpenBin, table: MachineTable, supply: Supply) -> PackedBin:
    """The machine with the other options that its pods fit."""
    own = item.option
    need = np.zeros(len(table.resources), dtype=np.int64)
    for pod in item.pods:
        need += table.requests(pod.info)
    yes: Yes = np.all(need <= table.room, axis=1)
    for shape in shapes_of(item.pods, PlacementSnapshot()):
        yes &= table.accepts(shape)
    limited = supply.limits.get(own.pool, {})
    also = tuple(
        option
        for option in (table.options[place] for place in places_of(yes))
        if option.pool == own.pool
        and (not item.coupled or option.zone == own.zone)
        and all(option.capacity.get(name, 0) <= own.capacity.get(name, 0) for name in limited)
    )
    return PackedBin(option=own, pods=tuple(item.pods), also=also)


def _reasons(
    pods: Sequence[PendingPod], options: Sequence[MachineOption], state: PackingState
) -> dict[str, str]:
    """Why each pod gets no machine."""
    reasons: dict[str, str] = {}
    alone: dict[str, int] = {}
    shapes = shapes_of(pods, state.snapshot)
    table = MachineTable(options, shapes, state.snapshot.storage)
    for shape in shapes:
        fitting = places_of(table.fits(shape))
        if not fitting:
            why = table.why_not(shape)
        elif not any(state.supply.has(options[place]) for place in fitting):
            why = NO_ROOM
        else:
            why = SPREAD if shape.coupled else ""
        for pod in shape.pods:
            reasons[pod.key] = why
            if pod.gang:
                alone[pod.gang] = alone.get(pod.gang, 0) + (1 if why else 0)
    for pod in pods:
        if not reasons[pod.key]:
            reasons[pod.key] = (
                GANG.format(gang=pod.gang, count=alone.get(pod.gang) or "some") if pod.gang else NO_ROOM
            )
    return reasons
