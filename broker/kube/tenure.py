"""The rules by which one process at a time holds a Lease, without threads.

Invariant: a holder stops `margin` before any other process may start, measured on a monotonic clock from
when its last successful renewal was *sent*. Wall clocks are written down and never compared. A candidate
waits the whole duration since it saw the Lease change, as client-go's tools/leaderelection does
(https://kubernetes.io/docs/concepts/architecture/leases/).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.apis.coordination import Lease
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import AlreadyExists, Conflict, NotFound
from broker.text import format_micros

LEASE = Lease.KIND


class Candidate:
    """`contend` and `renew` each try once and return whether this process holds the Lease.

    `identity` is unique to the process. Both raise ApiError if the holder cannot be read.
    """

    def __init__(
        self, client: Client, name: str, namespace: str, identity: str, clock: Clock, *, duration: float
    ) -> None:
        self._client = client
        self._name, self._namespace, self.identity = name, namespace, identity
        self._clock = clock
        self._duration = max(1, round(duration))  # the field is whole seconds
        self._margin = self._duration / 3
        self._until = float("-inf")  # leading before this, on the monotonic clock
        self._version = ""  # of the Lease as this process last wrote it
        self._seen: tuple[Any, ...] = ()
        self._seen_at = 0.0

    @property
    def leading(self) -> bool:
        return self._clock.monotonic() < self._until

    @property
    def until(self) -> float:
        return self._until

    def renew(self) -> bool:
        """Never takes the Lease anew: another process may have led between two tenures of this one."""
        if not self.leading:
            return False
        try:
            return self._write(self._version, {})
        except NotFound:
            return self._over()
        except Conflict:  # written by another process, or by this one in a response that was lost
            lease = self._client.get(LEASE, self._name, namespace=self._namespace)
            if self._holder(lease) != self.identity:
                return self._over()
            return self._take(lease["metadata"]["resourceVersion"], {}) or self._over()

    def release(self) -> None:
        """Gives the Lease back, so that a standby need not wait; does nothing if another process holds it."""
        if not self.leading:
            return
        self._until = float("-inf")
        spec = {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": self._now()}
        try:
            self._patch({"metadata": {"resourceVersion": self._version}, "spec": spec})
        except Conflict:
            lease = self._client.get(LEASE, self._name, namespace=self._namespace)
            if self._holder(lease) == self.identity:
                self._patch(
                    {"metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]}, "spec": spec}
                )

    def contend(self) -> bool:
        sent = self._clock.monotonic()
        try:
            lease = self._client.get(LEASE, self._name, namespace=self._namespace)
        except NotFound:
            return self._create(sent)
        spec = lease.get("spec") or {}
        holder = self._holder(lease)
        version = lease["metadata"]["resourceVersion"]
        if (
            holder == self.identity
        ):  # the response to a take was lost, or the connection was, and no other process took it
            return self._take(version, {})
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
        except (Conflict, NotFound):  # another process was faster
            return False

    def _over(self) -> bool:
        self._until = float("-inf")
        return False

    @staticmethod
    def _holder(lease: Mapping[str, Any]) -> str:
        return (lease.get("spec") or {}).get("holderIdentity") or ""

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
        return format_micros(self._clock.now())
