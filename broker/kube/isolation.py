"""Keeps one object from stopping a pass over all of them.

A pass decides for many objects at once. When it raises what no code expected, the objects that it may have
failed on are found in the traceback. One after another is left out of its cache, as one that cannot be
decoded is, and the pass runs again. What it fails without all the same comes back at once; what it no longer
fails without stays left out, is counted, and an event on it says why. A new version of the object is read as
any other; the same version is tried again after a while, since the fault may have passed.

Invariant: no pass has a guard of its own for each kind that it reads, so none can be forgotten. A failure
that goes on whatever is left out leaves nothing out: it is logged, counted, and the pass is repeated with
back-off.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import structlog
from prometheus_client import Counter

from broker.apis.meta import Kind, Object
from broker.kube.cache import Cache
from broker.kube.clock import Clock
from broker.kube.controller import Run
from broker.kube.events import Recorder, Reference
from broker.kube.metrics import REGISTRY
from broker.kube.partial import PartialObject
from broker.kube.suspects import Panic

REASON: Final = "LeftOut"
TRIED: Final = 16  # suspects of one failure that are left out by turns
RUNS: Final = 64  # of one pass before it backs off
RETRY: Final = 300.0  # seconds until an object that a pass left out is tried again as it is

LEFT_OUT = Counter(
    "capacity_broker_objects_left_out",
    "Objects left out of every decision, by what they failed: decoding, or a pass (once each time).",
    ["kind", "why"],
    registry=REGISTRY,
)

Where = tuple[object, ...]

_log = structlog.get_logger(__name__)


class Isolation:
    """Of one broker: its caches, and the recorder that events go through."""

    def __init__(self, caches: Iterable[Cache[Any]], recorder: Recorder, *, clock: Clock) -> None:
        self._caches: list[Cache[Any]] = []
        self._recorder = recorder
        self._clock = clock
        self._searching = threading.Lock()  # held by one pass: another's trials would mislead it
        for cache in caches:
            self.include(cache)

    def include(self, cache: Cache[Any]) -> None:
        """Before anything runs."""
        self._caches.append(cache)
        cache.on_left_out(self._report)

    def search(self, failure: Panic, run: Run, about: str) -> Panic | None:
        """Runs it until it fails on nothing that can be left out; the failure that is left.

        `about`: the key of the object whose reconcile it is. It backs off by itself, and stops no other.
        """
        waits = not self._searching.acquire(blocking=False)
        if waits:
            self._searching.acquire()
        try:
            left: Panic | None = failure
            if waits or self._known(failure):  # another pass may have left out what this one failed on
                left = run()
            if left is None or self._known(left):
                return left  # the pass remembers what is left out, and forgets it before long
            search = _Search(self._caches, run, about, self._clock.monotonic())
            left = search.through(left)
            for out in search.left_out:
                if any(each is partial for cache, partial in out.left for each in cache.left_out):
                    self._report(out.left[0][1])
            return left
        finally:
            self._searching.release()

    def leave_out(self, suspect: Object, error: str) -> bool:
        """Whether the object was in a cache and is left out from now on."""
        now = self._clock.monotonic()
        found = [cache.leave_out(suspect, _because(error), now) for cache in self._caches]
        for partial in filter(None, found):
            self._report(partial)
        return any(found)

    def _known(self, failure: Panic) -> bool:
        """Whether a suspect is left out already."""
        uids = {uid for each in failure.suspects if (uid := getattr(each, "uid", ""))}
        return any(partial.uid in uids for cache in self._caches for partial in cache.left_out)

    def readmit(self) -> None:
        """Takes back what was left out long enough ago."""
        for cache in self._caches:
            cache.readmit(self._clock.monotonic() - RETRY)

    def _report(self, partial: PartialObject) -> None:
        if partial.since is not None:
            _log.warning(
                "object left out: a pass failed on it", kind=partial.kind.resource, object=partial.key
            )
        LEFT_OUT.labels(partial.kind.resource, "decoding" if partial.since is None else "pass").inc()
        about = Reference(
            api_version=partial.kind.api_version,
            kind=partial.kind.kind,
            name=partial.name,
            namespace=partial.namespace,
            uid=partial.uid,
        )
        message = (
            f"the broker takes no account of this {partial.kind.kind} until it is changed: {partial.error}"
        )
        self._recorder.event(about, "Warning", REASON, message)


@dataclass(frozen=True, slots=True, eq=False)
class _Out:
    """An object that is left out for a failure; not `sure`: the pass failed so again, on another then."""

    where: Where
    value: Any
    left: Sequence[tuple[Cache[Any], PartialObject]]  # more than one where several caches have it
    sure: bool


class _Search:
    """Of one pass. `left_out`: what it fails on, as far as it is known."""

    def __init__(self, caches: Iterable[Cache[Any]], run: Run, about: str, now: float) -> None:
        self._caches = tuple(caches)
        self._run = run
        self._about = about
        self._now = now
        self._runs = 0
        self._alike: dict[Where, Kind] = {}  # failures of several objects, and of which kind these may be
        self.left_out: list[_Out] = []

    def through(self, failure: Panic | None) -> Panic | None:
        """Leaves out one object after another; the failure that is left."""
        goes_on = True
        while failure is not None and goes_on and self._runs < RUNS:
            suspects = self._found(failure)
            kind = None if self._alone(failure, suspects) else self._alike.get(failure.where)
            alike = next((found for found in suspects if kind == found.KIND), None)
            if alike is not None and self._leave_out(alike, failure, sure=False):
                failure = self._again()
            else:
                goes_on, failure = self._by_turns(suspects, failure)
        return failure if failure is not None else self._spare()

    def _spare(self) -> Panic | None:
        """Brings back what the pass would do as well with, of what it was not sure of."""
        failure: Panic | None = None
        unsure = [out for out in self.left_out if not out.sure]
        one_by_one = len(unsure) <= TRIED
        for (where, _, _), some in groupby(unsure, key=lambda o: (o.where, one_by_one and o, o.value.KIND)):
            group = [*some]
            if len(group) == len([out for out in self.left_out if out.where == where]):
                continue  # without them it would fail so
            self._bring_back(group)
            if (failure := self._again()) is None:
                continue
            for out in group:
                self._leave_out(out.value, failure)
        return failure and self._again()

    def _by_turns(self, suspects: Sequence[Any], failure: Panic) -> tuple[bool, Panic | None]:
        """Leaves out the one without which the pass does not fail so; whether to go on, and how it ended."""
        there = {value.uid for value in suspects}
        remembered: list[Any] = []  # the pass still has them from elsewhere, and forgets them before long
        alike: list[Any] = []  # without them it fails so on others that come with the same ones
        otherwise: list[Any] = []  # without them it fails elsewhere, which may be for want of them
        alone = self._alone(failure, suspects)
        for found in suspects[:TRIED]:
            if not self._leave_out(found, failure, sure=not alone):
                continue
            after = self._again()
            if after is None:
                return True, None
            if alone and found is suspects[0] and not _named(after, found) and self._found(after):
                return True, after  # now it is about another
            now = {value.uid for value in self._found(after)}
            others = there - {found.uid}
            if after.where != failure.where and (now or after.where[0] != failure.where[0]):
                otherwise.append(found)
            elif now and (not others or not others <= now):
                return True, after  # it fails so on others
            elif _named(after, found):
                if alone and found is suspects[0]:
                    return False, after
                remembered.append(found)
            elif now - there:
                alike.append(found)
            self._bring_back(self.left_out[-1:])
        if alike:
            self._alike[failure.where] = alike[0].KIND
        for found in (*otherwise, *alike):
            if self._leave_out(found, failure, sure=False):
                return True, self._again()
        if not remembered or not self._leave_out(remembered[0], failure):
            self._give_up(failure)
        return False, failure

    def _leave_out(self, found: Any, failure: Panic, *, sure: bool = True) -> bool:
        left = [
            (cache, partial)
            for cache in self._caches
            if (partial := cache.leave_out(found, _because(failure.error), self._now)) is not None
        ]
        if left:
            self.left_out.append(_Out(failure.where, found, left, sure))
        return bool(left)

    def _again(self) -> Panic | None:
        self._runs += 1
        return self._run()

    def _alone(self, failure: Panic, suspects: Sequence[Any]) -> bool:
        """Whether the innermost code had the first of the suspects in its hands, and no other object."""
        return failure.nearest == 1 and bool(suspects) and _named(failure, suspects[0])

    def _give_up(self, failure: Panic) -> None:
        """Brings back what was left out for a failure that goes on without it."""
        like = failure.where if self._found(failure) else failure.where[:1]
        self._bring_back([out for out in self.left_out if out.where[: len(like)] == like])

    def _bring_back(self, some: Sequence[_Out]) -> None:
        for out in some:
            for cache, partial in out.left:
                cache.bring_back(partial)
        self.left_out = [out for out in self.left_out if out not in some]

    def _found(self, failure: Panic) -> list[Any]:
        """The suspects that are in a cache, up to the one that the pass is about."""
        texts = {text for text in failure.suspects if isinstance(text, str)}
        uids = {uid for each in failure.suspects if (uid := getattr(each, "uid", ""))}
        named: dict[object, list[Any]] = {}
        for cache in self._caches:
            for value in cache.list():
                if value.uid in uids:
                    named.setdefault(value.uid, []).append(value)
                for text in _written(value) & texts:
                    named.setdefault(text, []).append(value)
        found: list[Any] = []
        for suspect in failure.suspects:
            same = suspect if isinstance(suspect, str) else getattr(suspect, "uid", "")
            for value in named.get(same, ()):
                if value.key == self._about:
                    return found
                if all(value.uid != other.uid for other in found):
                    found.append(value)
        return found


def _named(failure: Panic, value: Any) -> bool:
    return any(getattr(each, "uid", "") == value.uid for each in failure.suspects)


def _written(value: Object) -> set[str]:
    """How an object is written elsewhere; `namespace--name` is the queue of a reservation."""
    written = {value.uid, value.key, f"{value.KIND.kind} {value.key}", f"{value.namespace}--{value.name}"}
    return written - {""}


def _because(error: str) -> str:
    return f"the broker failed on it: {error}"
