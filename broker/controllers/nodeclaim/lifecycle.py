"""Moves one claim from its launch to its end: it joins, becomes ready, ends. `launch` decides launches."""

from __future__ import annotations

from collections.abc import Callable

from broker.apis.karpenter import NodeClaim
from broker.controllers.nodeclaim.registration import Registration
from broker.controllers.nodeclaim.termination import Termination
from broker.kube.cache import Cache
from broker.kube.controller import Result


class Lifecycle:
    """Reconciles claims by name."""

    def __init__(
        self,
        claims: Cache[NodeClaim],
        registration: Registration,
        termination: Termination,
        *,
        owns: Callable[[NodeClaim], bool],
    ) -> None:
        self._claims = claims
        self._registration = registration
        self._termination = termination
        self._owns = owns

    def reconcile(self, name: str) -> Result | None:
        claim = self._claims.get(name)
        if claim is None or not self._owns(claim):
            return None
        if claim.deleting:
            return self._termination.reconcile(claim)
        if claim.status.provider_id:
            return self._registration.reconcile(claim)
        return None
