"""What the broker reads of OME's and Kueue's kinds: an informer for each, none of which must be there.

Invariant: a kind whose definition is not installed holds nothing up: it counts as read and empty until it is
served (`missing`). Nothing that decides runs before each kind is complete or known to be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.apis.kueue import ResourceFlavor
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.controllers.ome.kueue.informer import ServedInformer
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.informer import Informer


class OmeReads:
    """Complete once each is `synced` or `missing`."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        self.reservations = Informer(client, CapacityReservation, clock=clock)
        self.cluster_reservations = Informer(client, ClusterCapacityReservation, clock=clock)
        self.clusters = Informer(client, DedicatedAICluster, clock=clock)
        self.profiles = Informer(client, DedicatedAIClusterProfile, clock=clock)
        self.flavors = ServedInformer(client, ResourceFlavor, clock=clock)

    @property
    def named(self) -> Mapping[str, Informer[Any]]:
        return {
            "capacityreservations": self.reservations,
            "clustercapacityreservations": self.cluster_reservations,
            "dedicatedaiclusters": self.clusters,
            "dedicatedaiclusterprofiles": self.profiles,
            "resourceflavors": self.flavors,
        }

    def synced(self) -> bool:
        return all(each.synced or each.missing for each in self.named.values())
