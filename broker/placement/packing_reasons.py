"""Why pods get no machine: the room of each NodePool's machines, limits, full reservations, and refusals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from broker.apis.names import HOSTNAME
from broker.capacity.full_slots import MOST_NAMED, none_left
from broker.placement.filters import prepare
from broker.placement.interpod import term_matches
from broker.placement.machines import NO_OPTION, MachineTable, places_of
from broker.placement.model import PodInfo
from broker.placement.packing_model import MachineOption, PendingPod
from broker.placement.packing_state import PackingState, Supply, node_of
from broker.placement.selectors import shown
from broker.placement.shapes import PodShape, shapes_of, term_counts
from broker.placement.type_reasons import PoolReason, limits_exceeded
from broker.text import abridged

WholeLimits = Mapping[str, Mapping[str, int]]

NEW: Final = "new"  # the name of a machine that is only tried
NO_ROOM: Final = "machines would fit, but their reserved slots are taken or the NodePool's limits are reached"
SPREAD: Final = "more machines would not help: its rules about other pods hold on none of them"
POSTPONED: Final = (
    "a machine in its zone would leave pods placed before with an uneven topology spread; "
    "it is planned after they run"
)
GANG: Final = (
    "the gang {gang} needs machines for all its pods at once, and there are none for {count} of them"
)
FEW_LEFT: Final = "too few free slots are left for all of them: "


def packing_reasons(
    pods: Sequence[PendingPod],
    options: Sequence[MachineOption],
    state: PackingState,
    whole_limits: WholeLimits,
    by_pool: dict[str, Mapping[str, PoolReason]],
    held: set[str],
) -> dict[str, str]:
    """Why each pod gets no machine; `by_pool` gets the reason of each NodePool, by pod, and `held` the pods
    with a reason of their own.
    """
    reasons: dict[str, str] = {}
    without_machine: dict[str, int] = {}  # pods with a reason of their own, by gang
    shapes = shapes_of(pods, state.snapshot)
    table = MachineTable(options, shapes, state.snapshot.storage)
    for shape in shapes:
        fitting = places_of(table.fits(shape))
        details: Mapping[str, PoolReason] = {}
        if not fitting:
            own = table.rejection(shape)
            details = {} if own else table.rejections(shape)
            held.update(pod.key for pod in shape.pods if own not in ("", NO_OPTION))
            reason = own or "; ".join(f"NodePool {pool}: {why.text}" for pool, why in details.items())
        elif not any(state.supply.has(options[place]) for place in fitting):
            shortages = _without_supply([options[p] for p in fitting], state.supply, whole_limits)
            details = table.rejections(shape) | shortages
            reason = NO_ROOM
        elif shape.coupled and (holding := _holding(shape, [options[p] for p in fitting], shapes, state)):
            if not any(map(state.supply.has, holding)):
                reason, details = NO_ROOM, _without_supply(holding, state.supply, whole_limits)
            else:
                reason = "" if shape.pods[0].gang else _unmet_rules(shape.example, options, shapes, state)
        else:
            reason = _unmet_rules(shape.example, options, shapes, state) if shape.coupled else ""
        for pod in shape.pods:
            postponed = pod.key in state.postponed
            reasons[pod.key] = POSTPONED if postponed else state.apart.get(pod.key, reason)
            if details and not postponed:
                by_pool[pod.key] = details
            if pod.gang:
                without_machine[pod.gang] = without_machine.get(pod.gang, 0) + (1 if reason else 0)
    of_gangs = {
        gang: _gang_reason(gang, without, options, state, whole_limits)
        for gang, without in without_machine.items()
    }
    for pod in pods:
        if not reasons[pod.key]:
            reasons[pod.key] = of_gangs[pod.gang] if pod.gang else NO_ROOM
    return reasons


def _gang_reason(
    gang: str, without: int, options: Sequence[MachineOption], state: PackingState, whole_limits: WholeLimits
) -> str:
    """Why a gang gets no machine: how many of its pods have none, and what is short beside the others'.
    `without`: the number of its pods with a reason of their own.
    """
    attempts = state.broken.get(gang, ())
    count = without or min((len(attempt.unplaced) for attempt in attempts), default=0)
    details: dict[str, PoolReason] = {}
    for attempt in attempts:
        shapes = shapes_of(attempt.unplaced[:1], state.snapshot)
        fitting = places_of(MachineTable(options, shapes, state.snapshot.storage).fits(shapes[0]))
        lacking = [option for option in map(options.__getitem__, fitting) if not attempt.supply.has(option)]
        details |= _without_supply(lacking, attempt.supply, whole_limits, state.supply)
    texts = (f"NodePool {pool}: {why.text}" for pool, why in details.items())
    return "; ".join([GANG.format(gang=gang, count=count or "some"), *texts])


def _holding(
    shape: PodShape, options: Sequence[MachineOption], waiting: Sequence[PodShape], state: PackingState
) -> Sequence[MachineOption]:
    """The machines on which the shape's rules about other pods hold, whether one is free now or not.

    If there is none, those without the rules about pods that wait too.
    """
    spaces, example = state.snapshot.namespaces, shape.example
    met = {t for t in example.affinity if any(term_counts(t, other.example, spaces) for other in waiting)}
    beside = replace(example, affinity=tuple(term for term in example.affinity if term not in met))

    def holds(pod: PodInfo, option: MachineOption) -> bool:
        opened = state.snapshot.with_node(node_of(option, NEW))
        return not prepare(pod, opened).reasons(opened.states[NEW])

    holding = ([option for option in options if holds(pod, option)] for pod in (example, beside))
    return next(filter(None, holding), [])


def _unmet_rules(
    pod: PodInfo, options: Sequence[MachineOption], waiting: Sequence[PodShape], state: PackingState
) -> str:
    """That the rules about other pods hold nowhere: the one that no machine or pod meets, or all of them."""
    snapshot, spaces = state.snapshot, state.snapshot.namespaces
    labelled = chain(
        (option.node.labels for option in options), (known.node.labels for known in snapshot.states.values())
    )
    unmet_keys = {item.topology_key for item in pod.spread} | {term.topology_key for term in pod.affinity}
    unmet_keys.discard(HOSTNAME)
    for labels in labelled:
        unmet_keys -= labels.keys()
        if not unmet_keys:
            break
    if unmet_keys:
        return (
            f"{SPREAD}: no node has the label {min(unmet_keys)}, which one of them names as its topologyKey"
        )
    for term in pod.affinity:
        placed = (
            term_matches(term, group.namespace, dict(group.labels), spaces.get(group.namespace))
            for group in snapshot.groups
        )
        if not any(placed) and not any(term_counts(term, other.example, spaces) for other in waiting):
            pods = " and ".join(map(shown, term.selector or ()))
            return f"{SPREAD}: no pod is there that its pod affinity names{f' ({pods})' if pods else ''}"
    rules = {
        "topologySpreadConstraints": {item.topology_key for item in pod.spread},
        "podAffinity": {term.topology_key for term in pod.affinity},
        "podAntiAffinity": {term.topology_key for term in pod.anti_affinity},
    }
    named = (f"{kind} on {key}" for kind, keys in rules.items() for key in sorted(keys))
    return f"{SPREAD}: {', '.join(named)}"


def _without_supply(
    options: Sequence[MachineOption], supply: Supply, whole_limits: WholeLimits, free: Supply | None = None
) -> dict[str, PoolReason]:
    """Why the machines of each pool, which fit, cannot be opened: its limits, or full reservations. `free`:
    the supply before a part of it went to other pods of the gang, as people see it.
    """
    by_pool: dict[str, list[MachineOption]] = {}
    for option in options:
        by_pool.setdefault(option.pool, []).append(option)
    return {
        pool: PoolReason(
            "; ".join(_shortages(pool_options, supply, whole_limits.get(pool, {}), free or supply)),
            limited=not any(map(supply.within_limits, pool_options)),
        )
        for pool, pool_options in by_pool.items()
    }


def _shortages(
    options: Sequence[MachineOption], supply: Supply, limits: Mapping[str, int], free: Supply
) -> Iterator[str]:
    """The limits that the smallest machine exceeds, and the reservations of the machines within them: the
    full ones, and those without launches now.
    """
    within = [option for option in options if supply.within_limits(option)]
    taken = {item.source: f"{item.instance_type}, {item.zone}" for item in within if not item.closed}
    if full := {id_: place for id_, place in taken.items() if free.room.get(id_, 0) <= 0}:
        yield none_left(full)
    if few := [
        f"{free.room[id_]} in {id_} ({place})" for id_, place in sorted(taken.items()) if id_ not in full
    ]:
        yield f"{FEW_LEFT}{abridged(few, MOST_NAMED)}"
    if closed := sorted({item.closed for item in within if item.closed}):
        yield abridged(closed, MOST_NAMED)
    if over := {item.instance_type: item.capacity for item in options if not supply.within_limits(item)}:
        pool = options[0].pool
        yield from limits_exceeded(over, supply.limits[pool], free.limits[pool], limits)
