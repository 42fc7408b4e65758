"""The record of launch attempts: each Attempt is written once, here, and read by every report.

Status, events, metrics, the web page and `explain` all read the same record, so they cannot disagree. A
claim's last attempts are also in an annotation of the claim, so that they outlive the process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

import orjson
import structlog
from prometheus_client import Counter

from broker.capacity.model import Attempt, Outcome, Pool
from broker.oncall.metrics import REGISTRY
from broker.text import decode_json, decode_time
from providers.model import ErrorClass

ON_CLAIM = 16
# Of the pools that had one answer: a fleet asks up to 300, and a claim's annotations hold 256 KiB in all.
POOLS_ON_CLAIM = 60

_ATTEMPTS = Counter(
    "capacity_broker_launch_attempts",
    "Attempts to launch a claim, by outcome.",
    ["outcome", "class", "code", "pool", "nodeclass"],
    registry=REGISTRY,
)
_log = structlog.get_logger("launch")


class Journal:
    """The last attempts of the process, newest last; bounded, thread-safe."""

    def __init__(self, *, size: int = 10_000) -> None:
        self._attempts: deque[Attempt] = deque(maxlen=size)
        self._lock = threading.Lock()
        self._readers: list[Callable[[Attempt], None]] = []

    def subscribe(self, reader: Callable[[Attempt], None]) -> None:
        """Calls `reader` for each attempt from now on, on the writer's thread."""
        self._readers.append(reader)

    def write(self, attempt: Attempt) -> None:
        with self._lock:
            self._attempts.append(attempt)
        _ATTEMPTS.labels(
            attempt.outcome, attempt.class_ or "", attempt.code, str(attempt.pool), attempt.node_class
        ).inc()
        level = _log.info if attempt.outcome in (Outcome.LAUNCHED, Outcome.ADOPTED) else _log.warning
        level(
            attempt.outcome.lower(),
            claim=attempt.claim,
            nodeclass=attempt.node_class,
            pool=str(attempt.pool),
            **{
                key: value
                for key, value in {
                    "instance": attempt.instance_id,
                    "code": attempt.code,
                    "class": str(attempt.class_ or ""),
                    "aws_request_id": attempt.request_id,
                    "message": attempt.message,
                    "next": attempt.next_step,
                }.items()
                if value
            },
        )
        for reader in self._readers:
            reader(attempt)

    def of(self, claim: str) -> list[Attempt]:
        """The claim's attempts, oldest first."""
        with self._lock:
            return [a for a in self._attempts if a.claim == claim]

    def all(self) -> list[Attempt]:
        with self._lock:
            return list(self._attempts)


_SHORT = {
    "outcome": "outcome",
    "at": "at",
    "code": "code",
    "class_": "class",
    "message": "message",
    "request_id": "requestId",
    "next_step": "next",
    "instance_id": "instance",
}


def dump(attempts: Iterable[Attempt]) -> str:
    """The last attempts as the JSON that a claim's annotation carries."""
    rows = [
        {"pool": _fields(a.pool)}
        | {short: value for name, short in _SHORT.items() if (value := getattr(a, name))}
        | ({"also": [_fields(pool) for pool in a.also[:POOLS_ON_CLAIM]]} if a.also else {})
        for a in list(attempts)[-ON_CLAIM:]
    ]
    return orjson.dumps(rows).decode()


def load(text: str, *, claim: str, node_class: str) -> list[Attempt]:
    """Reads the text of `dump`; text that was edited into another form gives no attempts."""
    try:
        rows = decode_json(text or "[]")
        return [
            Attempt(
                claim=claim,
                node_class=node_class,
                pool=_pool(row["pool"]),
                outcome=Outcome(row["outcome"]),
                at=decode_time(row["at"]),
                code=row.get("code", ""),
                class_=ErrorClass(row["class"]) if "class" in row else None,
                message=row.get("message", ""),
                request_id=row.get("requestId", ""),
                next_step=row.get("next", ""),
                instance_id=row.get("instance", ""),
                also=tuple(map(_pool, row.get("also", ()))),
            )
            for row in rows
        ]
    except (ValueError, KeyError, TypeError):
        return []


def _fields(pool: Pool) -> list[str]:
    """The pool's fields in order, without the empty ones at the end."""
    fields = [pool.capacity_type, pool.instance_type, pool.zone, pool.reservation, pool.placement]
    while not fields[-1]:
        fields.pop()
    return fields


def _pool(fields: object) -> Pool:
    """Reads the text of `_fields`; raises ValueError for any other text."""
    match fields:
        case ["reserved" | "on-demand" | "spot" as kind, str(type_), str(zone), *more] if type_ and zone:
            reservation, placement = (*map(str, more), "", "")[:2]
            return Pool(
                capacity_type=kind,
                instance_type=type_,
                zone=zone,
                reservation=reservation,
                placement=placement,
            )
    raise ValueError(f"{fields} names no pool")
