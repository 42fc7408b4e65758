"""Who may act: one process at a time holds the Lease.

Invariant: a holder stops `margin` before anyone else may start, measured from when its last renewal that
came through was *sent*, on a monotonic clock, whether or not the API server answers, a request hangs or the
process was paused; wall clocks are written down and never compared. A standby waits the whole duration
since it saw the Lease change, as client-go's tools/leaderelection does
(https://kubernetes.io/docs/concepts/architecture/leases/).
"""

from __future__ import annotations

import random as random_module
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from prometheus_client import Counter, Gauge

from broker.apis.coordination import Lease
from broker.kube.backoff import Random
from broker.kube.bugs import contained
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.conditions import micro_timestamp
from broker.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from broker.kube.metrics import REGISTRY

LEASE = Lease.KIND

LEADING = Gauge(
    "capacity_broker_leading", "1 while this process holds the Lease.", ["lease"], registry=REGISTRY
)
LOST = Counter(
    "capacity_broker_leases_lost", "Leases that ended without being given back.", ["lease"], registry=REGISTRY
)

log = structlog.get_logger(__name__)


class NotLeading(ApiError):
    """A write that was stopped here, since the Lease may be another's by now."""


class Lost(threading.Event):
    """Set when the Lease is lost; `is_set` asks the clock too, so one who was paused learns it at once."""

    def __init__(self, leading: Callable[[], bool]) -> None:
        super().__init__()
        self._leading = leading

    def is_set(self) -> bool:
        return super().is_set() or not self._leading()


class Candidate:
    """The protocol without threads: `step` tries once to take or renew it. `identity` is nobody else's."""

    def __init__(
        self, client: Client, name: str, namespace: str, identity: str, clock: Clock, *, duration: float
    ) -> None:
        self._client = client
        self._name, self._namespace, self.identity = name, namespace, identity
        self._clock = clock
        self._duration = max(1, round(duration))  # the field is whole seconds
        self._margin = self._duration / 3
        self._until = float("-inf")  # leading before this, on the monotonic clock
        self._version = ""  # of the Lease as we last wrote it
        self._seen: tuple[Any, ...] = ()
        self._seen_at = 0.0

    @property
    def leading(self) -> bool:
        return self._clock.monotonic() < self._until

    @property
    def until(self) -> float:
        return self._until

    def step(self) -> bool:
        """Whether we hold the Lease after it. Raises ApiError where that could not be found out."""
        if self.leading and self._version:
            try:
                return self._write(self._version, {})
            except Conflict:
                pass  # written by someone else, or by us in a reply that was lost: look
            except NotFound:
                self._version = ""
        return self._contend()

    def release(self) -> None:
        """Gives the Lease back, so that a standby need not wait; does nothing where it is not ours."""
        if not (self.leading and self._version):
            return
        self._until = float("-inf")
        spec = {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": self._now()}
        try:
            self._patch({"metadata": {"resourceVersion": self._version}, "spec": spec})
        except Conflict:
            lease = self._client.get(LEASE, self._name, namespace=self._namespace)
            if lease["spec"].get("holderIdentity") == self.identity:
                self._patch(
                    {"metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]}, "spec": spec}
                )

    def _contend(self) -> bool:
        sent = self._clock.monotonic()
        try:
            lease = self._client.get(LEASE, self._name, namespace=self._namespace)
        except NotFound:
            return self._create(sent)
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        version = lease["metadata"]["resourceVersion"]
        if holder == self.identity:
            return self._take(version, {})
        self._until = float("-inf")  # it names another, or nobody: whatever we had is over
        record = (holder, spec.get("acquireTime"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if record != self._seen:
            self._seen, self._seen_at = record, self._clock.monotonic()
        lasts = spec.get("leaseDurationSeconds") or self._duration
        if holder and self._clock.monotonic() < self._seen_at + lasts:
            return False
        transitions = int(spec.get("leaseTransitions") or 0) + 1
        return self._take(version, {"acquireTime": self._now(), "leaseTransitions": transitions})

    def _take(self, version: str, more: Mapping[str, Any]) -> bool:
        try:
            return self._write(version, more)
        except (Conflict, NotFound):  # someone was faster
            return False

    def _create(self, sent: float) -> bool:
        spec = self._spec() | {"acquireTime": self._now(), "leaseTransitions": 0}
        meta = {"name": self._name, "namespace": self._namespace}
        try:
            lease = self._client.create(LEASE, {"metadata": meta, "spec": spec})
        except AlreadyExists:
            return False
        self._held(sent, lease)
        return True

    def _write(self, version: str, more: Mapping[str, Any]) -> bool:
        sent = self._clock.monotonic()
        body = {"metadata": {"resourceVersion": version}, "spec": {**self._spec(), **more}}
        self._held(sent, self._patch(body))
        return True

    def _held(self, sent: float, lease: Mapping[str, Any]) -> None:
        self._version = lease["metadata"]["resourceVersion"]
        self._until = sent + self._duration - self._margin

    def _patch(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._client.patch(LEASE, self._name, body, namespace=self._namespace)

    def _spec(self) -> dict[str, Any]:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._duration,
            "renewTime": self._now(),
        }

    def _now(self) -> str:
        return micro_timestamp(self._clock.now())


class Elector:
    """`run(lead)` leads whenever this process may, until `stop`.

    `identity` is what people see in the Lease; a suffix tells processes apart that share it, as a container
    does that was started again in its pod.
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
        renew: float = 2.0,
        random: Random = random_module.random,
        ids: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        if renew * 3 > duration:
            raise ValueError(f"a lease of {duration} s is too short to be renewed every {renew} s")
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
        self._renew = renew
        self._random = random
        self._name = name
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._lost: Lost | None = None

    @property
    def leading(self) -> bool:
        return self._candidate.leading

    def guard(self) -> None:
        """For Client(guard=…): refuses writes of one who does not lead, or no longer."""
        if not self.leading:
            message = f"the Lease {self._name!r} is not held: not writing"
            raise NotLeading(0, "NotLeading", message)

    def stop(self) -> None:
        """Stops campaigning or leading; `run` returns once `lead` has."""
        self._stop.set()
        with self._changed:
            if self._lost is not None:
                self._lost.set()
            self._changed.notify_all()

    def run(self, lead: Callable[[threading.Event], None]) -> None:
        """Calls `lead(lost)` in this thread each time the Lease is won; it returns soon after `lost` is set.

        Returns after `stop`, or when `lead` returned by itself.
        """
        while self._campaign():
            lost = Lost(lambda: self._candidate.leading)
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
                self._end(lost, helpers)
            if by_itself:
                return

    def _end(self, lost: Lost, helpers: list[threading.Thread]) -> None:
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
            if self._try():
                return True
            self._clock.wait(self._stop, self._renew * (0.75 + 0.5 * self._random()))
        return False

    def _try(self) -> bool:
        try:
            return self._candidate.step()
        except ApiError as error:
            log.warning("the lease cannot be read or renewed", lease=self._name, error=str(error))
            return self._candidate.leading

    def _renewals(self, lost: Lost) -> None:
        while not self._clock.wait(lost, self._renew * (0.9 + 0.2 * self._random())):
            held = False
            with contained("lease", lease=self._name):
                held = self._try()
            with self._changed:
                if not held:
                    lost.set()
                self._changed.notify_all()
            if not held:
                return

    def _watchdog(self, lost: Lost) -> None:
        """Sets `lost` in time, whatever the renewals are waiting for."""
        with self._changed:
            while not lost.is_set():
                self._clock.wait(self._changed, self._candidate.until - self._clock.monotonic())
            lost.set()
