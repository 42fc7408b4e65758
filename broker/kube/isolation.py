"""Keeps one object from stopping a pass over all of them.

A pass decides for many objects at once. When it raises what no code expected, the object that it was about is
found in the traceback and left out of its cache, as one that cannot be decoded is: the pass begins anew
without it, it is counted, and an event on it says why. A new version of the object is read as any other; the
same version is tried again after a while, since the fault may have passed.

Invariant: no pass has a guard of its own for each kind that it reads, so none can be forgotten. An exception
that leads to no object is handled as before: logged, counted, and the pass is repeated with back-off.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import structlog
from prometheus_client import Counter

from broker.apis.meta import Object
from broker.kube.cache import Cache
from broker.kube.clock import Clock
from broker.kube.events import Recorder, Reference
from broker.kube.metrics import REGISTRY
from broker.kube.remains import Remains

REASON: Final = "LeftOut"
RETRY: Final = 300.0  # seconds until an object that a pass left out is tried again as it is

LEFT_OUT = Counter(
    "capacity_broker_objects_left_out",
    "Objects left out of every decision, by what they failed: decoding, or a pass (once each time).",
    ["kind", "why"],
    registry=REGISTRY,
)

log = structlog.get_logger(__name__)


class Isolation:
    """Of one broker: its caches, and the recorder that events go through."""

    def __init__(self, caches: Iterable[Cache[Any]], recorder: Recorder, *, clock: Clock) -> None:
        self._caches = tuple(caches)
        self._recorder = recorder
        self._clock = clock
        for cache in self._caches:
            cache.on_left_out(self._report)

    def leave_out(self, suspect: object, error: str) -> bool:
        """Whether the object that this is, or stands for, was in a cache and is left out from now on."""
        found = [
            cache.leave_out(value, f"the broker failed on it: {error}", self._clock.monotonic())
            for cache in self._caches
            for value in _matching(cache, suspect)
        ]
        return any(found)

    def readmit(self) -> None:
        """Takes back what was left out long enough ago."""
        for cache in self._caches:
            cache.readmit(self._clock.monotonic() - RETRY)

    def _report(self, remains: Remains) -> None:
        LEFT_OUT.labels(remains.kind.resource, "decoding" if remains.since is None else "pass").inc()
        about = Reference(
            api_version=remains.kind.api_version,
            kind=remains.kind.kind,
            name=remains.name,
            namespace=remains.namespace,
            uid=remains.uid,
        )
        message = (
            f"the broker takes no account of this {remains.kind.kind} until it is changed: {remains.error}"
        )
        self._recorder.event(about, "Warning", REASON, message)


def _matching(cache: Cache[Any], suspect: object) -> list[Any]:
    if isinstance(suspect, Object):
        return [suspect] if cache.holds(suspect) else []
    uid = getattr(suspect, "uid", "")
    return [value for value in cache.list() if value.uid == uid] if isinstance(uid, str) and uid else []
