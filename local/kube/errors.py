"""Failures as the API server words them: a `Status` with code, reason, message, details and causes.

Rule: k8s.io/apimachinery/pkg/api/errors and util/validation/field (the wording that clients match on).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from local.kube.wire import Obj, Response, text


class StatusError(Exception):
    """A request that failed with a `Status`."""

    def __init__(
        self, code: int, reason: str, message: str, *, details: Obj | None = None, metadata: Obj | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details, self.metadata = details, metadata or {}
        self.warnings: Sequence[str] = ()

    def status(self) -> Obj:
        out: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": self.metadata, "status": "Failure"}
        out["message"] = self.message
        if self.reason:
            out["reason"] = self.reason
        if self.details is not None:
            out["details"] = self.details
        out["code"] = self.code
        return out

    def response(self) -> Response:
        if not self.reason and self.code == 404:
            return text(self.message + "\n", status=404)  # the mux's answer, before any API machinery
        headers = {"Content-Type": "application/json"}
        if self.warnings:
            headers["Warning"] = warning_header(self.warnings)
        if self.details and self.details.get("retryAfterSeconds"):
            headers["Retry-After"] = str(self.details["retryAfterSeconds"])
        return Response(self.code, headers, orjson.dumps(self.status()))


def warning_header(messages: Sequence[str]) -> str:
    escaped = (message.replace("\\", "\\\\").replace('"', '\\"') for message in messages)
    return ", ".join(f'299 - "{message}"' for message in escaped)


@dataclass(frozen=True, slots=True)
class ErrorSubject:
    """The resource that an error is about, in both its names: `pods` and `Pod`."""

    group: str
    plural: str
    kind: str

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def details(self, name: str, *, kind: str = "") -> Obj:
        out = {"name": name, "group": self.group, "kind": kind or self.plural}
        return {key: value for key, value in out.items() if value}


def quoted(value: str) -> str:
    """Go's %q for the strings that end up in messages."""
    return orjson.dumps(value).decode()


@dataclass(frozen=True, slots=True)
class FieldError:
    """One problem with one field: the parts of a `StatusCause`."""

    reason: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


@dataclass(frozen=True, slots=True)
class _Wording:
    reason: str
    label: str
    shows_value: bool = field(default=True)


_WORDINGS = {
    "required": _Wording("FieldValueRequired", "Required value", False),
    "invalid": _Wording("FieldValueInvalid", "Invalid value"),
    "type": _Wording("FieldValueTypeInvalid", "Invalid value"),
    "unsupported": _Wording("FieldValueNotSupported", "Unsupported value"),
    "forbidden": _Wording("FieldValueForbidden", "Forbidden", False),
    "duplicate": _Wording("FieldValueDuplicate", "Duplicate value"),
    "too_long": _Wording("FieldValueTooLong", "Too long", False),
    "too_many": _Wording("FieldValueTooMany", "Too many"),
    "not_found": _Wording("FieldValueNotFound", "Not found"),
}


class Struct(dict[str, Any]):
    """A value that Go shows as a struct: its fields in their order, not sorted as a map's keys are."""


def shown(value: object) -> str:
    """A value as Go prints it in an error: strings quoted, nil as null, structures as JSON."""
    if isinstance(value, str):
        return quoted(value)
    if value is None:
        return "null"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    first = value[0] if isinstance(value, list) and value else value
    option = 0 if isinstance(first, Struct) else orjson.OPT_SORT_KEYS
    return orjson.dumps(value, option=option).decode()


def go_text(value: Any) -> str:
    """A value as Go's %v prints it."""
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{go_text(item)}" for key, item in sorted(value.items())) + "]"
    if isinstance(value, list):
        return "[" + " ".join(map(go_text, value)) + "]"
    if value is None:
        return "<nil>"
    return str(value).lower() if isinstance(value, bool) else str(value)


def problem(kind: str, path: str, detail: str = "", value: object = None) -> FieldError:
    """A field error by its kind: `problem("invalid", "spec.x", "must be ...", 7)`."""
    wording = _WORDINGS[kind]
    parts = [wording.label]
    if wording.shows_value:
        parts.append(shown(value))
    if detail:
        parts.append(detail)
    return FieldError(wording.reason, path or "<nil>", ": ".join(parts))


def supported(path: str, value: object, values: Iterable[str]) -> FieldError:
    names = ", ".join(quoted(v) for v in values)
    return problem("unsupported", path, f"supported values: {names}" if names else "", value)


def invalid(subject: ErrorSubject, name: str, problems: Sequence[FieldError]) -> StatusError:
    listed = list(dict.fromkeys(problems))
    text = str(listed[0]) if len(listed) == 1 else "[" + ", ".join(map(str, listed)) + "]"
    kind = f"{subject.kind}.{subject.group}" if subject.group else subject.kind
    causes = [{"reason": p.reason, "message": p.message, "field": p.field} for p in problems]
    details = {**subject.details(name, kind=subject.kind), "causes": causes}
    return StatusError(422, "Invalid", f"{kind} {quoted(name)} is invalid: {text}", details=details)


def not_found(subject: ErrorSubject, name: str) -> StatusError:
    message = f"{subject.qualified} {quoted(name)} not found"
    return StatusError(404, "NotFound", message, details=subject.details(name))


def already_exists(subject: ErrorSubject, name: str) -> StatusError:
    message = f"{subject.qualified} {quoted(name)} already exists"
    return StatusError(409, "AlreadyExists", message, details=subject.details(name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(subject: ErrorSubject, name: str, why: str = MODIFIED) -> StatusError:
    message = f"Operation cannot be fulfilled on {subject.qualified} {quoted(name)}: {why}"
    return StatusError(409, "Conflict", message, details=subject.details(name))


def forbidden(subject: ErrorSubject, name: str, why: str, *, causes: list[Any] | None = None) -> StatusError:
    named = f"{subject.qualified} {quoted(name)}" if name else subject.qualified
    details = subject.details(name)
    if causes:
        details["causes"] = causes
    return StatusError(403, "Forbidden", f"{named} is forbidden: {why}", details=details)


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def expired(message: str, *, token: str = "") -> StatusError:
    return StatusError(410, "Expired", message, metadata={"continue": token} if token else None)


def no_such_resource() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource", details={})


def method_not_allowed() -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, details={})


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    message = (
        "the body of the request was in an unknown format - "
        f"accepted media types include: {', '.join(accepted)}"
    )
    return StatusError(415, "UnsupportedMediaType", message)
