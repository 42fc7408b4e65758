"""Merging a configuration into an object, and taking fields out of one.

Rule: sigs.k8s.io/structured-merge-diff/v6/typed (merge.go, remove.go): applied values win; keyed lists keep
the server's order around the entries that both have.
"""

from __future__ import annotations

from typing import Any

from local.kube.apply.compare import _STRUCTURES, granular_list, granular_map
from local.kube.apply.fields import Fields, show, step_of
from local.kube.errors import StatusError
from local.kube.shape import Shape

_ABSENT = object()


def merge(live: Any, config: Any, shape: Shape) -> Any:
    """Values are shared with both arguments, which are left alone."""
    out = _merge(live, config, shape)
    return None if out is _ABSENT else out


def _merge(left: Any, right: Any, shape: Shape) -> Any:
    if right is _ABSENT:
        return left
    maps = _is(dict, left) and _is(dict, right) and not shape.atomic and shape.kind in _STRUCTURES
    if maps and (_filled(left) or _filled(right)):
        return _maps(_or(left, {}), _or(right, {}), shape)
    if (
        _is(list, left)
        and _is(list, right)
        and shape.kind == "list"
        and shape.keyed
        and (_filled(left) or _filled(right))
    ):
        return _lists(_or(left, []), _or(right, []), shape)
    return right


def _is(kind: type, value: Any) -> bool:
    return value is _ABSENT or value is None or isinstance(value, kind)


def _filled(value: Any) -> bool:
    return value is not _ABSENT and bool(value)


def _or(value: Any, otherwise: Any) -> Any:
    return otherwise if value is _ABSENT or value is None else value


def _maps(left: Any, right: Any, shape: Shape) -> Any:
    out = {}
    for key in {**left, **right}:
        merged = _merge(left.get(key, _ABSENT), right.get(key, _ABSENT), shape.child(key))
        if merged is not _ABSENT:
            out[key] = merged
    return out or _ABSENT


def _lists(left: list[Any], right: list[Any], shape: Shape) -> Any:
    right_items = [(step_of(item, shape) or "", item) for item in right]
    left_items = [(step_of(item, shape) or "", item) for item in left]
    right_by_step, left_by_step = dict(right_items), dict(left_items)
    shared = [step for step, _ in right_items if step in left_by_step]
    out: list[Any] = []
    done: set[str] = set()
    at_left = at_right = 0

    def take(step: str, value: Any) -> None:
        merged = _merge(left_by_step.get(step, _ABSENT), value, shape.item)
        if merged is not _ABSENT:
            out.append(merged)

    while at_left < len(left_items) or at_right < len(right_items):
        if at_left < len(left_items) and at_right < len(right_items):
            step = left_items[at_left][0]
            if step == right_items[at_right][0]:
                done.add(step)
                take(step, right_items[at_right][1])
                at_left, at_right = at_left + 1, at_right + 1
                shared = shared[1:]
                continue
            if step in right_by_step and shared and shared[0] != step:
                at_left += 1
                continue
        if at_left < len(left_items):
            step = left_items[at_left][0]
            if step not in right_by_step:
                out.append(left_items[at_left][1])
                at_left += 1
                continue
            if step in done:
                at_left += 1
        if at_right < len(right_items):
            step, value = right_items[at_right]
            done.add(step)
            take(step, value)
            at_right += 1
            if shared and shared[0] == step:
                shared = shared[1:]
    return out or _ABSENT


def remove(value: Any, fields: Fields, shape: Shape) -> Any:
    """The value without the fields in a set; a structure that loses everything goes, too."""
    if granular_list(value, shape):
        if not value:
            return None
        kept = []
        for item in value:
            node = fields.get(step_of(item, shape) or "")
            if node is None:
                kept.append(item)
            elif node and "." not in node:
                kept.append(remove(item, node, shape.item))
        return kept or None
    if not granular_map(value, shape) or not value:
        return None if isinstance(value, dict | list) else value
    out = {}
    for key, item in value.items():
        node = fields.get("f:" + key)
        if node is None:
            out[key] = item
        elif node and "." not in node:
            out[key] = remove(item, node, shape.child(key))
    return out or None


def check(config: Any, shape: Shape, path: str = "") -> list[str]:
    """Why a configuration cannot be applied: unknown fields, wrong types, entries without a key."""
    if config is None:
        return []
    kind = shape.kind
    if kind == "struct":
        if not isinstance(config, dict):
            return [f"{path}: expected map, got {_shown(config)}"]
        out = []
        for key, item in config.items():
            if key not in shape.fields and shape.element is None:
                out.append(f"{path}.{key}: field not declared in schema")
            else:
                out += check(item, shape.child(key), f"{path}.{key}")
        return out
    if kind == "map":
        if not isinstance(config, dict):
            return [f"{path}: expected map, got {_shown(config)}"]
        return [why for key, item in config.items() for why in check(item, shape.item, f"{path}.{key}")]
    if kind == "list":
        return _check_list(config, shape, path)
    return _check_scalar(config, kind, path)


def _check_list(config: Any, shape: Shape, path: str) -> list[str]:
    if not isinstance(config, list):
        return [f"{path}: expected list, got {_shown(config)}"]
    out, seen = list[str](), set[str]()
    for i, item in enumerate(config):
        step = step_of(item, shape) if shape.keyed else f"i:{i}"
        if step is None:
            out.append(f"{path}: element {i}: {_keyless(item, shape)}")
            continue
        if step in seen:
            out.append(f"{path}: duplicate entries for key {show(step)}")
        seen.add(step)
        out += check(item, shape.item, path + show(step))
    return out


def _keyless(item: Any, shape: Shape) -> str:
    if not shape.keys:
        return "associative list without keys has an element that's a map type"
    if not isinstance(item, dict):
        return "associative list with keys may not have non-map elements"
    names = " ".join(f'"{key}"' for key in shape.keys)
    return (
        f"associative list with keys has an element that omits all key fields [{names}] "
        "(and doesn't have default values for any key fields)"
    )


_SCALARS: dict[str, tuple[type, ...]] = {"string": (str,), "boolean": (bool,), "bool": (bool,)}
_NUMBERS = ("int32", "int64", "integer", "number", "float64", "float32")


def _check_scalar(config: Any, kind: str, path: str) -> list[str]:
    if kind in _NUMBERS and (isinstance(config, bool) or not isinstance(config, int | float)):
        return [f"{path}: expected numeric (int or float), got {_shown(config)}"]
    if kind in _SCALARS and not isinstance(config, _SCALARS[kind]):
        name = "boolean" if kind == "bool" else kind
        return [f"{path}: expected {name}, got {_shown(config)}"]
    return []


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "&{map[" + " ".join(f"{key}:{item}" for key, item in sorted(value.items())) + "]}"
    if isinstance(value, list):
        return "&{[" + " ".join(str(item) for item in value) + "]}"
    return f"&{{{str(value).lower() if isinstance(value, bool) else value}}}"


def failed(subject: str, problems: list[str]) -> StatusError:
    listed = problems[0] if len(problems) == 1 else "errors:\n" + "\n".join(f"  {line}" for line in problems)
    return StatusError(500, "", f"failed to create typed patch object ({subject}): {listed}")
