"""Writes that begin again after another writer's change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from broker.apis.meta import Object
from broker.kube.errors import Conflict

T = TypeVar("T", bound=Object)
R = TypeVar("R")
_TRIES: Final = 3


def after_conflicts(write: Callable[[T], R], obj: T, current: Callable[[], T | None]) -> R:
    """The result of `write`; after another writer's change it gets the `current` object, twice at most.

    Raises Conflict after that, or if the object is gone or another one by then.
    """
    for _ in range(_TRIES - 1):
        try:
            return write(obj)
        except Conflict:
            newer = current()
            if newer is None or newer.uid != obj.uid:
                raise
            obj = newer
    return write(obj)
