"""The loops about OME's kinds: reservations, their EC2 reservations, Kueue's objects, and preemption.

Invariant: each loop waits for the caches that it reads and fails on its own. The broker's launches wait for
none of them, so that a cluster without OME's definitions launches all the same.
"""

from __future__ import annotations

from typing import Any

from broker.controllers.capacityreservation.loop import reservation_loop
from broker.controllers.capacityreservation.wire import sources
from broker.controllers.dedicatedaicluster.drawing import drawers
from broker.controllers.dedicatedaicluster.queueing import holding
from broker.controllers.dedicatedaicluster.view import ClusterUsage
from broker.controllers.kueue.loops import KueueLoops
from broker.controllers.kueue.view import KueueView
from broker.controllers.odcr.loop import odcr_loop
from broker.controllers.odcr.view import OwnershipView
from broker.controllers.ome.shared import ReservationDependencies
from broker.controllers.preemption.loop import PreemptionLoop
from broker.kube.controller import Controller
from broker.kube.informer import Informer
from broker.kube.singleton import Singleton
from broker.quota.usage import Reserved

Loop = Controller[str] | Singleton[str]


class OmeLoops:
    """The caller starts and stops `informers` and `loops`."""

    def __init__(self, shared: ReservationDependencies) -> None:
        self.reads = shared.reads
        self.informers: tuple[Informer[Any], ...] = tuple(shared.reads.named.values())
        self.holdings = OwnershipView()
        self.kueue = KueueView(shared.reads)
        self.clusters = ClusterUsage(
            shared.reads.clusters.cache, known=self.reserved, queued=lambda: holding(shared.reads)
        )
        reservations = reservation_loop(
            shared,
            sources(
                self.holdings,
                self.kueue,
                self.clusters,
                drawing=drawers(
                    shared.reads,
                    shared.claims,
                    kueue=lambda: self.kueue.present,
                ),
            ),
            ready=lambda: self.holdings.known,
        )
        self.holdings.on_change(lambda: reservations.batcher.add("holdings"))
        shared.reads.quotas.on_change(lambda *_: reservations.batcher.add("quotas"))
        self.kueue.on_change(lambda _: reservations.batcher.add("kueue"))
        queues = KueueLoops(shared, self.kueue, self.holdings, others=self.clusters.unqueued)
        held = odcr_loop(shared, self.holdings)
        self.borrowing = PreemptionLoop(
            shared,
            lambda: self.holdings.holdings() if self.holdings.known else None,
            priority=self.kueue.priority,
            kueue=lambda: self.kueue.present,
        )
        self.holdings.on_change(shared.replan)
        self.loops: tuple[Loop, ...] = (
            reservations,
            held,
            self.borrowing.loop,
            *queues.loops,
        )

    def reserved(self) -> list[Reserved]:
        """All existing reservations."""
        return list(self.reads.snapshot().reservations)
