"""ConfigMaps: keys that can be file names, a size limit, and data that stays once it is immutable."""

from __future__ import annotations

import base64
import re

from local.kube.errors import FieldError, problem
from local.kube.kind import CHANGED, FIXED, META, VALID, KindRules
from local.kube.wire import Obj

_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_LIMIT = 1 << 20


def _keys(values: Obj, path: str) -> list[FieldError]:
    return [problem("invalid", f"{path}[{key}]", why, key) for key in sorted(values) for why in _key(key)]


def _key(key: str) -> list[str]:
    out = ["must be no more than 253 characters"] if len(key) > 253 else []
    if not _KEY.fullmatch(key):
        out.append(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
            "(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', "
            f"regex used for validation is '{_KEY.pattern}')"
        )
    if key == ".":
        out.append("must not be '.'")
    elif key == "..":
        out.append("must not be '..'")
    elif key.startswith(".."):
        out.append("must not start with '..'")
    return out


def _validate(obj: Obj) -> list[FieldError]:
    data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    out = _keys(data, "data")
    for key in sorted(data.keys() & binary.keys()):
        out.append(problem("invalid", f"data[{key}]", "duplicate of key present in binaryData", key))
    out += _keys(binary, "binaryData")
    size = sum(len(value.encode()) for value in data.values())
    size += sum(len(base64.b64decode(value)) for value in binary.values())
    if size > _LIMIT:
        out.append(problem("too_long", "", f"may not be more than {_LIMIT} bytes"))
    return out


def _validate_update(obj: Obj, old: Obj) -> list[FieldError]:
    if not old.get("immutable"):
        return []
    why = "field is immutable when `immutable` is set"
    changed = [name for name in ("data", "binaryData") if (obj.get(name) or {}) != (old.get(name) or {})]
    if not obj.get("immutable"):
        changed.insert(0, "immutable")
    return [problem("forbidden", name, why) for name in changed]


RULES = KindRules(
    validate=_validate,
    validate_update=_validate_update,
    core=True,
    update_order=(FIXED, CHANGED, META, VALID),
)
