"""What every loop about OME's kinds is given, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.controllers.inventory import InventoryKeeper
from broker.controllers.ome.reads import OmeReads
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.events import Recorder
from broker.settings import Settings
from providers.base import CapacityProvider


@dataclass(frozen=True, kw_only=True)
class Shared:
    """`synced`: the caches of claims and nodes are complete. `owns`: whether the broker launches a claim.
    `describe`: has EC2's reservations described anew, soon. `replan`: has what waits planned anew, soon."""

    client: Client
    provider: CapacityProvider
    reads: OmeReads
    claims: Cache[NodeClaim]
    nodes: Cache[Node]
    pods: Cache[Pod]
    inventory: InventoryKeeper
    settings: Settings
    clock: Clock
    recorder: Recorder
    owns: Callable[[NodeClaim], bool]
    describe: Callable[[], None]
    replan: Callable[[], None]
    synced: Callable[[], bool]
