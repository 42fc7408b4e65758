"""The calls that a provider makes to AWS, as the SDK was given them, and the same calls made again bare.

Invariant: a replay makes the calls in the same order, one after another, with the same parameters except ids
of the other account. Each id of a recorded response stands for the id of the same response in the replay.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import boto3

from providers.aws import AwsProvider

_ID = re.compile(r"\b(?:i|cr|lt|subnet|sg|eni|vol|fleet)-[0-9a-f-]{8,36}\b")
READS = ("Describe", "Get", "List")
# Values that two accounts must share are left alone: all that are no ids.
Ids = dict[str, str]


@dataclass(slots=True)
class Call:
    """One call: its parameters before it is made, its answer (also a refusal's) after."""

    service: str
    operation: str
    params: Mapping[str, Any]
    answer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads(self) -> bool:
        return self.operation.startswith(READS)


class RecordingProvider(AwsProvider):
    """The real client; `calls` are its calls so far, in the order of the responses."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[Call] = []
        self._lock = threading.Lock()
        self._thread_local = threading.local()
        for client in (self._aws.ec2, self._aws.groups, self._aws.ssm, self._aws.iam, self._aws.sts):
            service = client.meta.service_model.service_name
            client.meta.events.register("provide-client-params", self._record_params)
            client.meta.events.register(
                "after-call", lambda s=service, **event: self._record_call(s, **event)
            )

    def forget(self) -> None:
        with self._lock:
            self.calls.clear()

    def _record_params(self, params: Mapping[str, Any], **_: object) -> None:
        self._thread_local.params = dict(params)

    def _record_call(self, service: str, *, model: Any, parsed: Mapping[str, Any], **_: object) -> None:
        with self._lock:
            self.calls.append(Call(service, model.name, self._thread_local.params, parsed))


def offer_only(provider: AwsProvider, types: Collection[str]) -> None:
    """A Region of few types, which local AWS describes sooner than all that there are."""

    def only(params: dict[str, Any], **_: object) -> None:
        params.clear()
        params["InstanceTypes"] = [*types]

    provider._aws.ec2.meta.events.register("provide-client-params.ec2.DescribeInstanceTypes", only)


def replay(calls: Iterable[Call], *, endpoint: str, region: str, ids: Ids) -> None:
    """Makes the calls again, by a new client with none of the broker's care; refusals are ignored.

    `ids` maps the first account's ids to the second's; it grows with the responses.
    """
    clients: dict[str, Any] = {}
    session: Any = boto3.Session(region_name=region)
    for call in calls:
        if call.service not in clients:
            clients[call.service] = session.client(call.service, endpoint_url=endpoint)
        client = clients[call.service]
        params = translated(call.params, ids)
        if "ClientToken" in params:
            params["ClientToken"] = uuid.uuid4().hex
        method = next(m for m, o in client.meta.method_to_api_mapping.items() if o == call.operation)
        try:
            answer = getattr(client, method)(**params)
        except client.exceptions.ClientError as refused:
            answer = refused.response
        learn(call.answer, answer, ids)


def translated(value: Any, ids: Ids) -> Any:
    """The same with every id that is known replaced."""
    match value:
        case str():
            return _ID.sub(lambda match: ids.get(match[0], match[0]), value)
        case dict():
            return {key: translated(item, ids) for key, item in value.items()}
        case list() | tuple():
            return [translated(item, ids) for item in value]
        case _:
            return value


def learn(before: Any, now: Any, ids: Ids) -> None:
    """Ids in the same place of two answers stand for each other."""
    match before, now:
        case str(), str():
            for old, new in zip(_ID.findall(before), _ID.findall(now), strict=False):
                ids.setdefault(old, new)
        case dict(), dict():
            for key in before.keys() & now.keys():
                learn(before[key], now[key], ids)
        case list(), list():
            for first, second in zip(before, now, strict=False):
                learn(first, second, ids)
