"""The dependencies of all controllers about OME's kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.inventory import InventoryCache
from broker.controllers.reservation_reads import ReservationReads
from broker.kube.context import ControllerContext
from broker.settings import Settings


@dataclass(frozen=True, kw_only=True)
class ReservationDependencies(ControllerContext):
    """`describe`: requests a new description of EC2's reservations."""

    reads: ReservationReads
    caches: ClaimCaches
    inventory: InventoryCache
    settings: Settings
    describe: Callable[[], None]
