"""The record of launch attempts: each Attempt is written once, here, and read by every report.

Status, events, metrics, the history, the web page and `explain` all read the same record, so they cannot
disagree. An attempt's id is computed from its facts, so each of them shows the same one. A claim's last
attempts are also in an annotation of the claim, so that they outlive the process.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b

import orjson
import structlog
from prometheus_client import Counter

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.model import Pool
from broker.oncall.metrics import REGISTRY, BoundedCounter
from broker.text import decode_json, decode_time
from providers.errors import CLASSES

ON_CLAIM = 16
# Of the pools that had one answer: a fleet call names up to 300, and a claim's annotations hold 256 KiB in
# all.
POOLS_ON_CLAIM = 60

# Claims without an instance that had a refusal, kept to count their fallback.
_REFUSED_CLAIMS = 10_000
# The end of the codes of options that the claim does not accept: to skip them is no fallback.
_UNSUITABLE = "Mismatch"

_ATTEMPTS = BoundedCounter(
    Counter(
        "capacity_broker_launch_attempts",
        "Attempts to launch a claim, by outcome; of several pools with one answer, the first is the label.",
        ["outcome", "class", "code", "pool", "nodeclass"],
        registry=REGISTRY,
    )
)
_FALLBACKS = BoundedCounter(
    Counter(
        "capacity_broker_launch_fallbacks",
        "Launches outside the preferred pool, by both capacity types; the reason is the error class.",
        ["from", "to", "reason", "nodeclass"],
        registry=REGISTRY,
    )
)
_log = structlog.get_logger("launch")


class Journal:
    """Counts and logs each attempt of the process, and passes it on. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: list[Callable[[Attempt], None]] = []
        self._refused: OrderedDict[str, Attempt] = OrderedDict()  # by claim, the first one since its launch

    def subscribe(self, reader: Callable[[Attempt], None]) -> None:
        """Calls `reader` for each attempt from now on, on the writer's thread."""
        self._readers.append(reader)

    def write(self, attempt: Attempt) -> None:
        with self._lock:
            self._count_fallback(attempt)
        _ATTEMPTS.inc(
            str(attempt.outcome),
            str(attempt.class_ or ""),
            attempt.code,
            str(attempt.pool),
            attempt.node_class,
        )
        level = _log.info if attempt.outcome in (Outcome.LAUNCHED, Outcome.ADOPTED) else _log.warning
        level(
            attempt.outcome.lower(),
            id=attempt_id(attempt),
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

    def _count_fallback(self, attempt: Attempt) -> None:
        if attempt.outcome is Outcome.SKIPPED and attempt.code.endswith(_UNSUITABLE):
            return
        if attempt.outcome in (Outcome.REFUSED, Outcome.SKIPPED):
            self._refused.setdefault(attempt.claim, attempt)
            if len(self._refused) > _REFUSED_CLAIMS:
                self._refused.popitem(last=False)
            return
        preferred = self._refused.pop(attempt.claim, None)
        if preferred is not None and preferred.pool != attempt.pool:
            reason = str(preferred.class_ or preferred.code or preferred.outcome.lower())
            types = preferred.pool.capacity_type, attempt.pool.capacity_type
            _FALLBACKS.inc(*types, reason, attempt.node_class)
        elif attempt.outcome is Outcome.SPILLED:
            _FALLBACKS.inc("reserved", "on-demand", "spilled", attempt.node_class)


def forget_pools(reservations: Collection[str]) -> None:
    """Removes the series of pools of these reservations, which EC2 lists no more."""
    ends = tuple(f":{reservation}" for reservation in reservations)
    if ends:
        _ATTEMPTS.forget(lambda labels: labels[3].partition("@")[0].endswith(ends))


def forget_class(name: str) -> None:
    """Removes the series of a deleted EC2NodeClass."""
    for counter in (_ATTEMPTS, _FALLBACKS):
        counter.forget(lambda labels: labels[-1] == name)


def attempt_id(attempt: Attempt) -> str:
    """The attempt's id in logs, events, history, web page and `explain`."""
    facts = (attempt.claim, attempt.outcome, attempt.code, attempt.request_id, attempt.instance_id)
    return short_id(attempt.at.isoformat(), str(attempt.pool), *facts)


def short_id(*facts: str) -> str:
    """Sixteen hexadecimal digits for these facts, always the same."""
    return blake2b("\x1f".join(facts).encode(), digest_size=8).hexdigest()


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


def repeated(claim: NodeClaim) -> Attempt | None:
    """The claim's last attempt, if EC2 refused it for a cause that no other option avoids; the same launch is
    tried again.
    """
    last = next(reversed(recorded(claim)), None)
    if last is None or last.outcome is not Outcome.REFUSED or last.class_ is None:
        return None
    return None if last.class_.policy.elsewhere else last


def recorded(claim: NodeClaim) -> list[Attempt]:
    """The attempts in the claim's annotation, oldest first; none if it was edited into another form."""
    try:
        rows = decode_json(claim.annotations.get(names.ATTEMPTS) or "[]")
        return [
            Attempt(
                claim=claim.name,
                node_class=claim.spec.node_class_ref.name,
                pool=_pool(row["pool"]),
                outcome=Outcome(row["outcome"]),
                at=decode_time(row["at"]),
                code=row.get("code", ""),
                class_=CLASSES[row["class"]] if "class" in row else None,
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
        case ["reserved" | "on-demand" | "spot" as kind, str(type_), str(zone), *more] if (
            type_ and zone
        ) or more:
            reservation, placement = (*map(str, more), "", "")[:2]
            return Pool(
                capacity_type=kind,
                instance_type=type_,
                zone=zone,
                reservation=reservation,
                placement=placement,
            )
    raise ValueError(f"{fields} names no pool")
