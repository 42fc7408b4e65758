"""Takes over Karpenter's claims, if that is enabled, while Karpenter's Lease is not renewed.

A claim is the broker's if its nodeClassRef names the broker's group. Karpenter acts only on claims with a
nodeClassRef of its own group (karpenter pkg/utils/nodeclaim, IsManaged), so the two sets never meet.

Invariant: in any doubt, Karpenter keeps its claims.
"""

from __future__ import annotations

import structlog

from broker.apis import names
from broker.apis.coordination import Lease
from broker.apis.karpenter import NodeClaim
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import ApiError
from broker.kube.lease_holders import LeaseHolders

KARPENTER_LEASE_SELECTOR = "metadata.name=karpenter-leader-election"
_log = structlog.get_logger("takeover")


class TakeOver:
    """Decides the owner of a claim. `refresh` is for one thread, the others for any."""

    def __init__(self, client: Client, leases: Cache[Lease], *, enabled: bool, clock: Clock) -> None:
        self._client = client
        self._leases = leases
        self._enabled = enabled
        self._clock = clock
        self._lessees = LeaseHolders()
        self._gone: bool | None = None  # as of the last read from the API server

    def owns(self, claim: NodeClaim) -> bool:
        group = claim.spec.node_class_ref.group
        return group == names.BROKER or (group == names.KARPENTER_AWS and self.taken())

    def taken(self) -> bool:
        """Whether Karpenter's claims are the broker's now."""
        # Newer events in the cache can only give claims back.
        return self._enabled and bool(self._gone) and not self._lessees.moved(self._leases.list())

    def refresh(self) -> bool:
        """Reads Karpenter's Lease. True if claims changed owner.

        A Lease that expires makes no event, and in a stale cache every Lease seems to expire. So each call
        reads the Lease from the API server.
        """
        if not self._enabled:
            return False
        try:
            items, _ = self._client.list(Lease.KIND, field_selector=KARPENTER_LEASE_SELECTOR)
        except ApiError as error:
            _log.warning("Karpenter's Lease cannot be read: its claims are left alone", error=str(error))
            self._gone = False
            return False
        gone = not self._lessees.alive(map(Lease.decode, items), now=self._clock.monotonic())
        if gone == self._gone:
            return False
        outcome = "taken over: its Lease is not renewed" if gone else "not taken over: its Lease is alive"
        _log.warning(f"Karpenter's claims are {outcome}")
        self._gone = gone
        return True
