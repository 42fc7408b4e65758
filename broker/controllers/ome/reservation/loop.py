"""The reservation loop and what makes it look: every change of what it reads, and time where time decides.

Invariant: it waits for the caches that it reads and for a first description of EC2's reservations, and for
nothing else; a kind that is not installed is not waited for.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.controllers.ome.reservation.controller import ReservationKeeper
from broker.controllers.ome.reservation.hardware import sight
from broker.controllers.ome.reservation.look import Look
from broker.controllers.ome.reservation.sources import Sources
from broker.controllers.ome.shared import Shared, looked_at
from broker.kube.singleton import Singleton
from broker.quota.lifecycle import Limits

NAME = "reservation"


def reservation_loop(
    shared: Shared, sources: Sources, *, ready: Callable[[], bool] = lambda: True
) -> Singleton[str]:
    """`ready`: whether what the sources say is known yet."""
    settings = shared.settings
    look = Look(
        shared.provider,
        shared.reads,
        shared.nodes,
        shared.claims,
        shared.pods,
        shared.inventory,
        sources,
        steady_seconds=settings.reservation_steady_seconds,
        starting_seconds=settings.reservation_creating_seconds,
        default_cohort=settings.default_cohort,
        strict=settings.strict,
    )
    keeper = ReservationKeeper(
        shared.client,
        shared.reads,
        look,
        sources,
        clock=shared.clock,
        recorder=shared.recorder,
        limits=Limits(
            creating=settings.reservation_creating_seconds, updating=settings.reservation_updating_seconds
        ),
    )
    reads = shared.reads
    loop = looked_at(
        shared,
        NAME,
        lambda _items: keeper.run(),
        by=(
            reads.reservations,
            reads.cluster_reservations,
            reads.clusters,
            reads.flavors,
            reads.cluster_queues,
            reads.local_queues,
            reads.workloads,
            reads.workload_priorities,
            reads.priorities,
        ),
        ready=lambda: shared.inventory.described and ready(),
    )

    def dirty(*_: object) -> None:
        loop.batcher.add(NAME)

    def node_changed(old: Node | None, new: Node | None) -> None:
        if sight(old) != sight(new):
            dirty()

    def claim_changed(old: NodeClaim | None, new: NodeClaim | None) -> None:
        if _launched(old) != _launched(new):
            dirty()

    shared.nodes.on_change(node_changed)
    shared.claims.on_change(claim_changed)
    shared.inventory.on_change(dirty)
    look.others.on_change(dirty)
    return loop


def _launched(claim: NodeClaim | None) -> tuple[object, ...]:
    """What of a claim matters here: whose slot it is about to be a node in."""
    if claim is None or not claim.status.provider_id:
        return ()
    return claim.labels, claim.status.node_name, claim.deleting
