"""The plan of what waits now, solved within a time, and what is said of how it was solved.

Invariant: every plan says in the log which way it was solved; one that is not proven optimal is a warning
that names what kept it from being so, and is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Protocol

import prometheus_client
import structlog

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.entitlement import NO_ENTITLEMENTS, Entitlements
from broker.capacity.model import Claim, Inventory, NodeClass, Plan
from broker.capacity.plan import plan
from broker.capacity.shortages import Shortages
from broker.kube.bisection import bisected
from broker.kube.clock import Clock
from broker.oncall.metrics import REGISTRY
from providers.model import InstanceType

_SECONDS = prometheus_client.Histogram(
    "capacity_broker_plan_solve_seconds",
    "Time that giving out the slots of a plan took, by the way it was done.",
    ["solver"],
    registry=REGISTRY,
)
_UNPROVEN = prometheus_client.Counter(
    "capacity_broker_plan_not_proven_total",
    "Plans that were not proven optimal, by the way they were solved.",
    ["solver"],
    registry=REGISTRY,
)
_GAP = prometheus_client.Gauge(
    "capacity_broker_plan_gap",
    "How much more a better plan could have in reservations, as a share, in the last plan; 0 when optimal.",
    registry=REGISTRY,
)
_log = structlog.get_logger("plan")


class Entitling(Protocol):
    """Who knows whose the slots are: asked before each pass and for each plan, and told of it."""

    def begin(self) -> bool:
        """Whether it is known. What earlier passes launched has been written."""

    def alone(self) -> AbstractContextManager[None]:
        """From a plan's entitlements until it is told: nothing else is decided about slots meanwhile."""

    def entitlements(
        self, claims: Mapping[str, NodeClaim], inventory: Inventory, types: Mapping[str, InstanceType]
    ) -> Entitlements:
        """For a plan of these claims, by uid."""

    def planned(self, made: Plan) -> None:
        """What is launched now; claims that no later plan is asked for have their instances."""


class Free:
    """Where nothing belongs to anybody."""

    def begin(self) -> bool:
        return True

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    def entitlements(
        self,
        claims: Mapping[str, NodeClaim],  # noqa: ARG002
        inventory: Inventory,  # noqa: ARG002
        types: Mapping[str, InstanceType],  # noqa: ARG002
    ) -> Entitlements:
        return NO_ENTITLEMENTS

    def planned(self, made: Plan) -> None:
        """Nobody is to be told."""


def solved(
    waiting: Iterable[Claim],
    node_classes: Mapping[str, NodeClass],
    types: Mapping[str, InstanceType],
    inventory: Inventory,
    shortages: Shortages,
    now: datetime,
    *,
    launched: Mapping[str, int],
    entitlements: Entitlements = NO_ENTITLEMENTS,
    seconds: float,
    clock: Clock,
) -> Plan:
    """As `capacity.plan`, within so many seconds, and logged. Raises CulpritFound with the claim at fault."""

    def solve(claims: Sequence[Claim]) -> Plan:
        return plan(
            claims,
            node_classes,
            types,
            inventory,
            shortages,
            now,
            launched=launched,
            entitlements=entitlements,
            seconds=seconds,
            timer=clock.monotonic,
        )

    made = bisected(solve, [*waiting])
    _tell(made)
    return made


def in_gangs(claims: Iterable[NodeClaim]) -> Mapping[str, int]:
    """How many claims of each gang have their instance."""
    return Counter(
        gang
        for claim in claims
        if claim.status.provider_id and not claim.deleting and (gang := claim.annotations.get(names.GANG))
    )


def _tell(made: Plan) -> None:
    solution = made.solution
    _SECONDS.labels(solution.solver).observe(solution.seconds)
    _GAP.set(0.0 if solution.optimal else solution.gap)
    if not solution.optimal:
        _UNPROVEN.labels(solution.solver).inc()
    tell = _log.info if solution.optimal else _log.warning
    tell(
        "planned",
        solver=solution.solver,
        optimal=solution.optimal,
        gap=round(solution.gap, 4) if not solution.optimal else 0.0,
        seconds=round(solution.seconds, 4),
        launches=len(made.assignments),
        reserved=solution.reserved,
        waiting=len(made.unplaced),
        needs=solution.needs,
        ways=solution.ways,
        **({"note": solution.note} if solution.note else {}),
    )
