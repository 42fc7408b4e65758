"""Deletes launch templates that nothing needs: of a deleted class at once, of any other after an unused day.

Where the account's limit of templates is reached, ten minutes take the place of the day: a launch makes the
template that it needs again.

Invariant: only templates with this cluster's tag are ever seen (the provider's rule), and one that a launch
of this process used within the day stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta

import structlog

from broker.kube.clock import Clock
from providers.base import CapacityProvider
from providers.model import TemplateRef

UNUSED = timedelta(days=1)
UNUSED_AT_LIMIT = timedelta(minutes=10)

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

    def sweep(self, *, at_limit: bool = False) -> None:
        """Raises ProviderError; what was not deleted then is deleted by the next sweep.

        `at_limit`: EC2 makes no further template before others are gone.
        """
        now, classes = self._clock.now(), set(self._classes())
        for ref in self._provider.templates():
            orphaned = ref.owner not in classes
            if orphaned or self._unused(ref, now, at_limit=at_limit):
                why = "its class is deleted" if orphaned else "the limit is reached" if at_limit else "unused"
                self._provider.delete_template(ref)
                _log.info("template deleted", template=ref.name, nodeclass=ref.owner, why=why)

    def _unused(self, ref: TemplateRef, now: datetime, *, at_limit: bool) -> bool:
        # What earlier processes used is not known: the day begins anew with this one, unless room is needed.
        begin = datetime.min.replace(tzinfo=UTC) if at_limit else self._started
        with self._lock:
            last = max(self._used.get(ref.name, begin), ref.created or begin)
        return now - last >= (UNUSED_AT_LIMIT if at_limit else UNUSED)
