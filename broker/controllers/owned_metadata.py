"""The metadata that the broker adds to objects of users: a finalizer, and one label to select them by.

Invariant: a user's values are never changed. `kubectl get -l cohort=NAME` finds the reservations of a cohort,
and `kubectl get dedicatedaiclusters -l capacity-reservation=NAME` the clusters of a reservation. A user's own
label of that key stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import structlog

from broker.apis import names
from broker.apis.meta import Json, Object
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.conditions import remove_finalizer
from broker.kube.errors import Conflict, NotFound

T = TypeVar("T", bound=Object)

_log = structlog.get_logger("metadata")


class OwnedMetadata:
    """Uses server-side apply without force: the API server knows the owner of a label."""

    def __init__(self, client: Client, label: str) -> None:
        self._client = client
        self._label = label
        # By uid: the desired value and the present one, if another manager owns the label.
        self._foreign_labels: dict[str, tuple[str, str | None]] = {}

    def apply(self, cache: Cache[T], obj: T, value: str) -> T:
        """The object, after a write if one was needed. `value`: of the label, empty for none."""
        if obj.deleting:
            return obj  # a deleted object accepts no new finalizer
        now = obj.labels.get(self._label)
        held = names.RESERVED_FINALIZER in obj.metadata.finalizers
        if held and ((now or "") == value or self._foreign_labels.get(obj.uid) == (value, now)):
            return obj
        try:
            answer = self._write(obj, value)
        except Conflict:
            self._foreign_labels[obj.uid] = (value, now)
            answer = self._write(obj, "")
        after = answer["metadata"].get("labels", {}).get(self._label)
        if (after or "") != value:
            self._foreign_labels[obj.uid] = (value, after)
        return cache.written(answer)

    def release(self, cache: Cache[T], obj: T) -> None:
        """Removes the finalizer. An object that changed meanwhile is requeued."""
        body = remove_finalizer(obj, names.RESERVED_FINALIZER)
        if body is None:
            return
        try:
            cache.observe(self._client.patch(obj.KIND, obj.name, body, namespace=obj.namespace or None))
        except (Conflict, NotFound) as error:
            _log.info("changed meanwhile, requeued", kind=obj.KIND.kind, object=obj.key, error=str(error))
            return
        _log.info("released", kind=obj.KIND.kind, object=obj.key)

    def forget(self, alive: Collection[str]) -> None:
        """Keeps only the memory of these uids."""
        self._foreign_labels = {uid: labels for uid, labels in self._foreign_labels.items() if uid in alive}

    def _write(self, obj: Object, value: str) -> Json:
        metadata: Json = {
            "name": obj.name,
            "uid": obj.uid,
            "finalizers": [names.RESERVED_FINALIZER],
        }
        if obj.namespace:
            metadata["namespace"] = obj.namespace
        if value:
            metadata["labels"] = {self._label: value}
        return self._client.apply(obj.KIND, {"metadata": metadata}, force=False)
