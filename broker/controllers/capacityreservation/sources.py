"""Inputs of the reservation loop from other controllers: each a callable, so that the loop runs without any
of them.

Nothing is decided here. A source that is not wired is empty: no EC2 reservation, no queue, no user.
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
    """Sources of the facts about one reservation.

    `holders`: users with their usage, from each controller that has some. `queue`: None without Kueue.
    `troubles`: problems of the purchases. `hindered`: problems of its queues. `left`: messages about the
    remaining objects of a deleted reservation; without any it may go. `remedies`: ways to get missing
    instances if the broker buys none.
    """

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
