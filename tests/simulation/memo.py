"""Repeats responses of local AWS that cannot have changed, without another call.

Invariant: a response is repeated only for the same request, and only if nothing that it shows was changed
since. Nothing came due by EC2's clock, no fault is scripted for it, and EC2 shows nothing late. Most calls
of a broker at rest are such.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders

from local.aws.ec2.world import world
from tests.simulation.wire import AWS_READS

REST_READS = ("list-group-resources", "get-group", "get-group-configuration")
# The subject of each read, by a part of its name; another read may show anything.
SHOWS: Mapping[str, str] = {
    "DescribeImages": "images",
    "DescribeSubnets": "network",
    "DescribeSecurityGroups": "network",
    "DescribeAvailabilityZones": "network",
    "DescribeInstanceTypes": "types",
    "DescribeInstanceTypeOfferings": "types",
    "DescribeLaunchTemplates": "templates",
    "DescribeLaunchTemplateVersions": "templates",
    "GetCallerIdentity": "account",
    "GetInstanceProfile": "account",
    "DescribeInstances": "instances",
    "DescribeInstanceStatus": "instances",
    "DescribeCapacityReservations": "reservations",
    "list-group-resources": "groups",
    "get-group": "groups",
}
# The subject of each change; another change may touch everything.
TOUCHES: Mapping[str, tuple[str, ...]] = {
    "CreateLaunchTemplate": ("templates",),
    "DeleteLaunchTemplate": ("templates",),
    "CreateFleet": ("instances", "reservations"),
    "RunInstances": ("instances", "reservations"),
    "TerminateInstances": ("instances", "reservations"),
    "RebootInstances": ("instances",),
    "CreateCapacityReservation": ("instances", "reservations"),
    "CancelCapacityReservation": ("instances", "reservations", "groups"),
    "ModifyCapacityReservation": ("instances", "reservations", "groups"),
}
TIMED = ("instances", "reservations", "groups")
Kept = tuple[int, list[tuple[str, str]], bytes]


class _Raw:
    """A body as botocore reads it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        yield self._body


class Memo:
    """Stands before tests.support.direct; `forget` after whatever changes AWS past it."""

    def __init__(self, direct: Any) -> None:
        self._direct = direct
        self._kept: dict[str, dict[tuple[str, ...], Kept]] = {}

    def forget(self, *shown: str) -> None:
        if not shown:
            self._kept.clear()
        for action in shown:
            self._kept.pop(action, None)

    def catch_up(self) -> None:
        """Carries out all that is due by EC2's clock, and shows it."""
        here = world()
        if here.ledger._due and here.ledger._due[0][0] <= here.clock.now():
            self.forget(*TIMED)
        here.ledger.run_due()

    def __call__(self, request: AWSPreparedRequest) -> AWSResponse | None:
        here = world()
        action = _action(request)
        if not (action.startswith(AWS_READS) or action in REST_READS):
            self.forget(*TOUCHES.get(action, ()))
            return self._send(request)
        shown = SHOWS.get(action)
        self.catch_up()
        late = here.describe_lag and shown in TIMED
        faults = any(fault["action"] in (action, "*") and fault["times"] for fault in here.faults.list())
        if shown is None or late or faults:
            return self._send(request)
        body: Any = request.body or b""
        key = (str(request.url), body if isinstance(body, str) else body.decode())
        kept = self._kept.setdefault(shown, {})
        if key not in kept:
            answer = self._send(request)
            if answer is None or answer.status_code >= 300:
                return answer
            kept[key] = (answer.status_code, [*answer.headers.items()], answer.content)
        status, headers, content = kept[key]
        raw: Any = _Raw(content)
        return AWSResponse(str(request.url), status, HTTPHeaders.from_pairs(headers), raw)

    def _send(self, request: AWSPreparedRequest) -> AWSResponse | None:
        answer: AWSResponse | None = self._direct(request)
        return answer


def _action(request: AWSPreparedRequest) -> str:
    """The operation, or the path of a service that has one for each."""
    target = request.headers.get("X-Amz-Target", "")
    if target:
        return (target if isinstance(target, str) else target.decode()).rpartition(".")[2]
    if path := urlsplit(str(request.url)).path.strip("/"):
        return path
    body: Any = request.body or b""
    text = body if isinstance(body, str) else body.decode()
    return _named(next((part for part in text.split("&") if part.startswith("Action=")), ""))


@lru_cache(maxsize=1024)
def _named(text: str) -> str:
    return parse_qs(text).get("Action", [""])[0]
