"""Client tokens: the same token and the same parameters are one piece of work.

A repeated call gets the answer of the first one and does nothing; other parameters under a used token are
refused with IdempotentParameterMismatch. A RunInstances that names a zone or subnet has its token in that
zone alone. AWS publishes no lifetime of a token: here the last 10,000 are remembered.

Source: EC2 API reference, "Ensuring idempotency in Amazon EC2 API requests".
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from local.aws.ec2.errors import Ec2Error

ACTIONS = frozenset(
    {
        "CreateCapacityReservation",
        "CreateCapacityReservationBySplitting",
        "CreateCapacityReservationCancellationQuote",
        "CreateCapacityReservationDateChangeQuote",
        "CreateCapacityReservationFleet",
        "CreateFleet",
        "CreateInterruptibleCapacityReservationAllocation",
        "CreateLaunchTemplate",
        "CreateLaunchTemplateVersion",
        "MoveCapacityReservationInstances",
        "RunInstances",
    }
)
MAX_LENGTH = {"CreateLaunchTemplate": 128, "CreateLaunchTemplateVersion": 128}
MAX_REPLIES = 10_000

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordedReply:
    digest: str
    replay: Callable[[Any], Any]


class Replies:
    def __init__(self) -> None:
        self._answered: OrderedDict[Key, RecordedReply] = OrderedDict()

    def get(self, key: Key, digest: str) -> RecordedReply | None:
        recorded = self._answered.get(key)
        if recorded is not None and recorded.digest != digest:
            raise Ec2Error(
                "IdempotentParameterMismatch",
                "The client token you have provided is associated with a request that is already complete, "
                "with different parameters.",
            )
        return recorded

    def put(self, key: Key, digest: str, replay: Callable[[Any], Any]) -> None:
        self._answered[key] = RecordedReply(digest, replay)
        if len(self._answered) > MAX_REPLIES:
            self._answered.popitem(last=False)


def key_of(
    action: str, account_id: str, region: str, params: Mapping[str, Any], zone: str | None
) -> Key | None:
    """The key of a recorded response; None if the call is not idempotent."""
    token = params.get("ClientToken")
    if action not in ACTIONS or not token or params.get("DryRun"):
        return None
    longest = MAX_LENGTH.get(action, 64)
    if len(token) > longest or not token.isascii():
        raise Ec2Error(
            "InvalidClientToken", f"The client token '{token}' is not ASCII of at most {longest} characters"
        )
    return (action, account_id, region, token, zone or "")


def digest_of(params: Mapping[str, Any]) -> str:
    parameters = {key: value for key, value in params.items() if key != "ClientToken"}
    return hashlib.sha256(json.dumps(parameters, sort_keys=True, default=str).encode()).hexdigest()
