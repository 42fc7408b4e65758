"""Fields that an older definition does not declare, in a server-side apply.

Other writes drop such a field and go on. An apply is rejected as a whole, with status 500 and one line for
each field (`.status.zone: field not declared in schema`, structured-merge-diff, typed/validate.go). Without
the fields the rest can be applied, so an upgraded broker works beside the definitions of an older version.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import structlog

_LINE: Final = re.compile(r"(?<=\s)(\.\S[^\n]*?): field not declared in schema")
# One step of a path: `.name`, or an element of a list by its key, its position or its value.
_STEP: Final = re.compile(r"\.([^.\[]+)|\[[^\]]*\]")

Body = Mapping[str, Any]
_log = structlog.get_logger(__name__)


class DroppedFields:
    """Logs the fields that a kind's definition drops: each once."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def report(self, kind: str, fields: Sequence[str]) -> None:
        new = {(kind, _anywhere(field)) for field in fields} - self._logged
        if new:
            self._logged |= new
            _log.warning(
                "the definition is older than this broker and drops fields",
                kind=kind,
                fields=sorted(field for _, field in new),
                way_out="capacity-broker crds check",
            )


def _anywhere(path: str) -> str:
    """The path without the keys of list elements."""
    return re.sub(r"\[[^\]]*\]", "[]", path)


def paths(message: str) -> tuple[str, ...]:
    """The undeclared fields that an error names; empty for any other error."""
    return tuple(_LINE.findall(message))


def without(body: Body, undeclared: Sequence[str]) -> dict[str, Any]:
    """The body without these fields. A field of one list element is removed from all elements."""
    left: dict[str, Any] = copy.deepcopy(dict(body))
    for path in undeclared:
        steps = [match[1] or "" for match in _STEP.finditer(path)]
        for holder in _holders([left], steps[:-1]):
            holder.pop(steps[-1], None)
    return left


def _holders(places: Sequence[Any], steps: Sequence[str]) -> Iterator[dict[str, Any]]:
    for step in steps:
        if step:
            places = [place[step] for place in places if isinstance(place, dict) and step in place]
        else:
            places = [element for place in places if isinstance(place, list) for element in place]
    yield from (place for place in places if isinstance(place, dict))
