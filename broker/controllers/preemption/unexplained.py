"""Slots that EC2 counts as taken by nobody whom the broker knows.

Invariant: such a slot is believed to be somebody else's only after it has been so for a while: an instance of
ours that has just ended, or has just been launched, looks the same until EC2 and Kubernetes agree. Until then
it counts as coming free, so that nobody is asked for a slot that comes free anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

SETTLE: Final = timedelta(seconds=60)


class UnattributedSlots:
    """Since when, by EC2 reservation. Nothing is lost with it: a new one believes nothing for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[str, list[datetime]] = {}
        self._ended: dict[str, list[datetime]] = {}

    def ended(self, odcr_id: str, now: datetime) -> None:
        """A claim that held a slot of the reservation is gone."""
        with self._lock:
            self._ended.setdefault(odcr_id, []).append(now)

    def look(self, counts: Mapping[str, int], now: datetime) -> tuple[dict[str, int], dict[str, int]]:
        """Of each reservation's slots that are unexplained now: how many are somebody else's, and how many
        come free because claims that had them have just ended."""
        with self._lock:
            before = self._since
            self._since = {
                odcr_id: [*before.get(odcr_id, ()), *[now] * count][:count]
                for odcr_id, count in counts.items()
                if count > 0
            }
            self._ended = {
                odcr_id: recent
                for odcr_id, times in self._ended.items()
                if (recent := [at for at in times if now - at < SETTLE])
            }
            strange = {
                odcr_id: sum(now - at >= SETTLE for at in since) for odcr_id, since in self._since.items()
            }
            coming = {
                odcr_id: min(len(self._ended.get(odcr_id, ())), len(since) - strange[odcr_id])
                for odcr_id, since in self._since.items()
            }
            return strange, coming
