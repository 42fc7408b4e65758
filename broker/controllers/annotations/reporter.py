"""Reports annotations that have no effect, or that name a missing reservation, on their object.

Invariant: each finding is reported once as a Warning event on its object, again if the message changes, and
nothing else is written. A claim with an annotation that names no reservation is entitled to no owned slot
(`Entitlements.barred`), so it never takes a slot of another owner. The annotation of a DedicatedAICluster's
own claims is reported on the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from broker.apis import names, spelling
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.kueue import Namespace
from broker.apis.meta import Object
from broker.kube.cache import Cache
from broker.kube.controller import Result
from broker.kube.events import Recorder
from broker.kube.panics import guarded
from broker.quota.resolve import UnresolvedName
from broker.reservations.drawing import DrawRights, namespaces_of

Findings = tuple[tuple[str, str], ...]  # reason and message of each event
Key = tuple[str, str]  # kind, key
DRAWING: Final = ("", "")  # all objects that draw from a reservation
NO_QUEUE: Final = "NamespaceWithoutQueue"
NO_OWNED_SLOT: Final = "no slot that belongs to a reservation is for"


class AnnotationReporter:
    """Reports findings as events. `run` takes the objects with changed annotations. One thread."""

    def __init__(
        self,
        caches: Mapping[str, Cache[Any]],
        rights: Callable[[], DrawRights],
        *,
        kueue: Callable[[], bool],
        recorder: Recorder,
    ) -> None:
        """`caches` by kind. `kueue`: whether Kueue is installed."""
        self.caches = caches
        self._rights = rights
        self._kueue = kueue
        self._recorder = recorder
        self._reported: dict[Key, tuple[str, Findings]] = {}  # by object: its uid, and the reported findings

    def run(self, keys: Sequence[Key]) -> Result | None:
        due = [key for key in keys if key != DRAWING]
        if DRAWING in keys:
            due += self._drawing()
        rights = self._rights()
        for kind, key in dict.fromkeys(due):
            with guarded("annotations", kind=kind, object=key):
                self._report(kind, key, rights)
        return None

    def _report(self, kind: str, key: str, rights: DrawRights) -> None:
        obj = self.caches[kind].find(key)
        if obj is None or obj.deleting:
            self._reported.pop((kind, key), None)
            return
        findings = tuple(_findings(obj, rights, kueue=self._kueue()))
        reported = self._reported.get((kind, key), ("", ()))
        for finding in findings:
            if (reported[0] != obj.uid) or finding not in reported[1]:
                self._recorder.event(obj, "Warning", *finding)
        if findings:
            self._reported[kind, key] = (obj.uid, findings)
        else:
            self._reported.pop((kind, key), None)

    def _drawing(self) -> Iterator[Key]:
        for kind, cache in self.caches.items():
            if names.DRAWS_FROM in names.ANNOTATIONS[kind]:
                yield from ((kind, obj.key) for obj in cache.list() if names.DRAWS_FROM in _effective(obj))


def user_annotations(obj: Object | None) -> Mapping[str, str]:
    """User annotations in the broker's domain; of a pool, its template's, too."""
    if obj is None:
        return {}
    written = names.WRITTEN_BY_BROKER.get(obj.KIND.kind, ())
    annotations = {**obj.annotations, **_effective(obj)} if isinstance(obj, NodePool) else obj.annotations
    return {
        key: value
        for key, value in annotations.items()
        if key.startswith(spelling.PREFIX) and key not in written
    }


def _effective(obj: Object) -> Mapping[str, str]:
    """The annotations that have an effect: a pool's are those of its claims."""
    return obj.spec.template.metadata.annotations if isinstance(obj, NodePool) else obj.annotations


def _drawing_namespaces(obj: Object) -> Collection[str]:
    """The namespaces for which the object names a reservation. A pool's is judged with each of its claims."""
    if isinstance(obj, NodeClaim):
        return namespaces_of(obj)
    return (obj.name,) if isinstance(obj, Namespace) else ()


def _findings(obj: Object, rights: DrawRights, *, kueue: bool) -> Iterator[tuple[str, str]]:
    misspelt = (
        spelling.of_pool(obj.annotations, _effective(obj))
        if isinstance(obj, NodePool)
        else spelling.misspelt(obj.KIND.kind, obj.annotations)
    )
    for problem in misspelt:
        yield spelling.REASON, problem.message
    draws = _effective(obj).get(names.DRAWS_FROM)
    if draws is None or (isinstance(obj, NodeClaim) and names.DEDICATED in obj.labels):
        return
    named = rights.named_for(obj.name, draws) if isinstance(obj, Namespace) else draws
    reserved = rights.decide(named, _drawing_namespaces(obj))
    if isinstance(reserved, UnresolvedName):
        without = f"{NO_OWNED_SLOT} it"
        if isinstance(obj, Namespace):
            without = f"{'its workloads have no queue, and ' if kueue else ''}{NO_OWNED_SLOT} its pods"
        yield (
            reserved.reason,
            f"annotation {names.DRAWS_FROM} is {draws!r}: {reserved.message}; until then {without}",
        )
    elif kueue and isinstance(obj, Namespace) and reserved.namespace not in ("", obj.name):
        yield (
            NO_QUEUE,
            f"annotation {names.DRAWS_FROM} is {draws!r}: the pods draw from CapacityReservation {reserved}, "
            "but workloads have a queue of a ClusterCapacityReservation only: name one if they need a queue",
        )
