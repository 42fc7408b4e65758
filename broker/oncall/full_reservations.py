"""Full reservations that pods wait for. EC2 refused nothing: the broker asks it for no slot that is taken.

Invariant: the reservations are those that the pods' reasons name, as provisioning or their claims reported
them, and that the pods may use. One that EC2 refused too is a short pool already, and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from broker.lists import lists_by_key
from broker.oncall.equal_rows import zone_names
from broker.oncall.short_pools import ShortageRow
from broker.oncall.slot_holders import SlotUse
from broker.oncall.slot_marks import SlotRow
from broker.oncall.waiting_pods import WaitingPod, grouped
from broker.text import abridged, counted

MOST_NAMED: Final = 3


Held = SlotUse | SlotRow  # an EC2 reservation with the users of its slots


@dataclass(frozen=True, slots=True, kw_only=True)
class FullReservations:
    """Reservations of one type and owner that the same pods wait for; the first pod waits longest."""

    held: tuple[Held, ...]
    pods: tuple[WaitingPod, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(item.id for item in self.held)

    @property
    def scope(self) -> str:
        zones = zone_names(item.zone for item in self.held)
        return f"{abridged(self.ids, MOST_NAMED)} ({self.held[0].type}, {zones})"

    @property
    def since(self) -> datetime | None:
        return self.pods[0].since

    @property
    def who(self) -> str:
        """The pods that wait, and the users of the slots, in words."""
        named = abridged([group.named for group in grouped(self.pods)], MOST_NAMED)
        holders = "; ".join(dict.fromkeys(item.held_by for item in self.held if item.held_by))
        waits = f"{counted(len(self.pods), 'pod waits', 'pods wait')}: {named}"
        return f"{waits}; held by {holders}" if holders else waits


def full_reservations(
    pods: Iterable[WaitingPod], held: Iterable[Held], shortages: Iterable[ShortageRow]
) -> list[FullReservations]:
    """`pods`: the oldest first. `shortages`: EC2's refusals."""
    refused = {part for row in shortages for text in (row.key, *row.pools) for part in text.split(":")}
    waiting = lists_by_key((id_, pod) for pod in pods for id_ in pod.full)
    rows: dict[object, list[Held]] = {}
    for item in sorted(held, key=lambda item: (item.zone, item.id)):
        if item.id in waiting and item.id not in refused and not item.free:
            keys = tuple(pod.key for pod in waiting[item.id])
            rows.setdefault((item.type, item.owner, keys), []).append(item)
    return [FullReservations(held=tuple(same), pods=tuple(waiting[same[0].id])) for same in rows.values()]
