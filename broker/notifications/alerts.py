"""The alerts of one moment, made from the state that the web page shows. Values in, values out.

The Prometheus rules take their summaries from here, so a receiver needs one routing for both.
Invariant: the same trouble has the same labels at each check, and so the same id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from broker.lists import lists_by_key
from broker.oncall.journal import short_id
from broker.oncall.waiting_reasons import GATED
from broker.text import counted, format_time
from broker.webpage.live import LiveState

MOST_ALERTS: Final = 100  # alerts at a time; a receiver is not flooded by one event
LONGEST_DESCRIPTION: Final = 1024  # characters of a description
MIN_FAILED_RETRIES: Final = 2  # refusals again after the first, as in the rule CapacityBrokerShortage
# The time before the end of a reservation, as in the rule CapacityBrokerReservationEnding.
ENDING: Final = timedelta(hours=1)
BLOCK_ENDING: Final = timedelta(hours=2)
# The wait of a pod, as in the rule CapacityBrokerPodsWaiting.
PODS_WAIT: Final = timedelta(minutes=15)
CAP: Final = "SpendingCapReached"
# The page behind `kubectl port-forward`; the chart replaces it by its value web.url.
PAGE: Final = "http://127.0.0.1:8081"
# The page serves the runbooks; the chart replaces this by its value prometheusRule.runbooks.
RUNBOOKS: Final = f"{PAGE}/docs/runbooks"
# The summaries of the alerts that are also sent without Prometheus, by name. Each is a warning.
SUMMARIES: Final[Mapping[str, str]] = {
    "CapacityBrokerSpendingCapReached": "A spending cap stops the purchase of reservations",
    "CapacityBrokerReservationEnding": "An EC2 capacity reservation ends soon",
    "CapacityBrokerShortage": "AWS refuses a pool again and again",
    "CapacityBrokerPodsWaiting": "Pods have had no node for a quarter of an hour",
}


def runbook_page(alert: str) -> str:
    """The file of an alert's runbook: CapacityBrokerPanic has capacity-broker-panic.md."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", alert).lower() + ".md"


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringAlert:
    """One alert. `labels` identify it; `since` is when the trouble began, or was first seen."""

    labels: Mapping[str, str]
    description: str
    since: datetime

    @property
    def id(self) -> str:
        return short_id(*(f"{key}={value}" for key, value in sorted(self.labels.items())))

    def body(self, now: datetime, ends: datetime | None = None, *, runbooks: str = "") -> dict[str, Any]:
        """The alert as Alertmanager's API takes it (https://github.com/prometheus/alertmanager/blob/main/api/
        v2/openapi.yaml, postableAlert). `ends` is its end, or until when it holds without another message.
        `runbooks`: the URL of their folder; empty for none.
        """
        name = self.labels["alertname"]
        return {
            "labels": dict(self.labels),
            "annotations": {
                "summary": SUMMARIES[name],
                "description": self.description,
                **({"runbook_url": f"{runbooks}/{runbook_page(name)}"} if runbooks else {}),
            },
            "startsAt": format_time(min(self.since, now)),
            **({"endsAt": format_time(ends)} if ends else {}),
        }


def firing_alerts(live: LiveState, *, cluster: str) -> list[FiringAlert]:
    """The alerts of this moment: at most `MOST_ALERTS`, the most urgent kind first."""
    alerts = [*_caps(live), *_ending(live), *_pods(live), *_shortages(live)]
    return [_named(alert, cluster) for alert in alerts[:MOST_ALERTS]]


def _caps(live: LiveState) -> Iterator[FiringAlert]:
    for reservation in live.reservations:
        messages = [text for reason, text in reservation.problems if reason == CAP]
        if messages:
            yield _alert(
                "CapacityBrokerSpendingCapReached",
                {"capacity_namespace": reservation.namespace, "reservation": reservation.name},
                f"{reservation.key}: {'; '.join(messages)}",
                live.now,
            )


def _ending(live: LiveState) -> Iterator[FiringAlert]:
    for view in live.odcrs:
        odcr = view.odcr
        before = BLOCK_ENDING if odcr.prepaid else ENDING
        if odcr.end is None or not odcr.active or live.now < odcr.end - before:
            continue
        owner = f", for {view.owner}" if view.owner else ""
        yield _alert(
            "CapacityBrokerReservationEnding",
            {"odcr": odcr.id, "instance_type": odcr.instance_type, "zone": odcr.zone},
            f"{odcr.id} ({odcr.total} {odcr.instance_type} in {odcr.zone}{owner}) ends at "
            f"{format_time(odcr.end)}; {odcr.used} in use",
            odcr.end - before,
        )


def _pods(live: LiveState) -> Iterator[FiringAlert]:
    """One alert for the pods of a NodePool and a reason, as in the rule CapacityBrokerPodsWaiting."""
    waiting = (pod for pod in live.waiting_pods if pod.reason != GATED)
    by_labels = lists_by_key(((pod.node_pool, pod.reason), pod) for pod in waiting)
    for (pool, reason), pods in by_labels.items():
        oldest = pods[0]
        if oldest.since is not None and live.now - oldest.since > PODS_WAIT:
            count = counted(len(pods), "pod waits", "pods wait")
            yield _alert(
                "CapacityBrokerPodsWaiting",
                {"nodepool": pool, "reason": reason},
                f"{count}{f' for NodePool {pool}' if pool else ''}, {oldest.key} since "
                f"{format_time(oldest.since)}: {oldest.message}. Run {oldest.command}",
                oldest.since + PODS_WAIT,
            )


def _shortages(live: LiveState) -> Iterator[FiringAlert]:
    for shortage in live.shortages:
        if shortage.failed_retries >= MIN_FAILED_RETRIES:
            yield _alert(
                "CapacityBrokerShortage",
                {"scope": shortage.key},
                f"{shortage.scope} is short since {format_time(shortage.since)}: refused "
                f"{counted(shortage.failed_retries + 1, 'time')} in a row, last at "
                f"{format_time(shortage.last)} with {shortage.code}: {shortage.message} {shortage.way_out}",
                shortage.since,
            )


def _alert(name: str, labels: Mapping[str, str], description: str, since: datetime) -> FiringAlert:
    given = {key: value for key, value in labels.items() if value}
    return FiringAlert(
        labels={"alertname": name, "severity": "warning", **given},
        description=description[:LONGEST_DESCRIPTION],
        since=since,
    )


def _named(alert: FiringAlert, cluster: str) -> FiringAlert:
    labels = {**alert.labels, "cluster": cluster, "source": "capacity-broker"}
    return FiringAlert(labels=labels, description=alert.description, since=alert.since)
