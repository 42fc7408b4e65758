"""An AdmissionReview of the API server, and the answer to it.

Invariant: every readable review is answered under its own uid. A refusal has all problems at once, as a
Status with a cause for each field. A review never changes an object. Formats:
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

API_VERSION: Final = "admission.k8s.io/v1"
_FIELD: Final = re.compile(r"spec[\w.\[\]]*")
_REFUSED: Final = (422, "Invalid")
_NO_ROOM: Final = (403, "Forbidden")

Json = dict[str, Any]


class NotAReview(ValueError):
    """A body that is no AdmissionReview of version v1; the text describes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewRequest:
    """A requested operation. `old` is None for a create, `new` for a delete."""

    uid: str
    operation: str
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
    result = judge(request)
    refusals = (*result.problems, *result.no_room)
    response: Json = {"uid": request.uid, "allowed": not refusals}
    if refusals:
        response["status"] = _status(request, result)
    if result.warnings:
        response["warnings"] = [*result.warnings]
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def read(body: Any) -> ReviewRequest:
    """Raises NotAReview."""
    if not isinstance(body, dict):
        raise NotAReview(f"an AdmissionReview is a JSON object, this is {type(body).__name__}")
    type_meta = (body.get("apiVersion"), body.get("kind"))
    if type_meta != (API_VERSION, "AdmissionReview"):
        raise NotAReview(
            f"an AdmissionReview of {API_VERSION} is required, this is {type_meta[1]} of {type_meta[0]}"
        )
    request = body.get("request")
    if not isinstance(request, dict) or not request.get("uid"):
        raise NotAReview("request.uid is missing in the AdmissionReview")
    kind = request.get("kind")
    return ReviewRequest(
        uid=str(request["uid"]),
        operation=str(request.get("operation", "")),
        kind=str(kind.get("kind", "")) if isinstance(kind, dict) else "",
        namespace=str(request.get("namespace") or ""),
        name=str(request.get("name") or ""),
        new=_object(request, "object"),
        old=_object(request, "oldObject"),
    )


def _object(request: Mapping[str, Any], field: str) -> Json | None:
    value = request.get(field)
    if value is None or isinstance(value, dict):
        return value
    raise NotAReview(f"request.{field} is not an object: {value!r:.100}")


def _status(request: ReviewRequest, result: ReviewResult) -> Json:
    code, reason = _REFUSED if result.problems else _NO_ROOM
    refusals = (*result.problems, *result.no_room)
    causes = [_cause(why) for why in result.problems]
    details: Json = {"name": request.name, "kind": request.kind} | ({"causes": causes} if causes else {})
    status = {"status": "Failure", "code": code, "reason": reason, "message": "; ".join(refusals)}
    return status | {"details": details}


def _cause(why: str) -> Json:
    """A problem begins with the field that it is about, which clients write before the message."""
    match = _FIELD.match(why)
    field = match[0] if match else ""
    message = why[len(field) :].removeprefix(":").strip()
    return {"reason": "FieldValueInvalid", "field": field or "spec", "message": message}
