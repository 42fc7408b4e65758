"""The loop that decides about quota and slots, its triggers, and its interface for the launch loop.

Invariant: it waits for the caches that it reads; a kind that is not installed is not waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from broker.apis import names
from broker.apis.core import Node, ResourceQuota
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import Workload
from broker.capacity.entitlement import Entitlements
from broker.capacity.model import Inventory, Plan
from broker.controllers.dedicatedaicluster.keeper import ClusterController, down
from broker.controllers.ome.deciding import PreemptionController
from broker.controllers.ome.shared import ReservationDependencies, snapshot_loop
from broker.controllers.preemption.entitler import EntitlementReader
from broker.controllers.preemption.reclaim import Preemptor
from broker.controllers.preemption.sight import SlotSnapshotBuilder
from broker.kube.singleton import Singleton
from broker.reservations.ownership import Ownership
from providers.model import InstanceType

NAME = "quota"


class PreemptionLoop:
    """Runs the decision pass for the launch loop.

    `holdings`: None until ownership is known. `priority`: the value of a priority class. `kueue`: whether
    Kueue counts quota here.
    """

    def __init__(
        self,
        shared: ReservationDependencies,
        holdings: Callable[[], Ownership | None],
        *,
        priority: Callable[[str], int | None],
        kueue: Callable[[], bool],
    ) -> None:
        self._entitler = EntitlementReader(
            SlotSnapshotBuilder(
                shared.reads,
                holdings,
                shared.claims,
                shared.nodes,
                shared.pods,
                settings=shared.settings,
                clock=shared.clock,
                owns=shared.owns,
                kueue=kueue,
            )
        )
        self._reclaimer = Preemptor(
            shared.client,
            shared.claims,
            self._entitler,
            clock=shared.clock,
            recorder=shared.recorder,
            wake=lambda: self.loop.batcher.add(NAME),
        )
        keeper = ClusterController(
            shared, priority=priority, kueue=kueue, owners=lambda: (holdings() or Ownership()).owner
        )
        decider = PreemptionController(shared, self._entitler, self._reclaimer, keeper, kueue=kueue)
        reads = shared.reads
        self.loop: Singleton[str] = snapshot_loop(
            shared,
            NAME,
            decider.run,
            by=(
                reads.clusters,
                reads.profiles,
                reads.reservations,
                reads.cluster_reservations,
                reads.flavors,
                reads.local_queues,
                reads.workload_priorities,
                reads.priorities,
            ),
        )

        def claim_changed(old: NodeClaim | None, new: NodeClaim | None) -> None:
            one = new or old
            if one is not None and (names.DEDICATED in one.labels or names.DRAWS_FROM in one.annotations):
                self.loop.batcher.add(NAME)

        def node_changed(old: Node | None, new: Node | None) -> None:
            one = new or old
            if one is not None and names.DEDICATED in one.labels and _up(old) != _up(new):
                self.loop.batcher.add(NAME)

        def workload_changed(old: Workload | None, new: Workload | None) -> None:
            one = new or old
            if one is not None and names.DEDICATED in one.labels:
                self.loop.batcher.add(NAME)

        def quota_changed(old: ResourceQuota | None, new: ResourceQuota | None) -> None:
            if old is None or new is None or old.spec != new.spec:  # its status changes with every pod
                self.loop.batcher.add(NAME)
                shared.replan()

        reads.quotas.on_change(quota_changed)
        reads.workloads.on_change(workload_changed)
        shared.claims.on_change(claim_changed)
        shared.nodes.on_change(node_changed)

    def begin(self) -> bool:
        """Whether plans may be made."""
        self._entitler.begin()
        return self._entitler.known()

    def alone(self) -> AbstractContextManager[None]:
        """Excludes any other decision about slots."""
        return self._entitler.alone()

    def entitlements(
        self, claims: Mapping[str, NodeClaim], inventory: Inventory, types: Mapping[str, InstanceType]
    ) -> Entitlements:
        """For a plan of these claims, now."""
        return self._entitler.entitlements(claims, inventory, types)

    def planned(self, made: Plan) -> None:
        """Records the claims that launch now, and the claims that wait for an occupied slot."""
        self._entitler.take(made)
        self._reclaimer.awaited(made.awaited, made.kept)


def _up(node: Node | None) -> bool:
    return node is not None and not down(node)
