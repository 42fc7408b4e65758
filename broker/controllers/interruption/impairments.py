"""Writes on claims what EC2 reports about their instances: failed status checks and scheduled events.

Why: for an impaired instance no message comes by the queue of notices. Repair reads the claim's conditions,
and so does a person: one for each kind of problem, which is there only while EC2 reports it.

Invariant: EC2 is asked only while the broker has instances. A problem is cleared only by a listing without
it, so a call that fails changes nothing. A condition dates from the first failed check, from which it is
tolerated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import structlog
from prometheus_client import Counter

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import ConditionUpdate
from broker.controllers.claim_caches import BY_SIGN, ClaimCaches
from broker.controllers.claim_status import write
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.errors import ApiError, NotFound
from broker.lists import lists_by_key
from broker.oncall.metrics import REGISTRY
from providers.base import HealthCalls
from providers.model import Impairment, InstanceProblem

# Seconds between two descriptions, as in Karpenter (pkg/controllers/interruption).
EVERY: Final = 60.0
_SIGNS: Final[Mapping[Impairment, str]] = {
    "instance": names.INSTANCE_IMPAIRED,
    "system": names.SYSTEM_IMPAIRED,
    "event": names.EVENT_SCHEDULED,
}

FOUND = Counter(
    "capacity_broker_instances_impaired",
    "Instances of the broker that EC2 reported as impaired or announced an event for, by kind; each is "
    "counted once until it is over.",
    ["kind"],
    registry=REGISTRY,
)
_CONDITIONS: Final = frozenset(names.INSTANCE_SIGNS)
_log = structlog.get_logger("interruption")


class ImpairmentReader:
    """`run` describes the health of all instances once. Raises ProviderError."""

    def __init__(self, context: ControllerContext, caches: ClaimCaches, provider: HealthCalls) -> None:
        self._client, self._clock = context.client, context.clock
        self._caches, self._provider = caches, provider

    def run(self, _items: Sequence[str] = ()) -> Result | None:
        launched = self._caches.launched()
        if not launched:
            return None
        problems = lists_by_key((problem.id, problem) for problem in self._provider.problems())
        marked = (c for sign in names.INSTANCE_SIGNS for c in self._caches.claims.by(BY_SIGN, sign))
        concerned = {claim.instance_id: claim for claim in marked if self._caches.owns(claim)}
        concerned |= {id_: launched[id_] for id_ in problems if id_ in launched}
        for id_, claim in concerned.items():
            self._update(claim, problems.get(id_, []))
        return None

    def _update(self, claim: NodeClaim, problems: Sequence[InstanceProblem]) -> None:
        known = {item.type for item in claim.status.conditions} & _CONDITIONS
        if not problems and not known:
            return
        now = self._clock.now()
        by_kind = {kind: [item for item in problems if item.kind == kind] for kind in _SIGNS}
        updates = {kind: _update(_SIGNS[kind], items, now) for kind, items in by_kind.items() if items}
        over = known - {update.type for update in updates.values()}
        if not updates and not over:
            return
        try:
            write(self._client, self._caches.claims, claim, *updates.values(), now=now, clear=over)
        except NotFound:
            return
        except ApiError as error:  # the next listing is compared again
            _log.warning("health of an instance not written", claim=claim.name, error=str(error))
            return
        for kind, update in updates.items():
            if update.type not in known:
                FOUND.labels(kind).inc()
                _log.warning("instance impaired", claim=claim.name, problem=update.message)


def _update(sign: str, problems: Sequence[InstanceProblem], now: datetime) -> ConditionUpdate:
    """The condition for problems of one kind. A time to come is of another clock, and not used."""
    times = [item.since for item in problems if item.since is not None and item.since <= now]
    message = "; ".join(item.message for item in problems)
    return ConditionUpdate(
        type=sign, status="True", reason=sign, message=message, since=min(times, default=None)
    )
