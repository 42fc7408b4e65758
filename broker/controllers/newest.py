"""Objects as the API server has them. A cache may be behind it, and behind the caches of other kinds.

They are listed, since that is what the broker may do with each kind that it watches.
"""

from __future__ import annotations

from typing import TypeVar

from broker.apis.core import Pod
from broker.apis.meta import Object
from broker.kube.client import Client

T = TypeVar("T", bound=Object)


def newest(client: Client, model: type[T], name: str, *, namespace: str | None = None) -> T | None:
    """The object of that name; None if it is gone. Raises ApiError, or ValidationError if it is malformed."""
    listed, _ = client.list(model.KIND, namespace=namespace, field_selector=f"metadata.name={name}")
    return next(map(model.decode, listed), None)


def pods_on(client: Client, node: str) -> tuple[Pod, ...]:
    """The pods of a node. Raises as `newest`."""
    listed, _ = client.list(Pod.KIND, field_selector=f"spec.nodeName={node}")
    return tuple(map(Pod.decode, listed))
