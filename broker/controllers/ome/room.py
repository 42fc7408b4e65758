"""Whether a reservation's namespace has room for it: the ResourceQuotas judged again, after the webhook.

Invariant: what two creates at one time got past the webhook is told here, of the younger, and so is all that
was there before the quota, or while no webhook was. Nothing that is held is taken away for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from broker.apis.ome import CapacityReservation
from broker.apis.ome_quotas import over_quota
from broker.controllers.ome.reads import OmeReads
from broker.quota.usage import Reserved


class NamespaceQuota:
    """`refusals` is read in one look at all reservations."""

    def __init__(self, reads: OmeReads) -> None:
        self._reads = reads

    def refusal(self, reserved: Reserved) -> tuple[str, ...]:
        """As `refusals`, of one reservation."""
        space = reserved.namespace
        quotas = [each for each in self._reads.quotas.cache.list() if each.namespace == space]
        if not space or not quotas:
            return ()
        there = [each for each in self._reads.reservations.cache.list() if each.namespace == space]
        return over_quota(space, there, quotas).get(reserved.name, ())

    def refusals(self) -> Mapping[Reserved, tuple[str, ...]]:
        """Why a namespace has no room for a reservation, of each that it has none for."""
        quotas = self._reads.quotas.cache.list()
        spaces = {each.namespace for each in quotas}
        if not spaces:
            return {}
        there: dict[str, list[CapacityReservation]] = defaultdict(list)
        for one in self._reads.reservations.cache.list():
            if one.namespace in spaces:
                there[one.namespace].append(one)
        return {
            Reserved(space, name): why
            for space, some in there.items()
            for name, why in over_quota(space, some, quotas).items()
        }
