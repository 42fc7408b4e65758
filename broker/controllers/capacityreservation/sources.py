"""What the reservation loop asks of others: each a callable, so that it runs before and without any of them.

Nothing here decides. A source that is not wired says nothing: no EC2 reservation, no queue, no user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from broker.quota.usage import ReservationHolder, Reserved
from broker.reservations.conditions import QueueState, Trouble
from broker.reservations.ownership import Ownership
from broker.reservations.spec import Reservation


def _nothing() -> Mapping[Reserved, tuple[ReservationHolder, ...]]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Sources:
    """`holders`: who uses how much, from each that knows some. `queue`: None where there is no Kueue.
    `troubles`: what hinders those who buy. `hindered`: what is wrong with its queues. `left`: what of a
    deleted reservation is still there, in words; none: it may go. `remedies`: what would bring instances that
    are missing, where nobody buys them."""

    holdings: Callable[[], Ownership] = Ownership
    group_arn: Callable[[Reserved], str] = lambda _: ""
    holders: Sequence[Callable[[], Mapping[Reserved, tuple[ReservationHolder, ...]]]] = field(
        default_factory=lambda: (_nothing,)
    )
    queue: Callable[[Reserved], QueueState | None] = lambda _: None
    troubles: Sequence[Callable[[Reserved], Sequence[Trouble]]] = ()
    hindered: Callable[[Reserved], Sequence[Trouble]] = lambda _: ()
    left: Sequence[Callable[[Reservation], Sequence[str]]] = ()
    remedies: Callable[[Reserved], Sequence[str]] = lambda _: ()
    priority: Callable[[str], bool] = lambda _: True
