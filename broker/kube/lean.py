"""Decoded objects made small: what is equal in thousands of them is held once.

Invariant: an object is equal to what it was, and is written as it was. Half of what a frozen pydantic model
takes is its own set of the fields that were given, and copies of words such as a condition's type: models
with the same fields share one set, which nothing changes since they are frozen, and words are interned
(https://docs.python.org/3/library/sys.html#sys.intern), which keeps none that nobody uses.
"""

from __future__ import annotations

from sys import intern
from typing import Any, TypeVar

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)

_fields: dict[frozenset[str], set[str]] = {}  # as many as there are shapes of objects


def lean(model: M) -> M:
    """The same model. Only for one that nobody else has seen yet."""
    given = model.__pydantic_fields_set__
    object.__setattr__(model, "__pydantic_fields_set__", _fields.setdefault(frozenset(given), given))
    values = model.__dict__
    for name, value in values.items():
        kind = type(value)
        if kind is str:
            values[name] = intern(value)
        elif kind is dict:
            _words(value)
        elif kind is tuple:
            values[name] = tuple(map(_part, value))
        elif isinstance(value, BaseModel):
            lean(value)
    return model


def _part(value: Any) -> Any:
    if type(value) is str:
        return intern(value)
    return lean(value) if isinstance(value, BaseModel) else value


def _words(values: dict[Any, Any]) -> None:
    for key, value in values.items():
        if type(value) is str:
            values[key] = intern(value)
