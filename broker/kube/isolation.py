"""Keeps one object from stopping a pass over all of them.

A pass decides for many objects at once. When it panics, the traceback names the objects that it may have
failed on. Each in turn is left out of its cache, like an object that cannot be decoded, and the pass runs
again. An object comes back at once if the pass fails without it too. Otherwise it stays left out, is
counted, and an event on it gives the error. A new version of the object is read as any other. The same
version is tried again after a while, since the fault may have passed.

Invariant: no pass has a guard of its own for each kind that it reads, so none can be forgotten. If a panic
persists with every suspect left out, nothing stays left out: the panic is logged and counted, and the pass
is repeated with back-off.
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
TRIED: Final = 16  # suspects of one panic that are left out by turns
RUNS: Final = 64  # of one pass before it backs off
RETRY: Final = 300.0  # seconds until an object that a pass left out is tried again as it is

LEFT_OUT = Counter(
    "capacity_broker_objects_left_out",
    "Objects left out of every decision, by cause: decoding, or a pass (once each time).",
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

    def search(self, panic: Panic, run: Run, about: str) -> Panic | None:
        """Runs the pass until it fails on no object that can be left out; returns the panic that remains.

        `about`: the key of the object that is reconciled. It backs off by itself, and stops no other.
        """
        waits = not self._searching.acquire(blocking=False)
        if waits:
            self._searching.acquire()
        try:
            left: Panic | None = panic
            # Another pass may have left out the object that this one failed on.
            if waits or self._known(panic):
                left = run()
            if left is None or self._known(left):
                return left  # the pass still holds the object that is left out, and drops it before long
            search = _Search(self._caches, run, about, self._clock.monotonic())
            left = search.through(left)
            for out in search.left_out:
                if any(left_out is partial for cache, partial in out.left for left_out in cache.left_out):
                    self._report(out.left[0][1])
            return left
        finally:
            self._searching.release()

    def leave_out(self, suspect: Object, error: str) -> bool:
        """Whether the object was in a cache and is left out from now on."""
        now = self._clock.monotonic()
        partials = [cache.leave_out(suspect, _because(error), now) for cache in self._caches]
        for partial in filter(None, partials):
            self._report(partial)
        return any(partials)

    def _known(self, panic: Panic) -> bool:
        """Whether a suspect is left out already."""
        uids = {uid for suspect in panic.suspects if (uid := getattr(suspect, "uid", ""))}
        return any(partial.uid in uids for cache in self._caches for partial in cache.left_out)

    def readmit(self) -> None:
        """Brings back objects that were left out long enough ago."""
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
class _LeftOut:
    """An object that is left out for a panic; not `sure`: the pass failed so again, on another then."""

    where: Where
    value: Any
    left: Sequence[tuple[Cache[Any], PartialObject]]  # more than one where several caches have it
    sure: bool


class _Search:
    """The search of one pass. `left_out`: the objects that it fails on, as far as they are known."""

    def __init__(self, caches: Iterable[Cache[Any]], run: Run, about: str, now: float) -> None:
        self._caches = tuple(caches)
        self._run = run
        self._about = about
        self._now = now
        self._runs = 0
        self._alike: dict[Where, Kind] = {}  # failures of several objects, and of which kind these may be
        self.left_out: list[_LeftOut] = []

    def through(self, panic: Panic | None) -> Panic | None:
        """Leaves out one object after another; the panic that is left."""
        goes_on = True
        while panic is not None and goes_on and self._runs < RUNS:
            suspects = self._cached_suspects(panic)
            kind = None if self._alone(panic, suspects) else self._alike.get(panic.where)
            alike = next((suspect for suspect in suspects if kind == suspect.KIND), None)
            if alike is not None and self._leave_out(alike, panic, sure=False):
                panic = self._rerun()
            else:
                goes_on, panic = self._leave_out_in_turn(suspects, panic)
        return panic if panic is not None else self._bring_back_unsure()

    def _bring_back_unsure(self) -> Panic | None:
        """Brings back the objects without which the pass does no better, of those that were not certain."""
        panic: Panic | None = None
        unsure = [out for out in self.left_out if not out.sure]
        one_by_one = len(unsure) <= TRIED
        for (where, _, _), entries in groupby(
            unsure, key=lambda o: (o.where, one_by_one and o, o.value.KIND)
        ):
            group = [*entries]
            if len(group) == len([out for out in self.left_out if out.where == where]):
                continue  # without them it would fail so
            self._bring_back(group)
            if (panic := self._rerun()) is None:
                continue
            for out in group:
                self._leave_out(out.value, panic)
        return panic and self._rerun()

    def _leave_out_in_turn(self, suspects: Sequence[Any], panic: Panic) -> tuple[bool, Panic | None]:
        """Leaves out the one without which the pass does not fail so; whether to go on, and how it ended."""
        uids_before = {value.uid for value in suspects}
        remembered: list[Any] = []  # the pass still has them from elsewhere, and forgets them before long
        alike: list[Any] = []  # without them it fails so on others that come with the same ones
        otherwise: list[Any] = []  # without them it fails elsewhere, which may be because they are absent
        alone = self._alone(panic, suspects)
        for suspect in suspects[:TRIED]:
            if not self._leave_out(suspect, panic, sure=not alone):
                continue
            after = self._rerun()
            if after is None:
                return True, None
            if (
                alone
                and suspect is suspects[0]
                and not _named(after, suspect)
                and self._cached_suspects(after)
            ):
                return True, after  # now it is about another
            now = {value.uid for value in self._cached_suspects(after)}
            others = uids_before - {suspect.uid}
            if after.where != panic.where and (now or after.where[0] != panic.where[0]):
                otherwise.append(suspect)
            elif now and (not others or not others <= now):
                return True, after  # it fails so on others
            elif _named(after, suspect):
                if alone and suspect is suspects[0]:
                    return False, after
                remembered.append(suspect)
            elif now - uids_before:
                alike.append(suspect)
            self._bring_back(self.left_out[-1:])
        if alike:
            self._alike[panic.where] = alike[0].KIND
        for suspect in (*otherwise, *alike):
            if self._leave_out(suspect, panic, sure=False):
                return True, self._rerun()
        if not remembered or not self._leave_out(remembered[0], panic):
            self._give_up(panic)
        return False, panic

    def _leave_out(self, suspect: Any, panic: Panic, *, sure: bool = True) -> bool:
        left = [
            (cache, partial)
            for cache in self._caches
            if (partial := cache.leave_out(suspect, _because(panic.error), self._now)) is not None
        ]
        if left:
            self.left_out.append(_LeftOut(panic.where, suspect, left, sure))
        return bool(left)

    def _rerun(self) -> Panic | None:
        self._runs += 1
        return self._run()

    def _alone(self, panic: Panic, suspects: Sequence[Any]) -> bool:
        """Whether the innermost code had the first of the suspects in its hands, and no other object."""
        return panic.nearest == 1 and bool(suspects) and _named(panic, suspects[0])

    def _give_up(self, panic: Panic) -> None:
        """Brings back the objects that were left out for a panic that persists without them."""
        like = panic.where if self._cached_suspects(panic) else panic.where[:1]
        self._bring_back([out for out in self.left_out if out.where[: len(like)] == like])

    def _bring_back(self, entries: Sequence[_LeftOut]) -> None:
        for out in entries:
            for cache, partial in out.left:
                cache.bring_back(partial)
        self.left_out = [out for out in self.left_out if out not in entries]

    def _cached_suspects(self, panic: Panic) -> list[Any]:
        """The suspects that are in a cache, up to the one that the pass is about."""
        texts = {text for text in panic.suspects if isinstance(text, str)}
        uids = {uid for suspect in panic.suspects if (uid := getattr(suspect, "uid", ""))}
        named: dict[object, list[Any]] = {}
        for cache in self._caches:
            for value in cache.list():
                if value.uid in uids:
                    named.setdefault(value.uid, []).append(value)
                for text in _written(value) & texts:
                    named.setdefault(text, []).append(value)
        cached: list[Any] = []
        for suspect in panic.suspects:
            same = suspect if isinstance(suspect, str) else getattr(suspect, "uid", "")
            for value in named.get(same, ()):
                if value.key == self._about:
                    return cached
                if all(value.uid != other.uid for other in cached):
                    cached.append(value)
        return cached


def _named(panic: Panic, value: Any) -> bool:
    return any(getattr(suspect, "uid", "") == value.uid for suspect in panic.suspects)


def _written(value: Object) -> set[str]:
    """How an object is written elsewhere; `namespace--name` is the queue of a reservation."""
    written = {value.uid, value.key, f"{value.KIND.kind} {value.key}", f"{value.namespace}--{value.name}"}
    return written - {""}


def _because(error: str) -> str:
    return f"the broker failed on it: {error}"
