"""State that the verbs share: the store, the registry, time and ids. One lock covers it all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from local.kube.ids import Ids
from local.kube.resources import Registry, Resource
from local.kube.store import Item, Key, Store
from local.kube.wire import Obj

# (state, resource, new object or None, old object or None), after a write of the store
Hook = Callable[["ApiState", Resource, Obj | None, Obj | None], None]


@dataclass(slots=True)
class ApiState:
    store: Store
    registry: Registry
    clock: Callable[[], float]
    ids: Ids
    hooks: dict[str, Hook] = field(default_factory=dict)  # by storage name
    # (namespace, name, port) of a Service → host and port where a webhook is served for it
    services: dict[tuple[str, str, int], tuple[str, int]] = field(default_factory=dict)

    def get(self, resource: str, namespace: str, name: str) -> Obj | None:
        item = self.store.collection(resource).items.get((namespace, name))
        return item.obj if item else None

    def put(self, resource: Resource, key: Key, obj: Obj) -> Item:
        before = self.store.collection(resource.storage).items.get(key)
        item = self.store.put(resource.storage, key, obj, bare=resource.custom is None)
        if hook := self.hooks.get(resource.storage):
            hook(self, resource, item.obj, before.obj if before else None)
            item = self.store.collection(resource.storage).items.get(key, item)
        return item

    def delete(self, resource: Resource, key: Key) -> Item:
        item = self.store.delete(resource.storage, key, bare=resource.custom is None)
        if hook := self.hooks.get(resource.storage):
            hook(self, resource, None, item.obj)
        return item
