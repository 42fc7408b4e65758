"""Reads the protobuf in which kubectl sends some built-in kinds: an envelope, then the kind's own message.

Rule: https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding; field numbers are those
of k8s.io/api (data/types.json).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import orjson

from local.kube.errors import StatusError, bad_request
from local.kube.shape import Field, Shape, builtin
from local.kube.wire import Obj

MAGIC = b"k8s\0"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TYPE_META, _RAW = 1, 2
_LAST_SECOND = 253_402_300_799  # of the year 9999


class Malformed(ValueError):
    """Bytes that are no protobuf."""


# Errors from reading bytes of another format.
_MISREAD = (ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError, struct.error)


def decode(raw: bytes) -> Obj:
    """The object in an envelope, as JSON has it."""
    try:
        if raw[: len(MAGIC)] != MAGIC:
            raise Malformed("the data does not begin with the prefix of Kubernetes' protobuf")
        envelope = dict(_fields(raw[len(MAGIC) :]))
        kind = {number: value.decode() for number, value in _fields(envelope[_TYPE_META])}
        api_version, name = kind.get(1, ""), kind.get(2, "")
        group, _, version = api_version.rpartition("/")
        shape = builtin(group, version, name)
        if shape is None and name == "DeleteOptions":
            shape = builtin("meta", "v1", name)
        if shape is None:
            message = f"protobuf of {api_version}, Kind={name} is not understood here: send JSON"
            raise StatusError(415, "UnsupportedMediaType", message)
        return {**_message(envelope.get(_RAW, b""), shape), "apiVersion": api_version, "kind": name}
    except _MISREAD as error:
        raise bad_request(f"the body is no protobuf that Kubernetes sends: {error}") from error


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(raw, at)
            yield tag >> 3, value
            continue
        size, at = (8, at) if kind == _FIXED64 else (4, at) if kind == _FIXED32 else _varint(raw, at)
        if kind not in (_BYTES, _FIXED32, _FIXED64) or at + size > len(raw):
            raise Malformed(f"unexpected wire type {kind} at byte {at}")
        yield tag >> 3, raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _message(raw: bytes, shape: Shape) -> Obj:
    """A message by its struct; fields that JSON inlines come as a message of their own."""
    known, inlined = _numbers(shape)
    out: Obj = {}
    for number, value in _fields(raw):
        if number in inlined:
            for inner, item in _fields(value):
                _take(out, inlined[number].get(inner), item)
        else:
            _take(out, known.get(number), value)
    return out


def _numbers(shape: Shape) -> tuple[dict[int, Field], dict[int, dict[int, Field]]]:
    known: dict[int, Field] = {}
    inlined: dict[int, dict[int, Field]] = {}
    for field in shape.fields.values():
        outer, _, inner = field.number.partition(".")
        if inner:
            inlined.setdefault(int(outer), {})[int(inner)] = field
        elif outer:
            known[int(outer)] = field
    return known, inlined


def _take(out: Obj, field: Field | None, value: Any) -> None:
    if field is None:
        return
    shape = field.shape
    if shape.kind == "list":
        out.setdefault(field.name, []).append(_value(value, shape.item))
    elif shape.kind == "map":
        entry = dict(_fields(value))
        key = entry.get(1, b"").decode()
        out.setdefault(field.name, {})[key] = _value(entry.get(2, _empty(shape.item)), shape.item)
    else:
        new = _value(value, shape)
        # Go writes empty values of fields that are no pointers; JSON leaves them out.
        if field.pointer or new not in ("", 0, False, None):
            out[field.name] = new


def _empty(shape: Shape) -> Any:
    return 0 if shape.kind in ("bool", "int32", "int64") else b""


def _value(value: Any, shape: Shape) -> Any:
    kind = shape.kind
    if kind == "struct":
        return _message(value, shape)
    if kind == "string":
        return value.decode()
    if kind == "bool":
        return bool(value)
    if kind in ("int32", "int64"):
        return value - (1 << 64) if value >= 1 << 63 else value
    if kind == "bytes":
        return base64.b64encode(value).decode()
    return _SPECIAL[kind](value)


def _time(raw: bytes, *, micro: bool = False) -> str | None:
    parts = dict(_fields(raw))
    seconds, nanos = parts.get(1, 0), parts.get(2, 0)
    seconds = seconds - (1 << 64) if seconds >= 1 << 63 else seconds
    if not parts or seconds < -62_000_000_000:
        return None
    if seconds > _LAST_SECOND:
        raise Malformed(f"no calendar has the second {seconds}")
    at = datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanos // 1000)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def _int_or_string(raw: bytes) -> Any:
    parts = dict(_fields(raw))
    number = parts.get(2, 0)
    return parts.get(3, b"").decode() if parts.get(1) else number - (1 << 64) if number >= 1 << 63 else number


def _json(raw: bytes) -> Any:
    inner = dict(_fields(raw)).get(1, b"")
    return orjson.loads(inner) if inner else None


def _double(raw: bytes) -> float:
    return float(struct.unpack("<d", raw)[0])


_SPECIAL: dict[str, Any] = {
    "time": _time,
    "microtime": lambda raw: _time(raw, micro=True),
    "quantity": lambda raw: dict(_fields(raw)).get(1, b"0").decode(),
    "intorstring": _int_or_string,
    "duration": lambda raw: f"{dict(_fields(raw)).get(1, 0) / 1e9:g}s",
    "raw": _json,
    "json": _json,
    "float64": _double,
}
