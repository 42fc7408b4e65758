"""Maps and predicates that several loops share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from broker.apis import names
from broker.apis.meta import Object
from broker.kube.watches import Predicate

T = TypeVar("T")


def gone(_: Object | None, new: Object | None) -> bool:
    return new is None


def came_or_went(old: Object | None, new: Object | None) -> bool:
    return old is None or new is None


def differ(part: Callable[[T | None], object]) -> Predicate[T]:
    """Accepts an object that comes or goes with this part, and each change of the part."""
    return lambda old, new: part(old) != part(new)


def key(changed: Object) -> tuple[str]:
    return (changed.key,)


def serves(reservation: Object | None) -> object:
    """The namespaces that the reservation lists; False if it does not exist."""
    return reservation is not None and reservation.annotations.get(names.ALLOWED_NAMESPACES, "")


def spec(changed: Object | None) -> object:
    """The spec, for kinds with a status that changes often."""
    return None if changed is None else (changed.uid, getattr(changed, "spec", None))


def without_status(changed: Object | None) -> object:
    """The spec, and the metadata that loops read."""
    if changed is None:
        return None
    meta = changed.metadata
    return (
        getattr(changed, "spec", None),
        meta.uid,
        meta.labels,
        meta.annotations,
        meta.finalizers,
        meta.owner_references,
        meta.deletion_timestamp,
    )
