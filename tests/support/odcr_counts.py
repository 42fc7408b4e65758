"""The sums of a reservation's flavors."""

from __future__ import annotations

from typing import NamedTuple

from broker.reservations.odcr_status import OdcrStatus


class Counts(NamedTuple):
    wanted: int
    obtained: int
    pending: int


def counts(status: OdcrStatus) -> Counts:
    flavors = status.flavors.values()
    return Counts(
        sum(flavor.wanted for flavor in flavors),
        sum(flavor.obtained for flavor in flavors),
        sum(flavor.pending for flavor in flavors),
    )
