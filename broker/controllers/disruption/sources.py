"""The inputs of a disruption pass beside the claims' caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta

from broker.apis.karpenter import NodePool
from broker.apis.policy import PodDisruptionBudget
from broker.capacity.shortages import Shortages
from broker.controllers.claim_caches import Ec2State
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.resolve import LaunchClass, Unresolved
from broker.controllers.provisioning.reads import ProvisioningReads
from broker.controllers.slots.controller import PreemptionController
from broker.controllers.snapshot import Snapshot
from broker.controllers.successions import Successions
from broker.kube.cache import Cache
from providers.base import HealthCalls
from providers.errors import ProviderError
from providers.model import Instance, InstanceType


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionSources:
    """`disrupts`: whether the broker launches a pool's claims, and so disrupts them. `creating`: held while
    claims are created, so that the limits of their pools are compared with all claims. `absorption`: how
    long EC2 has to count a running instance in an idle slot.
    """

    budgets: Cache[PodDisruptionBudget]
    reads: ProvisioningReads
    nodeclasses: NodeClassController
    ec2: Ec2State
    health: HealthCalls
    slots: PreemptionController
    shortages: Callable[[], Shortages]
    disrupts: Callable[[NodePool], bool]
    creating: Callable[[], AbstractContextManager[object]]
    absorption: timedelta
    successions: Successions

    @property
    def described(self) -> bool:
        """Whether this process has described EC2's instances."""
        return self.ec2.view.listing is not None

    def instances(self) -> Mapping[str, Instance]:
        """The instances as last described, by id; empty before the first description."""
        listing = self.ec2.view.listing
        return listing.instances if listing is not None else {}

    def launch_class(self, name: str) -> LaunchClass | None:
        """The class as launches use it; None if it cannot launch now."""
        try:
            return self.nodeclasses.ready(name)
        except Unresolved:
            return None


def types_of(snapshot: Snapshot) -> Mapping[str, InstanceType]:
    """EC2's types; empty if they cannot be read now."""
    try:
        return snapshot.types
    except ProviderError:
        return {}
