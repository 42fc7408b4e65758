"""Builds the scheduler of pods and reservations: one `Scheduler` is one term under its own Lease.

It shares no state with the other controllers, so that each may lead in another process. In the same process
their informers share each list and watch (broker.kube.watch_group). Its informers of nodes and pods make no
request until a kind that it honours is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.apis.core import Node, Pod
from broker.apis.kueue import Namespace
from broker.controllers.elasticquota.controller import BY_NAMESPACE, by_namespace
from broker.controllers.nodereservation.koordinator import BY_RESERVATION, by_reservation
from broker.controllers.nodereservation.reads import BY_SCHEDULER, SchedulerReads, scheduler_of
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.events import Recorder
from broker.kube.informer import Informer
from broker.kube.manager import ControllerManager
from broker.settings import Settings
from broker.wiring.scheduler import SchedulerTerm, add_scheduler

SCHEDULER_LEASE: Final = "capacity-broker-scheduler"
# Seconds, less than the time between the end of one term and the earliest start of the next: a write that
# hangs is given up before another process places pods.
WRITE_SECONDS: Final = 4.0


class Scheduler:
    """Everything that runs while this process leads the scheduling."""

    def __init__(self, client: Client, settings: Settings, *, clock: Clock) -> None:
        indexes = {
            BY_RESERVATION: by_reservation,
            BY_NAMESPACE: by_namespace,
            BY_SCHEDULER: scheduler_of,
        }
        self._pods = Informer(client, Pod, clock=clock, indexes=indexes)
        self._nodes = Informer(client, Node, clock=clock)
        self._namespaces = Informer(client, Namespace, clock=clock)
        self.reads = SchedulerReads(client, self._pods.cache, clock=clock, names=settings.schedulers)
        for informer in self._own.values():
            informer.needed = self.reads.installed
        writer = client.replace(timeout=WRITE_SECONDS)
        self.recorder = Recorder(writer, "capacity-broker", clock)
        self._manager = manager = ControllerManager(clock=clock, recorder=self.recorder, synced=self._synced)
        self.informers, self.loops = manager.informers, manager.loops
        manager.follow(*self._own.values())
        add_scheduler(
            SchedulerTerm(
                client=writer,
                recorder=self.recorder,
                clock=clock,
                manager=manager,
                settings=settings,
                reads=self.reads,
                pods=self._pods,
                nodes=self._nodes,
                namespaces=self._namespaces,
                synced=self._synced,
            )
        )

    def start(self) -> None:
        self._manager.start()

    def stop(self) -> None:
        self._manager.stop()

    def ready(self) -> Mapping[str, bool]:
        """Everything that must be complete before a pod is placed, by name."""
        idle = not self.reads.installed()
        own = {name: idle or informer.synced for name, informer in self._own.items()}
        return {**own, "rooms": self.reads.synced()}

    @property
    def _own(self) -> Mapping[str, Informer[Pod] | Informer[Node] | Informer[Namespace]]:
        return {"pods": self._pods, "nodes": self._nodes, "namespaces": self._namespaces}

    def _synced(self) -> bool:
        return self.reads.synced() and (
            not self.reads.installed() or all(informer.synced for informer in self._own.values())
        )
