"""The one view of an ODCR: EC2's description, its owner, and the cost and age of its idle slots.

Invariant: the page, `inventory`, the mirror objects and the metrics render this value and derive no fact of
their own, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from broker.capacity.options import pool_of
from broker.quota.usage import ReservationKey
from broker.reservations.idle import idle_cost
from broker.reservations.ownership import named_in
from providers.model import InstanceType, Odcr


@dataclass(frozen=True, slots=True, kw_only=True)
class OdcrView:
    """`owner` is the CapacityReservation of its slots, or the one that its tag names; `owned`: it owns them.

    `cost` is that of the idle slots in US dollars an hour, None if unknown. `since`: the time since which as
    many slots are idle. `shared_by`: the other account that shares it.
    """

    odcr: Odcr
    owner: str = ""
    owned: bool = False
    cost: float | None = None
    since: datetime | None = None
    shared_by: str = ""

    @property
    def owner_text(self) -> str:
        return owner_text(self.owner, self.shared_by)

    @property
    def pool(self) -> str:
        """The key of the pool of launches that name it."""
        return str(pool_of(self.odcr))


def owner_text(owner: str, shared_by: str) -> str:
    """The owner for a person: without a CapacityReservation the other account, if one shares it."""
    return owner or (f"account {shared_by}" if shared_by else "")


def view_of(
    odcr: Odcr,
    types: Mapping[str, InstanceType],
    *,
    account: str,
    owner: ReservationKey | None = None,
    since: datetime | None = None,
) -> OdcrView:
    """The view of `account`, which is billed for the slots or not."""
    named = owner or named_in(odcr)
    return OdcrView(
        odcr=odcr,
        owner=str(named) if named else "",
        owned=owner is not None,
        cost=idle_cost(odcr, types.get(odcr.instance_type), account=account),
        since=since,
        shared_by=odcr.owner_id if account and odcr.owner_id != account else "",
    )
