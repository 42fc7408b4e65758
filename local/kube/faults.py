"""Faults that a test scripts: the next matching requests fail, wait, or lose their watches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from local.kube.errors import StatusError


@dataclass(slots=True)
class ScriptedFault:
    """`verb` and `resource` left empty match any; `times` counts down, and below zero means for ever."""

    verb: str
    resource: str
    name: str
    error: StatusError | None
    delay: float
    times: int

    def matches(self, verb: str, resource: str, name: str) -> bool:
        conditions = ((self.verb, verb), (self.resource, resource), (self.name, name))
        return self.times != 0 and all(not pattern or pattern == value for pattern, value in conditions)


@dataclass(slots=True)
class ScriptedFaults:
    """Scripted faults of one cluster. Resources are plurals, with a subresource as in `pods/binding`."""

    _faults: list[ScriptedFault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _drop: Callable[[], None] | None = None
    sleep: Callable[[float], None] = time.sleep

    def fail(
        self,
        *,
        verb: str = "",
        resource: str = "",
        name: str = "",
        code: int = 500,
        reason: str = "InternalError",
        times: int = 1,
    ) -> None:
        details = {"retryAfterSeconds": 1} if code == 429 else None
        error = StatusError(code, reason, "an error that a test requested", details=details)
        self._add(ScriptedFault(verb, resource, name, error, 0.0, times))

    def delay(self, seconds: float, *, verb: str = "", resource: str = "") -> None:
        self._add(ScriptedFault(verb, resource, "", None, seconds, times=1))

    def on_drop(self, drop: Callable[[], None]) -> None:
        self._drop = drop

    def drop_watches(self) -> None:
        """Ends every open watch, as a restart of the server does; clients come back by themselves."""
        if self._drop is not None:
            self._drop()

    @property
    def active(self) -> bool:
        return bool(self._faults)

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def check(self, verb: str, resource: str, name: str) -> None:
        """Called before each request: waits and raises as scripted."""
        if not self._faults:
            return
        with self._lock:
            hit = next((fault for fault in self._faults if fault.matches(verb, resource, name)), None)
            if hit is None:
                return
            hit.times -= 1
            self._faults = [fault for fault in self._faults if fault.times != 0]
        if hit.delay:
            self.sleep(hit.delay)
        if hit.error:
            raise hit.error

    def _add(self, fault: ScriptedFault) -> None:
        with self._lock:
            self._faults.append(fault)
