"""Leader election: one process at a time leads, and learns in time that it no longer may.

Invariant: `lost` is set before another process may start, even if the API server does not respond, a request
hangs or the process was paused. Work that cannot be interrupted is stopped by `guard` at its next write. The
protocol of the Lease itself: broker.kube.tenure.
"""

from __future__ import annotations

import random as random_module
import secrets
import threading
from collections.abc import Callable
from typing import Final

import structlog
from prometheus_client import Counter, Gauge

from broker.kube.backoff import Random
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import ApiError
from broker.kube.metrics import REGISTRY
from broker.kube.panics import guarded
from broker.kube.tenure import Candidate

LEADING = Gauge(
    "capacity_broker_leading", "1 while this process holds the Lease.", ["lease"], registry=REGISTRY
)
LOST = Counter(
    "capacity_broker_leases_lost", "Leases that ended without being given back.", ["lease"], registry=REGISTRY
)

log = structlog.get_logger(__name__)


class NotLeading(ApiError):
    """A write that was stopped here, since the Lease may be another's by now."""


RENEW: Final = 2.0  # seconds between two renewals of a held Lease, and between two tries for one


class LeaseLost(threading.Event):
    """Set when the Lease is lost; `is_set` reads the clock too, so a paused process learns it at once.

    Each term has its own. `ended` is set once the term's `lead` has returned.
    """

    def __init__(self, name: str, leading: Callable[[], bool]) -> None:
        super().__init__()
        self.ended = threading.Event()
        self._name = name
        self._leading = leading

    def is_set(self) -> bool:
        return super().is_set() or not self._leading()

    def guard(self) -> None:
        """For Client(guard=…): rejects the writes of a term that is over, even if this process leads again.

        While `lead` winds down under a Lease that is still held, its writes pass: they record finished work.
        """
        if self.ended.is_set():
            raise NotLeading(0, "NotLeading", f"this term of the Lease {self._name!r} is over: not writing")
        if not self._leading():
            raise NotLeading(0, "NotLeading", f"the Lease {self._name!r} is not held: not writing")


class Elector:
    """`run(lead)` leads whenever this process may, until `stop`.

    `identity` is shown in the Lease. A suffix distinguishes processes that share it, such as a container
    that was restarted in its pod.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        identity: str,
        clock: Clock,
        *,
        duration: float = 15.0,
        random: Random = random_module.random,
        ids: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        if duration < RENEW * 3:
            raise ValueError(f"a lease of {duration} s is too short to be renewed every {RENEW} s")
        self._candidate = Candidate(
            # A request that hangs must leave room for another before the end.
            client.replace(timeout=duration / 3),
            name,
            namespace,
            f"{identity}_{ids()}",
            clock,
            duration=duration,
        )
        self._clock = clock
        self._random = random
        self._name = name
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._lost: LeaseLost | None = None

    @property
    def leading(self) -> bool:
        return self._candidate.leading

    def stop(self) -> None:
        """Stops campaigning or leading; `run` returns once `lead` has, and until then the Lease is kept."""
        self._stop.set()
        with self._changed:
            if self._lost is not None:
                self._lost.set()
            self._changed.notify_all()

    def run(self, lead: Callable[[LeaseLost], None]) -> None:
        """Calls `lead(lost)` in this thread each time the Lease is won; it returns soon after `lost` is set.

        Returns after `stop`, or when `lead` returned by itself.
        """
        while self._campaign():
            lost = LeaseLost(self._name, lambda: self._candidate.leading)
            with self._changed:
                self._lost = lost
            if self._stop.is_set():
                lost.set()
            helpers = [
                threading.Thread(target=target, args=(lost,), name=f"lease {self._name}", daemon=True)
                for target in (self._renewals, self._watchdog)
            ]
            for helper in helpers:
                helper.start()
            log.info("leading", lease=self._name, identity=self._candidate.identity)
            LEADING.labels(self._name).set(1)
            try:
                lead(lost)
            finally:
                by_itself = not lost.is_set()
                lost.ended.set()
                self._end(lost, helpers)
            if by_itself:
                return

    def _end(self, lost: LeaseLost, helpers: list[threading.Thread]) -> None:
        with self._changed:
            lost.set()
            self._changed.notify_all()
        for helper in helpers:
            helper.join()
        LEADING.labels(self._name).set(0)
        if not self.leading:
            LOST.labels(self._name).inc()
            log.warning("no longer leading: the lease was lost", lease=self._name)
            return
        try:
            self._candidate.release()
            log.info("no longer leading: the lease is given back", lease=self._name)
        except ApiError as error:
            log.warning("the lease could not be given back", lease=self._name, error=str(error))

    def _campaign(self) -> bool:
        """True when the Lease is won; False after `stop`."""
        while not self._stop.is_set():
            if self._try(self._candidate.contend):
                return True
            self._clock.wait(self._stop, RENEW * (0.75 + 0.5 * self._random()))
        return False

    def _try(self, step: Callable[[], bool]) -> bool:
        try:
            return step()
        except ApiError as error:
            log.warning("the lease cannot be read or renewed", lease=self._name, error=str(error))
            return self._candidate.leading

    def _renewals(self, lost: LeaseLost) -> None:
        while not self._clock.wait(lost.ended, RENEW * (0.9 + 0.2 * self._random())):
            held = False
            with guarded("lease", lease=self._name):
                held = self._try(self._candidate.renew)
            with self._changed:
                if not held:
                    lost.set()
                self._changed.notify_all()
            if not held:
                return

    def _watchdog(self, lost: LeaseLost) -> None:
        """Sets `lost` in time, even if a renewal is blocked."""
        with self._changed:
            while not lost.is_set():
                self._clock.wait(self._changed, self._candidate.until - self._clock.monotonic())
            lost.set()
