"""Converts quota of a dedicated cluster into a number of instances.

Invariant: the code that creates a cluster's instances and the code that keeps slots for them count in this
same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from broker.apis import names
from broker.apis.kueue import ResourceFlavor
from broker.apis.units import base
from broker.quota.usage import ReservationKey
from broker.reservations.annotations import SIZING
from broker.reservations.flavors import FlavorCatalog
from broker.reservations.sizing import FlavorProblem, SizedQuota, Sizing, size
from broker.reservations.spec import Reservation
from providers.model import InstanceType

# The instances of a flavor that some quota amounts to.
Size = Callable[[str, Mapping[str, int]], SizedQuota | FlavorProblem]


def sizes(
    flavors: Mapping[str, ResourceFlavor],
    reservations: Mapping[ReservationKey, Reservation],
    types: Mapping[str, InstanceType],
    zones: Sequence[str],
) -> Callable[[object], Size]:
    """A size function for each reservation that a cluster names; each flavor is resolved once.

    `zones` apply to flavors without a zone label.
    """
    # The capacity type is set by the cluster or its flavor, and changes no count.
    flavor = FlavorCatalog(flavors).instances(types, zones, ignored=names.CAPACITY_TYPE)

    def of(reserved: object) -> Size:
        reservation = reservations.get(reserved) if isinstance(reserved, ReservationKey) else None
        sizing: Sizing = "accelerator" if reservation is None else SIZING.of(reservation)

        def sized(name: str, amounts: Mapping[str, int]) -> SizedQuota | FlavorProblem:
            instances = flavor(name)
            if isinstance(instances, FlavorProblem):
                return instances
            return size(instances, base(amounts), types, sizing=sizing)

        return sized

    return of
