"""Typed copies of one kind's objects, found by key and by index.

Invariant: for each key the cache holds the newest version that the watch or a write of the broker returned.
A handler runs after its change is visible. Versions compare as integers: a promise since Kubernetes 1.35,
before that a fact of etcd (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions).

An object that cannot be decoded, or on which a pass fails inside its `guard`, is left out until it changes,
and listed in `broken`. Handlers see it as deleted, so code that destroys things because an object is absent
must check `left_out` first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Generic, TypeVar

import structlog
from prometheus_client import Gauge
from pydantic import ValidationError

from broker.apis.meta import Object
from broker.kube.errors import EXPECTED
from broker.kube.lean import decode
from broker.kube.metrics import REGISTRY
from broker.kube.panics import guarded
from broker.kube.partial import PartialObject
from broker.text import shortened

T = TypeVar("T", bound=Object)
REPORTED_FAULTS = 8  # at most so many faults of one object
Raw = Mapping[str, Any]
Indexes = Mapping[str, Callable[[T], Iterable[str]]]
Values = list[T]
Handler = Callable[[T | None, T | None], None]
Guard = Callable[[T], AbstractContextManager[object]]

OBJECTS = Gauge(
    "capacity_broker_kube_cache_objects",
    "Objects in a cache (decoded), and objects left out of it (broken).",
    ["kind", "state"],
    registry=REGISTRY,
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DecodedObject(Generic[T]):
    """One object of a list, decoded; `partial` where it cannot be, or is left out."""

    key: str
    version: int
    value: T | None
    partial: PartialObject | None = None


class Cache(Generic[T]):
    """Readers from any thread; written by one informer and by `observe`.

    `narrowed`: the watch has a selector, so an object that is absent here may merely not match.
    """

    def __init__(
        self,
        model: type[T],
        *,
        indexes: Indexes[T] | None = None,
        narrowed: bool = False,
    ) -> None:
        self.model = model
        self._narrowed = narrowed
        self._indexes = dict(indexes or {})
        self._writes = threading.RLock()  # held while handlers run, so that they see changes in order
        self._lock = threading.Lock()  # held for moments: readers never wait for a handler
        self._objects: dict[str, T] = {}
        self._out: dict[str, DecodedObject[T]] = {}  # objects that are left out
        self._reporters: list[Callable[[PartialObject], None]] = []
        self._versions: dict[str, int] = {}  # key → version, also of objects that are left out
        self._gone: dict[str, int] = {}  # key → version at which the broker's own write ended it
        self._indexed: dict[str, dict[str, dict[str, T]]] = {name: {} for name in self._indexes}
        self._sizes = [OBJECTS.labels(model.KIND.resource, state) for state in ("decoded", "broken")]
        self._own_versions: set[int] = set()  # versions of answers, not shown by the watch yet
        self._progress = 0  # every change up to here has been seen
        self.revision = 0  # grows after each change of an object
        self._handlers: list[Handler[T]] = []

    def get(self, name: str, namespace: str | None = None) -> T | None:
        return self._objects.get(f"{namespace}/{name}" if namespace else name)

    def find(self, key: str) -> T | None:
        """Finds the object by `Object.key`."""
        return self._objects.get(key)

    def lacks(self, key: str) -> bool:
        """Whether there is no such object. One that is left out exists."""
        with self._lock:
            return key not in self._objects and key not in self._out

    def list(self) -> Values[T]:
        with self._lock:
            return [*self._objects.values()]

    def by(self, index: str, value: str) -> Values[T]:
        """The objects for which the index named `index` gives `value`."""
        with self._lock:
            return [*self._indexed[index].get(value, {}).values()]

    def sizes(self, index: str) -> Mapping[str, int]:
        """The number of objects for each value that the index named `index` gives."""
        with self._lock:
            return {value: len(objects) for value, objects in self._indexed[index].items()}

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def broken(self) -> Mapping[str, str]:
        """The error of each object that is left out, by key."""
        return {partial.key: partial.error for partial in self.left_out}

    @property
    def left_out(self) -> Sequence[PartialObject]:
        """The objects that are left out, as far as they can be read."""
        with self._lock:
            return tuple(out.partial for out in self._out.values() if out.partial)

    def on_left_out(self, reporter: Callable[[PartialObject], None]) -> None:
        """Calls `reporter` for each object that is left out from now on."""
        self._reporters.append(reporter)

    def guard(self, value: T) -> ObjectGuard:
        return ObjectGuard(self, value)

    def readable(self, read: Callable[[T], object], values: Iterable[T] | None = None) -> Values[T]:
        """Those of the objects on which `read` does not raise; the others are left out."""
        readable: Values[T] = []
        for value in self.list() if values is None else values:
            with self.guard(value):
                read(value)
                readable.append(value)
        return readable

    def leave_out(self, value: Object, error: str) -> bool:
        """Leaves the object out until it changes or `retry`. False if this version is not in the cache."""
        with self._writes:
            known = self._objects.get(value.key)
            if known is None or known.metadata.resource_version != value.metadata.resource_version:
                return False
            partial = PartialObject.of_object(known, f"the broker failed on it: {error}")
            self._put(DecodedObject(known.key, self._versions[known.key], known, partial))
            return True

    def retry(self) -> None:
        """Takes back the objects that guards left out: the fault may have been elsewhere."""
        with self._writes:
            for key, out in [*self._out.items()]:
                if out.value is not None:
                    self._put(DecodedObject(key, out.version, out.value))

    def on_change(self, handler: Handler[T]) -> None:
        """Calls `handler(old, new)` after each change, and now for each object that is here."""
        with self._writes:
            self._handlers.append(handler)
            for value in self.list():
                self._notify([handler], value.key, None, value)

    def observe(self, raw: Raw) -> None:
        """Takes the response to a write of the broker, so that the next reconcile sees it.

        A response that the watch has already passed is older than the cache, and ignored.
        """
        key, version = key_of(raw), version_of(raw)
        with self._writes:
            known = self._versions.get(key)
            if known is None and (self._narrowed or version <= self._progress):
                return
            if version <= max(known or 0, self._gone.get(key, 0)):
                return
            if _ended(raw):
                self._gone[key] = version
                self._remove(key)
            else:
                self._own_versions.add(version)
                self._put(self._decode(key, version, raw))

    def written(self, raw: Raw) -> T:
        """The object after a write of the broker, as every reader sees it from now on."""
        self.observe(raw)
        known = self.find(key_of(raw))
        return known if known is not None and known.uid == raw["metadata"]["uid"] else self.model.decode(raw)

    def has_version(self, version: int) -> bool:
        """Whether this version, which the watch has not shown yet, is here: no other object has it."""
        return version in self._own_versions

    def reread(self, raws: Iterable[Raw]) -> None:
        """Takes objects also at the versions that are cached.

        After a change of its definition the API server shows an object otherwise at the same version. An
        open watch goes on for a moment under the old definition.
        """
        with self._writes:
            for raw in raws:
                key, version = key_of(raw), version_of(raw)
                read = self._decode(key, version, raw)
                if self._versions.get(key) == version and read.value != self._objects.get(key):
                    self._put(read)

    def apply(self, event: str, raw: Raw, *, read: Callable[[Raw], DecodedObject[T]] | None = None) -> None:
        """One event of the watch. `read` is that of the cache which may have decoded it already."""
        key, version = key_of(raw), version_of(raw)
        with self._writes:
            self.progress(version)
            if version < max(self._versions.get(key, 0), self._gone.get(key, 0)):
                return  # a later write of the broker is here already
            if event == "DELETED":
                self._remove(key)
            elif version != self._versions.get(key) or not version:
                self._put((read or self.read)(raw))

    def progress(self, version: int) -> None:
        """The watch has shown every change up to `version`."""
        with self._writes:
            self._progress = max(self._progress, version)
            if self._own_versions:
                self._own_versions = {at for at in self._own_versions if at > self._progress}
            if self._gone:
                self._gone = {key: at for key, at in self._gone.items() if at > self._progress}

    def read(self, raw: Raw) -> DecodedObject[T]:
        """Decodes one object of a list for `take`, so that the raw list need not be held until it is
        complete. An object that is here in this version is not decoded again."""
        key, version = key_of(raw), version_of(raw)
        with self._lock:
            if version and version == self._versions.get(key):
                return self._known(key)
        return self._decode(key, version, raw)

    def _known(self, key: str) -> DecodedObject[T]:
        """The object as it was decoded, also if it is left out."""
        out = self._out.get(key)
        value = self._objects[key] if out is None else out.value
        return DecodedObject(key, self._versions[key], value, out.partial if out and value is None else None)

    def begin_as(self, other: Cache[T]) -> None:
        """Takes all that another cache of the same collection has, as it was decoded."""
        with other._writes:
            reads = [other._known(key) for key in (*other._objects, *other._out)]
            progress, gone = other._progress, {**other._gone}
        with self._writes:
            self.take(reads, progress)
            self._gone = gone

    def replace(self, raws: Iterable[Raw], version: int) -> None:
        """A complete list at once."""
        self.take(map(self.read, raws), version)

    def take(self, reads: Iterable[DecodedObject[T]], version: int) -> None:
        """Takes a complete list; handlers run for the differences only."""
        listed = {read.key: read for read in reads}
        with self._writes:
            # A list older than the cache is another history: etcd was restored from a backup.
            rewound = version < self._progress
            if rewound:
                self._progress = 0
                self._gone.clear()
                self._own_versions.clear()
            for key, at in [*self._versions.items()]:
                if key not in listed and (rewound or at <= version):
                    self._remove(key)
            for key, read in listed.items():
                shown, known = read.version, self._versions.get(key, 0)
                if shown > max(known, self._gone.get(key, 0)) or not shown or (rewound and shown != known):
                    self._put(read)
            self.progress(version)

    def _put(self, read: DecodedObject[T]) -> None:
        key, partial, new = read.key, read.partial, None if read.partial else read.value
        entries = {} if new is None else self._values(key, new)
        if new is not None and entries is None:
            partial = PartialObject.of_object(new, "an index cannot read it; see the log")
            read, new = replace(read, partial=partial), None
        with self._lock:
            old = self._objects.pop(key, None)
            self._unindex(key, old)
            self._versions[key] = read.version
            self._out.pop(key, None)
            if partial is not None:
                self._out[key] = read
            if new is not None:
                self._objects[key] = new
                for name, values in (entries or {}).items():
                    for value in values:
                        self._indexed[name].setdefault(value, {})[key] = new
            self.revision += 1
        self._measure()
        if partial is not None:
            why = "a pass failed on it" if partial.decoded else "it cannot be decoded"
            log.warning(f"object left out: {why}", kind=self.resource, object=key, error=partial.error)
            for reporter in self._reporters:
                with guarded("left out", kind=self.resource, object=key):
                    reporter(partial)
        if old is not None or new is not None:
            self._notify(self._handlers, key, old, new)

    def _remove(self, key: str) -> None:
        with self._lock:
            old = self._objects.pop(key, None)
            self._unindex(key, old)
            self._versions.pop(key, None)
            self._out.pop(key, None)
            self.revision += 1
        self._measure()
        if old is not None:
            self._notify(self._handlers, key, old, None)

    def _decode(self, key: str, version: int, raw: Raw) -> DecodedObject[T]:
        try:
            return DecodedObject(key, version, decode(self.model, raw))
        except ValidationError as error:
            error_text = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or key}: {e['msg']}, got {shortened(e['input'], 100)}"
                for e in error.errors(include_url=False, include_context=False)[:REPORTED_FAULTS]
            )
        except Exception as error:  # noqa: BLE001 such as RecursionError: nothing in an object may stop the stream
            error_text = f"{type(error).__name__}: {error}"
        return DecodedObject(key, version, None, PartialObject.of_raw(self.model.KIND, raw, error_text))

    def _values(self, key: str, new: T) -> dict[str, frozenset[str]] | None:
        try:
            return {name: frozenset(values(new)) for name, values in self._indexes.items()}
        except Exception:
            with guarded("index", kind=self.resource, object=key):
                raise
        return None

    def _unindex(self, key: str, old: T | None) -> None:
        if old is None:
            return
        entries = self._values(key, old)
        for name, index in self._indexed.items():
            values = (value for value, objects in index.items() if key in objects)
            for value in frozenset(values) if entries is None else entries[name]:
                index[value].pop(key)
                if not index[value]:
                    del index[value]

    def _notify(self, handlers: Iterable[Handler[T]], key: str, old: T | None, new: T | None) -> None:
        for handler in [*handlers]:
            try:  # `guarded` is made for failures only: it costs time
                handler(old, new)
            except Exception:
                with guarded("handler", kind=self.resource, object=key):
                    raise

    @property
    def resource(self) -> str:
        """The kind in requests, such as `pods`, `nodeclaims.karpenter.sh`."""
        return self.model.KIND.resource

    def _measure(self) -> None:
        decoded, broken = self._sizes
        decoded.set(len(self._objects))
        broken.set(len(self._out))


class ObjectGuard(guarded):
    """Wraps the work on one object of many: after a panic the object is left out, and the others go on.

    A failure outside the broker, such as of the API server, shows nothing about the object: it is raised.
    """

    def __init__(self, cache: Cache[Any], value: Object) -> None:
        super().__init__("object")
        self._cache, self._value = cache, value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or isinstance(error, EXPECTED):
            return False
        self._context = {"kind": self._cache.resource, "object": self._value.key}
        stopped = super().__exit__(kind, error, trace)
        if stopped:
            self._cache.leave_out(self._value, self.error)
        return stopped


def key_of(raw: Raw) -> str:
    """The `Object.key` of an object that is not decoded."""
    meta = raw["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def version_of(raw: Raw) -> int:
    return number(raw["metadata"].get("resourceVersion", ""))


def number(resource_version: str) -> int:
    """0 for a version that is no number: then versions cannot be compared, and the last one is taken."""
    return int(resource_version) if resource_version.isdigit() else 0


def _ended(raw: Raw) -> bool:
    """Whether this answer was the object's last: the write took the last thing away that kept it."""
    meta = raw["metadata"]
    waits = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
    return bool(meta.get("deletionTimestamp")) and not waits
