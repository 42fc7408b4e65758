"""Deletes launch templates that nothing needs: of a deleted class at once, of any other after an unused day.

Invariant: only templates with this cluster's tag are ever seen (the provider's rule), and one that a launch
of this process used within the day stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from datetime import datetime, timedelta

import structlog

from broker.kube.clock import Clock
from providers.base import CapacityProvider
from providers.model import TemplateRef

UNUSED = timedelta(days=1)

_log = structlog.get_logger("templates")


class TemplateSweeper:
    """`used` on each launch; `sweep` now and then, and at once when a class is deleted."""

    def __init__(
        self, provider: CapacityProvider, *, clock: Clock, classes: Callable[[], Collection[str]]
    ) -> None:
        self._provider = provider
        self._clock = clock
        self._classes = classes
        self._lock = threading.Lock()
        self._used: dict[str, datetime] = {}
        self._started = clock.now()

    def used(self, ref: TemplateRef) -> None:
        with self._lock:
            self._used[ref.name] = self._clock.now()

    def sweep(self) -> None:
        """Raises ProviderError; what was not deleted then is deleted by the next sweep."""
        now, classes = self._clock.now(), set(self._classes())
        for ref in self._provider.templates():
            orphaned = ref.owner not in classes
            if orphaned or self._unused(ref, now):
                why = "its class is deleted" if orphaned else "unused for a day"
                self._provider.delete_template(ref)
                _log.info("template deleted", template=ref.name, nodeclass=ref.owner, why=why)

    def _unused(self, ref: TemplateRef, now: datetime) -> bool:
        # What earlier processes used is not known: the day begins anew with this one.
        with self._lock:
            last = max(self._used.get(ref.name, self._started), ref.created or self._started)
        return now - last >= UNUSED
