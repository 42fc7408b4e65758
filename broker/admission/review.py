"""An AdmissionReview of the API server, and the answer to it.

Invariant: every readable review is answered under its own uid. A refusal has all problems at once, as a
Status with a cause for each field, within what an API server shows. An object without readable metadata is
refused before any rule reads it. A review never changes an object. Formats:
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from broker.apis.meta import Json
from broker.text import LONGEST_SCALAR, levels, shortened

API_VERSION: Final = "admission.k8s.io/v1"
_FIELD: Final = re.compile(r"(?:spec|metadata)[\w.\[\]]*")
_REFUSED: Final = (422, "Invalid")
_NO_ROOM: Final = (403, "Forbidden")

# API servers cut warnings at 4 kB in all, and a terminal shows about as many lines.
MOST_LINES: Final = 20
MOST_BYTES: Final = 4096
LONGEST_LINE: Final = 1000  # characters
# Levels of a review or an object. The kinds with rules have fewer, and Python prints about 1000.
DEEPEST: Final = 100


class NotAReview(ValueError):
    """A body that is no AdmissionReview of version v1; the text describes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewRequest:
    """A requested operation. `old` is None for a create, `new` for a delete."""

    uid: str
    kind: str
    namespace: str = ""
    name: str = ""
    new: Json | None = None
    old: Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewResult:
    """The result of a review. `problems` and `no_room` (a full quota) reject the request; `warnings` are
    shown.
    """

    problems: tuple[str, ...] = ()
    no_room: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def answer(body: Any, judge: Callable[[ReviewRequest], ReviewResult]) -> Json:
    """The AdmissionReview to send back. Raises NotAReview."""
    request = read(body)
    malformed = () if request.new is None else tuple(_malformed_metadata(request.new))
    result = ReviewResult(problems=malformed) if malformed else judge(request)
    refused = bool(result.problems or result.no_room)
    response: Json = {"uid": request.uid, "allowed": not refused}
    if refused:
        response["status"] = _status(request, result)
    if result.warnings:
        response["warnings"] = _bounded(result.warnings)
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def read(body: Any) -> ReviewRequest:
    """Raises NotAReview."""
    if not isinstance(body, dict):
        raise NotAReview(f"an AdmissionReview is a JSON object, this is {type(body).__name__}")
    request = body.get("request")
    objects = {"object": None, "oldObject": None}
    if _deeper({**body, "request": {**request, **objects} if isinstance(request, dict) else request}):
        raise NotAReview(f"the AdmissionReview is nested deeper than {DEEPEST} levels")
    type_meta = (body.get("apiVersion"), body.get("kind"))
    if type_meta != (API_VERSION, "AdmissionReview"):
        raise NotAReview(
            f"an AdmissionReview of {API_VERSION} is required, this is {type_meta[1]} of {type_meta[0]}"
        )
    if not isinstance(request, dict) or not request.get("uid"):
        raise NotAReview("request.uid is missing in the AdmissionReview")
    kind = request.get("kind")
    return ReviewRequest(
        uid=str(request["uid"]),
        kind=str(kind.get("kind", "")) if isinstance(kind, dict) else "",
        namespace=str(request.get("namespace") or ""),
        name=str(request.get("name") or ""),
        new=_object(request, "object"),
        old=_readable(_object(request, "oldObject")),
    )


def _readable(old: Json | None) -> Json | None:
    """None for a stored object without readable metadata: no rule can compare with it."""
    return None if old is None or any(_malformed_metadata(old)) else old


def _malformed_metadata(obj: Json) -> Iterator[str]:
    """Each field of the metadata that has another type than Kubernetes gives it, or one that is too deep."""
    if deep := [key for key, value in obj.items() if _deeper(value)]:
        yield from (f"{key}: it is nested deeper than {DEEPEST} levels" for key in deep)
        return
    metadata = obj.get("metadata", {})
    if not isinstance(metadata, dict):
        yield f"metadata: {_json(metadata)} is no object: write one with the name"
        return
    for field in ("name", "namespace", "deletionTimestamp", "resourceVersion", "uid"):
        if not isinstance(value := metadata.get(field), str | None):
            yield f"metadata.{field}: {_json(value)} is no text: put it in quotes"
    for field in ("annotations", "labels"):
        values = metadata.get(field)
        if not isinstance(values, dict | None):
            yield f"metadata.{field}: {_json(values)} is no map of texts"
            continue
        for key, value in (values or {}).items():
            if not isinstance(value, str):
                yield f"metadata.{field}: {key} is {_json(value)}: put it in quotes"


def _deeper(value: object) -> bool:
    """Whether the value is nested deeper than `DEEPEST`: then it can be neither printed nor written."""
    return any(depth > DEEPEST for depth, _ in enumerate(levels(value)))


def _json(value: object) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= LONGEST_SCALAR else shortened(text)


def _bounded(texts: Sequence[str]) -> list[str]:
    """The texts within `MOST_LINES` and `MOST_BYTES`; the last one counts those that are left out."""
    lines: list[str] = []
    room = MOST_BYTES - len("9999 more")
    for text in (" ".join(text.splitlines()) for text in texts):
        line = text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 1]}…"
        room -= len(line.encode()) + len("; ")
        if room < 0 or (len(lines) == MOST_LINES - 1 and len(texts) > MOST_LINES):
            return [*lines, f"{len(texts) - len(lines)} more"]
        lines.append(line)
    return lines


def _object(request: Mapping[str, Any], field: str) -> Json | None:
    value = request.get(field)
    if value is None or isinstance(value, dict):
        return value
    raise NotAReview(f"request.{field} is not an object, it is {type(value).__name__}")


def _status(request: ReviewRequest, result: ReviewResult) -> Json:
    code, reason = _REFUSED if result.problems else _NO_ROOM
    refusals = _bounded((*result.problems, *result.no_room))
    causes = [_cause(why) for why in _bounded(result.problems)]
    details: Json = {"name": request.name, "kind": request.kind} | ({"causes": causes} if causes else {})
    status = {"status": "Failure", "code": code, "reason": reason, "message": "; ".join(refusals)}
    return status | {"details": details}


def _cause(why: str) -> Json:
    """A problem begins with the field that it is about, which clients write before the message."""
    match = _FIELD.match(why)
    field = match[0] if match else ""
    message = why[len(field) :].removeprefix(":").strip()
    return {"reason": "FieldValueInvalid", "field": field or "spec", "message": message}
