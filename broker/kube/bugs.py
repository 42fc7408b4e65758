"""The last line of defence: where one object's bug must not stop the others.

Invariant: an exception that nobody expected is never lost: it is logged with its traceback and counted.
Nowhere else does broker.kube catch Exception.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import structlog
from prometheus_client import Counter

from broker.kube.culprit import culprit
from broker.kube.metrics import REGISTRY

BUGS = Counter(
    "capacity_broker_kube_bugs",
    "Exceptions that no code expected, by where they were caught; each is logged with its traceback.",
    ["where"],
    registry=REGISTRY,
)

log = structlog.get_logger(__name__)


class contained:  # noqa: N801 it reads as a statement: `with contained("handler", object=key):`
    """Runs a block whose bug goes no further; `error` tells of it afterwards, in words, and `culprit` is the
    object that it was about, if one can be found.

    The exception itself would hold the frame that holds this, and all that the block worked on with it, until
    the collector comes by.
    """

    def __init__(self, where: str, **context: object) -> None:
        self.error = ""
        self.culprit: object | None = None
        self._where, self._context = where, context

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = str(error) or type(error).__name__
        self.culprit = culprit(trace)
        BUGS.labels(self._where).inc()
        log.error("a bug in the broker, contained", where=self._where, exc_info=error, **self._context)
        return True
