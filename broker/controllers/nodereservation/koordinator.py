"""The life of a Koordinator reservation after its placement: owners, end, deletion.

Invariant: status is recomputed from the pods that name the reservation, never adjusted. Owners are not
touched by the end of their reservation. Source: Koordinator, pkg/scheduler/plugins/reservation/controller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from broker.apis import koordinator as koord
from broker.apis.core import Node, Pod
from broker.apis.meta import Json
from broker.apis.units import kept
from broker.controllers.nodereservation.conditions import (
    EXPIRED,
    current_owners,
    ended_conditions,
    placed_conditions,
)
from broker.controllers.nodereservation.godel_reading import NOT_KEPT
from broker.kube.cache import Cache
from broker.kube.conditions import changed
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.errors import NotFound
from broker.kube.removal import remove
from broker.placement.holds_bounds import RoomBounds
from broker.placement.holds_reading import deadline, hold_link, owner_matcher, recorded_owners
from broker.placement.quantities import pod_requests
from broker.placement.reading import takes_room
from broker.quota.model import summed
from broker.text import format_time

KEPT: Final = timedelta(hours=24)  # after its end
UNREADABLE: Final = 60.0  # seconds between two reads of a Node that cannot be read
BY_RESERVATION: Final = "reservation"


def by_reservation(pod: Pod) -> list[str]:
    """The UID of the reservation that a bound pod takes from."""
    link = hold_link(pod) if pod.spec.node_name else None
    return [link.hold] if link else []


class KoordinatorController:
    """`owners` finds the pods of a reservation by its UID.

    `schedulers`: a reservation of another scheduler is left to it.
    """

    def __init__(
        self,
        context: ControllerContext,
        reservations: Cache[koord.KoordinatorReservation],
        nodes: Cache[Node],
        *,
        owners: Callable[[str], Sequence[Pod]],
        schedulers: Callable[[], Collection[str]],
        bounds: RoomBounds,
    ) -> None:
        self._client, self._clock, self._recorder = context.client, context.clock, context.recorder
        self._reservations, self._nodes, self._owners = reservations, nodes, owners
        self._schedulers, self._bounds = schedulers, bounds

    def reconcile(self, name: str) -> Result | None:
        reservation = self._reservations.get(name)
        if reservation is None or reservation.deleting:
            return None
        if reservation.scheduler not in self._schedulers():
            return None
        if reservation.status.phase in (koord.FAILED, koord.SUCCEEDED):
            return self._collect(reservation)
        node = reservation.status.node_name
        if node and self._nodes.lacks(node):
            gone = f"node {node} is gone"
            self._expire(reservation, gone)
            # Its object goes at once.
            self._recorder.event(reservation, "Warning", NOT_KEPT, f"{gone}: create the reservation again")
            return None
        spec, created = reservation.spec, reservation.metadata.creation_timestamp
        try:
            requested = deadline(created, spec.ttl, spec.expires)
        except ValueError:
            requested = None  # the scheduler reports it
        ends, now = self._bounds.end(created, requested), self._clock.now()
        bound = "" if ends is None or ends == requested else self._bounded(ends)
        if ends is not None and ends <= now:
            self._expire(reservation, bound)
            return None
        if node:
            self._write(reservation, self._status(reservation, bound))
        remaining = [] if ends is None else [(ends - now).total_seconds()]
        # The end of a Node that is left out makes no event.
        remaining += [UNREADABLE] if node and self._nodes.get(node) is None else []
        return Result(min(remaining)) if remaining else None

    def _bounded(self, ends: datetime) -> str:
        return (
            f"the operator bounds the time of reservations to {self._bounds.longest} s "
            f"(--longest-reservation-ttl): this one ends at {format_time(ends)}"
        )

    def _status(self, reservation: koord.KoordinatorReservation, bound: str) -> Json:
        """`bound`: that the operator's bound ends the reservation; empty if it ends as it requests."""
        status = reservation.status
        matcher, recorded = owner_matcher(reservation.spec.owners), recorded_owners(reservation)
        linked = self._owners(reservation.uid)
        owners = sorted(
            (
                pod
                for pod in (*linked, *self._confirmed(reservation, {pod.uid for pod in linked}))
                if takes_room(pod)
                and (link := hold_link(pod))
                and link.hold == reservation.uid
                and link.node == status.node_name
                and link.proven(matcher, recorded)
            ),
            key=lambda pod: pod.uid,
        )
        used = summed(map(pod_requests, owners))
        if "pods" in status.allocatable:
            used["pods"] = len(owners)
        result: Json = {
            "currentOwners": current_owners(owners),
            # A merge patch removes an amount without a value.
            "allocated": {
                name: kept(status.allocated.get(name, ""), name, used[name]) if name in used else None
                for name in status.allocatable
                if name in used or name in status.allocated
            },
        }
        if owners and reservation.spec.allocate_once:
            result["phase"] = koord.SUCCEEDED
            now = self._clock.now()
            result["conditions"] = ended_conditions(status.conditions, koord.SUCCEEDED, "", now)
        elif bound:
            result["conditions"] = placed_conditions(status.conditions, self._clock.now(), bound)
        return result

    def _confirmed(self, reservation: koord.KoordinatorReservation, linked: Collection[str]) -> Iterator[Pod]:
        """The recorded owners that the cache does not show as such, as the API server has them.

        The cache may lack the newest annotations, and an owner that is dropped would not be proven again.
        """
        for owner in reservation.status.current_owners:
            if owner.uid in linked:
                continue
            try:
                pod = Pod.decode(self._client.get(Pod.KIND, owner.name, namespace=owner.namespace))
            except NotFound:
                continue
            if pod.uid == owner.uid:
                yield pod

    def _expire(self, reservation: koord.KoordinatorReservation, message: str) -> None:
        conditions = ended_conditions(reservation.status.conditions, EXPIRED, message, self._clock.now())
        self._write(reservation, {"phase": koord.FAILED, "conditions": conditions})

    def _collect(self, reservation: koord.KoordinatorReservation) -> Result | None:
        """Deletes an ended reservation after a day, or at once if its node is gone."""
        status = reservation.status
        ready = next((item for item in status.conditions if item.type == koord.READY), None)
        if ready is None or ready.reason not in (EXPIRED, koord.SUCCEEDED):
            return None
        since = ready.last_transition_time or reservation.metadata.creation_timestamp or self._clock.now()
        remaining = (since + KEPT - self._clock.now()).total_seconds()
        gone = bool(status.node_name) and self._nodes.lacks(status.node_name)
        if remaining > 0 and not gone:
            return Result(remaining)
        remove(self._client, reservation)
        return None

    def _write(self, reservation: koord.KoordinatorReservation, status: Json) -> None:
        if not changed(reservation.status.wire(), status):
            return
        meta = {"uid": reservation.uid, "resourceVersion": reservation.metadata.resource_version}
        body = {"metadata": meta, "status": status}
        self._client.patch(koord.KoordinatorReservation.KIND, reservation.name, body, subresource="status")
