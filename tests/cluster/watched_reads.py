"""Records the kinds that each loop reads, how often it lists them, and the kinds that wake it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any, Final

import pytest

from broker.apis.core import ResourceQuota
from broker.apis.kueue import ClusterQueue, Cohort, Namespace, ResourceFlavor, Workload
from broker.apis.meta import Object
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.reservation_reads import SnapshotBuilder
from broker.controllers.snapshot import Snapshot
from broker.kube import controller, singleton
from broker.kube.cache import Cache
from broker.kube.informer import Informer
from broker.kube.watches import Watches

READS: Final = ("get", "find", "lacks", "list", "by", "__len__", "left_out")
# The kinds behind each field of a snapshot.
FIELDS: Final[Mapping[str, tuple[type[Object], ...]]] = {
    "reservations": (CapacityReservation, ClusterCapacityReservation),
    "flavors": (ResourceFlavor,),
    "quotas": (ResourceQuota,),
    "clusters": (DedicatedAICluster,),
    "queues": (ClusterQueue,),
    "workloads": (Workload,),
    "namespaces": (Namespace,),
    "cohorts": (Cohort,),
}


class WatchedReads:
    """`reads`: the kinds that a pass of each loop has read; `watches`: those that wake it.

    `passes` of each loop, and how often it `listed` all objects of a kind.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reads: dict[str, set[str]] = defaultdict(set)
        self.watches: dict[str, set[str]] = defaultdict(set)
        self.passes: Counter[str] = Counter()
        self.listed: Counter[tuple[str, str]] = Counter()
        self._loop: ContextVar[str] = ContextVar("loop", default="")
        # The kinds behind the values that a snapshot computes once, for whichever loop is first.
        self._computed: dict[str, set[str]] = {
            name: {model.KIND.resource for model in models} for name, models in FIELDS.items()
        }
        self._computing: ContextVar[tuple[set[str], ...]] = ContextVar("computing", default=())
        self._record_passes(patch)
        self._record_reads(patch)
        self._record_watches(patch)

    def unwatched(self) -> dict[str, set[str]]:
        """The kinds that a loop reads and that do not wake it, by loop."""
        left = {loop: kinds - self.watches[loop] for loop, kinds in self.reads.items()}
        return {loop: kinds for loop, kinds in left.items() if kinds}

    def _read(self, kinds: Iterable[str]) -> None:
        if loop := self._loop.get():
            self.reads[loop].update(kinds)
        for computing in self._computing.get():
            computing.update(kinds)

    def _within(self, loop: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def within(*args: Any, **more: Any) -> Any:
            before = self._loop.set(loop)
            try:
                return call(*args, **more)
            finally:
                self._loop.reset(before)

        return within

    def _record_passes(self, patch: pytest.MonkeyPatch) -> None:
        """A pass, with the threads to which it gives work; without the handlers of what it writes."""
        attempt, submit, notify = controller.attempt, ThreadPoolExecutor.submit, Cache._notify

        def attempted(name: str, work: Callable[[], Any], **more: Any) -> Any:
            self.passes[name] += 1
            return attempt(name, self._within(name, work), **more)

        def submitted(pool: ThreadPoolExecutor, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
            return submit(pool, copy_context().run, call, *args, **more)

        for module in (controller, singleton):
            patch.setattr(module, "attempt", attempted)
        patch.setattr(ThreadPoolExecutor, "submit", submitted)
        patch.setattr(Cache, "_notify", self._within("", notify))

    def _record_reads(self, patch: pytest.MonkeyPatch) -> None:
        def recorded(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
            def reading(cache: Cache[Any], *args: Any) -> Any:
                self._read({_kind(cache)})
                if name == "list" and (loop := self._loop.get()):
                    self.listed[loop, _kind(cache)] += 1
                return read(cache, *args)

            return reading

        for name in READS:
            read = vars(Cache)[name]
            if isinstance(read, property):
                assert read.fget is not None
                patch.setattr(Cache, name, property(recorded(name, read.fget)))
            else:
                patch.setattr(Cache, name, recorded(name, read))

        def attribute(snapshot: Snapshot, name: str) -> Any:
            if name.startswith("__"):
                return object.__getattribute__(snapshot, name)
            kinds: set[str] = set()
            before = self._computing.set((*self._computing.get(), kinds))
            try:
                value = object.__getattribute__(snapshot, name)
            finally:
                self._computing.reset(before)
            self._computed.setdefault(name, set()).update(kinds)
            self._read(self._computed[name])
            return value

        # A builder reads all kinds for whichever loop is first; a pass reads the fields that it needs.
        patch.setattr(SnapshotBuilder, "take", self._within("", SnapshotBuilder.take))
        patch.setattr(Snapshot, "__getattribute__", attribute, raising=False)

    def _record_watches(self, patch: pytest.MonkeyPatch) -> None:
        watches, on = Watches.watches, Watches.on

        def watched(loop: Any, source: Informer[Any] | Cache[Any], *args: Any, **more: Any) -> Any:
            self.watches[loop.name].add(_kind(source.cache if isinstance(source, Informer) else source))
            return watches(loop, source, *args, **more)

        def subscribed(loop: Any, subscribe: Callable[..., None], *args: Any) -> Any:
            return on(loop, lambda handler: subscribe(self._within("", handler)), *args)

        patch.setattr(Watches, "watches", watched)
        patch.setattr(Watches, "on", subscribed)


def _kind(cache: Cache[Any]) -> str:
    return str(cache.model.KIND.resource)
