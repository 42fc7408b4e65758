"""The API server's version, read again now and then: a cluster is upgraded while the broker runs.

Invariant: never older than `EVERY` while the server answers; while it does not, the last known one holds.
Nodes are to be neither older nor newer than it (https://kubernetes.io/releases/version-skew-policy/).
"""

from __future__ import annotations

import threading

import structlog

from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import ApiError

EVERY = 600.0

_log = structlog.get_logger("kube")


class ServerVersion:
    """Called, it gives major and minor as the names of images have them: "1.32". Raises ApiError only while
    none was read yet."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._version = ""
        self._due = 0.0

    def __call__(self) -> str:
        with self._lock:
            if not self._version:
                self._read()
            elif self._clock.monotonic() >= self._due:
                try:
                    self._read()
                except ApiError as error:
                    _log.warning("the server's version cannot be read", error=str(error), known=self._version)
            return self._version

    def _read(self) -> None:
        version = self._client.raw("GET", "/version")
        before, self._version = self._version, f"{version['major']}.{str(version['minor']).rstrip('+')}"
        self._due = self._clock.monotonic() + EVERY
        if before and before != self._version:
            _log.info("the cluster was upgraded", before=before, now=self._version)
