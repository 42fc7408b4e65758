"""The dependencies of all controllers about OME's kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.controllers.inventory import InventoryCache
from broker.controllers.nodeclaim.caches import ClaimCaches
from broker.controllers.reservation_reads import ReservationReads
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.events import Recorder
from broker.settings import Settings
from providers.base import CapacityProvider


@dataclass(frozen=True, kw_only=True)
class ReservationDependencies:
    """`describe`: requests a new description of EC2's reservations."""

    client: Client
    provider: CapacityProvider
    reads: ReservationReads
    caches: ClaimCaches
    inventory: InventoryCache
    settings: Settings
    clock: Clock
    recorder: Recorder
    describe: Callable[[], None]
