"""Events that `kubectl describe` shows under an object.

Invariant: telling never delays or fails the work that it tells of. The same thing said again is counted on
one Event, written at most every two minutes; an object that has much to say is cut short by its token
bucket (client-go's tools/record spam filter: 25, then one each five minutes); and where a thousand objects
have something to say their events are written no faster than a kubelet's (eventRecordQPS 50, eventBurst 100),
so that they do not wait in front of what they tell of. The object's fields:
https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/ (here its core/v1 form).
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import structlog
from prometheus_client import Counter

from broker.apis.core import Event
from broker.apis.meta import Object
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.conditions import timestamp
from broker.kube.errors import ApiError, NotFound, TooManyRequests, Unavailable
from broker.kube.metrics import REGISTRY
from broker.kube.panics import guarded

EVENT = Event.KIND
DEDUPE = 120.0
FORGET = 3000.0  # the API server drops an Event after an hour; a count on a dropped one starts anew
BURST, REFILL = 25, 300.0
AT_ONCE, A_SECOND = 100, 50.0  # events written in the background
REMEMBERED = 4096  # things said that are remembered at once; beyond it the oldest that is written goes
RETRY, ATTEMPTS = 10.0, 12
MESSAGE = 1024  # characters, the limit of events.k8s.io

EventType = Literal["Normal", "Warning"]

WRITTEN = Counter(
    "capacity_broker_kube_events",
    "Events by result: written, dropped, failed.",
    ["result"],
    registry=REGISTRY,
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What an event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""

    @classmethod
    def of(cls, obj: Object) -> Reference:
        kind = obj.KIND
        return cls(
            api_version=kind.api_version, kind=kind.kind, name=obj.name, namespace=obj.namespace, uid=obj.uid
        )


@dataclass(slots=True, kw_only=True)
class _Said:
    """One thing said about one object, as often as it was."""

    about: Reference
    type: EventType
    reason: str
    message: str
    annotations: Mapping[str, str]
    first: str
    last: str
    heard: float  # when it was last said
    due: float | None  # when to write it; None when it is written
    count: int = 0
    attempts: int = 0
    name: str = ""  # of the Event; empty until there is one
    sent: float = field(default=float("-inf"))


class Recorder:
    """`event` from any thread. `start` writes in the background; `flush` writes what waits, now."""

    def __init__(
        self,
        client: Client,
        component: str,
        clock: Clock,
        *,
        instance: str = "",
        ids: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._client = client
        self._component, self._instance = component, instance or component
        self._clock = clock
        self._ids = ids
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._said: OrderedDict[tuple[str, ...], _Said] = OrderedDict()
        self._unwritten: dict[int, _Said] = {}  # those with a time to be written at, by id()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # object → tokens, since
        self._turns, self._turned = float(AT_ONCE), clock.monotonic()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def event(
        self,
        obj: Object | Reference,
        type: EventType,  # noqa: A002
        reason: str,
        message: str,
        *,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        about = obj if isinstance(obj, Reference) else Reference.of(obj)
        subject = about.uid or f"{about.api_version}/{about.kind}/{about.namespace}/{about.name}"
        key = (subject, type, reason, message)
        with self._changed:
            now, wall = self._clock.monotonic(), timestamp(self._clock.now())
            said = self._said.get(key)
            if said is None or now - said.heard > FORGET:
                if not (self._room() and self._token(subject, now)):
                    WRITTEN.labels("dropped").inc()
                    return
                said = _Said(
                    about=about,
                    type=type,
                    reason=reason,
                    message=message[: MESSAGE - 1] + "…" if len(message) > MESSAGE else message,
                    annotations=annotations or {},
                    first=wall,
                    last=wall,
                    heard=now,
                    due=now,
                )
                self._said[key] = said
            said.count += 1
            said.last, said.heard = wall, now
            if said.due is None:
                said.due = max(now, said.sent + DEDUPE)
            self._unwritten[id(said)] = said
            self._said.move_to_end(key)
            self._changed.notify_all()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Writes what waits, as far as `timeout` allows, and ends."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)
        self.flush(timeout)

    def flush(self, timeout: float | None = None) -> bool:
        """Writes what waits, in the caller's thread, without waiting for its time; whether all is written."""
        deadline = float("inf") if timeout is None else self._clock.monotonic() + timeout
        with self._changed:
            waiting = [*self._unwritten.values()]
        for said in waiting:
            if self._clock.monotonic() >= deadline:
                return False
            self._send(said)
        with self._changed:
            return all(said.due is None for said in waiting)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopped:
                    return
                now = self._clock.monotonic()
                waiting = [(said.due or 0.0, said) for said in self._unwritten.values()]
                ready = [said for due, said in waiting if due <= now]
                if not ready:
                    due = min((due for due, _ in waiting), default=None)
                    self._clock.wait(self._changed, None if due is None else due - now)
            for said in ready:
                if not self._turn():
                    return  # what waits is `stop`'s to write
                with guarded("events", object=said.about.name):
                    self._send(said)

    def _turn(self) -> bool:
        """Waits until one more may be written; False when there is no time left for waiting."""
        with self._changed:
            while not self._stopped:
                now = self._clock.monotonic()
                self._turns = min(float(AT_ONCE), self._turns + (now - self._turned) * A_SECOND)
                self._turned = now
                if self._turns >= 1:
                    self._turns -= 1
                    return True
                self._clock.wait(self._changed, (1 - self._turns) / A_SECOND)
            return False

    def _send(self, said: _Said) -> None:
        with self._sending:
            with self._changed:
                if said.due is None:
                    return
                said.due, body = None, self._body(said)
                del self._unwritten[id(said)]
            try:
                self._write(said, body)
            except ApiError as error:
                self._failed(said, error)
                return
            said.sent, said.attempts = self._clock.monotonic(), 0
            WRITTEN.labels("written").inc()

    def _write(self, said: _Said, body: dict[str, Any]) -> None:
        namespace = body["metadata"]["namespace"]
        if said.name:
            change = {key: body[key] for key in ("count", "lastTimestamp")}
            try:
                self._client.patch(EVENT, said.name, change, namespace=namespace)
                return
            except NotFound:
                log.debug("event has gone, saying it anew", name=said.name)
        name = f"{said.about.name[:200]}.{self._ids()}"
        body["metadata"]["name"] = name
        self._client.create(EVENT, body)
        said.name = name

    def _failed(self, said: _Said, error: ApiError) -> None:
        said.attempts += 1
        again = isinstance(error, Unavailable | TooManyRequests) and said.attempts < ATTEMPTS
        log.debug("event not written", reason=said.reason, object=said.about.name, error=str(error))
        if again:
            with self._changed:
                said.due = self._clock.monotonic() + RETRY
                self._unwritten[id(said)] = said
        else:
            WRITTEN.labels("failed").inc()

    def _body(self, said: _Said) -> dict[str, Any]:
        about = said.about
        involved = {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
        }
        # An object without a namespace has its events in `default`.
        meta: dict[str, Any] = {"namespace": about.namespace or "default"}
        if said.annotations:
            meta["annotations"] = dict(said.annotations)
        return {
            "metadata": meta,
            "involvedObject": {key: value for key, value in involved.items() if value},
            "type": said.type,
            "reason": said.reason,
            "message": said.message,
            "count": said.count,
            "firstTimestamp": said.first,
            "lastTimestamp": said.last,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }

    def _room(self) -> bool:
        if len(self._said) < REMEMBERED:
            return True
        written = next((key for key, said in self._said.items() if said.due is None), None)
        if written is None:
            return False
        del self._said[written]
        return True

    def _token(self, subject: str, now: float) -> bool:
        tokens, since = self._buckets.pop(subject, (float(BURST), now))
        tokens = min(float(BURST), tokens + (now - since) / REFILL)
        self._buckets[subject] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return tokens >= 1
