"""Slots of a reservation with unattributed instances.

Invariant: a slot counts as unattributed only after EC2 has counted an unknown instance in it for a while. An
unknown instance is neither a node of this cluster nor about to be one. An open ODCR takes any instance that
matches it, of any cluster (EC2 User Guide, "Capacity Reservation usage").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.controllers.preemption.unexplained import UnattributedSlots
from broker.kube.cache import Cache
from broker.kube.clock import Clock
from broker.reservations.ownership import Ownership


class UnattributedInstances:
    """`look` returns the number of unattributed slots by ODCR id. For one thread only."""

    def __init__(self, nodes: Cache[Node], claims: Cache[NodeClaim], *, clock: Clock) -> None:
        self._nodes, self._claims = nodes, claims
        self._clock = clock
        self._unexplained = UnattributedSlots()

    def look(self, holdings: Ownership) -> Mapping[str, int]:
        used = {
            odcr.id: odcr.total - odcr.available
            for held in holdings.odcrs.values()
            for some in held.values()
            for odcr in some
            if odcr.state == "active" and odcr.total > odcr.available
        }
        if used:
            known = Counter(each.labels.get(names.RESERVATION_ID, "") for each in self._nodes.list())
            known.update(
                each.labels.get(names.RESERVATION_ID, "")
                for each in self._claims.list()
                if each.status.provider_id and not each.status.node_name
            )
            used = {id_: count - known[id_] for id_, count in used.items()}
        strange, _ = self._unexplained.look(used, self._clock.now())
        return strange
