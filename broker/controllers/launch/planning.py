"""Plans the waiting claims within a time limit, and reports how the plan was solved.

Invariant: every plan logs how it was solved. A plan that is not proven optimal is counted, and is logged as a
warning with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import prometheus_client
import structlog

from broker.apis.karpenter import NodeClaim
from broker.capacity.model import Plan
from broker.capacity.plan import plan
from broker.capacity.shortages import Shortages
from broker.capacity.supply import LaunchSupply
from broker.controllers.launch.launch_pass import LaunchPass
from broker.controllers.launch.unchanged import NoClass, PassInputs
from broker.controllers.nodeclass.resolve import LaunchClass
from broker.controllers.slots.controller import PreemptionController
from broker.controllers.snapshot import Snapshot
from broker.kube.cache import Cache
from broker.kube.clock import Clock
from broker.kube.derived import Derived
from broker.oncall.metrics import REGISTRY
from broker.placement.claims import in_gangs
from broker.reservations.claims import ending_claims

_SECONDS = prometheus_client.Histogram(
    "capacity_broker_plan_solve_seconds",
    "Seconds to assign the slots of a plan, by solver.",
    ["solver"],
    registry=REGISTRY,
)
_UNPROVEN = prometheus_client.Counter(
    "capacity_broker_plan_not_proven_total",
    "Plans that were not proven optimal, by solver.",
    ["solver"],
    registry=REGISTRY,
)
_GAP = prometheus_client.Gauge(
    "capacity_broker_plan_gap",
    "Share of claims in reservations that the last plan may lack at most; 0 if it is optimal.",
    registry=REGISTRY,
)
_log = structlog.get_logger("plan")


class Planner:
    """Plans the waiting claims of a pass, within `seconds`."""

    def __init__(
        self,
        claims: Cache[NodeClaim],
        slots: PreemptionController,
        *,
        seconds: float,
        clock: Clock,
    ) -> None:
        self.slots = slots
        self._claims = claims
        self.gangs = Derived(lambda: in_gangs(claims.list()), claims)
        self._seconds = seconds
        self._clock = clock

    def plan(self, work: LaunchPass, shortages: Shortages, now: datetime) -> Plan:
        waiting = {uid: work.objects[uid] for uid in work.waiting}
        with self.slots.exclusive():
            work.snapshot = snapshot = self.slots.snapshot()
            supply = LaunchSupply(
                classes=work.plans,
                types=snapshot.types,
                inventory=snapshot.inventory,
                shortages=shortages,
                now=now,
                entitlements=self.slots.entitlements(waiting, snapshot),
                ending=ending_claims(self._claims.list()),
            )
            result = plan(
                [*work.waiting.values()],
                supply,
                launched=self.gangs(),
                seconds=self._seconds,
                timer=self._clock.monotonic,
            )
            _report(result)
            self.slots.planned(result)
        return result

    def inputs(
        self,
        waiting: Mapping[str, NodeClaim],
        classes: Mapping[str, LaunchClass | NoClass],
        snapshot: Snapshot,
        shortages: Shortages,
    ) -> PassInputs:
        """All inputs of a pass's decisions."""
        return PassInputs(
            waiting=waiting,
            classes=classes,
            snapshot=snapshot,
            shortages=shortages,
            gangs=self.gangs(),
            entitlements=self.slots.entitlements(waiting, snapshot),
        )


def _report(plan_: Plan) -> None:
    solution = plan_.solution
    _SECONDS.labels(solution.solver).observe(solution.seconds)
    _GAP.set(0.0 if solution.optimal else solution.gap)
    if not solution.optimal:
        _UNPROVEN.labels(solution.solver).inc()
    log = _log.info if solution.optimal else _log.warning
    log(
        "planned",
        solver=solution.solver,
        optimal=solution.optimal,
        gap=round(solution.gap, 4) if not solution.optimal else 0.0,
        seconds=round(solution.seconds, 4),
        launches=len(plan_.assignments),
        reserved=solution.reserved,
        waiting=len(plan_.unplaced),
        bundles=solution.bundles,
        pairs=solution.pairs,
        **({"note": solution.note} if solution.note else {}),
        **({"gaps": dict(solution.gaps)} if solution.gaps else {}),
    )
