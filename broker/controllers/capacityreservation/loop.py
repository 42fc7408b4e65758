"""The loop that writes the status of reservations, and its triggers.

Triggers: every watched kind, and a timer for time-based transitions.

Invariant: it waits for the caches that it reads and for a first description of EC2's ODCRs, and for nothing
else. It does not wait for a kind that is not installed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import ClusterQueue, LocalQueue, Workload
from broker.controllers.capacityreservation.controller import ReservationController
from broker.controllers.capacityreservation.look import ReservationSnapshotBuilder
from broker.controllers.capacityreservation.sources import Sources
from broker.controllers.kueue.view import counts_as, shows
from broker.controllers.ome.shared import ReservationDependencies, snapshot_loop
from broker.kube.controller import Result
from broker.kube.singleton import Singleton
from broker.quota.lifecycle import Limits
from broker.reservations.machines import visible_state
from broker.reservations.spec import Reservation

NAME = "reservation"


class UsageThrottle:
    """Runs at once when the use of quota changes, and then at most once in `EVERY` seconds.

    With many workloads a second, a pass for each would cost more than admitting them.
    """

    EVERY: Final = 1.0

    def __init__(self, run: Callable[[], Result | None]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._changed = self._due = False  # since the last pass; whether a pass is scheduled

    def changed(self) -> bool:
        """Notes a change; returns whether a pass must be requested for it."""
        with self._lock:
            self._changed, due = True, self._due
            self._due = True
            return not due

    def run(self) -> Result | None:
        with self._lock:
            self._due, self._changed = self._changed, False
            due = self._due
        again = self._run()
        return (
            again
            if not due
            else Result(requeue_after=min(self.EVERY, again.requeue_after if again else self.EVERY))
        )


def reservation_loop(
    shared: ReservationDependencies, sources: Sources, *, ready: Callable[[], bool] = lambda: True
) -> Singleton[str]:
    """`ready`: whether the sources are known yet."""
    settings = shared.settings
    look = ReservationSnapshotBuilder(
        shared.provider,
        shared.reads,
        shared.nodes,
        shared.claims,
        shared.pods,
        shared.inventory,
        sources,
        steady_seconds=settings.reservation_steady_seconds,
        starting_seconds=settings.reservation_creating_seconds,
    )
    keeper = ReservationController(
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
    use = UsageThrottle(keeper.run)
    loop = snapshot_loop(
        shared,
        NAME,
        lambda _items: use.run(),
        by=(
            reads.clusters,
            reads.flavors,
            reads.workload_priorities,
            reads.priorities,
        ),
        ready=lambda: shared.inventory.described and ready(),
    )

    def dirty(*_: object) -> None:
        loop.batcher.add(NAME)

    def reservation_changed(old: Reservation | None, new: Reservation | None) -> None:
        # This loop writes the status: a change by hand is corrected in the next pass.
        if _spoken(old) != _spoken(new) or use.changed():
            dirty()

    def queue_changed(old: ClusterQueue | LocalQueue | None, new: ClusterQueue | LocalQueue | None) -> None:
        if shows(old) != shows(new):
            dirty()

    def workload_changed(old: Workload | None, new: Workload | None) -> None:
        if counts_as(old) != counts_as(new) and use.changed():
            dirty()

    def node_changed(old: Node | None, new: Node | None) -> None:
        if visible_state(old) != visible_state(new):
            dirty()

    def claim_changed(old: NodeClaim | None, new: NodeClaim | None) -> None:
        if _launched(old) != _launched(new):
            dirty()

    reads.reservations.on_change(reservation_changed)
    reads.cluster_reservations.on_change(reservation_changed)
    reads.cluster_queues.on_change(queue_changed)
    reads.local_queues.on_change(queue_changed)
    reads.workloads.on_change(workload_changed)
    shared.nodes.on_change(node_changed)
    shared.claims.on_change(claim_changed)
    shared.inventory.on_change(dirty)
    look.others.on_change(dirty)
    return loop


def _spoken(one: Reservation | None) -> object:
    """The parts of a reservation that this loop does not write."""
    if one is None:
        return None
    meta = one.metadata
    return meta.uid, meta.labels, meta.annotations, meta.finalizers, one.deleting, one.spec


def _launched(claim: NodeClaim | None) -> tuple[object, ...]:
    """The parts of a claim that decide which slot its node takes."""
    if claim is None or not claim.status.provider_id:
        return ()
    return claim.labels, claim.status.node_name, claim.deleting
