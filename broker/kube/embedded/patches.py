"""JSON patch and JSON merge patch.

Rules: RFC 6902, RFC 7396; an error's wording is that of evanphx/json-patch, which the API server uses.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from .errors import ApiError, bad_request, quoted

MAX_OPERATIONS = 10_000


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


def json_patch(document: Any, operations: Any) -> Any:
    """Applies the operations to a copy, all or none."""
    if not isinstance(operations, list) or not all(isinstance(one, dict) for one in operations):
        raise bad_request("error decoding patch: a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        message = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise ApiError(413, "RequestEntityTooLarge", message)
    out = copy.deepcopy(document)
    for one in operations:
        apply = _OPERATIONS.get(str(one.get("op")))
        if apply is None:
            raise _rejected(f"Unexpected kind: {one.get('op')}")
        out = apply(out, one)
    return out


def _rejected(why: str) -> ApiError:
    message = f"the server rejected our request due to an error in our request: {why}"
    return ApiError(422, "Invalid", message, details={})


def _pointer(text: object) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise _rejected(f"path {text!r} is no JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _step(node: Any, part: str, path: str, what: str) -> Any:
    if isinstance(node, dict) and part in node:
        return node[part]
    if isinstance(node, list) and part.lstrip("-").isdigit() and -len(node) <= int(part) < len(node):
        return node[int(part)]
    raise _missing(what, path)


def _missing(what: str, path: str) -> ApiError:
    return _rejected(f"{what} operation does not apply: doc is missing path: {quoted(path)}: missing value")


def _parent(document: Any, operation: dict[str, Any], what: str) -> tuple[Any, str]:
    path = operation.get("path")
    parts = _pointer(path)
    node = document
    for part in parts[:-1]:
        node = _step(node, part, str(path), what)
    if not isinstance(node, dict | list):
        raise _missing(what, str(path))
    return node, parts[-1] if parts else ""


def _find(document: Any, path: str, what: str) -> Any:
    node = document
    for part in _pointer(path):
        node = _step(node, part, path, what)
    return node


def _value(operation: dict[str, Any], what: str) -> Any:
    if "value" not in operation:
        raise _rejected(f"{what} operation does not apply: missing value")
    return operation["value"]


def _add(document: Any, operation: dict[str, Any]) -> Any:
    value = _value(operation, "add")
    if operation.get("path") == "":
        return value
    node, last = _parent(document, operation, "add")
    if isinstance(node, dict):
        node[last] = value
    elif last == "-":
        node.append(value)
    else:
        if not last.lstrip("-").isdigit() or not -len(node) - 1 <= int(last) <= len(node):
            raise _missing("add", operation["path"])
        at = int(last)
        node.insert(at if at >= 0 else len(node) + 1 + at, value)
    return document


def _remove(document: Any, operation: dict[str, Any]) -> Any:
    node, last = _parent(document, operation, "remove")
    _step(node, last, operation["path"], "remove")
    if isinstance(node, dict):
        del node[last]
    else:
        del node[int(last)]
    return document


def _replace(document: Any, operation: dict[str, Any]) -> Any:
    value = _value(operation, "replace")
    if operation.get("path") == "":
        return value
    node, last = _parent(document, operation, "replace")
    _step(node, last, operation["path"], "replace")
    node[last if isinstance(node, dict) else int(last)] = value
    return document


def _test(document: Any, operation: dict[str, Any]) -> Any:
    path, wanted = operation.get("path", ""), operation.get("value")
    try:
        found = _find(document, path, "test")
    except ApiError:
        if wanted is None:
            return document
        raise
    if found != wanted or isinstance(found, bool) is not isinstance(wanted, bool):
        raise _rejected(f"testing value {path} failed: test failed")
    return document


def _move(document: Any, operation: dict[str, Any]) -> Any:
    value = _find(document, operation.get("from", ""), "move")
    _remove(document, {"path": operation.get("from")})
    return _add(document, {"path": operation.get("path"), "value": value})


def _copy(document: Any, operation: dict[str, Any]) -> Any:
    value = copy.deepcopy(_find(document, operation.get("from", ""), "copy"))
    return _add(document, {"path": operation.get("path"), "value": value})


_OPERATIONS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "test": _test,
    "move": _move,
    "copy": _copy,
}
