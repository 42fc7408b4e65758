"""The fields of a value, and the fields by which two values differ.

Rule: sigs.k8s.io/structured-merge-diff/v6/typed (tofieldset.go, compare.go), with its distinctions between
absent, null and empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from local.kube.apply.fields import SELF, Fields, step_of
from local.kube.shape import Shape
from local.kube.wire import Obj

LEAF: Fields = {}
_STRUCTURES = ("struct", "map", "any", "raw", "json")


@dataclass(slots=True)
class Difference:
    added: Fields = field(default_factory=dict)
    modified: Fields = field(default_factory=dict)
    removed: Fields = field(default_factory=dict)


def granular_map(value: Any, shape: Shape) -> bool:
    return isinstance(value, dict) and not shape.atomic and shape.kind in _STRUCTURES


def granular_list(value: Any, shape: Shape) -> bool:
    return isinstance(value, list) and shape.kind == "list" and shape.keyed


def every(value: Any, shape: Shape) -> Fields:
    """A value that was not there before: it is new at every level."""
    if isinstance(value, dict):
        if not value or shape.atomic or shape.kind not in _STRUCTURES:
            return LEAF
        out: Fields = {SELF: LEAF}
        fields, element = shape.fields, shape.item
        for key, item in value.items():
            known = fields.get(key)
            inner = element if known is None else known.shape
            out["f:" + key] = every(item, inner) if isinstance(item, dict | list) else LEAF
        return out
    if isinstance(value, list) and value and shape.kind == "list" and shape.keyed:
        out = {SELF: LEAF}
        for item in value:
            step = step_of(item, shape)
            if step is not None:
                # An entry that is there twice is managed as a whole.
                out[step] = LEAF if step in out else every(item, shape.item)
        return out
    return LEAF


def compare(old: Obj, new: Obj, shape: Shape) -> Difference:
    out = Difference()
    _maps(old, new, shape, out.added, out.modified, out.removed)
    return out


def _maps(old: Any, new: Any, shape: Shape, added: Fields, modified: Fields, removed: Fields) -> None:
    old, new = old or {}, new or {}
    for key, value in new.items():
        if key not in old:
            added["f:" + key] = every(value, shape.child(key))
        elif old[key] is not value:
            _pair(old[key], value, shape.child(key), "f:" + key, added, modified, removed)
    for key, value in old.items():
        if key not in new:
            removed["f:" + key] = every(value, shape.child(key))


def _pair(
    old: Any, new: Any, shape: Shape, step: str, added: Fields, modified: Fields, removed: Fields
) -> None:
    """Two values that are both there."""
    down: list[Fields] = [{}, {}, {}]
    if _both(dict, old, new) and (old or new) and not shape.atomic and shape.kind in _STRUCTURES:
        _maps(old, new, shape, *down)
    elif _both(list, old, new) and (old or new) and shape.kind == "list" and shape.keyed:
        _lists(old or [], new or [], shape, *down)
    else:
        if old != new or isinstance(old, bool) is not isinstance(new, bool):
            modified[step] = LEAF
        return
    for i, tree in enumerate((added, modified, removed)):
        if down[i]:
            tree[step] = down[i]


def _both(kind: type, old: Any, new: Any) -> bool:
    return (isinstance(old, kind) or old is None) and (isinstance(new, kind) or new is None)


def _lists(
    old: list[Any], new: list[Any], shape: Shape, added: Fields, modified: Fields, removed: Fields
) -> None:
    before, after = _entries(old, shape), _entries(new, shape)
    for step in {**before, **after}:
        left, right = before.get(step, []), after.get(step, [])
        if len(left) > 1 and len(right) > 1:
            if left != right:
                modified[step] = LEAF
        elif len(left) > 1:
            if right:
                added[step] = every(right[0], shape.item)
            removed[step] = LEAF
        elif len(right) > 1:
            if left:
                removed[step] = every(left[0], shape.item)
            added[step] = LEAF
        elif not left:
            added[step] = every(right[0], shape.item)
        elif not right:
            removed[step] = every(left[0], shape.item)
        else:
            _pair(left[0], right[0], shape.item, step, added, modified, removed)


def _entries(values: list[Any], shape: Shape) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {}
    for value in values:
        step = step_of(value, shape)
        if step is not None:
            out.setdefault(step, []).append(value)
    return out


def fields_of(value: Any, shape: Shape) -> Fields:
    """The fields that a configuration names: its leaves, and the entries of keyed lists and maps."""
    out: Fields = {}
    if granular_map(value, shape):
        for key, item in value.items():
            declared = key in shape.fields
            node = fields_of(item, shape.child(key))
            if item is None or item == {} or not declared or _leaf(item, shape.child(key)):
                node = {SELF: LEAF, **node} if node else LEAF
            elif not node:
                continue  # an empty list or a map of nothing names nothing
            out["f:" + key] = node
    elif granular_list(value, shape):
        for item in value:
            step = step_of(item, shape)
            if step is not None:
                below = fields_of(item, shape.item)
                out[step] = LEAF if step in out else {SELF: LEAF, **below} if below else LEAF
    return out


def _leaf(value: Any, shape: Shape) -> bool:
    return not granular_map(value, shape) and not granular_list(value, shape)
