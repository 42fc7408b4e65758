"""A simulated part of a cluster: a thread that repeats one step."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

import structlog

from broker.kube.clock import Clock
from broker.kube.errors import ApiError
from providers.errors import ProviderError

_log = structlog.get_logger("demo")


class Simulated(ABC):
    """Calls `step` every few seconds, from `start` to `stop`."""

    def __init__(self, name: str, *, clock: Clock, every: float) -> None:
        self._name, self._clock, self._every = name, clock, every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def step(self) -> None:
        """One pass. Raises ApiError, ProviderError."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._clock.wait(self._stop, self._every):
            try:
                self.step()
            except (ApiError, ProviderError) as error:
                _log.warning("step failed", of=self._name, error=str(error))
