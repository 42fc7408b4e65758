"""Slots that EC2 counts as used and that no known claim holds.

Invariant: such a slot counts as unattributed only after a while. An instance of ours that has just ended, or
has just been launched, looks the same until EC2 and Kubernetes agree. If a claim has just ended, the slot
counts as being freed until then, so that no claim is preempted for it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

SETTLE: Final = timedelta(seconds=60)


class UnattributedSlots:
    """When each use began, by ODCR. A new process starts without any, and loses nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[str, list[datetime]] = {}
        self._ended: dict[str, list[datetime]] = {}

    def ended(self, odcr_id: str, now: datetime) -> None:
        """A claim that held a slot of the reservation is gone."""
        with self._lock:
            self._ended.setdefault(odcr_id, []).append(now)

    def look(self, counts: Mapping[str, int], now: datetime) -> tuple[dict[str, int], dict[str, int]]:
        """Of each ODCR's slots in `counts`: how many are unattributed, and how many are being freed because
        their claims have just ended."""
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
