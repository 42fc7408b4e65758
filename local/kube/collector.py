"""The two controllers that clean up in a cluster: garbage collection and namespaces.

A bare API server does neither. An object stays when its owner goes, `foregroundDeletion` and `orphan` are
never removed, a deleted namespace stays Terminating. Start a `Collector` where that matters.
Departures from kube-controller-manager: owners are looked up in the store itself, so nothing waits for
caches. A namespace's content goes at once, pods that run on nodes included.
Rule: https://kubernetes.io/docs/concepts/architecture/garbage-collection/
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Self

from local.kube.cluster import Cluster
from local.kube.deletes import FOREGROUND, ORPHAN, delete
from local.kube.kinds.namespaces import FINALIZER
from local.kube.options import DeleteOptions
from local.kube.resources import Resource
from local.kube.store import Item, Key, StoreEvent
from local.kube.wire import Obj

Place = tuple[str, Key]  # (storage, key)
_NAMESPACES = "namespaces."
_AT_ONCE = DeleteOptions(grace=0)


class Collector:
    """Tidies up in its own thread from `start` to `stop`, or by a test's call of `collect`."""

    def __init__(self, cluster: Cluster) -> None:
        self._state = cluster.state
        self._wake, self._stopping = threading.Event(), False
        self._thread: threading.Thread | None = None
        self._uids: dict[str, Place] = {}
        self._owned: dict[str, set[Place]] = {}  # owner's uid → its dependents
        self._dirty: dict[Place, None] = {}
        with self._state.store.lock:
            for storage, key, item in self._state.store.everything():
                self._seen(storage, key, item, gone=False)
            self._state.store.on_change(self._changed)

    def start(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self._thread.start()
        self._wake.set()
        return self

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            if not self._stopping:
                self.collect()

    def collect(self) -> None:
        """Handles every change, and the changes that follow from it, until none is left."""
        while self._dirty:
            with self._state.store.lock:
                place = next(iter(self._dirty), None)
                if place is not None:
                    del self._dirty[place]
                    self._collect_one(*place)

    def _changed(self, storage: str, event: StoreEvent) -> None:
        self._seen(storage, event.key, event.item, gone=event.type == "DELETED")
        if self._dirty:
            self._wake.set()

    def _seen(self, storage: str, key: Key, item: Item, *, gone: bool) -> None:
        """Records an object among owners and dependents, and queues the objects that this affects."""
        meta, place = item.obj["metadata"], (storage, key)
        owners = [owner["uid"] for owner in meta.get("ownerReferences") or ()]
        if gone:
            self._uids.pop(meta["uid"], None)
            for uid in owners:
                self._owned.get(uid, set()).discard(place)
            self._mark(self._owned.pop(meta["uid"], ()))
            self._mark(self._uids[uid] for uid in owners if uid in self._uids)
            self._mark([(_NAMESPACES, ("", key[0]))] if key[0] else ())
            return
        self._uids[meta["uid"]] = place
        for uid in owners:
            self._owned.setdefault(uid, set()).add(place)
        if owners or meta.get("deletionTimestamp"):
            self._mark([place])

    def _mark(self, places: Iterable[Place]) -> None:
        self._dirty.update(dict.fromkeys(places))

    def _collect_one(self, storage: str, key: Key) -> None:
        obj, resource = self._state.get(storage, *key), self._resource(storage)
        if obj is None or resource is None:
            return
        meta = obj["metadata"]
        owners = meta.get("ownerReferences")
        if not meta.get("deletionTimestamp"):
            if owners and not any(owner["uid"] in self._uids for owner in owners):
                delete(self._state, resource, key, DeleteOptions(policy="Background"))
        elif storage == _NAMESPACES:
            self._end_namespace(resource, key, obj)
        else:
            self._release(resource, key, obj)

    def _resource(self, storage: str) -> Resource | None:
        served = self._state.registry.all()
        return next(
            (resource for resource in served if resource.storage == storage and "delete" in resource.verbs),
            None,
        )

    def _end_namespace(self, resource: Resource, key: Key, namespace: Obj) -> None:
        left = False
        for storage, inner, item in list(self._state.store.everything()):
            served = self._resource(storage) if inner[0] == key[1] else None
            if served is not None:
                meta = item.obj["metadata"]
                if not (meta.get("deletionTimestamp") and meta.get("finalizers")):
                    delete(self._state, served, inner, _AT_ONCE)
                left = left or self._state.get(storage, *inner) is not None
        spec = namespace.get("spec") or {}
        if left or FINALIZER not in (spec.get("finalizers") or ()):
            return
        kept = [finalizer for finalizer in spec["finalizers"] if finalizer != FINALIZER]
        self._state.put(resource, key, {**namespace, "spec": {"finalizers": kept} if kept else {}})
        if not kept and not namespace["metadata"].get("finalizers"):
            self._state.delete(resource, key)

    def _release(self, resource: Resource, key: Key, owner: Obj) -> None:
        """Obeys a deleted owner's finalizers: its dependents are deleted first, or orphaned."""
        uid, finalizers = owner["metadata"]["uid"], owner["metadata"].get("finalizers") or ()
        dependents = list(self._owned.get(uid, ()))
        if ORPHAN in finalizers:
            for place in dependents:
                self._disown(place, uid)
            self._without(resource, key, owner, ORPHAN)
        elif FOREGROUND in finalizers:
            blocked = [self._blocks(place, uid) for place in dependents]
            if not any(blocked):
                self._without(resource, key, owner, FOREGROUND)

    def _blocks(self, place: Place, uid: str) -> bool:
        """Deletes a dependent; True while its owner has to wait for it."""
        storage, key = place
        obj, resource = self._state.get(storage, *key), self._resource(storage)
        if obj is None or resource is None:
            return False
        if not obj["metadata"].get("deletionTimestamp"):
            delete(self._state, resource, key, DeleteOptions(policy="Foreground"))
            obj = self._state.get(storage, *key)
        references = obj["metadata"].get("ownerReferences") or () if obj else ()
        return any(owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in references)

    def _disown(self, place: Place, uid: str) -> None:
        storage, key = place
        obj, resource = self._state.get(storage, *key), self._resource(storage)
        if obj is not None and resource is not None:
            kept = [owner for owner in obj["metadata"]["ownerReferences"] if owner["uid"] != uid]
            self._state.put(resource, key, _with(obj, "ownerReferences", kept))
        self._owned.get(uid, set()).discard(place)

    def _without(self, resource: Resource, key: Key, obj: Obj, finalizer: str) -> None:
        """Takes a finalizer away, and the object with the last one."""
        kept = [name for name in obj["metadata"]["finalizers"] if name != finalizer]
        self._state.put(resource, key, _with(obj, "finalizers", kept))
        if not kept and not obj["metadata"].get("deletionGracePeriodSeconds"):
            self._state.delete(resource, key)


def _with(obj: Obj, name: str, value: list[Obj] | list[str]) -> Obj:
    """A copy with a list of its metadata replaced, or gone when it is empty."""
    meta = {key: item for key, item in obj["metadata"].items() if key != name}
    return {**obj, "metadata": {**meta, **({name: value} if value else {})}}
