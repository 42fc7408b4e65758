"""Sets of fields, kept in the very form in which `fieldsV1` shows them.

A set is a tree of dicts. An edge is one step of a path (`f:name`, `k:{"name":"a"}`, `v:"x"`) and an empty
dict is a field in the set. `.` marks a field that is in the set together with fields below it.
Rule: sigs.k8s.io/structured-merge-diff/v6/fieldpath.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from local.kube.shape import Shape
from local.kube.wire import Obj

Fields = dict[str, Any]
SELF = "."


def _member(node: Fields) -> bool:
    return not node or SELF in node


def _node(member: bool, children: Fields) -> Fields | None:
    """None is a node without a path."""
    if children:
        return {SELF: {}, **children} if member else children
    return {} if member else None


def union(left: Fields, right: Fields) -> Fields:
    """At the root, where the empty dict is the empty set."""
    if not left or not right:
        return left or right
    out = dict(left)
    for step, node in right.items():
        have = out.get(step)
        out[step] = node if have is None else _union(have, node)
    return out


def _union(left: Fields, right: Fields) -> Fields:
    member = _member(left) or _member(right)
    children = {step: node for step, node in left.items() if step != SELF}
    for step, node in right.items():
        if step != SELF:
            have = children.get(step)
            children[step] = node if have is None else _union(have, node)
    return _node(member, children) or {}


def difference(left: Fields, right: Fields, *, below: bool = False) -> Fields:
    """The left set without the right; with `below`, also without everything under a field of the right."""
    if not right:
        return left
    out: Fields = {}
    for step, node in left.items():
        other = right.get(step)
        rest = node if other is None else _difference(node, other, below)
        if rest is not None:
            out[step] = rest
    return out


def _difference(left: Fields, right: Fields, below: bool) -> Fields | None:
    if below and _member(right):
        return None
    children: Fields = {}
    for step, node in left.items():
        if step != SELF:
            other = right.get(step)
            rest = node if other is None else _difference(node, other, below)
            if rest is not None:
                children[step] = rest
    return _node(_member(left) and not _member(right), children)


def intersection(left: Fields, right: Fields) -> Fields:
    out: Fields = {}
    for step, node in left.items():
        other = right.get(step)
        if other is not None and (both := _intersection(node, other)) is not None:
            out[step] = both
    return out


def _intersection(left: Fields, right: Fields) -> Fields | None:
    children = {
        step: both
        for step, node in left.items()
        if step != SELF and step in right and (both := _intersection(node, right[step])) is not None
    }
    return _node(_member(left) and _member(right), children)


def with_named(fields: Fields, shape: Shape) -> Fields:
    """The set with every declared field on the way to its members in it."""
    out: Fields = {}
    for step, node in fields.items():
        if step == SELF:
            continue
        declared, inner = False, shape.item
        if step.startswith("f:"):
            declared, inner = step[2:] in shape.fields, shape.child(step[2:])
        children = with_named(node, inner)
        out[step] = _node(declared or _member(node), children) or {}
    return out


def paths(fields: Fields, prefix: str = "") -> Iterator[str]:
    """The members as text, in the order in which errors list them."""
    for step, node in sorted(fields.items(), key=lambda item: order(item[0])):
        if step == SELF:
            continue
        if _member(node):
            yield prefix + show(step)
    for step, node in sorted(fields.items(), key=lambda item: order(item[0])):
        if step != SELF and node:
            yield from paths(node, prefix + show(step))


def order(step: str) -> tuple[int, str]:
    return ("fkvi.".find(step[0]), step)


def show(step: str) -> str:
    kind, text = step[0], step[2:]
    if kind == "f":
        return f".{text}"
    if kind == "k":
        keys = orjson.loads(text)
        return "[" + ",".join(f"{name}={orjson.dumps(value).decode()}" for name, value in keys.items()) + "]"
    return f"[={text}]" if kind == "v" else f"[{text}]"


def step_of(item: Any, shape: Shape) -> str | None:
    """The step to an entry of a keyed list; None if the entry has no key."""
    if not shape.keys:
        return None if isinstance(item, dict | list) or item is None else "v:" + orjson.dumps(item).decode()
    if not isinstance(item, dict):
        return None
    keys: Obj = {}
    for key in sorted(shape.keys):
        if key in item:
            keys[key] = item[key]
        elif (known := shape.item.fields.get(key)) is not None and known.key_default is not None:
            keys[key] = known.key_default
    return "k:" + orjson.dumps(keys).decode() if keys else None
