"""A clock that moves only by a sleep or a test's call, and scripted replies of AWS."""

from __future__ import annotations

import threading
import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.awsrequest import AWSResponse

from providers.aws import AwsProvider

START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """A sleep takes no time and moves the clock; `slept` records each."""

    def __init__(self) -> None:
        self.at = 0.0
        self.slept: list[float] = []
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return START + timedelta(seconds=self.at)

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float, /) -> None:
        with self._lock:
            self.slept.append(seconds)
            self.at += seconds

    def advance(self, seconds: float) -> None:
        with self._lock:
            self.at += seconds


HEADERS: Any = {"Content-Type": "text/xml"}


class _Raw:
    """A body that botocore reads like a socket's."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, **_: Any) -> Any:
        yield self._content


Reply = tuple[int, str] | Exception
Sent = Mapping[str, str]


class Wire:
    """Replies to EC2's requests in place of the network, after the SDK signed and serialized them.

    `replies` are returned in order for each action, the last one repeatedly; `sent` are the received
    requests.
    """

    def __init__(self, provider: AwsProvider) -> None:
        self.sent: list[Sent] = []
        self._replies: dict[str, list[Reply]] = {}
        hook: Any = self._answer
        provider._aws.ec2.meta.events.register("before-send.ec2", hook)

    def reply(self, action: str, *replies: Reply) -> None:
        self._replies[action] = list(replies)

    def count(self, action: str) -> int:
        return len(self.of(action))

    def of(self, action: str) -> list[Sent]:
        return [sent for sent in self.sent if sent["Action"] == action]

    def _answer(self, request: Any, **_: Any) -> AWSResponse:
        body = request.body.decode() if isinstance(request.body, bytes) else request.body
        sent = dict(urllib.parse.parse_qsl(body, keep_blank_values=True))
        self.sent.append(sent)
        script = self._replies[sent["Action"]]
        reply = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(reply, Exception):
            raise reply
        status, text = reply
        return AWSResponse(request.url, status, HEADERS, _Raw(text.encode()))


def refusal(code: str, message: str = "no", *, request_id: str = "req-1") -> str:
    """EC2's error document."""
    return (
        f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
        f"<RequestID>{request_id}</RequestID></Response>"
    )


def answer(action: str, inner: str, *, request_id: str = "req-ok") -> str:
    """EC2's success document."""
    return f"<{action}Response><requestId>{request_id}</requestId>{inner}</{action}Response>"


def provider(clock: ManualClock | None = None, **options: Any) -> AwsProvider:
    """A provider that can reach only a Wire."""
    return AwsProvider(
        cluster="blue",
        region="us-east-1",
        endpoint_url="http://127.0.0.1:1",
        clock=clock or ManualClock(),
        **options,
    )
