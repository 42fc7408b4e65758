"""The EC2 request that is being answered, for backend code that moto's responses don't hand all of it to.

moto's RunInstances passes neither MaxCount nor the reservation specification on; they are read from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ec2Request:
    action: str
    params: Mapping[str, Any]


_current: ContextVar[Ec2Request | None] = ContextVar("ec2_request", default=None)


@contextmanager
def answering(action: str, params: Mapping[str, Any]) -> Iterator[None]:
    token = _current.set(Ec2Request(action, params))
    try:
        yield
    finally:
        _current.reset(token)


def current(action: str) -> Mapping[str, Any] | None:
    """The parameters of the request that is being answered, if it is of this action."""
    request = _current.get()
    return request.params if request is not None and request.action == action else None
