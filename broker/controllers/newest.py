"""Objects as the API server has them. A cache may be behind it, and behind the caches of other kinds.

They are listed, since that is what the broker may do with each kind that it watches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from pydantic import ValidationError

from broker.apis.core import Node, Pod
from broker.apis.meta import Kind, Object
from broker.kube.client import Client, Items
from broker.kube.errors import NotFound
from broker.kube.partial import PartialObject

T = TypeVar("T", bound=Object)


def newest(client: Client, model: type[T], name: str, *, namespace: str | None = None) -> T | None:
    """The object of that name; None if it is gone. Raises ApiError, or ValidationError if it is malformed."""
    listed = _listed(client, model.KIND, namespace=namespace, field_selector=f"metadata.name={name}")
    return next(map(model.decode, listed), None)


def _listed(client: Client, kind: Kind, *, namespace: str | None, field_selector: str) -> Items:
    """In the first version that is served: Kueue may be old. Raises ApiError."""
    first, *older = kind.versions or (kind.version,)
    try:
        served = replace(kind, version=first)
        return client.list(served, namespace=namespace, field_selector=field_selector)[0]
    except NotFound:
        if not older:
            raise
        others = replace(kind, versions=tuple(older))
        return _listed(client, others, namespace=namespace, field_selector=field_selector)


def readable(client: Client, model: type[T], **selected: str) -> Iterator[T]:
    """The selected objects without malformed ones, which caches leave out, too. Raises ApiError."""
    for raw in client.list(model.KIND, **selected)[0]:
        with suppress(ValidationError):
            yield model.decode(raw)


def unchanged(client: Client, objects: Iterable[Object]) -> bool:
    """Whether these are as they were read, but for their statuses. One that is malformed now is not.

    A step that cannot be undone asks it for the objects by whose rules it was decided. Raises ApiError.
    """
    return all(_unchanged(client, obj) for obj in objects)


def none_other(client: Client, models: Iterable[type[Object]], objects: Iterable[Object]) -> bool:
    """Whether these are all objects of the kinds, as they were read. Malformed ones do not count.

    Raises ApiError.
    """
    versions: dict[str, tuple[object, ...]] = {}
    for model in models:
        versions |= {current.uid: _version(current) for current in readable(client, model)}
    return versions == {obj.uid: _version(obj) for obj in objects}


def _unchanged(client: Client, obj: Object) -> bool:
    try:
        current = newest(client, type(obj), obj.name, namespace=obj.namespace or None)
    except ValidationError:
        return False
    return current is not None and _version(current) == _version(obj)


def _version(obj: Object) -> tuple[object, ...]:
    return obj.deleting, obj.uid, obj.metadata.generation, obj.annotations, obj.labels


def pods_on(client: Client, node: str) -> tuple[Pod, ...]:
    """The pods of a node. Raises as `newest`."""
    listed, _ = client.list(Pod.KIND, field_selector=f"spec.nodeName={node}")
    return tuple(map(Pod.decode, listed))


def node_names(client: Client, id_: str) -> set[str]:
    """The names of the Nodes of this instance, readable or not. Raises ApiError."""
    listed, _ = client.list(Node.KIND)
    nodes = (PartialObject.of_raw(Node.KIND, body, "") for body in listed)
    return {node.name for node in nodes if node.instance_id == id_}
