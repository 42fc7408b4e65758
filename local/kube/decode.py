"""Reads JSON as the Go struct of a kind would: types checked, unknown fields noted, empties left out.

Invariant: the result is fresh (nothing shared with the input) and equals the server's own encoding.
Rule: encoding/json over the structs of k8s.io/api (data/types.json), sigs.k8s.io/json for strictness.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import orjson

from local.kube import quantity, times
from local.kube.errors import bad_request
from local.kube.shape import OBJECT_META, Field, Shape, struct
from local.kube.wire import Obj

# A path is a chain of (parent, step), so that it costs nothing until it is shown.
_Path = tuple[Any, str] | None
_Decoder = Callable[[Any, _Path, list[str]], Any]
_cache: dict[int, tuple[Shape, _Decoder]] = {}


class Mismatch(Exception):
    """A value of the wrong JSON type, as JSON decoding puts it and as conversion between structures does."""

    def __init__(self, message: str, *, converted: str = "") -> None:
        super().__init__(message)
        self.converted = converted or message


def decode(obj: Any, shape: Shape, *, unknown: list[str]) -> Obj:
    """Raises Mismatch."""
    out: Obj = _decoder(shape)(obj, None, unknown)
    return out


def fragment(value: Any, shape: Shape) -> Any:
    """A part of an object, by the same rules; unknown fields are dropped."""
    try:
        return _decoder(shape)(value, None, [])
    except Mismatch as wrong:
        raise bad_request(str(wrong)) from wrong


def copied(value: Any) -> Any:
    """A deep copy of JSON. Written and read again, which C does sooner than Python copies it."""
    return orjson.loads(orjson.dumps(value))


def metadata(value: Any, unknown: list[str]) -> Obj:
    """The metadata of a custom resource, which is read as strictly as that of any other. Raises Mismatch."""
    out: Obj = _decoder(struct(OBJECT_META))(value, (None, "metadata"), unknown)
    return out


def show(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, step = path
        parts.append(step)
    return ".".join(reversed(parts)).replace(".[", "[")


def _decoder(shape: Shape) -> _Decoder:
    cached = _cache.get(id(shape))
    if cached is None:
        compiled = _COMPILERS.get(shape.kind, _leaf)(shape)
        cached = _cache[id(shape)] = (shape, compiled)
    return cached[1]


_JSON_TYPES = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}
_GO_TYPES = {bool: "bool", int: "int64", float: "float64", str: "string", list: "slice", dict: "map"}


def json_type(value: Any) -> str:
    """The name of a value's JSON type, as Go's errors have it."""
    return _JSON_TYPES.get(type(value), "null")


def _mismatch(value: Any, path: _Path, go: str, kind: str = "") -> Mismatch:
    json_kind, given = json_type(value), _GO_TYPES.get(type(value), "nil")
    if json_kind == "number" and go.startswith(("int", "uint")):
        json_kind = f"number {value}"
    # The name of the innermost struct stands before the path, which is of fields only: no indices, no keys.
    where = f"Go struct field {_owner(path)}{_fields(path)}" if path else "Go value"
    restored = {"struct": "struct from: ", "list": "slice from ", "map": "map from "}.get(kind)
    converted = f"cannot restore {restored}{given}" if restored else f"cannot convert {given} to {go}"
    if given in ("bool", "string") and go.startswith(("int", "float", "uint")):
        converted = f"unrecognized type: {go}"  # Go finds nothing to convert between the two
    return Mismatch(f"json: cannot unmarshal {json_kind} into {where} of type {go}", converted=converted)


def _fields(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, step = path
        if isinstance(step, _Step):
            parts.append(step)
    return ".".join(reversed(parts))


def _owner(path: _Path) -> str:
    while path is not None:
        path, step = path
        if isinstance(step, _Step):
            return step.struct + "."
    return ""


class _Step(str):
    """A field name with the struct that it is a field of."""

    __slots__ = ("struct",)
    struct: str


def _step(name: str, struct: str) -> _Step:
    out = _Step(name)
    out.struct = struct.rpartition(".")[2]
    return out


def _struct(shape: Shape) -> _Decoder:
    plans: dict[str, tuple[_Step, Field, list[_Decoder], bool]] = {}
    go = shape.go

    def ready() -> None:
        # Compiled on first use: a struct may hold itself.
        for name, field in shape.fields.items():
            plans[name] = (_step(name, go), field, [_decoder(field.shape)], _drops(field))
        always.extend((name, field) for name, field in shape.fields.items() if _emitted(field))

    always: list[tuple[str, Field]] = []

    def run(value: Any, path: _Path, unknown: list[str]) -> Any:
        if not plans:
            ready()
        if type(value) is not dict:
            raise _mismatch(value, path, go, "struct")
        out: Obj = {}
        for name, raw in value.items():
            plan = plans.get(name)
            if plan is None:
                unknown.append(f'unknown field "{show((path, name))}"')
            elif raw is not None:
                step, field, decoders, drops = plan
                new = decoders[0](raw, (path, step), unknown)
                if new is None or (drops and not new) or (field.omit_zero and new == _zero(field)):
                    continue
                out[name] = new
        for name, field in always:
            if name not in out:
                out[name] = _zero(field)
        return out

    return run


JSON_SCHEMA = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
_SCALARS: dict[str, Any] = {"string": "", "bool": False, "float64": 0.0, "float32": 0.0, "quantity": "0"}


def _drops(field: Field) -> bool:
    """Left out when empty: `omitempty` on anything but a pointer or a struct."""
    return (
        field.omit
        and not field.pointer
        and field.shape.kind not in ("struct", "time", "quantity", "microtime", "intorstring")
    )


def _emitted(field: Field) -> bool:
    """Written even when nothing was given."""
    if field.pointer:
        return not field.omit
    if field.omit_zero:
        return False
    structural = field.shape.kind in ("struct", "time", "microtime", "quantity")
    return structural or not field.omit


def _zero(field: Field) -> Any:
    kind = field.shape.kind
    if field.pointer or kind in ("list", "map", "time", "microtime", "bytes", "raw", "json"):
        return None
    if kind == "struct":
        return _decoder(field.shape)({}, None, [])
    if kind == "duration":
        return "0s"
    return _SCALARS.get(kind, 0)


def _list(shape: Shape) -> _Decoder:
    item, zero = shape.item, Field("", shape.item)

    def run(value: Any, path: _Path, unknown: list[str]) -> Any:
        if type(value) is not list:
            raise _mismatch(value, path, shape.go or f"[]{item.go}", "list")
        decode_item = _decoder(item)
        out = []
        for i, element in enumerate(value):
            out.append(_zero(zero) if element is None else decode_item(element, (path, f"[{i}]"), unknown))
        return out

    return run


def _map(shape: Shape) -> _Decoder:
    item, zero = shape.item, Field("", shape.item)
    if item.kind == "string":
        return _string_map(shape)
    go = shape.go or f"map[string]{item.go}"

    def run(value: Any, path: _Path, unknown: list[str]) -> Any:
        if type(value) is not dict:
            raise _mismatch(value, path, go, "map")
        decode_item = _decoder(item)
        return {
            key: _zero(zero) if element is None else decode_item(element, (path, key), unknown)
            for key, element in value.items()
        }

    return run


def _string_map(shape: Shape) -> _Decoder:
    def run(value: Any, path: _Path, unknown: list[str]) -> Any:
        if type(value) is not dict:
            raise _mismatch(value, path, shape.go or "map[string]string", "map")
        out = dict(value)
        for key, text in value.items():
            if type(text) is not str:
                if text is not None:
                    raise _mismatch(text, path, "string")
                out[key] = ""
        return out

    return run


def _leaf(shape: Shape) -> _Decoder:
    kind, go = shape.kind, shape.go

    def string(value: Any, path: _Path, unknown: list[str]) -> Any:
        if type(value) is not str:
            raise _mismatch(value, path, go)
        return value

    def boolean(value: Any, path: _Path, unknown: list[str]) -> Any:
        if type(value) is not bool:
            raise _mismatch(value, path, go)
        return value

    def integer(value: Any, path: _Path, unknown: list[str]) -> Any:
        limit = 2**31 if kind == "int32" else 2**63
        if type(value) is int and -limit <= value < limit:
            return value
        if type(value) is float and value.is_integer() and kind == "int64" and -limit <= value < limit:
            return int(value)
        raise _mismatch(value, path, go)

    def number(value: Any, path: _Path, unknown: list[str]) -> Any:
        if type(value) not in (int, float):
            raise _mismatch(value, path, go)
        return value

    if go == "v1.JSONSchemaPropsOrBool":
        return lambda value, *rest: _schema(None if isinstance(value, list) else value, *rest)
    if go == "v1.JSONSchemaPropsOrArray":
        # All other values are ignored.
        return lambda value, *rest: _schema(value, *rest) if isinstance(value, dict | list) else None
    if kind in _SPECIAL:
        return _SPECIAL[kind]
    if kind == "string":
        return string
    if kind == "bool":
        return boolean
    return number if kind.startswith("float") else integer


def _quantity(value: Any, path: _Path, unknown: list[str]) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Mismatch(quantity.INVALID)
    out = quantity.canonical(value.strip() if isinstance(value, str) else str(value))
    if out is None:
        raise Mismatch(quantity.INVALID if value != "" else "unmarshaling: empty quantity")
    return out


def _time(value: Any, path: _Path, unknown: list[str]) -> str:
    if not isinstance(value, str):
        raise Mismatch(f"json: cannot unmarshal {json_type(value)} into Go value of type string")
    out = times.canonical(value)
    if out is None:
        raise _bad_time(value, "2006-01-02T15:04:05Z07:00")
    return out


def _microtime(value: Any, path: _Path, unknown: list[str]) -> str:
    if not isinstance(value, str):
        raise Mismatch(f"json: cannot unmarshal {json_type(value)} into Go value of type string")
    out = times.canonical_micro(value)
    if out is None:
        raise _bad_time(value, "2006-01-02T15:04:05.000000Z07:00", point=True)
    return out


def _bad_time(value: str, layout: str, *, point: bool = False) -> Mismatch:
    if point and times.parse(value) is not None:
        rest = value[len("2006-01-02T15:04:05") :]
        return Mismatch(f'parsing time "{value}" as "{layout}": cannot parse "{rest}" as ".000000"')
    return Mismatch(f'parsing time "{value}" as "{layout}": cannot parse "{value}" as "2006"')


def _int_or_string(value: Any, path: _Path, unknown: list[str]) -> Any:
    if isinstance(value, str) or (type(value) is int and -(2**31) <= value < 2**31):
        return value
    raise Mismatch(f"json: cannot unmarshal {json_type(value)} into Go value of type int32")


def _bytes(value: Any, path: _Path, unknown: list[str]) -> Any:
    if not isinstance(value, str):
        raise _mismatch(value, path, "[]uint8")
    try:
        return base64.b64encode(base64.b64decode(value, validate=True)).decode()
    except ValueError as error:
        raise Mismatch(f"illegal base64 data at input byte {_bad_byte(value)}") from error


def _bad_byte(text: str) -> int:
    good = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
    return next((i for i, char in enumerate(text) if char not in good), len(text) - len(text) % 4)


def _schema(value: Any, path: _Path, unknown: list[str]) -> Any:
    """A schema where there may be several, or a yes or no."""
    if isinstance(value, list):
        return [_decoder(struct(JSON_SCHEMA))(item, path, []) for item in value]
    if isinstance(value, bool):
        return value
    if not isinstance(value, dict):
        raise Mismatch("boolean or JSON schema expected")
    # Unknown fields in there are not reported: these types decode themselves.
    return _decoder(struct(JSON_SCHEMA))(value, path, [])


def _anything(value: Any, path: _Path, unknown: list[str]) -> Any:
    return copied(value) if isinstance(value, dict | list) else value


_SPECIAL: dict[str, _Decoder] = {
    "quantity": _quantity,
    "time": _time,
    "microtime": _microtime,
    "intorstring": _int_or_string,
    "bytes": _bytes,
    "duration": _anything,
    "raw": _anything,
    "json": _anything,
    "any": _anything,
}
_COMPILERS: dict[str, Callable[[Shape], _Decoder]] = {"struct": _struct, "list": _list, "map": _map}
