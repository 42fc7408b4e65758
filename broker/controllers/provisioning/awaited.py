"""Pods for which a Koordinator reservation keeps room, or will once it has the node that it waits for.

A reservation and its pod may ask for a machine at the same time. The pod runs in the reservation's room, so a
machine of its own would stay empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple

from broker.apis.core import Pod
from broker.controllers.nodereservation.occupancy import NodeOccupancy, OccupancyReader
from broker.controllers.provisioning.decide import ProvisioningDecision, ProvisioningPlanner
from broker.controllers.provisioning.refused import pods_refused
from broker.placement.holds import Hold, HoldOwner
from broker.placement.holds_decide import decide, preferred
from broker.placement.holds_fit import covers
from broker.placement.holds_ledger import HoldLedger
from broker.placement.holds_match import HoldRequest
from broker.placement.holds_reading import hold_request, koordinator_hold, reserve_pod
from broker.placement.model import PodInfo
from broker.placement.packing_model import PendingPod
from broker.placement.taints import covers_toleration

ROUNDS: Final = 3  # of the search for reservations that get no place
TO_COME: Final = "Reservation {} keeps room for it, and gets a machine first"
PLACED: Final = "{} keeps room for it on node {}; its scheduler has not bound it yet"


class AwaitedRoom(NamedTuple):
    """`reservation`: its key among the pending pods; empty if it has a node. `reason`: why the pod waits."""

    reservation: str
    reason: str


def awaited(
    pending: Sequence[PendingPod],
    pods: Mapping[str, Pod],
    room: NodeOccupancy,
    reads: OccupancyReader,
    now: datetime,
) -> dict[str, AwaitedRoom]:
    """The room that is kept for each of these pods, by the pod's key.

    For a pod of a gang only room on a node counts, and only if no rule ties the pod to others: machines are
    chosen for the rest of its gang.
    """
    to_come, keys = _without_nodes(room, reads, now)
    placed = room.ledger
    rooms: dict[str, AwaitedRoom] = {}
    any_holds, schedulers = to_come.states or placed.states, reads.schedulers()
    for item in sorted(pending, key=lambda item: (-item.priority, item.key)) if any_holds else ():
        pod = pods.get(item.key)
        if pod is None or pod.spec.scheduler_name not in schedulers:
            continue
        if item.gang and (item.info.affinity or item.info.anti_affinity or item.info.spread):
            continue
        with suppress(ValueError):  # the scheduler reports it
            request = hold_request(pod)
            owner = HoldOwner(pod.uid, request.requests, assumed=True)
            if hold := _open(request, room, placed):
                rooms[item.key] = AwaitedRoom("", PLACED.format(hold.name, hold.node))
                placed = placed.assume(hold.id, owner)
            elif not item.gang and (id_ := _first(request, to_come)):
                rooms[item.key] = AwaitedRoom(keys[id_], TO_COME.format(to_come.states[id_].hold.name))
                to_come = to_come.assume(id_, owner)
    return rooms


def decide_beside(planner: ProvisioningPlanner, rooms: Mapping[str, AwaitedRoom]) -> ProvisioningDecision:
    """The planner's decision, in which a pod of `rooms` (from `awaited`) needs a place of its own only if its
    reservation gets none, or has a claim that EC2 refuses. Raises ProviderError.
    """
    may_come = {pod.key for pod in planner.pending} - pods_refused(planner.cluster.claims, planner.now)
    rooms = {key: room for key, room in rooms.items() if room.reservation in {"", *may_come}}
    for _ in range(ROUNDS if rooms else 0):
        others = [pod for pod in planner.pending if pod.key not in rooms]
        with_room = [pod for pod in planner.pending if pod.key in rooms]
        decision = replace(planner, pending=others, with_room=with_room).decide()
        served = {key: room for key, room in rooms.items() if room.reservation not in decision.reasons}
        if served == rooms:
            return replace(
                decision,
                assigned=replace(decision.assigned, held=decision.assigned.held | rooms.keys()),
                reasons={**decision.reasons, **_reasons(planner.pending, rooms, decision.reasons)},
            )
        rooms = served
    return planner.decide()


def _reasons(
    pending: Sequence[PendingPod], rooms: Mapping[str, AwaitedRoom], others: Mapping[str, str]
) -> dict[str, str]:
    """Why the pods of `rooms` wait; `others`: those that get no machine, and for which their gangs wait."""
    of_gangs = {pod.gang: others[pod.key] for pod in pending if pod.gang and pod.key in others}
    gangs = {pod.key: pod.gang for pod in pending}
    return {key: of_gangs.get(gangs[key], room.reason) for key, room in rooms.items()}


def _without_nodes(
    room: NodeOccupancy, reads: OccupancyReader, now: datetime
) -> tuple[HoldLedger, Mapping[str, str]]:
    """The reservations without a node as holds, and the key of each, by the hold's id."""
    keys: dict[str, str] = {}
    holds: list[Hold] = []
    for key, reservation in room.unplaced.items():
        with reads.guard(reservation), suppress(ValueError):  # the scheduler reports it
            amount = reserve_pod(reservation).requests
            hold = koordinator_hold(reservation, "", amount, reads.bounds)
            keys[hold.id] = key
            holds.append(hold)
    return HoldLedger.of(holds, (), now), keys


def _open(request: HoldRequest, room: NodeOccupancy, placed: HoldLedger) -> Hold | None:
    """The hold on a node into which the scheduler puts the pod."""
    return decide(request, room.placement, placed).hold if placed.matching(request) else None


def _first(request: HoldRequest, ledger: HoldLedger) -> str:
    """The id of the first hold with room for the pod on any node that it may get; empty if there is none."""
    return next(
        (
            state.hold.id
            for state in preferred(request.requests, ledger.matching(request))
            if covers(request.requests, state)
            and state.hold.template is not None
            and _as_free(request.pod, state.hold.template)
        ),
        "",
    )


def _as_free(pod: PodInfo, template: PodInfo) -> bool:
    """Whether the pod may run wherever the template may."""
    rules = (
        (pod.affinity, template.affinity),
        (pod.anti_affinity, template.anti_affinity),
        (pod.spread, template.spread),
    )
    return (
        set(pod.node_selector) <= set(template.node_selector)
        and pod.node_terms in (None, template.node_terms)
        and pod.named_nodes is None
        and all(any(covers_toleration(own, kept) for own in pod.tolerations) for kept in template.tolerations)
        and not (pod.volumes or pod.devices)
        and all(not own or own == kept for own, kept in rules)
    )
