"""Reads the holds on nodes: Koordinator's reservations, Gödel's, and pods that are reservations themselves.

The scheduler, provisioning and disruption read holds here only, so that they see the same kept room.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from datetime import timedelta

from broker.apis import godel
from broker.apis import koordinator as koord
from broker.apis.core import Pod
from broker.apis.meta import ObjectMeta
from broker.controllers.nodereservation.room_rules import RoomRules
from broker.placement.holds import Consumption, Hold
from broker.placement.holds_bounds import RoomBounds
from broker.placement.holds_match import IndexMatcher, OwnerMatcher
from broker.placement.holds_reading import koordinator_hold, operating_hold, recorded_owners, reserve_pod
from broker.placement.model import PodInfo
from broker.placement.quantities import amounts, spec_requests
from broker.placement.reading import pod_info, takes_room


def node_holds(
    koordinator: Iterable[koord.KoordinatorReservation],
    kept: Collection[godel.GodelReservation],
    pods: Iterable[Pod],
    present: Container[str],
    rules: RoomRules,
) -> list[Hold]:
    """`pods`: those that may be reservations themselves. `present`: the UIDs of all pods on nodes."""
    return [
        *koordinator_holds(koordinator, rules.bounds),
        *godel_holds(kept, present, rules),
        *operating_holds(pods),
    ]


def koordinator_holds(
    reservations: Iterable[koord.KoordinatorReservation], bounds: RoomBounds
) -> Iterable[Hold]:
    """The holds of placed reservations. One that cannot be read keeps its room, closed to all pods."""
    for reservation in reservations:
        status = reservation.status
        if status.phase != koord.AVAILABLE or not status.node_name:
            continue
        room = amounts(status.allocatable)
        try:
            yield koordinator_hold(reservation, status.node_name, room, bounds)
        except ValueError:
            yield Hold(
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


def operating_holds(pods: Iterable[Pod]) -> Iterable[Hold]:
    """The holds that running pods are. A pod with owners that cannot be read is a pod like any other."""
    for pod in pods:
        if koord.OPERATING_MODE in pod.labels and takes_room(pod):
            try:
                hold = operating_hold(pod)
            except ValueError:
                continue
            if hold is not None:
                yield hold


def godel_holds(
    reservations: Collection[godel.GodelReservation], present: Container[str], rules: RoomRules
) -> Iterable[Hold]:
    """The holds of reservations. The room of a pod that is still there, by UID, is the pod's own."""
    refused = rules.refused(reservations)
    for reservation in reservations:
        spec, meta = reservation.spec, reservation.metadata
        if not spec.node_name or reservation.deleting or spec.template is None or meta.uid in refused:
            continue
        if meta.annotations.get(godel.PLACEHOLDER_UID) in present:
            continue
        pod = Pod(
            metadata=ObjectMeta(namespace=meta.namespace, name=meta.name, labels=meta.labels),
            spec=spec.template.spec,
        )
        yield Hold(
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
