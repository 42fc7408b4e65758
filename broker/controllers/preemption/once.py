"""Entitlements to slots, for a command that reads each kind once, by the same rules as the loops.

It follows no kind and writes nothing. A kind that is not installed, or that the caller may not read, counts
as empty, as if no reservation owned a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.capacity.entitlement import Entitlements
from broker.capacity.model import Inventory
from broker.controllers.nodeclaim.registration import BY_PROVIDER_ID
from broker.controllers.nodeclaim.termination import BY_NODE
from broker.controllers.ome.reads import OmeReads
from broker.controllers.preemption.entitler import EntitlementReader
from broker.controllers.preemption.sight import SlotSnapshotBuilder
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import Forbidden, NotFound
from broker.kube.informer import Informer
from broker.reservations.ownership import ALL_ADOPTERS, resolve_ownership
from broker.reservations.reading import as_decided
from broker.settings import Settings
from providers.model import InstanceType

Entitle = Callable[[Mapping[str, NodeClaim], Inventory, Mapping[str, InstanceType]], Entitlements]


def entitlements_once(client: Client, settings: Settings, clock: Clock) -> Entitle:
    """The entitlements of claims (by uid) in an inventory. Raises ApiError."""
    reads = OmeReads(client, clock=clock, settings=settings)
    claims = Informer(client, NodeClaim, clock=clock)
    for informer in (
        reads.reservations,
        reads.cluster_reservations,
        reads.quotas,
        reads.flavors,
        reads.cohorts,
        reads.clusters,
        claims,
    ):
        try:
            informer.read()
        except (NotFound, Forbidden):
            continue
    # Nodes and Pods only decide whether a claim is non-preemptible, and no claim is preempted here.
    nodes = Informer(client, Node, clock=clock, indexes={BY_PROVIDER_ID: lambda _: ()})
    pods = Informer(client, Pod, clock=clock, indexes={BY_NODE: lambda _: ()})

    def entitlements(
        waiting: Mapping[str, NodeClaim], inventory: Inventory, types: Mapping[str, InstanceType]
    ) -> Entitlements:
        snapshot = reads.snapshot()
        flavors = snapshot.flavors.instances(types, settings.bought_zones)
        claimants = [
            as_decided(reservation, snapshot.judged(reservation), flavors)
            for reservation in snapshot.reservations.values()
        ]
        holdings = resolve_ownership(
            inventory.odcrs.values(), {}, claimants, cluster=settings.cluster_name, adopters=ALL_ADOPTERS
        )
        entitler = EntitlementReader(
            SlotSnapshotBuilder(
                reads,
                lambda: holdings,
                claims.cache,
                nodes.cache,
                pods.cache,
                settings=settings,
                clock=clock,
                owns=lambda _: True,
                kueue=lambda: True,
            )
        )
        return entitler.entitlements(waiting, inventory, types)

    return entitlements
