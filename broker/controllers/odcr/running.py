"""The instances outside reservations that the next purchase may absorb."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from broker.apis.karpenter import NodeClaim
from broker.controllers.instances import InstanceListing
from broker.kube.cache import Cache
from broker.quota.usage import ReservationKey
from broker.reservations.drawing import DrawRights
from broker.reservations.purchases import Purchase
from broker.reservations.running import bought_at, running_outside
from providers.model import Instance

LastListing = Callable[[], InstanceListing | None]  # of this cluster's instances


class RunningInstances:
    """Remembers the purchases that the last listing may not show: EC2 counts instances in them by now."""

    def __init__(self, claims: Cache[NodeClaim], listing: LastListing) -> None:
        self._claims, self._listing = claims, listing
        self._bought: list[tuple[datetime, Purchase]] = []

    def add(self, purchase: Purchase, now: datetime) -> None:
        self._bought.append((now, purchase))

    def outside(self, rights: DrawRights) -> Mapping[ReservationKey, tuple[Instance, ...]]:
        """Those of claims that draw from each reservation."""
        listing = self._listing()
        if listing is None:
            return {}
        self._bought = [(at, purchase) for at, purchase in self._bought if at >= listing.taken]
        bought = bought_at(purchase for _, purchase in self._bought)
        return running_outside(self._claims.list(), listing.instances, rights, bought)
