"""Decides about quota and owned slots, by passes of its own and for each plan of the launch loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from broker.apis.karpenter import NodeClaim
from broker.capacity.entitlement import Entitlements
from broker.capacity.model import Inventory, Plan
from broker.controllers.dedicatedaicluster.controller import ClusterController
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.preemption.controller import PreemptionController
from broker.controllers.preemption.entitlements import EntitlementReader
from broker.controllers.preemption.preemptor import Preemptor
from broker.controllers.preemption.slots import SlotSnapshotBuilder
from broker.kube.controller import Result
from broker.kube.watches import Signal
from broker.quota.joint import JointDecision
from providers.model import InstanceType


class ReservedSlots:
    """`run` is one pass; the other methods are the launch loop's `SlotPolicy`.

    `nominated` is called when a plan nominates an occupied slot.
    """

    def __init__(self, shared: ReservationDependencies) -> None:
        self.nominated = Signal()
        self._claims = shared.caches.claims
        self._assumed = assumed = shared.inventory.assumed
        self._entitlements = EntitlementReader(
            SlotSnapshotBuilder(
                shared.reads,
                shared.caches,
                settings=shared.settings,
                assumed=assumed,
            ),
            assumed,
        )
        self._preemptor = Preemptor(
            shared.client, shared.caches.claims, assumed, recorder=shared.recorder, wake=self.nominated
        )
        clusters = ClusterController(shared, priority=shared.reads.priority)
        self._controller = PreemptionController(shared, self._entitlements, self._preemptor, clusters)

    def run(self, _items: Sequence[str] = ()) -> Result | None:
        """Raises ProviderError; ApiError after everything else had its turn."""
        return self._controller.run()

    def begin(self) -> bool:
        """Whether plans may be made."""
        waiting = {claim.uid for claim in self._claims.list() if not claim.status.provider_id}
        self._assumed.begin_pass(waiting)
        return self._entitlements.known()

    def exclusive(self) -> AbstractContextManager[None]:
        """Excludes any other decision about slots."""
        return self._assumed.exclusive()

    def entitlements(
        self, claims: Mapping[str, NodeClaim], inventory: Inventory, types: Mapping[str, InstanceType]
    ) -> Entitlements:
        """For a plan of these claims, now."""
        return self._entitlements.entitlements(claims, inventory, types)

    def planned(self, plan: Plan) -> None:
        """Records the claims that launch now, and the claims that wait for an occupied slot."""
        self._preemptor.planned(plan)

    def decide(self, inventory: Inventory) -> JointDecision:
        """The decision that a pass would make now. Raises ProviderError."""
        return self._controller.decide(inventory)
