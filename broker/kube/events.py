"""Events that `kubectl describe` shows under an object.

Invariant: an event never delays or fails the work that it reports. An event with a topic reports a state of
its object, and a steady state is written once: again only after another text of the topic, after `ended`, or
after a pause of 50 minutes. An event without a topic is an occurrence. Occurrences and recurring states are
counted on the Event object, which is written at most every two minutes.

A token bucket limits each object's events (client-go's tools/record spam filter: 25, then one each five
minutes). A second limit is a kubelet's (eventRecordQPS 50, eventBurst 100), so that the events of a thousand
objects do not queue before their status. The object's fields:
https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/ (here its core/v1 form).
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import structlog
from prometheus_client import Counter

from broker.apis.core import Event
from broker.apis.meta import Object
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import ApiError, NotFound, TooManyRequests, Unavailable, WebhookFailed
from broker.kube.metrics import REGISTRY
from broker.kube.panics import guarded
from broker.kube.watches import Signal
from broker.text import format_time

EVENT = Event.KIND
DEDUPE = 120.0
FORGET = 3000.0  # the API server drops an Event after an hour; a count on a dropped one starts anew
BURST, REFILL = 25, 300.0
AT_ONCE, A_SECOND = 100, 50.0  # events written in the background
REMEMBERED = 4096  # events remembered at once; beyond it the oldest written one is dropped
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
    """The object that an event is about."""

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

    @property
    def subject(self) -> str:
        """The key of the object: its UID, or its kind and name."""
        return self.uid or f"{self.api_version}/{self.kind}/{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """An event as it was first recorded. Repeats of it are counted on its Event object.

    `labels` are those of the object at that time.
    """

    about: Reference
    type: EventType
    reason: str
    message: str
    annotations: Mapping[str, str]
    at: datetime
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _EventSeries:
    """One event about one object, with its count."""

    event: RecordedEvent
    last: str
    recorded: float  # when it was last recorded
    due: float | None  # when to write it; None when it is written
    count: int = 0
    attempts: int = 0
    name: str = ""  # of the Event; empty until there is one
    sent: float = field(default=float("-inf"))


class Recorder:
    """`event` from any thread. `start` writes in the background; `flush` writes pending events now."""

    def __init__(
        self,
        client: Client,
        component: str,
        clock: Clock,
        *,
        ids: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._ids = ids
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._events: OrderedDict[tuple[str, ...], _EventSeries] = OrderedDict()
        self._states: OrderedDict[tuple[str, str], _EventSeries] = OrderedDict()  # the last one by topic
        self._unwritten: dict[int, _EventSeries] = {}  # those with a time to be written at, by id()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # object → tokens, since
        self._turns, self._turned = float(AT_ONCE), clock.monotonic()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._readers = Signal()

    def subscribe(self, reader: Callable[[RecordedEvent], None]) -> None:
        """Calls `reader` for each new event from now on, on the recording thread."""
        self._readers.subscribe(reader)

    def event(
        self,
        obj: Object | Reference,
        type: EventType,  # noqa: A002
        reason: str,
        message: str,
        *,
        annotations: Mapping[str, str] | None = None,
        topic: str = "",
    ) -> bool:
        """Records an event; with a topic, unless it is the last one about the object and the topic.

        Several states of an object that last at the same time need a topic each. Returns False if a limit
        drops the event: one that must not be lost is recorded again later.
        """
        about = obj if isinstance(obj, Reference) else Reference.of(obj)
        subject = about.subject
        key = (subject, type, reason, message)
        with self._changed:
            now, at = self._clock.monotonic(), self._clock.now()
            wall, new = format_time(at), False
            series = self._events.get(key)
            if topic and series is not None and self._lasts(series, (subject, topic), now):
                return True
            if series is None or now - series.recorded > FORGET:
                if not (self._room() and self._token(subject, now)):
                    WRITTEN.labels("dropped").inc()
                    return False
                event = RecordedEvent(
                    about=about,
                    type=type,
                    reason=reason,
                    message=message,
                    annotations=annotations or {},
                    at=at,
                    labels={} if isinstance(obj, Reference) else obj.labels,
                )
                series = _EventSeries(event=event, last=wall, recorded=now, due=now)
                self._events[key], new = series, True
            if topic:
                self._begins(series, (subject, topic))
            series.count += 1
            series.last, series.recorded = wall, now
            if series.due is None:
                series.due = max(now, series.sent + DEDUPE)
            self._unwritten[id(series)] = series
            self._events.move_to_end(key)
            self._changed.notify_all()
        if new:
            self._readers(series.event)
        return True

    def ended(self, obj: Object | Reference, topic: str) -> None:
        """Forgets the state of a topic, so that the same text is reported again if it recurs."""
        about = obj if isinstance(obj, Reference) else Reference.of(obj)
        with self._changed:
            self._states.pop((about.subject, topic), None)

    def _lasts(self, series: _EventSeries, state: tuple[str, str], now: float) -> bool:
        """Whether the state that the event reports has not changed since."""
        if self._states.get(state) is not series or now - series.recorded > FORGET:
            return False
        series.recorded = now
        return True

    def _begins(self, series: _EventSeries, state: tuple[str, str]) -> None:
        self._states[state] = series
        self._states.move_to_end(state)
        if len(self._states) > REMEMBERED:
            self._states.popitem(last=False)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Writes pending events, as far as `timeout` allows, and stops."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)
        self.flush(timeout)

    def flush(self, timeout: float | None = None) -> bool:
        """Writes pending events in the caller's thread, without waiting for their time; whether all are
        written."""
        deadline = float("inf") if timeout is None else self._clock.monotonic() + timeout
        with self._changed:
            waiting = [*self._unwritten.values()]
        for series in waiting:
            if self._clock.monotonic() >= deadline:
                return False
            self._send(series)
        with self._changed:
            return all(series.due is None for series in waiting)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopped:
                    return
                now = self._clock.monotonic()
                waiting = [(series.due or 0.0, series) for series in self._unwritten.values()]
                ready = [series for due, series in waiting if due <= now]
                if not ready:
                    due = min((due for due, _ in waiting), default=None)
                    self._clock.wait(self._changed, None if due is None else due - now)
            for series in ready:
                if not self._turn():
                    return  # `stop` writes the rest
                with guarded("events", object=series.event.about.name):
                    self._send(series)

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

    def _send(self, series: _EventSeries) -> None:
        with self._sending:
            with self._changed:
                if series.due is None:
                    return
                series.due, body = None, self._body(series)
                del self._unwritten[id(series)]
            try:
                self._write(series, body)
            except ApiError as error:
                self._failed(series, error)
                return
            series.sent, series.attempts = self._clock.monotonic(), 0
            WRITTEN.labels("written").inc()

    def _write(self, series: _EventSeries, body: dict[str, Any]) -> None:
        namespace = body["metadata"]["namespace"]
        if series.name:
            change = {key: body[key] for key in ("count", "lastTimestamp")}
            try:
                self._client.patch(EVENT, series.name, change, namespace=namespace)
                return
            except NotFound:
                log.debug("event has gone, writing it anew", name=series.name)
        name = f"{series.event.about.name[:200]}.{self._ids()}"
        body["metadata"]["name"] = name
        self._client.create(EVENT, body)
        series.name = name

    def _failed(self, series: _EventSeries, error: ApiError) -> None:
        series.attempts += 1
        retried = (
            isinstance(error, Unavailable | TooManyRequests | WebhookFailed) and series.attempts < ATTEMPTS
        )
        event = series.event
        log.debug("event not written", reason=event.reason, object=event.about.name, error=str(error))
        if retried:
            with self._changed:
                series.due = self._clock.monotonic() + RETRY
                self._unwritten[id(series)] = series
        else:
            WRITTEN.labels("failed").inc()

    def _body(self, series: _EventSeries) -> dict[str, Any]:
        event, about = series.event, series.event.about
        involved = {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
        }
        # An object without a namespace has its events in `default`.
        meta: dict[str, Any] = {"namespace": about.namespace or "default"}
        if event.annotations:
            meta["annotations"] = dict(event.annotations)
        whole = len(event.message) <= MESSAGE
        return {
            "metadata": meta,
            "involvedObject": {key: value for key, value in involved.items() if value},
            "type": event.type,
            "reason": event.reason,
            "message": event.message if whole else event.message[: MESSAGE - 1] + "…",
            "count": series.count,
            "firstTimestamp": format_time(event.at),
            "lastTimestamp": series.last,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._component,
        }

    def _room(self) -> bool:
        if len(self._events) < REMEMBERED:
            return True
        written = next((key for key, series in self._events.items() if series.due is None), None)
        if written is None:
            return False
        del self._events[written]
        return True

    def _token(self, subject: str, now: float) -> bool:
        tokens, since = self._buckets.pop(subject, (float(BURST), now))
        tokens = min(float(BURST), tokens + (now - since) / REFILL)
        self._buckets[subject] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return tokens >= 1
