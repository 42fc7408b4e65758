"""What provisioning knows and the commands need: EC2's instance types, and its reports on pods that wait.

So commands judge room by the types that the leader judges by, and know a pod's reason when its event is gone:
Kubernetes keeps an event for an hour, and the broker writes one for each change alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.published import PublishedValue, read_published
from broker.lists import lists_by_key
from broker.oncall.pod_reports import PodReport
from providers.model import InstanceType
from providers.type_text import decode_types

TYPES: Final = "capacity-broker-types"  # a thousand types take 30 KiB
# Ten thousand pods take 300 KiB, and 600 if each has a reason of its own.
REPORTS: Final = "capacity-broker-waiting-pods"
EVERY: Final = 10.0  # seconds between writes of reports: while pods wait, runs are as frequent
_TYPES_KEY: Final = "types"
_REPORTS_KEY: Final = "reports"


class PublishedTypes:
    """The types without their prices. For the provisioning loop alone."""

    def __init__(self, client: Client) -> None:
        self._published = PublishedValue(client, TYPES, _TYPES_KEY)
        self._seen: Mapping[str, InstanceType] | None = None

    def publish(self, types: Mapping[str, InstanceType]) -> None:
        """A failed write is repeated by the next run."""
        if types is self._seen:
            return
        bare = [
            replace(types[name], on_demand_price=None, other_prices={}, spot_prices={})
            for name in sorted(types)
        ]
        if self._published.publish(bare):
            self._seen = types


def read_types(client: Client) -> dict[str, InstanceType]:
    """The published types; none if they are not published. Raises ApiError."""
    try:
        return decode_types(read_published(client, TYPES, _TYPES_KEY) or [])
    except (ValueError, KeyError, TypeError):
        return {}


class PublishedReports:
    """The last report on each pod that waits. For the provisioning loop alone."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._published, self._clock = PublishedValue(client, REPORTS, _REPORTS_KEY), clock
        self._seen: Mapping[str, PodReport] | None = None
        self._due = 0.0

    def publish(self, reports: Mapping[str, PodReport]) -> None:
        """`reports`: by the pod's uid. A later run writes what this one does not."""
        now = self._clock.monotonic()
        if now < self._due or reports == self._seen:
            return
        self._due = now + EVERY
        uids = lists_by_key((report, uid) for uid, report in reports.items())
        alike = [[*report, sorted(uids[report])] for report in sorted(uids)]
        if self._published.publish(alike):
            self._seen = reports


def read_reports(client: Client) -> dict[str, PodReport]:
    """The published reports by the pod's uid; none if they are not published. Raises ApiError."""
    try:
        return {
            str(uid): PodReport(str(message), held=bool(held), room=str(room))
            for message, held, room, uids in read_published(client, REPORTS, _REPORTS_KEY) or []
            for uid in uids
        }
    except (ValueError, TypeError):
        return {}
