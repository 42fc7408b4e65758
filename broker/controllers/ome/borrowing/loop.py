"""The loop that takes lent slots back, and what the launch loop asks about whose slots are whose."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.apis.karpenter import NodeClaim
from broker.capacity.entitlement import Entitlements
from broker.capacity.holdings import Holdings
from broker.capacity.model import Inventory, Plan
from broker.controllers.ome.borrowing.entitler import Entitler
from broker.controllers.ome.borrowing.reclaim import Reclaimer
from broker.controllers.ome.shared import Shared
from broker.kube.batch import Batcher
from broker.kube.singleton import Singleton
from providers.model import InstanceType, ProviderError

NAME = "borrowing"
EVERY = 60.0  # what an earlier leader said of a claim is settled


class Borrowing:
    """`holdings`: None before they are known."""

    def __init__(self, shared: Shared, holdings: Callable[[], Holdings | None]) -> None:
        self._entitler = Entitler(
            shared.reads,
            holdings,
            shared.claims,
            shared.nodes,
            shared.pods,
            settings=shared.settings,
            clock=shared.clock,
            owns=shared.owns,
        )
        self._reclaimer = Reclaimer(
            shared.client,
            shared.provider,
            shared.claims,
            shared.inventory,
            self._entitler,
            clock=shared.clock,
            recorder=shared.recorder,
            wake=lambda: self.loop.batcher.add(NAME),
        )
        self.loop: Singleton[str] = Singleton(
            NAME,
            self._reclaimer.run,
            batcher=Batcher[str](NAME, clock=shared.clock),
            clock=shared.clock,
            synced=lambda: shared.synced() and shared.reads.synced() and shared.inventory.described,
            every=EVERY,
            expected=(ProviderError,),
        )

    def begin(self) -> bool:
        """Whether plans may be made."""
        self._entitler.begin()
        return self._entitler.known()

    def entitlements(
        self, claims: Mapping[str, NodeClaim], inventory: Inventory, types: Mapping[str, InstanceType]
    ) -> Entitlements:
        """For a plan of these claims, now."""
        return self._entitler.entitlements(claims, inventory, types)

    def planned(self, made: Plan) -> None:
        """What is launched now, and which claims wait to have which slots back."""
        self._entitler.take(
            {each.claim.uid: each.option.odcr_ids[0] for each in made.assignments if each.option.odcr_ids}
        )
        self._reclaimer.awaited(made.awaited)
