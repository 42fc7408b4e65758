"""Kubernetes Events: when and how often each happened, what it is about, who wrote it, and its row."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from broker.apis import names
from broker.apis.core import Event, Pod
from broker.oncall.pod_reports import FAILED, NOMINATED, PodReport, of_event
from broker.text import format_time
from providers.names import MANAGER

# Karpenter's component in its events.
KARPENTER: Final = "karpenter"


def happened(event: Event) -> datetime | None:
    return (
        event.series.last_observed_time or event.last_timestamp or event.event_time or event.first_timestamp
    )


def times(event: Event) -> int:
    """How often the event happened."""
    return max(1, event.count, event.series.count)


def written_by(event: Event, component: str) -> bool:
    """Whether the component wrote the event."""
    return component in (event.reporting_component, event.source.component)


def of_scheduler(event: Event) -> bool:
    """Whether a scheduler wrote that a pod gets no node: kube-scheduler, or another by its own name."""
    known = any(written_by(event, writer) for writer in (MANAGER, KARPENTER))
    return event.reason == FAILED and event.involved_object.kind == Pod.KIND.kind and not known


def reports(events: Iterable[Event]) -> dict[str, PodReport]:
    """The last report of each pod that got no node since, by its uid; the events are the oldest first."""
    last = {
        event.involved_object.uid: event
        for event in events
        if event.involved_object.kind == Pod.KIND.kind and event.reason in (FAILED, NOMINATED)
    }
    failed = ((uid, event) for uid, event in last.items() if event.reason == FAILED)
    return {uid: of_event(event.message) for uid, event in failed}


def concerned(event: Event) -> tuple[str, str]:
    """Kind and key of the object that an event is about."""
    about = event.involved_object
    return about.kind, "/".join(filter(None, (about.namespace, about.name)))


def event_rows(events: Iterable[Event], most: int) -> list[dict[str, Any]]:
    """The last events, the newest first. Equal ones are one row with their number and the last time;
    attempts have rows of their own.
    """
    dated = [(at, e) for e in events if (at := happened(e)) and names.ATTEMPT_IDS not in e.annotations]
    equal: dict[tuple[str, ...], list[tuple[datetime, Event]]] = {}
    for at, event in sorted(dated, key=lambda pair: pair[0]):
        key = (event.type, event.reason, " ".join(concerned(event)), event.message)
        equal[key] = [*equal.pop(key, ()), (at, event)]
    return [
        {
            "at": format_time(members[-1][0]),
            "type": type_,
            "reason": reason,
            "about": subject,
            "message": message,
            "count": (count := sum(times(event) for _, event in members)),
            "times": f"{count} times" if count > 1 else None,
        }
        for (type_, reason, subject, message), members in [*equal.items()][: -most - 1 : -1]
    ]
