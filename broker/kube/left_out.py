"""Reports each object that is left out of every decision: an event on the object, and a metric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import Counter

from broker.kube.events import Recorder, Reference
from broker.kube.metrics import REGISTRY
from broker.kube.partial import PartialObject

REASON: Final = "LeftOut"

LEFT_OUT = Counter(
    "capacity_broker_objects_left_out",
    "Objects left out of every decision, by cause: decoding, or a pass (once each time).",
    ["kind", "why"],
    registry=REGISTRY,
)


def reporter(recorder: Recorder) -> Callable[[PartialObject], None]:
    """Reports through this recorder."""

    def report(partial: PartialObject) -> None:
        LEFT_OUT.labels(partial.kind.resource, "pass" if partial.decoded else "decoding").inc()
        about = Reference(
            api_version=partial.kind.api_version,
            kind=partial.kind.kind,
            name=partial.name,
            namespace=partial.namespace,
            uid=partial.uid,
        )
        message = (
            f"the broker takes no account of this {partial.kind.kind} until it is changed: {partial.error}"
        )
        recorder.event(about, "Warning", REASON, message)

    return report
