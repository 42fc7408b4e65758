"""The values that the rooms of one term of leadership share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.controllers.claim_caches import BY_SLOT, ClaimCaches, Ec2State, replacements
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.instances import InstanceView
from broker.controllers.inventory import InventoryCache
from broker.controllers.lifecycle.takeover import TakeOver
from broker.controllers.nodeclass.controller import NodeClassController, group_arns
from broker.controllers.nodeclass.network import NetworkReader
from broker.controllers.reservation_reads import ReservationReads
from broker.controllers.snapshot import Ec2Reads
from broker.controllers.successions import Successions
from broker.informers import Informers
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.context import ControllerContext
from broker.kube.events import Recorder
from broker.kube.manager import ControllerManager
from broker.kube.watches import Signal
from broker.placement.claims import kept_slots
from broker.settings import Settings
from providers.base import CapacityProvider
from providers.errors import ProviderError


@dataclass(frozen=True, kw_only=True)
class Term(ReservationDependencies):
    """`read`: the informers of Kubernetes' and Karpenter's kinds; `reads`: of OME's and Kueue's."""

    provider: CapacityProvider
    manager: ControllerManager
    read: Informers
    signals: Signals
    successions: Successions
    takeover: TakeOver
    nodeclasses: NodeClassController
    ec2: Ec2State

    def synced(self) -> bool:
        """Whether all these kinds are read, or known to be missing."""
        return self.read.synced() and self.reads.synced()

    def launches_for(self, pool: NodePool) -> bool:
        """Whether the broker launches the pool's claims."""
        group = pool.spec.template.spec.node_class_ref.group
        return group == names.BROKER or self.settings.take_over_karpenter

    def every_class(self, *_: object) -> list[str]:
        """A map of any change to every class."""
        return [node_class.name for node_class in self.read.classes.cache.list()]


def new_term(client: Client, provider: CapacityProvider, settings: Settings, *, clock: Clock) -> Term:
    """Builds the shared values; starts nothing."""
    read, signals = Informers(client, clock=clock), Signals()
    context = ControllerContext(
        client=client, recorder=Recorder(client, "capacity-broker", clock), clock=clock
    )
    takeover = TakeOver(client, read.leases.cache, enabled=settings.take_over_karpenter, clock=clock)
    inventory = InventoryCache(
        provider,
        clock=clock,
        groups=partial(group_arns, read.classes.cache),
        stale_after=timedelta(seconds=2 * settings.poll_seconds),
    )
    inventory.kept = partial(_kept_slots, read)
    inventory.occupied = partial(read.claims.cache.sizes, BY_SLOT)
    view = InstanceView(
        provider,
        clock=clock,
        grace=timedelta(seconds=settings.orphan_grace_seconds),
        check=client.check,
    )
    return Term(
        client=client,
        recorder=context.recorder,
        clock=clock,
        provider=provider,
        settings=settings,
        read=read,
        reads=ReservationReads(
            client,
            clock=clock,
            settings=settings,
            ec2=Ec2Reads(
                inventory=inventory.snapshot,
                types=lambda: provider.instance_types(),
                assumed=inventory.assumed.slots,
            ),
        ),
        signals=signals,
        successions=Successions(),
        describe=signals.describe,
        takeover=takeover,
        caches=_caches(read, takeover),
        inventory=inventory,
        ec2=Ec2State(inventory=inventory, view=view),
        nodeclasses=NodeClassController(
            context,
            provider,
            inventory,
            read.classes.cache,
            describe=signals.describe,
            requeue=signals.reconcile_class,
            defaults=settings.launch_defaults,
            network=NetworkReader(client, configured=settings.service_range).read,
        ),
        manager=ControllerManager(
            clock=clock, recorder=context.recorder, synced=read.synced, expected=(ProviderError,)
        ),
    )


def _kept_slots(read: Informers, now: datetime) -> Mapping[str, str]:
    return kept_slots(replacements(read.claims.cache), now)


def _caches(read: Informers, takeover: TakeOver) -> ClaimCaches:
    return ClaimCaches(
        claims=read.claims.cache,
        nodes=read.nodes.cache,
        pods=read.pods.cache,
        pools=read.pools.cache,
        owns=takeover.owns,
        taken=takeover.taken,
    )


@dataclass(frozen=True, kw_only=True)
class Signals:
    """One signal for each of these triggers: its callers do not know the loops."""

    describe: Signal = field(default_factory=Signal)  # describe EC2's reservations again
    described: Signal = field(default_factory=Signal)  # EC2's reservations were described for the first time
    replan: Signal = field(default_factory=Signal)  # plan the waiting claims again
    reconcile_class: Signal = field(default_factory=Signal)  # by the name of the class
    instance_changed: Signal = field(default_factory=Signal)  # by the id of an instance that is to end
    owner_changed: Signal = field(default_factory=Signal)  # claims were taken over from Karpenter, or back
    template_limit: Signal = field(default_factory=Signal)  # EC2 makes no further launch template
