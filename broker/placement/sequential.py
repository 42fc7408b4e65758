"""Places pods one after another: those under rules between pods that no pattern can keep.

Each pod goes to the first machine that passes all filters, else to a new machine, the cheapest for each pod
that it could host. The filters see the machines opened so far and the existing nodes. A machine in a new zone
may end what a spread allowed before, so rejected pods are taken off at the end (`take_rejected`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from broker.apis import names
from broker.placement.filters import prepare
from broker.placement.machines import Ints, MachineTable
from broker.placement.packing_model import Drawing, PendingPod
from broker.placement.packing_state import OpenBin, PackingState
from broker.placement.shapes import PodShape, shapes_of
from broker.placement.snapshot import PlacementSnapshot
from broker.placement.spread import counting

# More coupled pods than this are not checked one by one, which would take longer than the plan.
MOST_VERIFIED: Final = 1000
ANYWHERE: Final[Mapping[str, str]] = {}


def place_in_order(
    pods: Sequence[PendingPod],
    table: MachineTable,
    state: PackingState,
    *,
    domain: Mapping[str, str] = ANYWHERE,
) -> list[PendingPod]:
    """Places the pods; returns those that no machine can host.

    `domain`: the labels of the open machines that may have them; the table has no others.

    A pod may need one that comes after it (affinity), so pods are tried again while any is placed.
    """
    queue = deque(shapes_of(pods, state.snapshot))
    failed: list[PodShape] = []
    while queue:
        placed = False
        failed = []
        while queue:
            shape = queue.popleft()
            rest = _place_shape(shape, table, state, domain)
            placed = placed or len(rest) < len(shape.pods)
            if rest:
                failed.append(PodShape(pods=tuple(rest), ordered=shape.ordered, coupled=shape.coupled))
        if placed:
            queue.extend(shape for shape in failed if shape.ordered)
            failed = [shape for shape in failed if not shape.ordered] if queue else failed
    placed_keys = state.placed
    return [pod for pod in pods if pod.key not in placed_keys]


def place_on_open(pods: Sequence[PendingPod], state: PackingState) -> Sequence[PendingPod]:
    """Places pods without rules or a gang in the rest of open machines; returns the others."""
    if not state.bins:
        return pods
    left: list[PendingPod] = []
    for shape in shapes_of(pods, state.snapshot):
        waiting = deque(shape.pods)
        free = not (shape.ordered or shape.coupled or shape.pods[0].gang)
        prepared = prepare(shape.example, state.snapshot)
        for target in open_bins(state, shape.group, ANYWHERE) if free else ():
            while waiting and not prepared.reasons(state.snapshot.states[target.name]):
                state.put(waiting.popleft(), target)
        left += waiting
    return left


def _place_shape(
    shape: PodShape, table: MachineTable, state: PackingState, domain: Mapping[str, str]
) -> list[PendingPod]:
    """Places pods of one shape until one fails; returns that one and those after it."""
    options = np.flatnonzero(table.fits(shape))
    requests = table.requests(shape.example)
    for place, pod in enumerate(shape.pods):
        target = _on_open(pod, shape, state, domain) or _on_new(
            pod, shape, options, requests, table, state, count=len(shape.pods) - place
        )
        if target is None:
            return [*shape.pods[place:]]
        state.put(pod, target)
        target.coupled = target.coupled or shape.coupled
    return []


def _on_open(
    pod: PendingPod, shape: PodShape, state: PackingState, domain: Mapping[str, str]
) -> OpenBin | None:
    """The first open machine of the pod's group that passes all filters."""
    shared = open_bins(state, shape.group, domain)
    if not shared:
        return None
    prepared = prepare(pod.info, state.snapshot)
    return next((item for item in shared if not prepared.reasons(state.snapshot.states[item.name])), None)


def open_bins(state: PackingState, group: tuple[str, Drawing], domain: Mapping[str, str]) -> list[OpenBin]:
    """The machines with pods of the group, in the domain."""
    return [
        item
        for item in state.bins
        if item.pods and _group(item.pods[0]) == group and domain.items() <= item.option.node.labels.items()
    ]


def _group(pod: PendingPod) -> tuple[str, Drawing]:
    return pod.gang, pod.drawing


def _on_new(
    pod: PendingPod,
    shape: PodShape,
    options: Ints,
    requests: Ints,
    table: MachineTable,
    state: PackingState,
    *,
    count: int,
) -> OpenBin | None:
    """A new machine: the cheapest for each pod of the shape, among those that pass all filters."""
    positive = requests > 0
    hosted = (table.room[:, positive] // requests[positive]).min(axis=1) if len(options) else np.zeros(0)
    ranked = sorted(
        options,
        key=lambda place: (
            -table.options[place].weight,
            table.options[place].cost / max(1, min(int(hosted[place]), count)),
        ),
    )
    rejected: set[int] = set()  # kinds of options, by the properties that pods' rules read
    for place in ranked:
        option = table.options[place]
        kind = int(table.kind[place])
        if kind in rejected or not state.supply.has(option):
            continue
        before = state.snapshot
        opened = state.open(option)
        if not prepare(pod.info, state.snapshot).reasons(state.snapshot.states[opened.name]):
            return opened
        rejected.add(kind)
        state.undo(opened, before)
    return None


def take_rejected(state: PackingState, first: int) -> list[PendingPod]:
    """Takes coupled pods off the machines opened since `first` if a filter rejects them there; returns them.

    The filters see the pods come one after another, as kube-scheduler does: a pod that is rejected at first
    is tried again after others have come. All machines are there, so a zone that was opened late counts, and
    one that is only offered does not.
    """
    bins = _checkable(state.bins[first:])
    if not bins:
        return []
    snapshot, rejected = in_turn(bins, _without_pods(state.snapshot, bins))
    for item in bins:
        item.pods = [pod for pod in item.pods if pod.key not in rejected]
    state.snapshot = snapshot
    state.close([item for item in bins if not item.pods])
    return [*rejected.values()]


def close_blocking(state: PackingState, first: int) -> list[PendingPod]:
    """Closes machines opened since `first` in zones that had none, if only these zones make a filter reject
    pods that were placed before; returns their pods, which are postponed.

    The pods placed before have the higher priority or weight.
    """
    opened, before = state.bins[first:], _checkable(state.bins[:first])
    if not opened or not before:
        return []
    new = {item.name for item in opened}
    zones = {
        node.node.labels.get(names.ZONE) for name, node in state.snapshot.states.items() if name not in new
    }
    late = [item for item in opened if item.option.zone not in zones]
    if not late or not in_turn(before, _without_pods(state.snapshot, [*before, *opened]))[1]:
        return []
    pods = [pod for item in late for pod in item.pods]
    state.close(late)
    state.postponed |= {pod.key for pod in pods}
    return pods


def _checkable(bins: Sequence[OpenBin]) -> list[OpenBin]:
    """Those with coupled pods; none of them if they are too many."""
    coupled = [item for item in bins if item.coupled]
    return coupled if sum(len(item.pods) for item in coupled) <= MOST_VERIFIED else []


def _without_pods(snapshot: PlacementSnapshot, bins: Sequence[OpenBin]) -> PlacementSnapshot:
    for item in bins:
        for pod in item.pods:
            snapshot = snapshot.without_pod(pod.info, item.name)
    return snapshot


def in_turn(
    bins: Sequence[OpenBin], snapshot: PlacementSnapshot
) -> tuple[PlacementSnapshot, dict[str, PendingPod]]:
    """The snapshot with the pods of the machines, which come one after another; the rejected ones, by key."""
    queue = deque((pod, item) for row in _rows(bins) for pod, item in row)
    missed = 0
    while queue and missed < len(queue):
        pod, item = queue.popleft()
        if prepare(counting(pod.info, {}), snapshot).reasons(snapshot.states[item.name]):
            queue.append((pod, item))
            missed += 1
            continue
        missed = 0
        snapshot = snapshot.with_pod(pod.info, item.name)
    return snapshot, {pod.key: pod for pod, _ in queue}


def _rows(bins: Sequence[OpenBin]) -> list[list[tuple[PendingPod, OpenBin]]]:
    """The first pods of all machines, then the second ones, and so on."""
    longest = max(len(item.pods) for item in bins)
    return [[(item.pods[row], item) for item in bins if row < len(item.pods)] for row in range(longest)]


def place_on_existing(
    pods: Sequence[PendingPod], snapshot: PlacementSnapshot, among: Sequence[str] | None = None
) -> tuple[PlacementSnapshot, dict[str, str]]:
    """Places pods on existing nodes, as kube-scheduler could: the snapshot after it, and the node of each.

    Pods of a shape that has no rules fill one node after another. `among`: the names of the nodes; None for
    all.
    """
    node_of: dict[str, str] = {}
    for shape in shapes_of(pods, snapshot):
        names = [*snapshot.states] if among is None else among
        place = 0
        prepared = prepare(shape.example, snapshot)
        for pod in shape.pods:
            if shape.coupled:
                prepared, place = prepare(pod.info, snapshot), 0
            while place < len(names) and prepared.reasons(snapshot.states[names[place]]):
                place += 1
            if place == len(names):
                break
            snapshot = snapshot.with_pod(pod.info, names[place])
            node_of[pod.key] = names[place]
    return snapshot, node_of
