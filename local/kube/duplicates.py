"""Fields that a JSON document names twice; a parser that keeps the last one does not report them.

Rule: fieldValidation of https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation
"""

from __future__ import annotations

import json
from typing import Any

import orjson


class _Pairs(list[tuple[str, Any]]):
    """An object as it was written."""


def duplicates(raw: bytes, parsed: Any) -> list[str]:
    """`duplicate field "spec.x"` for each, in the order of the document."""
    # Written as densely as it was read it has the same length, or else as many `":` as there are fields.
    if len(orjson.dumps(parsed)) == len(raw) or raw.count(b'":') == _count(parsed):
        return []
    out: list[str] = []
    _walk(json.loads(raw, object_pairs_hook=_Pairs), "", out)
    return out


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(_count(item) for item in value.values() if isinstance(item, dict | list))
    return (
        sum(_count(item) for item in value if isinstance(item, dict | list)) if isinstance(value, list) else 0
    )


def _walk(value: Any, path: str, out: list[str]) -> None:
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for name, item in value:
            where = f"{path}.{name}" if path else name
            if name in seen:
                out.append(f'duplicate field "{where}"')
            seen.add(name)
            _walk(item, where, out)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _walk(item, f"{path}[{i}]", out)
