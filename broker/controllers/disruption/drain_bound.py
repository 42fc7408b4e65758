"""The time that the drain of a broken node may take."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.controllers.claim_status import patch
from broker.controllers.disruption.snapshot import ManagedNode
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.placement.claims import deadline_of
from broker.placement.repair import diagnose
from broker.placement.repair_policies import rules_of
from broker.text import format_time

# Of a node that recovered after its replacement was started.
RECOVERED: Final = timedelta(minutes=10)


def bound_drain(client: Client, claims: Cache[NodeClaim], node: ManagedNode, now: datetime) -> None:
    """Writes until when the drain of a broken node may take: pods that may not be evicted must not keep it in
    its slot. Raises ApiError.
    """
    bound: timedelta | None = RECOVERED
    if node.node is not None and (known := diagnose(node.node, node.claim, rules_of(node.pool), now)):
        bound = known.drain
    if bound is None:
        return
    until = now + bound

    def metadata(claim: NodeClaim) -> Mapping[str, Any]:
        before = deadline_of(claim)
        if before is not None and before <= until:
            return {}
        return {"annotations": {names.TERMINATION_DEADLINE: format_time(until)}}

    patch(client, claims, node.claim, metadata)
