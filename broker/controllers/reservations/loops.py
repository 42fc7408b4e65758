"""The loops about reservations and their claims: labels, endings, mirror.

Invariant: each loop fails on its own. None describes reservations or lists instances: they share the launch
loop's description and listing. The mirror waits for its own kind, so that a cluster without that CRD launches
all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.controllers.inventory import InventoryKeeper
from broker.controllers.nodeclaim.instances import InstanceView
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.reservations.endings import EndingController
from broker.controllers.reservations.mirror import MirrorController
from broker.controllers.reservations.shown import unsettled, users
from broker.controllers.reservations.standing import InstanceLabelController
from broker.kube.batch import Batcher
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.controller import Result
from broker.kube.events import Recorder
from broker.kube.informer import Informer
from broker.kube.singleton import Singleton
from providers.base import CapacityProvider
from providers.model import ProviderError

PRICES = 300.0  # prices change without an event


class ReservationLoops:
    """The caller starts and stops `informers` and `loops`."""

    def __init__(
        self,
        client: Client,
        provider: CapacityProvider,
        *,
        claims: Cache[NodeClaim],
        classes: Cache[EC2NodeClass],
        nodes: Cache[Node],
        inventory: InventoryKeeper,
        resolved: NodeClassController,
        view: InstanceView,
        clock: Clock,
        recorder: Recorder,
        owns: Callable[[NodeClaim], bool],
        relist: Callable[[], None],
        synced: Callable[[], bool],
        every: float,
    ) -> None:
        def used() -> Mapping[str, Sequence[str]]:
            return users((one.name for one in classes.list()), resolved.found)

        self.mirrors = Informer(client, OnDemandCapacityReservation, clock=clock)
        self.informers = (self.mirrors,)
        standing = InstanceLabelController(
            client,
            claims,
            nodes,
            inventory,
            view,
            clock=clock,
            recorder=recorder,
            owns=owns,
            relist=relist,
        )
        endings = EndingController(
            client, claims, classes, inventory, clock=clock, recorder=recorder, owns=owns, users=used
        )
        mirror = MirrorController(
            client,
            provider,
            self.mirrors.cache,
            inventory,
            clock=clock,
            users=used,
            unsettled=lambda: unsettled((one.name for one in classes.list()), resolved.found),
        )

        def loop(
            name: str, run: Callable[[], Result | None], *, period: float, ready: Callable[[], bool]
        ) -> Singleton[str]:
            return Singleton(
                name,
                lambda _items: run(),
                batcher=Batcher(name, clock=clock),
                clock=clock,
                synced=ready,
                every=period,
                expected=(ProviderError,),
            )

        def mirrored() -> bool:
            return synced() and self.mirrors.synced

        stands = loop("standing", standing.run, period=every, ready=synced)
        ends = loop("endings", endings.run, period=every, ready=synced)
        mirrors = loop("mirror", mirror.run, period=PRICES, ready=mirrored)
        self.loops = (stands, ends, mirrors)
        view.on_listing(lambda: stands.batcher.add("listing"))
        for each in self.loops:
            inventory.on_change(lambda each=each: each.batcher.add("inventory"))  # type: ignore[misc]
        resolved.on_change(mirrors.batcher.add)
        self.mirrors.on_change(lambda *_: mirrors.batcher.add("mirror"))
