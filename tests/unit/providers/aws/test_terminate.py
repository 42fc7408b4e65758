"""A refused batch is split until only the refused instances remain, each with its id and reason."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Sequence
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from providers.aws import AwsProvider
from providers.errors import ErrorClass, ProviderError
from tests.unit.providers.aws.support import HEADERS, _Raw, answer, provider, refusal

IDS = [f"i-{number:017x}" for number in range(1, 501)]


class Ec2:
    """Terminates instances as EC2 does: one refused instance refuses the whole batch."""

    def __init__(self, aws: AwsProvider, refused: Sequence[str], *, code: str, message: str) -> None:
        self.ended: set[str] = set()
        self.calls: list[int] = []
        self._refused, self._code, self._message = set(refused), code, message
        hook: Any = self._answer
        aws._aws.ec2.meta.events.register("before-send.ec2.TerminateInstances", hook)

    def _answer(self, request: Any, **_: Any) -> AWSResponse:
        body = request.body.decode() if isinstance(request.body, bytes) else request.body
        ids = re.findall(r"InstanceId\.\d+=([^&]+)", urllib.parse.unquote(body))
        self.calls.append(len(ids))
        bad = next((id_ for id_ in ids if id_ in self._refused), "")
        if bad:
            text = refusal(self._code, self._message.format(id=bad))
            return AWSResponse(request.url, 400, HEADERS, _Raw(text.encode()))
        self.ended |= set(ids)
        return AWSResponse(request.url, 200, HEADERS, _Raw(answer("TerminateInstances", "").encode()))


@pytest.mark.covers("SAF-05")
@pytest.mark.parametrize(
    ("code", "message", "most"),
    [
        ("OperationNotPermitted", "The instance '{id}' may not be terminated.", 8),
        ("IncorrectInstanceState", "An instance is in a state of its own.", 60),
        ("UnauthorizedOperation", "You are not authorized to perform this operation.", 60),
        ("SomethingNew", "no", 60),
    ],
)
def test_refused_instances_are_named_and_the_others_end(code: str, message: str, most: int) -> None:
    aws, kept = provider(), [IDS[7], IDS[250], IDS[499]]
    ec2 = Ec2(aws, kept, code=code, message=message)
    with pytest.raises(ProviderError) as caught:
        aws.terminate(IDS)
    assert ec2.ended == set(IDS) - set(kept)
    assert sorted(caught.value.refused) == kept
    assert all(id_ in str(caught.value) and code in str(caught.value) for id_ in kept)
    assert len(ec2.calls) <= most


@pytest.mark.covers("SAF-06")
def test_five_hundred_instances_are_one_call() -> None:
    aws = provider()
    ec2 = Ec2(aws, (), code="", message="")
    aws.terminate(IDS)
    assert ec2.calls == [500]


@pytest.mark.covers("SAF-05")
def test_a_refusal_of_the_caller_is_not_retried_in_parts() -> None:
    aws = provider()
    ec2 = Ec2(aws, IDS, code="ExpiredToken", message="renew it")
    with pytest.raises(ProviderError) as caught:
        aws.terminate(IDS)
    assert caught.value.class_ is ErrorClass.PERMISSION and not caught.value.refused
    assert ec2.calls == [500]
