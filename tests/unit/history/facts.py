"""Attempts and events to record."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.model import Pool
from broker.history.recorder import batch_of
from broker.history.store import HistoryStore
from broker.kube.events import RecordedEvent, Reference
from providers.errors import ErrorClass

AT = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
POOL = Pool(capacity_type="reserved", instance_type="p5.48xlarge", zone="us-east-1a", reservation="cr-1")
OTHER = Pool(capacity_type="on-demand", instance_type="p5.48xlarge", zone="us-east-1b")
GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/training"


def refusal(number: int = 0, **more: Any) -> Attempt:
    given: dict[str, Any] = {
        "claim": f"train-{number}",
        "node_class": "gpu",
        "pool": POOL,
        "outcome": Outcome.REFUSED,
        "at": AT + timedelta(seconds=number),
        "code": "InsufficientInstanceCapacity",
        "class_": ErrorClass.CAPACITY,
        "message": "no capacity in us-east-1a",
        "request_id": f"req-{number}",
        "next_step": "the next option is taken",
    }
    return Attempt(**(given | more))


def launch(number: int = 0, **more: Any) -> Attempt:
    return refusal(
        number,
        **({"outcome": Outcome.LAUNCHED, "code": "", "class_": None, "instance_id": f"i-{number}"} | more),
    )


def event(reason: str = "Reclaiming", **more: Any) -> RecordedEvent:
    about = Reference(api_version="ome.io/v1beta1", kind="CapacityReservation", name="gpus", namespace="team")
    given: dict[str, Any] = {
        "about": about,
        "type": "Normal",
        "reason": reason,
        "message": "takes back a slot",
        "annotations": {},
        "at": AT,
    }
    return RecordedEvent(**(given | more))


def empty(store: HistoryStore) -> None:
    store.prune(before=2**60, rows=2**31)


def fill(store: HistoryStore, *facts: Attempt | RecordedEvent) -> None:
    store.open()
    store.write(batch_of([*facts]))
