"""Answers the workloads that wait for their reserved capacity, all of them together.

Invariant: a workload is told Ready only for room that no workload told so before it has, in order of
priority and then of when it got its quota; each question is answered once: Ready and Retry end it, and what
stays Pending is written only when it is first said. An answer carries the version of the workload that it is
for, by force against Kueue's own managers of the entry (kueue, kueue-admission).

A Kueue whose workloads know no `requeueAfterSeconds` would ask again at once after a Retry, so with such a
one the workload stays Pending until there is room. So does what the broker itself queued for a dedicated
cluster: after a Retry Kueue keeps the quota of who has no job until the object is gone, and what is made anew
would ask at once. Who is evicted is asked about again only when it has quota anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import structlog

from broker.apis import crds, names
from broker.apis.kueue import EVICTED, KUEUE, QUOTA_RESERVED, AdmissionCheckState, Workload
from broker.apis.meta import condition
from broker.capacity.holdings import Holdings
from broker.controllers.ome.kueue.answers import (
    WAITS,
    Answer,
    body,
    demands,
    pending,
    ready,
    retry,
)
from broker.controllers.ome.kueue.ownership import BROKER, WAITING, owner_of
from broker.controllers.ome.kueue.render import CHECK
from broker.controllers.ome.kueue.supply import Look
from broker.controllers.ome.kueue.view import reserves
from broker.controllers.ome.reads import OmeReads
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.conditions import timestamp
from broker.kube.controller import Again
from broker.kube.errors import Conflict, NotFound
from broker.quota.usage import Holder, Reserved
from broker.settings import Settings
from providers.base import CapacityProvider

log = structlog.get_logger(__name__)

LOOK: Final = 60.0  # seconds until what stays Pending is looked at again
SCHEMA: Final = 600.0  # seconds for which the definition of Workload is believed
# Where a definition says what an entry of status.admissionChecks has.
_ENTRY: Final = (
    "schema",
    "openAPIV3Schema",
    "properties",
    "status",
    "properties",
    "admissionChecks",
    "items",
    "properties",
)


class Answerer:
    """`run` is one pass over all that wait. `others`: who holds instances besides Kueue's workloads;
    `strange`: how many slots of EC2's reservations, by id, are nobody's here."""

    def __init__(
        self,
        client: Client,
        reads: OmeReads,
        provider: CapacityProvider,
        *,
        holdings: Callable[[], Holdings],
        others: Callable[[Reserved], Iterable[Holder]],
        settings: Settings,
        clock: Clock,
        strange: Callable[[Holdings], Mapping[str, int]] = lambda _: {},
    ) -> None:
        self._strange = strange
        self._client = client
        self._reads = reads
        self._provider = provider
        self._holdings = holdings
        self._others = others
        self._settings = settings
        self._clock = clock
        self._retries: tuple[float, bool] | None = None  # until when it is believed, and whether it may

    def run(self, _items: Sequence[str] = ()) -> Again | None:
        holdings = self._holdings()
        strange = self._strange(holdings)  # also while nobody asks: what lasts counts
        found = [
            each
            for each in self._reads.workloads.cache.by(WAITING, CHECK)
            if reserves(each) and not _evicted(each)
        ]
        if not found:
            return None
        look = Look(
            self._reads,
            self._provider,
            holdings,
            self._others,
            cohort=self._settings.default_cohort,
            strange=strange,
            now=self._clock.now(),
        )
        waits = False
        for workload in sorted(found, key=_turn):
            answer = self._answer(workload, look)
            waits |= answer.state == "Pending"
            if answer.state != "Pending" or not _entry(workload).message.startswith(WAITS):
                self._write(workload, answer)
        return Again(LOOK) if waits else None

    def _answer(self, workload: Workload, look: Look) -> Answer:
        admission = workload.status.admission
        name = admission.cluster_queue if admission else ""
        queue = self._reads.cluster_queues.cache.get(name)
        reserved = owner_of(queue) if queue is not None else None
        if reserved is None:
            return pending(
                f"ClusterQueue {name} is of no reservation; take the check {CHECK} out of its "
                "admissionChecksStrategy"
            )
        short, used = look.place(reserved, demands(workload))
        if not short:
            return ready(workload, used, look.labels(used))
        if workload.labels.get(names.MANAGED_BY) != BROKER and self._may_retry():
            return retry(short, retried=_entry(workload).retry_count)
        return pending("; ".join(short))

    def _write(self, workload: Workload, answer: Answer) -> None:
        said = body(workload, CHECK, answer, timestamp(self._clock.now()))
        informer = self._reads.workloads
        try:
            informer.cache.observe(self._client.apply(informer.kind, said, subresource="status"))
        except (Conflict, NotFound):
            # It is another workload than the one decided about; its change asks again, or it is gone.
            log.debug("answer came too late", workload=workload.key, state=answer.state)

    def _may_retry(self) -> bool:
        """Whether a Retry can say when to come again, by the definition that is installed."""
        now = self._clock.monotonic()
        if self._retries is None or self._retries[0] <= now:
            version = self._reads.workloads.kind.version
            raw = self._client.get(crds.KIND, f"{self._reads.workloads.kind.plural}.{KUEUE}")
            self._retries = (now + SCHEMA, _knows_delay(raw, version))
        return self._retries[1]


def _turn(workload: Workload) -> tuple[int, float, str]:
    since = condition(workload.status.conditions, QUOTA_RESERVED)
    at = since.last_transition_time if since is not None else None
    return (-workload.spec.priority, at.timestamp() if at else float("inf"), workload.key)


def _evicted(workload: Workload) -> bool:
    said = condition(workload.status.conditions, EVICTED)
    return said is not None and said.status == "True"


def _entry(workload: Workload) -> AdmissionCheckState:
    return next(each for each in workload.status.admission_checks if each.name == CHECK)


def _knows_delay(definition: Mapping[str, Any], version: str) -> bool:
    for each in definition["spec"]["versions"]:
        if each["name"] == version:
            node: Any = each
            for step in _ENTRY:
                node = node.get(step) or {}
            return "requeueAfterSeconds" in node
    return False
