"""Reports the results of provisioning: events on pods as Karpenter writes them, conditions on pools.

Invariant: a pool is written only if a condition changes. A pod's failure is reported again only if its text
changes: a pod that stays unschedulable costs no write. Karpenter repeats it every five minutes
(pkg/controllers/provisioning/scheduling/events.go).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from broker.apis.core import Pod
from broker.apis.karpenter import NodePool
from broker.apis.koordinator import KoordinatorReservation
from broker.apis.meta import ConditionUpdate
from broker.controllers.pool_conditions import try_conditions
from broker.controllers.provisioning.pools import PoolNotServed, updates
from broker.kube.cache import Cache
from broker.kube.context import ControllerContext
from broker.kube.events import EventType
from broker.oncall.pod_reports import FAILED, FAILED_POD, NOMINATED, PodReport
from broker.placement.packing_model import Packing
from broker.placement.pool_choice import NO_MACHINE, OFFERING, SERVED
from broker.quota.resolve import UnresolvedName

Waiting = Pod | KoordinatorReservation

TOPIC = "provisioning"
_log = structlog.get_logger("provisioning")


class PodReporter:
    """Records events on pods and reservations, each text once while it holds.

    Why not by the recorder's topics alone: it forgets states beyond its number, and more pods may wait. An
    event that the recorder dropped is recorded again in the next run.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._recorder = context.recorder
        self._last: dict[tuple[str, str], str] = {}  # by the object's uid and the topic
        self._run: dict[str, PodReport] = {}
        # What the last run reported on pods, by their uid; replaced as a whole, for other threads.
        self.reports: Mapping[str, PodReport] = {}

    def begin(self) -> None:
        """Begins a run: a pod without a report in it has none."""
        self._run = {}

    def finish(self) -> None:
        """Ends a run that looked at all pods."""
        self.reports = self._run

    def keep(self, uids: Iterable[str]) -> None:
        """Forgets the events of all pods but these and those of this run."""
        kept = {*uids, *self._run}
        self._last = {key: text for key, text in self._last.items() if key[0] in kept}

    def made(self, pod: Waiting, claim: str) -> None:
        """The claim that was made for the pod, and that names it."""
        self._run.pop(pod.uid, None)
        self._nominated(pod, "nodeclaim", claim)

    def room(self, pod: Waiting, target: str, *, claim: bool) -> None:
        """The node or claim, made for others, that has room for the pod."""
        free = "" if claim else f"node {target} has room for it; kube-scheduler has not bound it yet"
        self._run[pod.uid] = PodReport(free, held=not claim, room=target)
        self._nominated(pod, "nodeclaim" if claim else "node", target)

    def _nominated(self, pod: Waiting, kind: str, target: str) -> None:
        self._record(pod, "Normal", NOMINATED, f"Pod should schedule on: {kind}/{target}")

    def failed(self, pod: Waiting, reason: str, *, held: bool = False) -> None:
        """Why no machine is opened for the pod. `held`: for a reason of its own."""
        self._run[pod.uid] = PodReport(reason, held)
        self._record(pod, "Warning", FAILED, f"{FAILED_POD}{reason}")

    def kept_off(self, pods: Mapping[str, Waiting], reasons: Mapping[str, str]) -> None:
        """Why pods are not on the nodes that were made for them: beside their other events."""
        problems = {key: (FAILED, f"{FAILED_POD}{reason}") for key, reason in reasons.items()}
        self._beside("kept-off", pods, problems)

    def refused(self, pods: Mapping[str, Waiting], refusals: Mapping[str, UnresolvedName]) -> None:
        """Why pods take no slot of the reservation that is named for them: beside their other events."""
        problems = {key: (refusal.reason, refusal.message) for key, refusal in refusals.items()}
        self._beside("drawing", pods, problems)

    def _beside(
        self, topic: str, pods: Mapping[str, Waiting], problems: Mapping[str, tuple[str, str]]
    ) -> None:
        for key, pod in pods.items():
            if key in problems:
                self._record(pod, "Warning", *problems[key], topic=topic)
            elif self._last.pop((pod.uid, topic), None) is not None:
                self._recorder.ended(pod, topic)

    def _record(
        self, pod: Waiting, type_: EventType, reason: str, message: str, *, topic: str = TOPIC
    ) -> None:
        if self._last.get((pod.uid, topic)) == message:
            return
        if self._recorder.event(pod, type_, reason, message, topic=topic):
            self._last[pod.uid, topic] = message


class PoolReporter:
    """Writes the conditions of NodePools."""

    def __init__(self, context: ControllerContext, pools: Cache[NodePool]) -> None:
        self._client, self._recorder, self._clock = context.client, context.recorder, context.clock
        self._pools = pools

    def write(self, pool: NodePool, error: PoolNotServed | None) -> None:
        """`error`: why the pool is not served; None if it is. Other conditions stay."""
        if self._set(pool, *updates(pool, error)) and error is not None:
            self._recorder.event(pool, "Warning", error.reason, error.message)

    def other(self, pool: NodePool, update: ConditionUpdate | None) -> None:
        """Writes on a pool of another group the condition that no controller serves it; None once one may."""
        self._set(pool, update, without=SERVED)

    def offering(self, pools: Iterable[NodePool], empty: Mapping[str, str] | None) -> None:
        """Writes on pools that are served why one offers no machine to any pod.

        Without a pod that needs a machine nothing is known (None), and an old reason may hold no more.
        """
        for pool in pools:
            update = None
            if text := (empty or {}).get(pool.name):
                update = ConditionUpdate(type=OFFERING, status="False", reason=NO_MACHINE, message=text)
            self._set(pool, update, without=OFFERING)

    def _set(self, pool: NodePool, *changes: ConditionUpdate | None, without: str = "") -> bool:
        """Whether the conditions were changed."""
        now = self._clock.now()
        return try_conditions(self._client, self._pools, pool, *changes, now=now, without=without)


def log_packing(packing: Packing | None, pods: int) -> None:
    """Logs a packing of so many pods."""
    if packing is not None:
        _log.info(
            "packed",
            pods=pods,
            machines=len(packing.bins),
            reserved=sum(bool(item.option.source) for item in packing.bins),
            without=len(packing.reasons),
            cost=round(packing.cost, 4),
            bound=round(packing.bound, 4),
            unsolved=packing.unsolved,
        )
