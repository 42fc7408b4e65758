"""Guards: an unexpected exception on one object must not stop the others.

Invariant: an unexpected exception is never lost: it is logged with its traceback and counted. It is caught
elsewhere only where decoding fails (`cache`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import structlog
from prometheus_client import Counter

from broker.kube.metrics import REGISTRY

PANICS = Counter(
    "capacity_broker_kube_panics",
    "Exceptions that no code expected, by where they were caught; each is logged with its traceback.",
    ["where"],
    registry=REGISTRY,
)

log = structlog.get_logger(__name__)


class guarded:  # noqa: N801 it reads as a statement: `with guarded("handler", object=key):`
    """Runs a block and stops a panic there; afterwards `error` is its text.

    The exception itself is not kept: it would hold this frame, and all that the block worked on, until the
    garbage collector runs.
    """

    def __init__(self, where: str, **context: object) -> None:
        self.error = ""
        self._where = where
        self._context: Mapping[str, object] = context

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = str(error) or type(error).__name__
        PANICS.labels(self._where).inc()
        log.error(
            "panic: an unexpected exception in the broker", where=self._where, exc_info=error, **self._context
        )
        return True
