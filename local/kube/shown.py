"""A patched object as the API server quotes it in a refusal of the patch.

Go writes structs in their order and maps sorted; a patched part has become a map.
"""

from __future__ import annotations

from typing import Any

import orjson

from local.kube.shape import Shape


def patched_text(patched: Any, document: Any, shape: Shape, *, custom: bool) -> str:
    """`patched` is the result of the JSON or merge patch `document` on an object of that shape."""
    if custom:
        return orjson.dumps(patched, option=orjson.OPT_SORT_KEYS).decode()
    value = _in_order(patched, shape)
    if isinstance(document, list):
        value = _sorted(value)
        for operation in document:
            for path in (operation.get("path"), operation.get("from")):
                _sort_along(value, str(path or "").split("/")[1:-1])
    else:
        value = _sort_where(value, document)
    return orjson.dumps(value).decode()


def _in_order(value: Any, shape: Shape) -> Any:
    if isinstance(value, dict):
        names = [name for name in shape.fields if name in value] if shape.kind == "struct" else sorted(value)
        names += [name for name in value if name not in shape.fields] if shape.kind == "struct" else []
        return {name: _in_order(value[name], shape.child(name)) for name in names}
    return [_in_order(item, shape.item) for item in value] if isinstance(value, list) else value


def _sorted(value: Any) -> Any:
    return dict(sorted(value.items())) if isinstance(value, dict) else value


def _sort_where(value: Any, patch: Any) -> Any:
    if not isinstance(value, dict) or not isinstance(patch, dict):
        return value
    return {name: _sort_where(item, patch.get(name)) for name, item in sorted(value.items())}


def _sort_along(value: Any, steps: list[str]) -> None:
    node: Any = value
    for step in steps:
        if isinstance(node, list):
            step_at = int(step) if step.isdigit() and int(step) < len(node) else None
            if step_at is None:
                return
            node[step_at] = _sorted(node[step_at])
            node = node[step_at]
        elif isinstance(node, dict) and step in node:
            node[step] = _sorted(node[step])
            node = node[step]
        else:
            return
