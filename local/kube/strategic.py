"""Strategic merge patch: a merge patch with keyed lists.

Rule: k8s.io/apimachinery/pkg/util/strategicpatch and its design note on `$setElementOrder`,
https://git.k8s.io/design-proposals-archive/cli/preserve-order-in-strategic-merge-patch.md
"""

from __future__ import annotations

from typing import Any

from local.kube.errors import StatusError
from local.kube.shape import ANY, Field, Shape
from local.kube.wire import Obj

DIRECTIVE, RETAIN = "$patch", "$retainKeys"
DELETE_FROM, ORDER = "$deleteFromPrimitiveList/", "$setElementOrder/"


def strategic(original: Obj, patch: Obj, shape: Shape) -> Obj:
    """The patched object; neither argument is changed."""
    if (directive := patch.get(DIRECTIVE)) is not None:
        return _whole(directive, patch)
    out = dict(original)
    _retain(out, patch)
    lists = {key.removeprefix(ORDER): order for key, order in patch.items() if key.startswith(ORDER)}
    for name, order in lists.items():
        _ordered(out, name, patch.get(name), order, _field(shape, name))
    for key, value in patch.items():
        if key.startswith(ORDER) or key in lists or key == RETAIN:
            continue
        name = key.removeprefix(DELETE_FROM)
        deletes = name != key
        if value is None:
            out.pop(name, None)
        elif name not in out:
            if not deletes:
                _set(out, name, value)
        else:
            _merge_field(out, name, value, _field(shape, name), deletes=deletes)
    return out


def _whole(directive: object, patch: Obj) -> Obj:
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != DIRECTIVE}
    if directive == "delete":
        return {}
    raise _bad(f"unknown patch type: {directive} in map: {patch}")


def _field(shape: Shape, name: str) -> Field:
    return shape.fields.get(name) or Field(name, shape.item if shape.kind == "map" else ANY)


def _merge_field(out: Obj, name: str, value: Any, field: Field, *, deletes: bool) -> None:
    have = out[name]
    if isinstance(have, dict) and isinstance(value, dict):
        out[name] = strategic(have, value, field.shape)
    elif isinstance(have, list) and isinstance(value, list):
        if deletes:
            out[name] = [item for item in have if item not in value]
        else:
            out[name] = _merge_list(have, value, field) if field.merge else value
    elif not deletes:
        _set(out, name, value)


def _set(out: Obj, name: str, value: Any) -> None:
    kept, cleaned = _without_directives(value)
    if kept:
        out[name] = cleaned
    else:
        out.pop(name, None)


def _without_directives(value: Any) -> tuple[bool, Any]:
    """A patch value without a counterpart: nulls and directives have no effect there."""
    if isinstance(value, dict):
        if DIRECTIVE in value:
            return False, None
        pairs = ((key, _without_directives(item)) for key, item in value.items() if item is not None)
        return True, {key: item for key, (kept, item) in pairs if kept}
    if isinstance(value, list):
        return True, [item for kept, item in map(_without_directives, value) if kept]
    return True, value


def _retain(out: Obj, patch: Obj) -> None:
    keys = patch.get(RETAIN)
    if keys is None:
        return
    given = (key for key, value in patch.items() if value is not None and not key.startswith("$"))
    if not isinstance(keys, list) or any(key not in keys for key in given):
        raise _bad("invalid patch format of retainKeys")
    for key in [key for key in out if key not in keys]:
        del out[key]


def _ordered(out: Obj, name: str, value: Any, order: Any, field: Field) -> None:
    """Merges a list in the order of the patch, with the server's own entries in between."""
    have = out.get(name)
    if not isinstance(order, list) or not isinstance(value, list | None):
        raise _bad("invalid patch format of setElementOrder list")
    key = field.merge_key
    if have is None and value is None:
        return
    if value:
        listed = [item for item in value if not (isinstance(item, dict) and DIRECTIVE in item)]
        _check_order(listed, order, key)
    if have is None:
        merged = _without_directives(value)[1]
    elif value is None:
        merged = list(have)
    else:
        merged = _merge_list(have, value, field) if field.merge else value
    out[name] = _arrange(merged, order, have or [], key)


def _check_order(listed: list[Any], order: list[Any], key: str) -> None:
    at = 0
    for entry in order:
        if at < len(listed) and _identity(listed[at], key) == _identity(entry, key):
            at += 1
    if at < len(listed):
        message = f"The order in patch list:\n{listed}\n doesn't match $setElementOrder list:\n{order}\n"
        raise _bad(message)


def _merge_list(have: list[Any], patch: list[Any], field: Field) -> list[Any]:
    if not have and not patch:
        return have
    kinds = {type(item) for item in (*have, *patch)}
    if list in kinds:
        raise _bad("lists of lists are not supported")
    if len(kinds) > 1 and dict in kinds:
        raise _bad("list element types are not identical")
    if dict not in kinds:
        merged = list(dict.fromkeys([*have, *patch]))
        return _arrange(merged, patch, have, "")
    key = field.merge_key
    if not key:
        raise _bad(f"cannot merge lists without merge key for {field.name}")
    live, rest = list(have), []
    for item in patch:
        directive = item.get(DIRECTIVE)
        if directive is None:
            rest.append(item)
        elif directive == "delete":
            gone = _identity(item, key)
            live = [entry for entry in live if entry.get(key) != gone]
        elif directive != "replace":
            raise _bad(f"unknown patch type: {directive} in map: {item}")
    if any(item.get(DIRECTIVE) == "replace" for item in patch):
        live, rest = rest, []
    before = list(live)
    for item in rest:
        identity = _identity(item, key)
        at = next((i for i, entry in enumerate(live) if entry.get(key) == identity), None)
        if at is None:
            live.append(_without_directives(item)[1])
        else:
            live[at] = strategic(live[at], item, field.shape.item)
    return _arrange(live, rest, before, key)


def _identity(entry: Any, key: str) -> Any:
    if not key:
        return entry
    if not isinstance(entry, dict) or key not in entry:
        raise _bad(f"map: {entry} does not contain declared merge key: {key}")
    return entry[key]


def _arrange(merged: list[Any], order: list[Any], live: list[Any], key: str) -> list[Any]:
    """Patched entries in the patch's order, the rest in the server's, interleaved as the server had them."""
    ranks = {_rank(_identity(item, key)): i for i, item in reversed(list(enumerate(order)))}
    places = {_rank(_identity(item, key)): i for i, item in reversed(list(enumerate(live)))}
    patched = [item for item in merged if _rank(_identity(item, key)) in ranks]
    patched.sort(key=lambda item: ranks[_rank(_identity(item, key))])
    unpatched = [item for item in merged if _rank(_identity(item, key)) not in ranks]
    unpatched.sort(key=lambda item: places.get(_rank(_identity(item, key)), len(places)))
    out: list[Any] = []
    while unpatched and patched:
        left, right = (places.get(_rank(_identity(side[0], key))) for side in (unpatched, patched))
        first = left is not None and right is not None and left < right
        out.append((unpatched if first else patched).pop(0))
    return [*out, *patched, *unpatched]


def _rank(identity: Any) -> Any:
    return repr(identity) if isinstance(identity, dict | list) else (type(identity), identity)


def _bad(why: str) -> StatusError:
    return StatusError(500, "", why)
