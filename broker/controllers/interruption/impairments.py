"""Writes on claims what EC2 reports about their instances: failed status checks and scheduled events.

Why: for an impaired instance no message comes by the queue of notices. Repair reads the claim's condition
InstanceHealthy, and so does a person; it is there only while EC2 reports something.

Invariant: EC2 is asked only while the broker has instances. A problem is cleared only by a listing without
it, so a call that fails changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import structlog
from prometheus_client import Counter

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import ConditionUpdate, condition
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.claim_status import instance_id, write
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.errors import ApiError, NotFound
from broker.oncall.metrics import REGISTRY
from broker.placement.repair_policies import EVENT_SCHEDULED, INSTANCE_IMPAIRED, SYSTEM_IMPAIRED
from providers.base import HealthCalls
from providers.model import Impairment, InstanceProblem

# Seconds between two descriptions, as in Karpenter (pkg/controllers/interruption).
EVERY: Final = 60.0
# The sign of each kind of problem; of several the first is written.
_SIGNS: Final[Mapping[Impairment, str]] = {
    "event": EVENT_SCHEDULED,
    "system": SYSTEM_IMPAIRED,
    "instance": INSTANCE_IMPAIRED,
}
_ORDER: Final = [*_SIGNS]

FOUND = Counter(
    "capacity_broker_instances_impaired",
    "Instances of the broker that EC2 reported as impaired or announced an event for, by kind; each is "
    "counted once until it is over.",
    ["kind"],
    registry=REGISTRY,
)
_log = structlog.get_logger("interruption")


class ImpairmentReader:
    """`run` describes the health of all instances once. Raises ProviderError."""

    def __init__(self, context: ControllerContext, caches: ClaimCaches, provider: HealthCalls) -> None:
        self._client, self._clock = context.client, context.clock
        self._caches, self._provider = caches, provider

    def run(self, _items: Sequence[str] = ()) -> Result | None:
        owned = [claim for claim in self._caches.claims.list() if self._caches.owns(claim)]
        running = [claim for claim in owned if claim.status.provider_id and not claim.deleting]
        if not running:
            return None
        problems = _first_of_each(self._provider.problems())
        for claim in running:
            self._update(claim, problems.get(instance_id(claim)))
        return None

    def _update(self, claim: NodeClaim, problem: InstanceProblem | None) -> None:
        before = condition(claim.status.conditions, names.INSTANCE_HEALTHY)
        now = self._clock.now()
        try:
            if problem is not None:
                sign = _SIGNS[problem.kind]
                update = ConditionUpdate(
                    type=names.INSTANCE_HEALTHY, status="False", reason=sign, message=problem.message
                )
                # The condition dates from the first failed check, from which it is tolerated.
                since = min(problem.since or now, now)
                write(self._client, self._caches.claims, claim, update, now=since)
                if before is None or before.reason != sign:
                    FOUND.labels(problem.kind).inc()
                    _log.warning("instance impaired", claim=claim.name, problem=problem.message)
            elif before is not None:
                write(self._client, self._caches.claims, claim, now=now, clear={names.INSTANCE_HEALTHY})
        except NotFound:
            return
        except ApiError as error:  # the next listing is compared again
            _log.warning("health of an instance not written", claim=claim.name, error=str(error))


def _first_of_each(problems: Iterable[InstanceProblem]) -> Mapping[str, InstanceProblem]:
    """The most certain problem of each instance: an event, then the host's, then the instance's own."""
    ordered = sorted(problems, key=lambda problem: _ORDER.index(problem.kind), reverse=True)
    return {problem.id: problem for problem in ordered}
