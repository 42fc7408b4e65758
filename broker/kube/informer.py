"""A list and a watch that keep a cache equal to the API server, for as long as the process lives.

Invariant: once synced, the cache holds a state that the API server had, and moves only forward. Any failure
(a refused list, a lost stream, an expired version) is retried after a back-off with full jitter, never in a
hot loop. The cache keeps its objects meanwhile. List, watch, bookmarks and 410:
https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
Informers of the same collection share one list and one watch (broker.kube.watch_group).
"""

from __future__ import annotations

import random as random_module
import threading
from collections.abc import Callable, Sequence
from typing import Generic

import structlog
from prometheus_client import Counter, Gauge

from broker.doubling import doubled
from broker.kube.backoff import Backoff, Random
from broker.kube.cache import Cache, DecodedObject, Handler, Indexes, Raw, T, number, version_of
from broker.kube.client import Client, Watch
from broker.kube.clock import Clock
from broker.kube.errors import ApiError, Expired, Forbidden, NotFound, TooManyRequests
from broker.kube.metrics import REGISTRY
from broker.kube.panics import guarded
from broker.kube.watch_group import WatchGroup, followers, group_of

FIRST, LONGEST = 0.1, 30.0  # seconds of back-off
ABSENT = 60.0  # at most between two checks for a kind that need not exist
UNNEEDED = 0.2  # between two checks whether a kind is needed
HEALTHY = 10.0  # a watch that lived this long ended for a reason of its own
REFUSALS = 3  # in a row, and the version to watch from is doubted: list again
# A watch lives this long, and a half-open one 30 s longer: the bound on unnoticed staleness.
WATCH_SECONDS, WATCH_SPREAD = 120, 60
INSTALL = "capacity-broker crds install, or the chart that owns it"

STALENESS = Gauge(
    "capacity_broker_kube_cache_staleness_seconds",
    "Seconds since the last watch event of a kind, for the oldest cache of the process; the API server sends "
    "a bookmark about every minute.",
    ["kind"],
    registry=REGISTRY,
)
LISTS = Counter(
    "capacity_broker_kube_lists", "Complete lists read to fill a cache.", ["kind"], registry=REGISTRY
)
FAILURES = Counter(
    "capacity_broker_kube_watch_failures",
    "Lists and watches that failed, by the reason the API server gave.",
    ["kind", "reason"],
    registry=REGISTRY,
)
EVENTS = Counter(
    "capacity_broker_kube_watch_events", "Events received, bookmarks included.", ["kind"], registry=REGISTRY
)

log = structlog.get_logger(__name__)
_gauge = threading.Lock()  # held while STALENESS gains or loses a kind


def _oldest(resource: str) -> float:
    return max((informer.staleness() for informer in followers(resource)), default=0.0)


class Informer(Generic[T]):
    """Start it once; read `cache`; subscribe with `on_change`. `error` is why it does not follow at the
    moment."""

    def __init__(
        self,
        client: Client,
        model: type[T],
        *,
        clock: Clock,
        indexes: Indexes[T] | None = None,
        field_selector: str = "",
        random: Random = random_module.random,
    ) -> None:
        self.cache: Cache[T] = Cache(model, indexes=indexes, narrowed=bool(field_selector))
        self.error = ""
        self.forbidden = False  # the API server refuses to show the kind
        self.missing = False  # the API server does not serve the kind: its definition is not installed
        self.optional = (
            False  # whether the kind is optional: then its absence is logged once, and retried rarely
        )
        self.needed: Callable[[], bool] | None = None  # no request is made before this holds
        self._client = client
        self._kind = model.KIND
        self._clock = clock
        self._random = random
        self._field_selector = field_selector
        self._group = self._watch_group(client)
        self._revision = ""  # where the watch goes on; empty: list first
        self._absences = 0  # lists in a row that found the kind missing
        self._refused = 0  # watches in a row that the server answered with an error
        self._contact = clock.monotonic()
        self.synced = False  # whether a complete list has been read
        self._stop = threading.Event()
        self.turn = threading.Event()  # it reads from the API server, for its whole group
        self._watch: Watch | None = None
        self._thread: threading.Thread | None = None

    def _watch_group(self, client: Client) -> WatchGroup:
        return group_of(client.transport, (self._kind.resource, self._field_selector))

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    @property
    def served(self) -> bool:
        """Whether a complete list has been read, and the API server serves the kind."""
        return self.synced and not self.missing

    @property
    def complete(self) -> bool:
        """Whether a complete list has been read, or there is none: the kind is not served."""
        return self.synced or self.missing

    @property
    def plural(self) -> str:
        return self._kind.plural

    def label(self, name: str) -> str:
        """The name, and the definition to install if the API server does not serve the kind."""
        return f"{name}: {self._kind.resource} is not installed" if self.missing else name

    def on_change(self, handler: Handler[T]) -> None:
        """`handler(old, new)`: None for old when it appeared, None for new when it went. It only marks dirty:
        the stream waits for it."""
        self.cache.on_change(handler)

    def staleness(self) -> float:
        return self._clock.monotonic() - self._contact

    def start(self) -> None:
        if self._thread is not None:
            raise RuntimeError(f"the informer of {self._kind.resource} was started before")
        self._thread = threading.Thread(target=self._run, name=f"watch {self._kind.resource}", daemon=True)
        self._thread.start()

    def stop(self, timeout: float | None = 5.0) -> None:
        """Ends the stream and waits for its thread, which a request under way may hold for `timeout`."""
        self._stop.set()
        self._group.leave(self)
        self.turn.set()
        with _gauge:
            if not followers(self._kind.resource):
                STALENESS.remove(self._kind.resource)
        if self._watch is not None:
            self._watch.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        backoff = Backoff(first=FIRST, longest=LONGEST, random=self._random)
        while self.needed is not None and not self.needed() and not self._stop.wait(UNNEEDED):
            continue
        self._join()
        self._clock.wait(self.turn)
        while not self._stop.is_set():
            began, at_least = self._clock.monotonic(), 0.0
            with guarded("informer", kind=self._kind.resource) as guard:
                at_least = self.follow()
            if guard.error:
                self._revision = ""
                self._group.deliver(self, Informer._fail, f"panic: {guard.error}", self.missing, False)
            if self._clock.monotonic() - began >= HEALTHY:
                backoff.reset()
            self._clock.wait(self._stop, backoff.next(at_least=at_least))

    def _join(self) -> None:
        """Begins to follow, and to count the age of the cache: one that was not needed has none."""
        self._contact = self._clock.monotonic()
        resource = self._kind.resource
        self._group.join(self)
        with _gauge:
            if self in followers(resource):
                STALENESS.labels(resource).set_function(lambda: _oldest(resource))

    def begin_as(self, first: Informer[T]) -> None:
        """Takes the state of an informer of the same collection, which follows for both."""
        if first.synced:
            self.cache.begin_as(first.cache)
            self._revision = first._revision
            self.synced = True
        self.error, self.missing, self._contact = first.error, first.missing, first._contact
        self.forbidden = first.forbidden

    def follow(self) -> float:
        """One round, in the caller's thread: lists where needed, then watches until the stream ends.

        Returns the seconds that the server requests before the next round.
        """
        try:
            if not self._revision:
                self._list()
            self._stream()
        except ApiError as error:
            self.missing = self.missing or isinstance(error, NotFound)
            # 429 is about the rate, and no answer about nothing; other refusals may be about the version.
            self._refused += error.status > 0 and not isinstance(error, TooManyRequests)
            if isinstance(error, Expired) or self._refused >= REFUSALS:
                self._revision, self._refused = "", 0
            if self._stop.is_set():
                return 0.0
            FAILURES.labels(self._kind.resource, error.reason).inc()
            absent = self.optional and isinstance(error, NotFound)
            if str(error) != self.error:  # logged once, however often it is retried
                kind = self._kind.resource
                if absent:
                    log.info("not installed", kind=kind)
                elif self.missing:
                    log.error("this definition is not installed", kind=kind, way_out=INSTALL)
                else:
                    log.warning("cannot follow", kind=kind, error=str(error), synced=self.synced)
            refused = isinstance(error, Forbidden)
            self._group.deliver(self, Informer._fail, str(error), self.missing, refused)
            if absent:
                self._absences += 1
                return doubled(FIRST, ABSENT, self._absences)
            return error.retry_after if isinstance(error, TooManyRequests) else 0.0
        return 0.0

    def read(self) -> None:
        """Fills the cache by one list in the caller's thread and follows nothing: for a single run."""
        try:
            self._list()
        except NotFound:
            self.missing = True
            raise

    def _list(self) -> None:
        items, revision = self._client.read_all(
            self._kind, self.cache.read, field_selector=self._field_selector
        )
        LISTS.labels(self._kind.resource).inc()
        self._group.deliver(self, Informer._take, items, revision)

    def _take(self, items: Sequence[DecodedObject[T]], revision: str) -> None:
        self._alive()
        self.cache.take(items, number(revision))
        self._revision = revision
        self.synced = True

    def _stream(self) -> None:
        watch = self._client.watch(
            self._kind,
            resource_version=self._revision,
            field_selector=self._field_selector,
            seconds=WATCH_SECONDS + int(WATCH_SPREAD * self._random()),
            known=lambda version: all(i.cache.has_version(version) for i in self._group.takers(self)),
        )
        self._watch = watch
        with watch:
            if self._stop.is_set():  # it came between the request and the answer
                return
            self._group.deliver(self, Informer._opened)
            received = EVENTS.labels(self._kind.resource)
            for event, raw in watch:
                received.inc()
                self._group.deliver(
                    self, lambda informer, event=event, raw=raw: informer._apply(event, raw, self.cache)
                )

    def _apply(self, event: str, raw: Raw, source: Cache[T]) -> None:
        """Takes an event as the cache of the informer that read it has decoded it."""
        self._alive()
        self._refused = 0
        if event == "BOOKMARK":
            self.cache.progress(version_of(raw))
        else:
            self.cache.apply(event, raw, read=source.read)
        self._revision = raw["metadata"].get("resourceVersion") or self._revision

    def _fail(self, error: str, missing: bool, forbidden: bool) -> None:
        self.error, self.missing, self.forbidden = error, missing, forbidden

    def _opened(self) -> None:
        self._alive()
        self.cache.retry()

    def _alive(self) -> None:
        self._contact = self._clock.monotonic()
        self.error, self.missing, self.forbidden, self._absences = "", False, False, 0
