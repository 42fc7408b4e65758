"""The loops that work on classes for Karpenter: advisor, definition and accepted specs.

Invariant: they wait for the caches that they read and for nothing else, and the broker's own launches wait
for none of them.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.apis.karpenter import NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.karpenter_aws_definition import NAME, CustomResourceDefinition
from broker.controllers.advisor.accepted import AcceptedKeeper
from broker.controllers.advisor.controller import Advisor
from broker.controllers.advisor.definition import DefinitionKeeper
from broker.controllers.advisor.pools import class_of
from broker.controllers.inventory import InventoryKeeper
from broker.controllers.nodeclass.controller import NodeClassController
from broker.kube.batch import Batcher
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.controller import Controller
from broker.kube.events import Recorder
from broker.kube.informer import Informer
from broker.kube.queue import WorkQueue
from broker.kube.singleton import Singleton
from providers.base import CapacityProvider
from providers.model import ProviderError

LONGEST = 60.0
ONLY_IT = f"metadata.name={NAME}"

Loop = Controller[str] | Singleton[str]


class AdvisorLoops:
    """`informers` and `loops` are started and stopped by whoever builds it; there are none where it is not
    `enabled`. What they hear of marks classes dirty."""

    def __init__(
        self,
        client: Client,
        provider: CapacityProvider,
        *,
        classes: Cache[EC2NodeClass],
        pools: Cache[NodePool],
        inventory: InventoryKeeper,
        resolved: NodeClassController,
        clock: Clock,
        recorder: Recorder,
        cluster: str,
        describe: Callable[[], None],
        synced: Callable[[], bool],
        enabled: bool,
        keep_definition: bool = False,
    ) -> None:
        self.informers: tuple[Informer[CustomResourceDefinition], ...] = ()
        self.loops: tuple[Loop, ...] = ()
        if not enabled:
            return
        advisor = Advisor(
            client,
            provider,
            inventory,
            resolved,
            classes,
            pools,
            clock=clock,
            recorder=recorder,
            cluster=cluster,
            describe=describe,
        )
        queue = WorkQueue[str]("advisor", clock=clock, longest=LONGEST)

        def class_changed(old: EC2NodeClass | None, new: EC2NodeClass | None) -> None:
            for one in (new, old):
                if one is not None:
                    queue.add(one.name)
                    copies.add(one.name)

        def pool_changed(old: NodePool | None, new: NodePool | None) -> None:
            for pool in (old, new):
                if pool is not None and (name := class_of(pool)):
                    queue.add(name)

        def described() -> None:
            # A new description may show a tag, or that of a class that is gone.
            for name in sorted({*(one.name for one in classes.list()), *advisor.marks.classes()}):
                queue.add(name)

        definitions = Informer(client, CustomResourceDefinition, clock=clock, field_selector=ONLY_IT)
        definition = DefinitionKeeper(client, definitions.cache, classes, clock=clock, keep=keep_definition)
        accepted = AcceptedKeeper(client, classes, definition, clock=clock, recorder=recorder)
        copies = WorkQueue[str]("accepted", clock=clock, longest=LONGEST)
        looks = Batcher[str]("definition", clock=clock)

        def definition_changed(*_: object) -> None:
            looks.add("definition")
            for one in classes.list():
                copies.add(one.name)

        classes.on_change(class_changed)
        pools.on_change(pool_changed)
        inventory.on_change(described)
        resolved.on_change(queue.add)
        definitions.on_change(definition_changed)
        self.informers = (definitions,)
        self.loops = (
            Controller(
                "advisor",
                advisor.reconcile,
                queue=queue,
                clock=clock,
                synced=synced,
                workers=1,
                expected=(ProviderError,),
            ),
            Singleton("definition", lambda _: definition.run(), batcher=looks, clock=clock),
            Controller("accepted", accepted.reconcile, queue=copies, clock=clock, synced=synced, workers=1),
        )
