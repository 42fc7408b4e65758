"""Reads the holds on nodes: Koordinator's reservations, Gödel's, and pods that are reservations themselves.

The scheduler, provisioning and disruption read holds here only, so that they see the same kept room.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, TypeVar

from broker.apis import godel
from broker.apis import koordinator as koord
from broker.apis.core import Pod
from broker.apis.meta import Object, ObjectMeta
from broker.controllers.nodereservation.room_rules import RoomRules
from broker.kube.cache import Guard
from broker.placement.holds import Consumption, Hold
from broker.placement.holds_bounds import RoomBounds
from broker.placement.holds_match import IndexMatcher, OwnerMatcher
from broker.placement.holds_reading import koordinator_hold, operating_hold, recorded_owners, reserve_pod
from broker.placement.model import PodInfo
from broker.placement.quantities import amounts, spec_requests
from broker.placement.reading import pod_info, takes_room

T = TypeVar("T", bound=Object)


def node_holds(
    koordinator: Iterable[koord.KoordinatorReservation],
    kept: Collection[godel.GodelReservation],
    pods: Iterable[Pod],
    present: Container[str],
    rules: RoomRules,
    guard: Guard[Any] = nullcontext,
) -> list[Hold]:
    """`pods`: those that may be reservations themselves. `present`: the UIDs of all pods on nodes.

    An object that fails inside its `guard` is no hold.
    """
    holds: list[Hold] = []

    def read(items: Iterable[T], hold_of: Callable[[T], Hold | None]) -> None:
        for item in items:
            with guard(item):
                if (hold := hold_of(item)) is not None:
                    holds.append(hold)

    refused = rules.refused(kept)
    read(koordinator, lambda item: _koordinator_hold(item, rules.bounds))
    read((item for item in kept if item.uid not in refused), lambda item: _godel_hold(item, present, rules))
    read((pod for pod in pods if koord.OPERATING_MODE in pod.labels), _operating_hold)
    return holds


def _koordinator_hold(reservation: koord.KoordinatorReservation, bounds: RoomBounds) -> Hold | None:
    """The hold of a placed reservation. One that cannot be read keeps its room, closed to all pods."""
    status = reservation.status
    if status.phase != koord.AVAILABLE or not status.node_name:
        return None
    room = amounts(status.allocatable)
    try:
        return koordinator_hold(reservation, status.node_name, room, bounds)
    except ValueError:
        return Hold(
            id=reservation.uid,
            name=reservation.name,
            node=status.node_name,
            amount=room,
            matcher=OwnerMatcher(),
            # An owner that came before does not end one that is shared.
            consumption=Consumption.ONCE if reservation.spec.allocate_once else Consumption.SHARED,
            deadline=bounds.end(reservation.metadata.creation_timestamp, None),
            recorded=recorded_owners(reservation),
            template=_template(reservation),
        )


def _template(reservation: koord.KoordinatorReservation) -> PodInfo | None:
    """The pod as which it was placed; None for a template that cannot be read."""
    try:
        return reserve_pod(reservation)
    except ValueError:
        return None


def _operating_hold(pod: Pod) -> Hold | None:
    """The hold that a running pod is. A pod with owners that cannot be read is a pod like any other."""
    try:
        return operating_hold(pod) if takes_room(pod) else None
    except ValueError:
        return None


def _godel_hold(
    reservation: godel.GodelReservation, present: Container[str], rules: RoomRules
) -> Hold | None:
    """The hold of a reservation. The room of a pod that is still there, by UID, is the pod's own."""
    spec, meta = reservation.spec, reservation.metadata
    if not spec.node_name or reservation.deleting or spec.template is None:
        return None
    if meta.annotations.get(godel.PLACEHOLDER_UID) in present:
        return None
    pod = Pod(
        metadata=ObjectMeta(namespace=meta.namespace, name=meta.name, labels=meta.labels),
        spec=spec.template.spec,
    )
    return Hold(
        id=meta.uid,
        name=reservation.key,
        node=spec.node_name,
        amount=spec_requests(spec.template.spec),
        matcher=IndexMatcher(meta.namespace, meta.annotations.get(godel.INDEX, "")),
        consumption=Consumption.WHOLE,
        deadline=None
        if meta.creation_timestamp is None
        else meta.creation_timestamp + timedelta(seconds=rules.bounds.seconds(spec.ttl or 0)),
        template=pod_info(pod),
    )
