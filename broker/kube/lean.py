"""Makes decoded objects small: values that thousands of them share are held once.

Invariant: a lean object equals the original, and is written as the original. Most of a frozen pydantic
model's memory is tables of its own: of given fields, of the names of its values, and of maps and words such
as labels or a condition's type, which other objects have as well. So models with the same fields share one
set and, made anew from their values, one table of names (PEP 412; `Model` ensures that there is one). Equal
maps and specs are one object. Words are interned, which keeps no unused word
(https://docs.python.org/3/library/sys.html#sys.intern). All of it is frozen, and never changes later. The
tables of shared values are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from sys import intern
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel

from broker.apis.meta import Object

O = TypeVar("O", bound=Object)  # noqa: E741
M = TypeVar("M", bound=BaseModel)

KEPT = 4096  # of each sort; the first are forgotten all at once

_put = object.__setattr__
_fields: dict[frozenset[str], set[str]] = {}  # as many as there are shapes of objects
_blank: dict[type[BaseModel], BaseModel] = {}  # of which nothing was given
_maps: dict[int, dict[str, str]] = {}
_specs: dict[tuple[type[Object], bytes], BaseModel] = {}


def decode(model: type[O], raw: Mapping[str, Any]) -> O:
    """`raw`, lean. Raises ValidationError. A spec that many objects have is read once."""
    if not model.ALIKE or not isinstance(raw.get("spec"), dict):
        return lean(model.model_validate(raw))
    key = (model, orjson.dumps(raw["spec"]))
    known = _specs.get(key)
    if known is not None:
        return lean(model.model_validate({**raw, "spec": known}))
    decoded = lean(model.model_validate(raw))
    _bounded(_specs)[key] = decoded.spec  # type: ignore[attr-defined]  # every kind that is ALIKE has one
    return decoded


def lean(model: M) -> M:
    """An equal, smaller model. Only for a model that is never changed."""
    given = model.__pydantic_fields_set__
    if not given:
        return _blank.setdefault(type(model), model)  # type: ignore[return-value]  # one of its own type
    shared = _fields.get(key := frozenset(given))
    if shared is given:
        return model  # it is lean
    if shared is None:
        shared = _fields.setdefault(key, set(given))
    small = object.__new__(type(model))
    for name, value in model.__dict__.items():
        _put(small, name, _lean(value))
    _put(small, "__pydantic_fields_set__", shared)
    _put(small, "__pydantic_extra__", model.__pydantic_extra__)
    _put(small, "__pydantic_private__", model.__pydantic_private__)
    return small


def _lean(value: Any) -> Any:
    kind = type(value)
    if kind not in _ways:
        _ways[kind] = lean if issubclass(kind, BaseModel) else None
    way = _ways[kind]
    return value if way is None else way(value)


def _lean_items(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(_lean, values))


@lru_cache(KEPT)
def _in_utc(value: datetime) -> datetime:
    """In UTC: pydantic makes a zone for each."""
    return value.astimezone(UTC) if value.tzinfo else value


def _map(values: dict[Any, Any]) -> dict[Any, Any]:
    try:
        small = {name: intern(value) for name, value in values.items()}
    except TypeError:  # not a map of words
        return {name: _lean(value) for name, value in values.items()}
    key = hash(tuple(small.items()))
    known = _maps.get(key)
    if known != small:
        _bounded(_maps)[key] = known = small
    return known


_ways: dict[type, Callable[[Any], Any] | None] = {
    str: intern,
    tuple: _lean_items,
    dict: _map,
    datetime: _in_utc,
}


def _bounded(kept: dict[Any, Any]) -> dict[Any, Any]:
    if len(kept) >= KEPT:
        kept.clear()
    return kept
