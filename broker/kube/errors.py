"""The API server's refusals, as one tree of exceptions.

Invariant: callers decide by class, never by text; every failure between here and the API server is
Unavailable, with its cause chained. Status codes and reasons:
https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md#response-status-kind
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
from urllib3.exceptions import HTTPError

Details = Mapping[str, Any]
Errors = tuple[type[Exception], ...]


class ApiError(Exception):
    """A request that the API server refused. `details` is the Status object's own (kind, name, causes)."""

    def __init__(self, status: int, reason: str, message: str, details: Details | None = None) -> None:
        super().__init__(f"{message or 'no message'} ({status} {reason})")
        self.status = status
        self.reason = reason
        self.message = message
        self.details: Details = details or {}

    @property
    def by_policy(self) -> bool:
        """Whether a policy, a webhook or a schema stops the request: a person has to look at it."""
        refused = type(self) in (ApiError, Forbidden, Invalid) and 400 <= self.status < 500
        return refused or isinstance(self, WebhookFailed)


class NotFound(ApiError):
    """No such object, or no such kind."""


class Conflict(ApiError):
    """The object has changed since it was read, or another field manager owns the field."""


class AlreadyExists(ApiError):
    """The name is taken."""


class Expired(ApiError):
    """That resourceVersion or continue token is too old: list again."""


class Invalid(ApiError):
    """The object breaks its schema or a rule of its kind."""


class Forbidden(ApiError):
    """Forbidden, or not authenticated (401)."""


class TooManyRequests(ApiError):
    """Requests came too fast, or an eviction that a disruption budget does not allow now."""

    @property
    def retry_after(self) -> float:
        """Seconds to wait before the next request; 0 if the API server gave none."""
        return float(self.details.get("retryAfterSeconds", 0))


class EvictionRefused(ApiError):
    """An eviction that a disruption budget, several of them, a webhook or a policy does not allow now."""


class Unavailable(ApiError):
    """The API server has trouble of its own (5xx), or no answer came (status 0)."""


class WebhookFailed(ApiError):
    """A webhook with the failure policy Fail does not answer; requests that it does not see succeed."""


# A reason is more exact than a code: 409 is a conflict or a name that is taken.
_BY_REASON: Mapping[str, type[ApiError]] = {
    "AlreadyExists": AlreadyExists,
    "Expired": Expired,
    "Gone": Expired,
}
_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    422: Invalid,
    429: TooManyRequests,
}


# No reason and no code of its own:
# https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook/errors/statuserror.go
_OF_WEBHOOK: Final = "failed calling webhook "


# Failures outside the broker; callers add their provider's error.
EXPECTED: Final[Errors] = (ApiError, OSError, HTTPError)


def from_status(status: Mapping[str, Any], *, code: int = 0, retry_after: str = "") -> ApiError:
    """The exception for a decoded Status object; `retry_after` is the header of that name."""
    code = int(status.get("code") or code)
    reason = status.get("reason") or "Unknown"
    details = dict(status.get("details") or {})
    if retry_after.isdigit():
        details.setdefault("retryAfterSeconds", int(retry_after))
    message = status.get("message") or ""
    kind = _BY_REASON.get(reason) or _BY_STATUS.get(code) or (Unavailable if code >= 500 else ApiError)
    if reason == "InternalError" and _OF_WEBHOOK in message:
        kind = WebhookFailed
    return kind(code, reason, message, details)


def from_reply(code: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """The exception for an HTTP answer of 300 and more; proxies answer without a Status object."""
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        status = None
    if not isinstance(status, dict) or status.get("kind") != "Status":
        status = {"message": body[:500].decode(errors="replace").strip()}
    return from_status(status, code=code, retry_after=headers.get("Retry-After", ""))


def no_answer(cause: Exception) -> Unavailable:
    """For errors that the transport raised; raise it `from cause`."""
    return Unavailable(0, type(cause).__name__, f"no answer from the API server: {cause}")
