"""JSON patch and JSON merge patch.

Rules: RFC 6902 and RFC 7396, read as evanphx/json-patch reads them for the API server: a missing value is
null, and `replace` may set an absent member.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from local.kube.errors import StatusError
from local.kube.wire import Obj

MAX_OPERATIONS = 10_000


class _Refused(Exception):
    """An operation that does not apply."""


def merge(document: Any, patch: Any) -> Any:
    """RFC 7396; values shared with `document` where the patch does not reach."""
    if not isinstance(patch, dict):
        return patch
    out = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge(out.get(key), value)
    return out


def json_patch(document: Any, operations: list[Obj]) -> Any:
    """Applies the operations to a copy, all or none. The cause of a failure is not reported."""
    if len(operations) > MAX_OPERATIONS:
        allowed = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}"
        raise StatusError(413, "RequestEntityTooLarge", f"{allowed}, got {len(operations)}")
    out = copy.deepcopy(document)
    try:
        for operation in operations:
            out = _OPERATIONS[str(operation.get("op"))](out, operation)
    except (_Refused, KeyError) as error:
        message = "the server rejected our request due to an error in our request"
        raise StatusError(422, "Invalid", message, details={}) from error
    return out


def _steps(operation: Obj, name: str) -> list[str]:
    path = operation.get(name)
    if not isinstance(path, str):
        raise _Refused(name)
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _index(part: str, size: int) -> int:
    if not part.removeprefix("-").isdigit() or not -size <= int(part) < size:
        raise _Refused(part)
    return int(part)


def _get(node: Any, part: str) -> Any:
    """An entry; an absent member of an object is None."""
    if isinstance(node, list):
        return node[_index(part, len(node))]
    return node.get(part)


def _place(document: Any, operation: Obj, name: str = "path") -> tuple[Any, str]:
    """The object or list that a path leads into, and the last step."""
    steps = _steps(operation, name)
    if not steps:
        raise _Refused(name)
    *head, last = steps
    node = document
    for part in head:
        node = _get(node, part) if isinstance(node, dict | list) else None
    if not isinstance(node, dict | list):
        raise _Refused(name)
    return node, last


def _insert(node: Any, last: str, value: Any) -> None:
    if isinstance(node, dict):
        node[last] = value
    elif last == "-":
        node.append(value)
    else:
        size = len(node) + 1
        at = _index(last, size)
        node.insert(at if at >= 0 else at + size, value)


def _add(document: Any, operation: Obj) -> Any:
    node, last = _place(document, operation)
    _insert(node, last, operation.get("value"))
    return document


def _take(node: Any, last: str) -> Any:
    if isinstance(node, list):
        return node.pop(_index(last, len(node)))
    if last not in node:
        raise _Refused(last)
    return node.pop(last)


def _remove(document: Any, operation: Obj) -> Any:
    _take(*_place(document, operation))
    return document


def _replace(document: Any, operation: Obj) -> Any:
    value = operation.get("value")
    if operation.get("path") == "":
        return value
    node, last = _place(document, operation)
    node[_index(last, len(node)) if isinstance(node, list) else last] = value
    return document


def _test(document: Any, operation: Obj) -> Any:
    expected = operation.get("value")
    actual = document if operation.get("path") == "" else _get(*_place(document, operation))
    # In Python True is 1.
    if actual != expected or isinstance(actual, bool) is not isinstance(expected, bool):
        raise _Refused("test")
    return document


def _move(document: Any, operation: Obj) -> Any:
    value = _take(*_place(document, operation, "from"))
    _insert(*_place(document, operation), value)
    return document


def _copy(document: Any, operation: Obj) -> Any:
    value = copy.deepcopy(_get(*_place(document, operation, "from")))
    _insert(*_place(document, operation), value)
    return document


_OPERATIONS: dict[str, Callable[[Any, Obj], Any]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "test": _test,
    "move": _move,
    "copy": _copy,
}
