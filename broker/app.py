"""Builds everything that runs while this process leads: the list of the rooms that `wiring` adds.

Invariant: nothing acts before the caches it reads are complete, and no run begins after `stop` has returned.
One Broker is one term of leadership: when the Lease is lost it is thrown away, and the next term builds
another.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor as Threads
from functools import partial

from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.metrics import REGISTRY as KUBE_REGISTRY
from broker.oncall import outside, situation, state
from broker.oncall.journal import Journal
from broker.oncall.metrics import REGISTRY, clear_tables
from broker.placement.claims import waiting_since
from broker.settings import Settings
from broker.wiring.advisor import add_advisor
from broker.wiring.disruption import add_disruption
from broker.wiring.ec2 import add_inventory, add_nodeclass, add_prices, add_templates
from broker.wiring.kueue import add_kueue
from broker.wiring.launch import add_launch
from broker.wiring.lifecycle import add_interruption, add_lifecycle
from broker.wiring.odcr import add_odcr
from broker.wiring.oncall import outside_cost_of, situation_of
from broker.wiring.provisioning import add_occupancy, add_provisioning
from broker.wiring.reservations import add_annotations, add_reservations
from broker.wiring.slots import add_slots
from broker.wiring.staticpools import add_static_pools
from broker.wiring.term import new_term
from providers.base import CapacityProvider

LEASE = "capacity-broker"
# Shown by /metrics.
REGISTRIES = (REGISTRY, KUBE_REGISTRY)


class Broker:
    """Everything that runs while this process leads."""

    def __init__(
        self,
        client: Client,
        provider: CapacityProvider,
        settings: Settings,
        *,
        clock: Clock,
        threads: Threads | None = None,
    ) -> None:
        """`threads` makes the calls that launch; by default the broker's own."""
        self._term = term = new_term(client, provider, settings, clock=clock)
        self.journal = Journal()
        self.read, self.reads, self.inventory = term.read, term.reads, term.inventory
        self.instances = term.ec2.view
        self.recorder, self.signals, self.caches = term.recorder, term.signals, term.caches
        self._manager = manager = term.manager
        self.informers, self.loops = manager.informers, manager.loops
        manager.follow(*self.read.named.values(), *self.reads.named.values())
        add_inventory(term)
        manager.on_stop(clear_tables)
        add_nodeclass(term)
        self.slots = add_slots(term)
        templates = add_templates(term)
        self.launcher = add_launch(term, self.slots, templates, self.journal, threads=threads)
        add_lifecycle(term, self.launcher)
        add_reservations(term)
        mirrored = add_odcr(term)
        _, self.types, self.account = mirrored
        self.check = add_kueue(term)
        add_annotations(term)
        self.occupancy = add_occupancy(term)
        pods, reports = add_provisioning(term, self.slots, self.launcher, self.occupancy)
        self.situation = situation_of(term, mirrored, reports, self.launcher)
        self.outside_cost = partial(outside_cost_of, term, mirrored)
        self.nodeclasses, self.pod_reports = term.nodeclasses, reports
        add_static_pools(term, self.slots, self.launcher, pods)
        add_disruption(term, self.slots, self.launcher, pods)
        add_advisor(term)
        add_prices(term)
        add_interruption(term, self.launcher)

    def start(self) -> None:
        since = partial(waiting_since, pod=self.caches.pods.find)
        state.follow(lambda: self.launcher.shortages, self.caches.owned, since, self._term.clock.now)
        situation.follow(self.situation)
        outside.follow(lambda: self.outside_cost() or {})
        self._manager.start()

    def stop(self) -> None:
        self._manager.stop()

    @property
    def client(self) -> Client:
        """The client of this term of leadership: after it, writes are refused."""
        return self._term.client

    def ready(self) -> Mapping[str, bool]:
        """Everything that must be complete before the broker acts, by name."""
        return {
            **{informer.label(name): informer.synced for name, informer in self.read.named.items()},
            "ec2-reservations": self.inventory.described,
        }
