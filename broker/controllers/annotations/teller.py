"""Reports annotations that have no effect, or that name a missing reservation, on their object.

Invariant: each finding is reported once as a Warning event on its object, again if the message changes, and
nothing else is written. A claim with an annotation that names no reservation is entitled to no owned slot
(`Entitlements.barred`), so it never takes a slot of another owner. The annotation of a DedicatedAICluster's
own claims is reported on the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from broker.apis import names, spelling
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.kueue import Namespace
from broker.apis.meta import Object
from broker.kube.cache import Cache
from broker.kube.events import Recorder
from broker.quota.resolve import Names, UnresolvedName
from broker.quota.usage import Reserved

Said = tuple[tuple[str, str], ...]  # reason and message of each event
Key = tuple[str, str]  # kind, key
EVERYBODY: Final = ("", "")  # all objects that draw from a reservation
# Written on a claim by the broker itself at each launch.
_WRITTEN: Final = frozenset({names.LAUNCH, names.ATTEMPTS})
WITHOUT: Final = "no slot that belongs to a reservation is for it"


class AnnotationReporter:
    """Reports findings as events. `run` takes the objects with changed annotations. One thread."""

    def __init__(
        self,
        caches: Mapping[str, Cache[Any]],
        reserved: Callable[[], Sequence[Reserved]],
        *,
        recorder: Recorder,
    ) -> None:
        """`caches` by kind."""
        self._caches = caches
        self._reserved = reserved
        self._recorder = recorder
        self._told: dict[Key, tuple[str, Said]] = {}  # by object: its uid, and the reported findings

    def run(self, keys: Sequence[Key]) -> None:
        due = [key for key in keys if key != EVERYBODY]
        if EVERYBODY in keys:
            due += self._drawing()
        reserved = self._reserved()
        # A Namespace can draw only from a reservation without a namespace.
        known = {True: Names(each for each in reserved if not each.namespace), False: Names(reserved)}
        for kind, key in dict.fromkeys(due):
            self._look(kind, key, known[kind == Namespace.KIND.kind])

    def _look(self, kind: str, key: str, known: Names) -> None:
        one = self._caches[kind].find(key)
        if one is None or one.deleting:
            self._told.pop((kind, key), None)
            return
        said = tuple(_said(one, known))
        before = self._told.get((kind, key), ("", ()))
        for each in said:
            if (before[0] != one.uid) or each not in before[1]:
                self._recorder.event(one, "Warning", *each)
        if said:
            self._told[kind, key] = (one.uid, said)
        else:
            self._told.pop((kind, key), None)

    def _drawing(self) -> Iterator[Key]:
        for kind, cache in self._caches.items():
            if names.DRAWS_FROM in names.ANNOTATIONS[kind]:
                yield from ((kind, one.key) for one in cache.list() if names.DRAWS_FROM in _given(one))


def ours(one: Object | None) -> Mapping[str, str]:
    """User annotations in the broker's domain; of a pool, its template's, too."""
    if one is None:
        return {}
    given = {**one.annotations, **_given(one)} if isinstance(one, NodePool) else one.annotations
    return {
        key: value for key, value in given.items() if key.startswith(spelling.PREFIX) and key not in _WRITTEN
    }


def _given(one: Object) -> Mapping[str, str]:
    """The annotations that have an effect: a pool's are those of its claims."""
    return one.spec.template.metadata.annotations if isinstance(one, NodePool) else one.annotations


def _said(one: Object, known: Names) -> Iterator[tuple[str, str]]:
    found = (
        spelling.of_pool(one.annotations, _given(one))
        if isinstance(one, NodePool)
        else spelling.misspelt(one.KIND.kind, one.annotations)
    )
    for each in found:
        yield spelling.REASON, each.message
    draws = _given(one).get(names.DRAWS_FROM)
    if draws is None or (isinstance(one, NodeClaim) and names.DEDICATED in one.labels):
        return
    given = known.resolve(draws)
    if isinstance(given, UnresolvedName):
        without = "its workloads have no queue" if isinstance(one, Namespace) else WITHOUT
        yield (
            given.reason,
            f"annotation {names.DRAWS_FROM} is {draws!r}: {given.message}; until then {without}",
        )
