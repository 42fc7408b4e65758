"""The informers of the broker: one for each kind, with the indexes of its rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.apis.coordination import Lease
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace
from broker.controllers.claim_caches import (
    BY_INSTANCE,
    BY_NODE,
    BY_SIGN,
    BY_SLOT,
    REPLACEMENTS,
    by_instance,
    replacing,
    signs,
)
from broker.controllers.elasticquota.controller import BY_NAMESPACE, by_namespace
from broker.controllers.lifecycle.takeover import KARPENTER_LEASE_SELECTOR
from broker.controllers.nodeclass.finalizer import BY_CLASS, by_class
from broker.controllers.nodereservation.koordinator import BY_RESERVATION, by_reservation
from broker.controllers.nodereservation.reads import BY_SCHEDULER, scheduler_of
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.identity import SYSTEM_SELECTOR
from broker.kube.informer import Informer
from broker.oncall.state import is_brokers
from broker.reservations.claims import held_slot


class Informers:
    """Complete when every informer is complete: no loop acts before."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        self.classes = Informer(client, EC2NodeClass, clock=clock)
        self.claims = Informer(
            client,
            NodeClaim,
            clock=clock,
            indexes={
                BY_INSTANCE: by_instance,
                BY_SIGN: signs,
                BY_CLASS: by_class,
                REPLACEMENTS: replacing,
                BY_SLOT: lambda c: held_slot(c) if is_brokers(c) else (),
            },
        )
        self.pools = Informer(client, NodePool, clock=clock)
        self.nodes = Informer(client, Node, clock=clock, indexes={BY_INSTANCE: by_instance})
        self.pods = Informer(
            client,
            Pod,
            clock=clock,
            indexes={
                BY_NODE: lambda p: [p.spec.node_name],
                BY_RESERVATION: by_reservation,
                BY_NAMESPACE: by_namespace,
                BY_SCHEDULER: scheduler_of,
            },
        )
        self.system = Informer(client, Namespace, clock=clock, field_selector=SYSTEM_SELECTOR)
        self.leases = Informer(client, Lease, clock=clock, field_selector=KARPENTER_LEASE_SELECTOR)

    @property
    def named(self) -> Mapping[str, Informer[Any]]:
        return {
            "nodeclasses": self.classes,
            "nodeclaims": self.claims,
            "nodepools": self.pools,
            "nodes": self.nodes,
            "pods": self.pods,
            "leases": self.leases,
            "cluster": self.system,
        }

    def synced(self) -> bool:
        # Without the cluster's UID, resources of another cluster of this name look like the broker's.
        return all(informer.synced for informer in self.named.values()) and len(self.system.cache.list()) > 0
