"""The class of a refusal, and its text."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from broker.kube import errors, informer, lease, panics, queue
from broker.kube.errors import ApiError, Expired, Forbidden, Invalid, TooManyRequests, from_reply, from_status
from broker.kube.metrics import REGISTRY


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", ApiError),
        (401, "Unauthorized", Forbidden),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", errors.NotFound),
        (405, "MethodNotAllowed", ApiError),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", Expired),
        (410, "Gone", Expired),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", errors.Unavailable),
        (503, "ServiceUnavailable", errors.Unavailable),
        (504, "Timeout", errors.Unavailable),
    ],
)
def test_the_class_follows_reason_and_code(code: int, reason: str, expected: type[ApiError]) -> None:
    status = {"kind": "Status", "code": code, "reason": reason, "message": "said"}
    for error in (from_status(status), from_reply(code, orjson.dumps(status), {})):
        assert type(error) is expected
        assert (error.status, error.reason, error.message) == (code, reason, "said")
        assert str(error) == f"said ({code} {reason})"


def test_a_webhook_that_does_not_answer_is_no_outage_of_the_api_server() -> None:
    """Other requests succeed, so one refused object must not end a pass over many."""
    text = (
        'Internal error occurred: failed calling webhook "validate.example": failed to call webhook: refused'
    )
    error = from_status({"code": 500, "reason": "InternalError", "message": text})
    assert isinstance(error, errors.WebhookFailed) and error.by_policy
    assert not isinstance(error, errors.Unavailable)


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        ({"Retry-After": "7"}, {}, 7),
        ({}, {"retryAfterSeconds": 3}, 3),
        ({"Retry-After": "7"}, {"retryAfterSeconds": 3}, 3),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, 0),
        ({}, {}, 0),
    ],
)
def test_retry_after_is_read_from_header_and_body(
    headers: dict[str, str], details: dict[str, Any], seconds: float
) -> None:
    body = orjson.dumps({"kind": "Status", "code": 429, "details": details})
    error = from_reply(429, body, headers)
    assert isinstance(error, TooManyRequests)
    assert error.retry_after == seconds


def test_an_invalid_object_names_its_fields() -> None:
    causes = [{"field": "spec.size", "message": "Invalid value: -1: must not be negative"}]
    error = from_status({"code": 422, "reason": "Invalid", "details": {"causes": causes}})
    assert isinstance(error, Invalid)
    assert error.details["causes"] == causes


def test_metrics_of_the_runtime_can_be_shown_by_another_registry() -> None:
    assert {module.REGISTRY for module in (panics, informer, lease, queue)} == {REGISTRY}
    process = CollectorRegistry()
    process.register(REGISTRY)
    shown = generate_latest(process).decode()
    for name in (
        "queue_depth",
        "cache_staleness_seconds",
        "watch_failures_total",
        "panics_total",
        "lists_total",
    ):
        assert f"# HELP capacity_broker_kube_{name} " in shown
    assert "capacity_broker_leading" in shown
