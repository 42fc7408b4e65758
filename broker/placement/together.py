"""Places pods that required affinity keeps together: in the cheapest domain that has machines for all.

A domain is a value of each label that their affinity names: a zone, a reservation. Pods with affinity by
host name share one machine, or as few as their other rules allow. If no domain has machines for all, the one
that has them for most is taken, unless more pods get machines in several: affinity to pods that run there
allows each. The filters decide in the end: affinity that several pods to come could satisfy is taken as
affinity to all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from broker.apis.names import HOSTNAME
from broker.placement.filters import prepare
from broker.placement.machines import LARGEST_AMOUNT, MachineTable, places_of
from broker.placement.model import PodInfo
from broker.placement.packing_model import MachineOption, PendingPod
from broker.placement.packing_state import OpenBin, PackingState, node_of
from broker.placement.sequential import ANYWHERE, in_turn, open_bins, place_in_order, place_on_existing
from broker.placement.shapes import PodShape, shapes_of, term_counts
from broker.placement.snapshot import PlacementSnapshot

APART: Final = (
    "affinity keeps {count} pods in one domain of {keys}, and none has machines for all of them: "
    "{domain} has them for {placed}"
)
NO_DOMAIN: Final = "no domain"
SHARED: Final = "shared"  # the name of a machine with any room

Domain = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unit:
    """Pods that affinity keeps together. `keys`: the labels of the domain; `hosts`: pods of one machine.

    `nodes`: the existing nodes with room for one of the pods.
    """

    pods: tuple[PendingPod, ...]
    keys: tuple[str, ...]
    hosts: tuple[tuple[PendingPod, ...], ...]
    nodes: tuple[str, ...] = ()


def units_of(pods: Iterable[PendingPod], snapshot: PlacementSnapshot) -> list[Unit]:
    """The units of several pods, in the order of their first pods."""
    shapes = shapes_of(pods, snapshot)
    near = [
        (place, other)
        for place, shape in enumerate(shapes)
        if shape.example.affinity
        for other, near_shape in enumerate(shapes)
        if _near(shape.example, near_shape.example, snapshot)
    ]
    by_host = [pair for pair in near if _shares_machine(*(shapes[place] for place in pair))]
    hosts = [group for group in _joined(by_host) if sum(len(shapes[place].pods) for place in group) > 1]
    units: list[Unit] = []
    for group in _joined(near):
        terms = [term for place in group for term in shapes[place].example.affinity]
        unit = Unit(
            pods=_pods(shapes, group),
            keys=tuple(sorted({term.topology_key for term in terms} - {HOSTNAME})),
            hosts=tuple(_pods(shapes, host) for host in hosts if host <= group),
        )
        if len(unit.pods) > 1:
            units.append(unit)
    return units


def _near(pod: PodInfo, other: PodInfo, snapshot: PlacementSnapshot) -> bool:
    """Whether the affinity of a pod, every term of it, counts the other one."""
    return all(term_counts(term, other, snapshot.namespaces) for term in pod.affinity)


def _shares_machine(shape: PodShape, other: PodShape) -> bool:
    by_host = any(term.topology_key == HOSTNAME for term in shape.example.affinity)
    return by_host and shape.group == other.group


def _pods(shapes: Sequence[PodShape], places: Iterable[int]) -> tuple[PendingPod, ...]:
    return tuple(pod for place in sorted(places) for pod in shapes[place].pods)


def _joined(pairs: Iterable[tuple[int, int]]) -> list[frozenset[int]]:
    """The connected places, in the order of the first of each."""
    groups: dict[int, set[int]] = defaultdict(set)
    for pair in pairs:
        joined = set(pair).union(*(groups[place] for place in pair))
        groups.update(dict.fromkeys(joined, joined))
    return sorted({frozenset(group) for group in groups.values()}, key=min)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Trial:
    """The state with the pods of a unit in one domain, and those that have no machine there."""

    domain: Domain
    state: PackingState
    left: Sequence[PendingPod]
    score: tuple[int, int, float]  # less is better: pods without a machine, lowest weight, cost


def place_units(
    units: Iterable[Unit], options: Sequence[MachineOption], state: PackingState, *, whole: bool
) -> list[PendingPod]:
    """Places units as `place_together` does; of one priority, those with the fewest domains first, then those
    of the most pods.
    """

    def order(pair: tuple[Unit, MachineTable]) -> tuple[int, int, int]:
        unit, table = pair
        return -max(pod.priority for pod in unit.pods), len([*_domains(unit, table, state)]), -len(unit.pods)

    storage = state.snapshot.storage
    units = [replace(unit, nodes=_nodes_for(unit, state)) for unit in units]
    pairs = [(unit, MachineTable(options, shapes_of(unit.pods, state.snapshot), storage)) for unit in units]
    return [
        pod
        for unit, table in sorted(pairs, key=order)
        for pod in place_together(unit, table, state, whole=whole)
    ]


def _nodes_for(unit: Unit, state: PackingState) -> tuple[str, ...]:
    """The existing nodes that pass all filters for one of the pods but affinity to others."""
    opened = {item.name for item in state.bins}
    names = [name for name in state.snapshot.states if name not in opened]
    prepared = [
        prepare(replace(shape.example, affinity=()), state.snapshot)
        for shape in shapes_of(unit.pods, PlacementSnapshot())
    ]
    states = state.snapshot.states
    return tuple(name for name in names if any(not filters.reasons(states[name]) for filters in prepared))


def place_together(
    unit: Unit, table: MachineTable, state: PackingState, *, whole: bool
) -> Sequence[PendingPod]:
    """Places the pods in the domain that has machines for most of them, the cheapest of these; returns the
    others. With `whole`, places all of them or none.
    """
    trials = (_tried(unit, table, state, domain) for domain in _domains(unit, table, state))
    best = within = min(trials, key=_score, default=None)
    if unit.keys and (best is None or best.left):
        for trial in _in_several(unit, table, state):
            if best is None or len(trial.left) < len(best.left):
                best = trial
    left = best.left if best else unit.pods
    if left and whole:
        return unit.pods
    if best is not None:
        state.adopt(best.state)
    text = APART.format(
        count=len(unit.pods),
        keys=" and ".join(unit.keys) or HOSTNAME,
        domain=", ".join(within.domain.values()) or "a machine" if within else NO_DOMAIN,
        placed=len(unit.pods) - len(within.left) if within else 0,
    )
    state.apart |= {pod.key: text for pod in (unit.pods if left and unit.pods[0].gang else left)}
    return left


def _tried(unit: Unit, table: MachineTable, state: PackingState, domain: Domain) -> _Trial:
    trial = state.copy()
    left = _in_domain(unit, table, trial, domain)
    opened = [item.option for item in trial.bins[len(state.bins) :]]
    worst = max((-option.weight for option in opened), default=0)
    score = len(left), worst, sum(option.cost for option in opened)
    return _Trial(domain=domain, state=trial, left=left, score=score)


def _in_several(unit: Unit, table: MachineTable, state: PackingState) -> Iterator[_Trial]:
    """The pods in any domains; if several pods are leaders, without affinity of their own, also divided."""
    yield _tried(unit, table, state, ANYWHERE)
    leaders = [pod for pod in unit.pods if not pod.info.affinity]
    if len(leaders) > 1:
        yield _divided(unit, leaders, table, state)


def _divided(unit: Unit, leaders: Sequence[PendingPod], table: MachineTable, state: PackingState) -> _Trial:
    """One domain after another, each with one of the leaders and as many others as it has machines for."""
    others: Sequence[PendingPod] = [pod for pod in unit.pods if pod.info.affinity]
    domains = [*_domains(unit, table, state)]
    divided = _Trial(domain=ANYWHERE, state=state.copy(), left=(), score=(0, 0, 0.0))
    while others and leaders and domains:
        part = _part_of(unit, [leaders[0], *others])
        divided = min((_tried(part, table, divided.state, domain) for domain in domains), key=_score)
        if leaders[0] not in divided.left:
            leaders = leaders[1:]
        others = [pod for pod in others if pod in divided.left]
        domains.remove(divided.domain)
    left = place_in_order([*leaders, *others], table, divided.state)
    return replace(divided, left=left, score=(len(left), *divided.score[1:]))


def _part_of(unit: Unit, pods: Sequence[PendingPod]) -> Unit:
    keys = {pod.key for pod in pods}
    hosts = (tuple(pod for pod in host if pod.key in keys) for host in unit.hosts)
    return replace(unit, pods=tuple(pods), hosts=tuple(host for host in hosts if len(host) > 1))


def _score(trial: _Trial) -> tuple[int, int, float]:
    return trial.score


def _domains(unit: Unit, table: MachineTable, state: PackingState) -> Iterator[Domain]:
    """The domains with a machine or an existing node for one of the pods at least."""
    fitting = np.zeros(len(table.options), dtype=bool)
    for shape in shapes_of(unit.pods, PlacementSnapshot()):
        fitting |= table.fits(shape)
    labels = [table.options[place].node.labels for place in places_of(fitting)]
    labels += [state.snapshot.states[name].node.labels for name in unit.nodes]
    values = {tuple(node[key] for key in unit.keys) for node in labels if node.keys() >= {*unit.keys}}
    for chosen in sorted(values):
        yield dict(zip(unit.keys, chosen, strict=True))


def _in_domain(unit: Unit, table: MachineTable, state: PackingState, domain: Domain) -> Sequence[PendingPod]:
    """Places the pods on machines of the domain; returns the others."""
    options = [option for option in table.options if domain.items() <= option.node.labels.items()]
    within = MachineTable(options, shapes_of(unit.pods, PlacementSnapshot()), state.snapshot.storage)
    hosts = [*unit.hosts]
    shared = {pod.key for host in hosts for pod in host}
    left: Sequence[PendingPod] = [pod for pod in unit.pods if pod.key not in shared]
    states = state.snapshot.states
    nodes = [name for name in unit.nodes if domain.items() <= states[name].node.labels.items()]
    hosts = [host for host in hosts if not any(_on_existing(host, state, [node]) for node in nodes)]
    while _on_existing(left, state, nodes, whole=False):
        left = [pod for pod in left if pod.key not in state.taken]
    while True:  # a pod may need one that comes after it
        left_hosts = [host for host in hosts if not _on_one(host, within, state, domain)]
        still = place_in_order(left, within, state, domain=domain)
        if len(left_hosts) == len(hosts) and len(still) == len(left):
            break
        hosts, left = left_hosts, still
    rest = [pod for host in hosts for pod in _on_several(host, within, state, domain)]
    return place_in_order([*left, *rest], within, state, domain=domain)


def _on_existing(
    pods: Sequence[PendingPod], state: PackingState, nodes: Sequence[str], *, whole: bool = True
) -> bool:
    """Places the pods on these nodes, with `whole` all or none; False if none is placed."""
    snapshot, node_of = place_on_existing(pods, state.snapshot, nodes)
    if not node_of or (whole and len(node_of) < len(pods)):
        return False
    state.snapshot = snapshot
    state.taken |= {pod.key: (pod.info, node_of[pod.key]) for pod in pods if pod.key in node_of}
    return True


def _on_several(
    pods: Sequence[PendingPod], table: MachineTable, state: PackingState, domain: Domain
) -> Sequence[PendingPod]:
    """Places the pods on machines, as many on each as rules and room allow; returns the others."""
    left = pods
    while left:
        sharing = _sharing(left, table, state)
        used = np.cumsum([table.requests(pod.info) for pod in sharing], axis=0)
        room = table.room[[state.supply.has(option) for option in table.options]]
        roomy = [count for count in range(len(sharing), 0, -1) if (used[count - 1] <= room).all(1).any()]
        count = next((n for n in roomy if _on_one(sharing[:n], table, state, domain)), 0)
        if not count:
            break
        placed = {pod.key for pod in sharing[:count]}
        left = [pod for pod in left if pod.key not in placed]
    return left


def _sharing(pods: Sequence[PendingPod], table: MachineTable, state: PackingState) -> Sequence[PendingPod]:
    """The pods that rules allow on one machine, whatever its room; those that others need come first."""
    shapes = shapes_of(pods, state.snapshot)
    mask = np.logical_and.reduce([table.accepts(shape) for shape in shapes])
    if not (places := places_of(mask)):
        return []
    option = table.options[places[0]]
    roomy = replace(node_of(option, SHARED), allocatable=dict.fromkeys(table.resources, LARGEST_AMOUNT))
    asked = OpenBin(name=SHARED, option=option, pods=[*pods])
    _, rejected = in_turn([asked], state.snapshot.with_node(roomy))
    kept = [pod for pod in pods if pod.key not in rejected]
    return sorted(kept, key=lambda pod: bool(pod.info.affinity))


def _on_one(pods: Sequence[PendingPod], table: MachineTable, state: PackingState, domain: Domain) -> bool:
    """Places all the pods on one machine, an open one or the cheapest; False if none can have them."""
    shapes = shapes_of(pods, state.snapshot)
    if any(_all_on(pods, item, state) for item in open_bins(state, shapes[0].group, domain)):
        return True
    need = np.sum([table.requests(pod.info) for pod in pods], axis=0)
    mask = table.host(shapes, need)
    options = table.options
    rejected: set[int] = set()
    for place in sorted(places_of(mask), key=lambda place: (-options[place].weight, options[place].cost)):
        if table.kind[place] in rejected or not state.supply.has(options[place]):
            continue
        before = state.snapshot
        opened = state.open(options[place])
        if _all_on(pods, opened, state):
            return True
        rejected.add(table.kind[place])
        state.undo(opened, before)
    return False


def _all_on(pods: Sequence[PendingPod], target: OpenBin, state: PackingState) -> bool:
    asked = OpenBin(name=target.name, option=target.option, pods=[*pods])
    snapshot, rejected = in_turn([asked], state.snapshot)
    if not rejected:
        state.snapshot = snapshot
        target.pods += pods
        target.coupled = True
    return not rejected
