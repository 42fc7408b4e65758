"""The status of a mirror object, and the classes that use a reservation.

Invariant: total, available and state are EC2's own, as it last described them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from broker.apis.capacity_broker import OnDemandCapacityReservationStatus
from broker.capacity.matching import ends_at
from broker.capacity.model import Resolved
from broker.controllers.nodeclass.resolve import Unresolved
from broker.reservations.odcr_view import OdcrView


def users(classes: Iterable[str], resolve: Callable[[str], Resolved]) -> Mapping[str, list[str]]:
    """The classes that launch into each reservation (by id), now or once it begins, also through
    Karpenter.
    """
    using: dict[str, list[str]] = defaultdict(list)
    for name in sorted(classes):
        try:
            resolved = resolve(name)
        except Unresolved:
            continue
        for odcr in (*resolved.usable, *resolved.pending):
            using[odcr.id].append(name)
    return using


def temporarily_unresolved(classes: Iterable[str], resolve: Callable[[str], Resolved]) -> frozenset[str]:
    """The classes with a selection that is unknown for now."""
    unresolved = set()
    for name in classes:
        try:
            resolve(name)
        except Unresolved as error:
            if error.passing:
                unresolved.add(name)
    return frozenset(unresolved)


def status_of(
    view: OdcrView, node_classes: Iterable[str], *, stale: datetime | None = None
) -> OnDemandCapacityReservationStatus:
    """`stale`: the time of the last description while EC2 cannot be read."""
    odcr = view.odcr
    return OnDemandCapacityReservationStatus(
        type=odcr.instance_type,
        zone=odcr.zone,
        total=odcr.total,
        available=odcr.available,
        lent=odcr.lent,
        lent_to=odcr.lent_to,
        state=odcr.state,
        start=_seconds(odcr.start),
        end=_seconds(odcr.end),
        drain=_seconds(ends_at(odcr)) if odcr.prepaid else None,
        source=odcr.maker,
        reservation_type=odcr.kind,
        match_criteria=odcr.match_criteria,
        platform=odcr.platform,
        tenancy=odcr.tenancy,
        owner_id=odcr.owner_id,
        node_classes=(named := tuple(node_classes)),
        node_class_names=",".join(named),
        idle_cost_per_hour="" if view.cost is None else f"{view.cost:.2f}",
        idle_since=view.since,
        stale_since=_seconds(stale),
    )


def _seconds(moment: datetime | None) -> datetime | None:
    """Kubernetes keeps whole seconds."""
    return moment.replace(microsecond=0) if moment else None
