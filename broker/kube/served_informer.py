"""An informer of a kind with several versions, in the version that the API server serves.

Invariant: a kind is `missing` only if it is served in none of the versions that the broker supports. Each
list finds the served version anew: Kueue may be installed, upgraded or removed while the broker runs, and the
control plane may be upgraded. Kueue served only v1beta1 up to 0.14, and serves both versions since (its
CHANGELOG-0.15 and -0.16).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from broker.apis.meta import Json, Kind, Object
from broker.kube.client import Client
from broker.kube.errors import Conflict, NotFound
from broker.kube.informer import Informer
from broker.kube.watch_group import WatchGroup, group_of

T = TypeVar("T", bound=Object)


class ServedInformer(Informer[T]):
    """`kind` has the version that was served last, which writes to these objects use."""

    _arrived: tuple[Callable[[], None], ...] = ()
    _left: tuple[Callable[[], None], ...] = ()

    def on_listed(self, reader: Callable[[], None]) -> None:
        """Calls `reader` after each complete list: the kind is served, perhaps newly."""
        self._arrived += (reader,)

    def on_missing(self, reader: Callable[[], None]) -> None:
        """Calls `reader` after each list that found the kind in no version: it is not installed."""
        self._left += (reader,)

    def _watch_group(self, client: Client) -> WatchGroup:
        """Its own: each informer finds the served version itself."""
        return group_of(client.transport, (self._kind.resource, str(id(self))))

    @property
    def kind(self) -> Kind:
        return self._kind

    def write(self, call: Callable[[], Json]) -> Json | None:
        """Makes a write to an object, and takes its response into the cache.

        None if the object has changed meanwhile, which triggers a reconcile, or is gone.
        """
        try:
            answer = call()
        except (Conflict, NotFound):
            return None
        if answer.get("kind") == self._kind.kind:  # a deletion may be answered by a Status
            self.cache.observe(answer)
        return answer

    def patch_status(self, client: Client, obj: T, body: Json) -> Json | None:
        """Patches the object's status, as `write`."""
        kind, namespace = self._kind, obj.namespace
        return self.write(
            lambda: client.patch(kind, obj.name, body, namespace=namespace, subresource="status")
        )

    def delete(self, client: Client, obj: T) -> None:
        """Deletes the object, as `write`, unless another has its name."""
        kind, namespace = self._kind, obj.namespace or None
        self.write(lambda: client.delete(kind, obj.name, namespace=namespace, uid=obj.uid))

    def _list(self) -> None:
        for version in self._kind.versions:
            self._kind = replace(self._kind, version=version)
            try:
                super()._list()
            except NotFound:
                if version == self._kind.versions[-1]:
                    self.missing = True
                    for reader in self._left:
                        reader()
                    raise
                continue
            for reader in self._arrived:
                reader()
            return

    def _stream(self) -> None:
        try:
            super()._stream()
        except NotFound:
            # The version is no longer served: the next list looks for another one.
            self._revision = ""
