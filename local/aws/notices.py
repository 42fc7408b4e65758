"""AWS's own events: from an account's default event bus into the queues that rules name.

Invariant: an event is delivered once to each queue that is the target of an enabled rule with a matching
pattern, in the JSON that EventBridge sends, and is recorded even without a matching rule. A target
that is gone loses the event, as with AWS.

Source: EventBridge User Guide, "Events in Amazon EventBridge" (the envelope) and "Amazon SQS queues" as
targets. moto's rules are read, its buses are not used: they know only custom events, a time in seconds
and queues of the rule's own account.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from moto.core.exceptions import ServiceException
from moto.events.models import events_backends
from moto.moto_api._internal import mock_random
from moto.sqs.models import sqs_backends

MAX_EVENTS = 10_000


class Notices:
    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._sent: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)

    def publish(
        self,
        detail_type: str,
        *,
        account: str,
        region: str,
        resources: Sequence[str],
        detail: Mapping[str, Any],
        source: str = "aws.ec2",
        queue: str | None = None,
    ) -> dict[str, Any]:
        """Sends to every queue of the account's matching rules; with `queue` to that one only."""
        event = {
            "version": "0",
            "id": str(mock_random.uuid4()),
            "detail-type": detail_type,
            "source": source,
            "account": account,
            "time": format_time(self._now()),
            "region": region,
            "resources": list(resources),
            "detail": dict(detail),
        }
        if queue is not None:
            delivered = [
                _put(account, region, queue.rpartition("/")[2].rpartition(":")[2], json.dumps(event))
            ]
        else:
            delivered = _by_rules(account, region, event)
        self._sent.append({**event, "delivered_to": delivered})
        return event

    def list(self, detail_type: str | None = None) -> list[dict[str, Any]]:
        """Oldest first, each with the queues that it went to."""
        return [event for event in self._sent if detail_type in (None, event["detail-type"])]

    def clear(self) -> None:
        self._sent.clear()


def format_time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _by_rules(account: str, region: str, event: Any) -> list[str]:
    backend = dict.get(dict.get(events_backends, account, {}), region)  # without making one
    if backend is None:
        return []
    delivered = []
    for rule in backend.event_buses["default"].rules.values():
        if rule.state != "ENABLED" or not rule.event_pattern.matches_event(event):
            continue
        for target in rule.targets:
            if sent := _to_target(target, event):
                delivered.append(sent)
    return delivered


def _to_target(target: Mapping[str, Any], event: Any) -> str | None:
    arn = target["Arn"].split(":", 5)
    if len(arn) != 6 or arn[2] != "sqs":
        return None  # other targets are not simulated
    transform = target.get("InputTransformer")
    body = _shaped(transform, event) if transform else json.dumps(event)
    group = (target.get("SqsParameters") or {}).get("MessageGroupId")
    try:
        return _put(arn[4], arn[3], arn[5], body, group=group)
    except ServiceException:
        return None  # the queue was deleted


def _shaped(transform: Mapping[str, Any], event: Any) -> str:
    """An input transformer's template, filled by paths such as `$.detail.instance-id`."""
    text = str(transform["InputTemplate"])
    for name, path in (transform.get("InputPathsMap") or {}).items():
        value = event
        for key in path.removeprefix("$.").split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        text = text.replace(f"<{name}>", value if isinstance(value, str) else json.dumps(value))
    return text


def _put(account: str, region: str, name: str, body: str, *, group: str | None = None) -> str:
    queue = sqs_backends[account][region].send_message(queue_name=name, message_body=body, group_id=group)
    assert queue is not None
    return f"arn:aws:sqs:{region}:{account}:{name}"
