"""Deletes launch templates without use: of a deleted class at once, of any other after an unused day.

If the account's limit of templates is reached, ten minutes replace the day: a launch makes its template
again.

Invariant: only templates with this cluster's tag are seen (the provider's rule). A template that a launch of
this process used within the day stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta

import structlog

from broker.kube.clock import Clock
from providers.base import BrokerTemplates
from providers.launch import TemplateRef

UNUSED = timedelta(days=1)
UNUSED_AT_LIMIT = timedelta(minutes=10)

_log = structlog.get_logger("templates")


class TemplateSweeper:
    """Call `used` on each launch, and `sweep` periodically and when a class is deleted."""

    def __init__(
        self, provider: BrokerTemplates, *, clock: Clock, classes: Callable[[], Collection[str]]
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
        """Raises ProviderError; the next sweep deletes the remaining templates.

        `at_limit`: EC2 makes no further template until others are deleted.
        """
        refs = self._provider.templates()
        now, classes = self._clock.now(), set(self._classes())  # after those that made them
        for ref in refs:
            orphaned = ref.owner not in classes
            if orphaned or self._unused(ref, now, at_limit=at_limit):
                why = "its class is deleted" if orphaned else "the limit is reached" if at_limit else "unused"
                self._provider.delete_template(ref)
                _log.info("template deleted", template=ref.name, nodeclass=ref.owner, why=why)

    def _unused(self, ref: TemplateRef, now: datetime, *, at_limit: bool) -> bool:
        # The use by earlier processes is unknown: the day begins with this process, unless room is needed.
        begin = datetime.min.replace(tzinfo=UTC) if at_limit else self._started
        with self._lock:
            last = max(self._used.get(ref.name, begin), ref.created or begin)
        return now - last >= (UNUSED_AT_LIMIT if at_limit else UNUSED)
