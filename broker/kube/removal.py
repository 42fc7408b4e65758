"""A deletion that also succeeds if the object is gone already."""

from __future__ import annotations

from typing import Any

from broker.apis.meta import Kind, Object
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.errors import NotFound


def remove(
    client: Client,
    obj: Object,
    cache: Cache[Any] | None = None,
    *,
    kind: Kind | None = None,
    unchanged: bool = False,
    dry_run: bool = False,
) -> bool:
    """Deletes the object as it was read; False if it is gone already. Raises ApiError.

    `cache` gets the answer: an object with a finalizer stays for now. `kind`: the object's, in the version
    that is served. `unchanged`: Conflict if the object has changed since. `dry_run` deletes nothing.
    """
    kind = kind or obj.KIND
    version = obj.metadata.resource_version if unchanged else None
    try:
        answer = client.delete(
            kind,
            obj.name,
            namespace=obj.namespace or None,
            uid=obj.uid,
            resource_version=version,
            dry_run=dry_run,
        )
    except NotFound:
        return False
    if cache is not None and answer.get("kind") == kind.kind:  # otherwise it is a Status
        cache.observe(answer)
    return True
