"""Adapts the views of EC2, Kueue and dedicated clusters to the sources of the reservation loop.

Nothing is decided here: each function reads one view about one reservation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from broker.apis import names
from broker.controllers.capacityreservation.sources import Sources
from broker.controllers.dedicatedaicluster.view import ClusterUsage
from broker.controllers.kueue.ownership import queue_name
from broker.controllers.kueue.view import KueueView
from broker.controllers.odcr.view import OwnershipView
from broker.quota.usage import ReservationHolder, Reserved
from broker.reservations.conditions import QueueState, Trouble
from broker.reservations.spec import Reservation, reserved_of

BUYING, SHORT = "CloudReservationPending", "InsufficientCapacity"
# Reasons that keep a deleted reservation's purchases from being released.
DELETION_BLOCKERS = frozenset(
    {"InstancesRunning", "PurchaseSkipped", "ChangeRefused", "GroupUnreadable", "ReservationNotDescribed"}
)
# Reasons why a flavor means no EC2 instances: no trouble if nothing is to be bought.
FLAVOR_REASONS = frozenset(
    {
        "FlavorNotFound",
        "FlavorNotReserved",
        "FlavorWithoutInstanceType",
        "InstanceTypeUnknown",
        "InstanceTypeNotOffered",
    }
)


def sources(
    holdings: OwnershipView,
    kueue: KueueView,
    clusters: ClusterUsage,
    *,
    drawing: Callable[[], Mapping[Reserved, tuple[ReservationHolder, ...]]] = dict,
) -> Sources:
    def queue(reserved: Reserved) -> QueueState | None:
        if not kueue.present:
            return None
        active, reason, message = kueue.active(reserved)
        if not active and reason not in {each.reason for each in kueue.problems(reserved)}:
            message += f" (kubectl describe clusterqueue {queue_name(reserved)})"
        return QueueState(active=active, reason=reason, message=message)

    def bought(reserved: Reserved) -> Sequence[Trouble]:
        return _bought(holdings, reserved)

    def left(one: Reservation) -> Sequence[str]:
        reserved = reserved_of(one)
        drawing = [each.name for each in clusters.holders(reserved) if each.usage]
        found = [
            f"DedicatedAICluster {name} holds some: delete it (kubectl delete dedicatedaicluster {name}) "
            "or let it name another reservation"
            for name in drawing
        ]
        found += kueue.left(reserved)
        if not holdings.settled(reserved, uid=one.uid):
            state = holdings.state(reserved)
            stuck = "; ".join(each.message for each in state.problems if each.reason in DELETION_BLOCKERS)
            found.append(stuck or state.detail or "its EC2 reservations are looked at")
        return found

    return Sources(
        holdings=holdings.holdings,
        group_arn=lambda reserved: holdings.state(reserved).group_arn,
        holders=(clusters.all, kueue.all, drawing),
        queue=queue,
        troubles=(bought,),
        hindered=lambda reserved: [
            Trouble(reason=each.reason, message=each.message) for each in kueue.problems(reserved)
        ],
        left=(left,),
        remedies=lambda reserved: _remedies(holdings, reserved),
        priority=lambda name: kueue.priority(name) is not None,
    )


def _bought(holdings: OwnershipView, reserved: Reserved) -> list[Trouble]:
    """Purchases in progress and their problems, and problems of the ODCRs that it claims to own."""
    state = holdings.state(reserved)
    found = []
    for name, count in sorted(state.flavors.items()):
        if state.managed and count.obtained < count.wanted:
            refused = f": {count.code}: {count.message}" if count.code else ""
            found.append(
                Trouble(
                    reason=BUYING if count.buying else SHORT,
                    message=f"flavor {name}: {count.obtained} of {count.wanted} instances are reserved in EC2"
                    f"{refused}",
                    pending=count.buying,
                )
            )
    found += [
        Trouble(reason=each.reason, message=each.message)
        for each in state.problems
        if state.managed or each.reason not in FLAVOR_REASONS
    ]
    return found


def _remedies(holdings: OwnershipView, reserved: Reserved) -> list[str]:
    """For a reservation without purchases: the reserved instances, and ways to get more."""
    state = holdings.state(reserved)
    if state.managed:
        return [] if state.flavors or state.problems else ["lower nominalQuota, or add nodes of its flavors"]
    found = [
        f"flavor {name}: {count.obtained} of {count.wanted} instances are EC2 reservations of its own"
        for name, count in sorted(state.flavors.items())
        if count.obtained < count.wanted
    ]
    found += [each.message for each in state.problems if each.reason in FLAVOR_REASONS]
    return [
        *found,
        f"the broker buys none, since annotation {names.RESERVATION_POLICY} is Observe: set it to Manage, "
        "which the broker's --buy-dollars has to allow; or reserve instances with the tag "
        f"{names.TAG_RESERVATION}={reserved}, as terraform/modules/capacity-reservations does; or add nodes "
        "of the flavor, or lower nominalQuota",
    ]
