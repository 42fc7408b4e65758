"""Limits how often changes of use rewrite the status of reservations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from broker.kube.controller import Result


class UsageThrottle:
    """Runs at once when the use of quota changes, and then at most once in `EVERY` seconds.

    With many workloads a second, a pass for each would cost more than admitting them. A second
    change right after a first must reach the status within one second, including the pass and the API
    server's answer.
    """

    EVERY: Final = 0.5

    def __init__(self, run: Callable[[], Result | None]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._changed = self._due = False  # since the last pass; whether a pass is scheduled

    def changed(self) -> bool:
        """Notes a change; returns whether a pass must be requested for it."""
        with self._lock:
            self._changed, due = True, self._due
            self._due = True
            return not due

    def run(self) -> Result | None:
        with self._lock:
            self._due, self._changed = self._changed, False
            due = self._due
        result = self._run()
        if not due:
            return result
        return Result(requeue_after=min(self.EVERY, result.requeue_after if result else self.EVERY))
