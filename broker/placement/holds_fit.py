"""Whether a pod fits through a hold: the arithmetic of partial and of whole holds.

`occupied` is the room of a node that its pods and the idle room of all its holds take. A partial hold gives
back its available room, and the pod takes the rest from the node. A whole hold disappears, and the pod takes
its place. Source: Koordinator, plugin.go (fitsNode, fitsReservation); Gödel, pod_scheduler.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from broker.placement.holds import Amounts, Consumption, Hold, HoldState
from broker.placement.quantities import PODS

TOO_MANY_PODS: Final = "Reservation(s) Too many pods"
NODE_TOO_MANY_PODS: Final = "Too many pods by node"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """A node's capacity and the part of it that is taken, each with `pods`."""

    capacity: Amounts
    occupied: Amounts


def lacks(requests: Amounts, state: HoldState, room: NodeRoom, *, detailed: bool = False) -> tuple[str, ...]:
    """Why a pod does not fit through the hold; empty if it fits.

    First the node's reasons by resource, then the hold's. `detailed` adds the numbers, for a pod that names
    the hold. A whole hold has no reasons of its own: sizes are not compared.
    """
    if state.hold.consumption is Consumption.WHOLE:
        return tuple(_node_lacks(requests, _placeholder_room(state), room))
    node = sorted(_node_lacks(requests, _available(state), room))
    return (*node, *_hold_lacks(requests, state, detailed))


def covers(requests: Amounts, state: HoldState) -> bool:
    """Whether the hold alone has room for all that the pod requests."""
    if state.hold.limits_pods and not state.places:
        return False
    room = _available(state)
    return all(amount <= room.get(name, 0) for name, amount in requests.items())


def exactly(requests: Amounts, hold: Hold, names: tuple[str, ...]) -> bool:
    """Whether the pod requests as much as the hold has, for each name. A name that both lack is equal."""
    return all(requests.get(name, 0) == hold.amount.get(name, 0) for name in names)


def score(requests: Amounts, state: HoldState) -> int:
    """0 to 100: how full the pod makes the hold. A resource that would exceed the hold counts nothing.

    Source: Koordinator, scoring.go (scoreReservation, most allocated).
    """
    used = state.used
    amounts = {name: amount for name, amount in state.hold.amount.items() if amount and name != PODS}
    if not amounts:
        return 0
    total = 0
    for name, amount in amounts.items():
        total_use = requests.get(name, 0) + used[name]
        total += 100 * total_use // amount if total_use <= amount else 0
    return total // len(amounts)


def _placeholder_room(state: HoldState) -> Amounts:
    """The room of a whole hold, which its owner takes as it stands."""
    return {**state.hold.amount, PODS: max(1, state.hold.amount.get(PODS, 1))}


def _available(state: HoldState) -> Amounts:
    """The idle room of a partial hold that an owner may get."""
    hold, used = state.hold, state.used
    available = {
        name: max(0, amount - hold.inner.get(name, 0) - used[name]) for name, amount in hold.amount.items()
    }
    available[PODS] = state.places
    return available


def _node_lacks(requests: Amounts, given: Amounts, room: NodeRoom) -> Iterator[str]:
    def free(name: str) -> int:
        return room.capacity.get(name, 0) - room.occupied.get(name, 0) + given.get(name, 0)

    if free(PODS) < 1:
        yield NODE_TOO_MANY_PODS
    for name, amount in requests.items():
        if amount > 0 and amount > free(name):
            yield f"Insufficient {name} by node"


def _hold_lacks(requests: Amounts, state: HoldState, detailed: bool) -> Iterator[str]:
    hold, used = state.hold, state.used
    if not hold.restricted:
        return
    if hold.limits_pods and len(state.owners) >= hold.amount[PODS]:
        yield TOO_MANY_PODS
    for name in sorted(hold.restricted - {PODS}):
        amount = requests.get(name, 0)
        capacity = hold.amount.get(name, 0) - hold.inner.get(name, 0)
        taken = used.get(name, 0)
        if amount > 0 and amount > capacity - taken:
            numbers = f", requested: {amount}, used: {taken}, capacity: {capacity}" if detailed else ""
            yield f"Reservation(s) Insufficient {name}{numbers}"


def shares_resource(requests: Amounts, hold: Hold) -> bool:
    """Whether the pod requests a resource of the hold. A pod without requests takes a place only."""
    return not requests or any(hold.amount.get(name, 0) for name in requests)
