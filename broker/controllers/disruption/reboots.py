"""Reboots broken nodes: keeps new pods off, drains within a bound, reboots, and observes the result.

Source: Karpenter, pkg/controllers/nodeclaim/reboot. Pods that are left at the bound stay: the reboot stops
their containers.

Invariant: a reboot is on the claim before RebootInstances is called. A process that does not know whether the
call was made calls only once the kubelet has reported the old boot id for so long that EC2 would have
rebooted the instance by force. So an instance is rebooted once, wherever a process ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from prometheus_client import Counter

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.claim_status import patch
from broker.controllers.disruption.confirmation import Confirmation
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.lifecycle import drain
from broker.controllers.lifecycle.evictions import close, evict, remaining_pods, reopen
from broker.kube.context import ControllerContext
from broker.oncall.metrics import REGISTRY
from broker.placement.reboots import OBSERVED, Reboot, Reboots, reboots_of
from broker.placement.repair import Diagnosis
from providers.base import HealthCalls
from providers.errors import ProviderError

REBOOTING: Final = "Rebooting"
OBSERVED_EVENT: Final = "RebootObserved"
FAILED: Final = "RebootFailed"
WITHDRAWN: Final = "RebootWithdrawn"
# A scheduler may have placed a pod before it saw the taint (Karpenter waits as long).
HOLD: Final = timedelta(seconds=5)
# EC2 reboots an instance by force that does not shut down within a few minutes (API Reference,
# RebootInstances). For as long a refused call is repeated.
FORCED: Final = timedelta(minutes=5)

REBOOTS = Counter(
    "capacity_broker_reboots",
    "Reboots of broken nodes, by result: Succeeded, Refused by EC2, or TimedOut: not Ready in time.",
    ["result"],
    registry=REGISTRY,
)

_log = structlog.get_logger("repair")


class RebootController:
    """Starts reboots, and takes each one step further. Raises ApiError."""

    def __init__(
        self,
        context: ControllerContext,
        caches: ClaimCaches,
        provider: HealthCalls,
        confirmation: Confirmation,
    ) -> None:
        self._client, self._recorder = context.client, context.recorder
        self._caches, self._provider, self._confirmation = caches, provider, confirmation
        self._called: set[str] = set()  # claims (by uid) with a call that EC2 has answered or may have got
        self._refused: set[str] = set()  # claims (by uid) with a call that EC2 refused for the moment

    def start(self, node: ManagedNode, diagnosis: Diagnosis, now: datetime) -> None:
        """Begins the drain of a node that is to be rebooted, unless that is no more due."""
        if self._confirmation.broken(node, "reboot") is None:
            return
        bound = diagnosis.drain
        reboot = Reboot(phase="Draining", began=now, until=None if bound is None else now + bound)
        self._record(node, reboots_of(node.claim).begin(reboot, now))
        close(self._client, self._caches.nodes, node.node, names.REBOOTING_TAINT)
        within = "" if bound is None else f" within {bound}"
        self._report(node, REBOOTING, f"{diagnosis.text}: it is drained{within}, then rebooted")

    def advance(self, node: ManagedNode, diagnosis: Diagnosis | None, now: datetime) -> bool:
        """Takes the node's reboot further. Returns whether one is under way.

        Until EC2 is called, a reboot that is no more due is withdrawn. `diagnosis`: None if the node is not
        broken, or may not be repaired.
        """
        reboots = reboots_of(node.claim)
        reboot, due = reboots.current, diagnosis is not None and diagnosis.reboots(now)
        if reboot is None:
            last = reboots.last
            if diagnosis is None or (last is not None and last.phase == "Succeeded"):
                # Also after a stop between the end of a reboot and this.
                reopen(self._client, self._caches.nodes, node.node, names.REBOOTING_TAINT)
            return False
        if reboot.phase == "Requested":
            self._observe(node, reboots, reboot, now, due=due)
        elif due:
            self._drain(node, reboots, reboot, now)
        else:
            self._withdraw(node, reboots)
        return True

    def _drain(self, node: ManagedNode, reboots: Reboots, reboot: Reboot, now: datetime) -> None:
        close(self._client, self._caches.nodes, node.node, names.REBOOTING_TAINT)
        late = reboot.until is not None and now >= reboot.until
        waiting = [] if late else self._waiting(node, now)
        if waiting or (not late and now - reboot.began < HOLD):
            for pod in drain.evictable(waiting, now):
                self._evict(node, pod, now)
            return
        current = self._confirmation.broken(node, "reboot")
        if current is None:
            return  # the next pass withdraws it, once the cache has the reason
        requested = Reboot(phase="Requested", began=now, boot_id=current.status.node_info.boot_id)
        reboots = reboots.updated(requested)
        self._record(node, reboots)
        self._call(node, reboots, requested, now)

    def _waiting(self, node: ManagedNode, now: datetime) -> list[Pod]:
        """The pods that the reboot waits for. Those of DaemonSets come back with the node."""
        assert node.node is not None
        return remaining_pods(self._client, self._caches.pods, node.node.name, now, daemon_sets=False)

    def _evict(self, node: ManagedNode, pod: Pod, now: datetime) -> None:
        if refusal := evict(self._client, pod, now):
            message = f"{pod.key}: {refusal}"
            self._recorder.event(node.claim, "Warning", "EvictionBlocked", message, topic=pod.key)

    def _call(self, node: ManagedNode, reboots: Reboots, reboot: Reboot, now: datetime) -> None:
        uid, id_ = node.claim.uid, node.claim.instance_id
        self._client.check()
        self._called.add(uid)
        self._refused.discard(uid)
        try:
            self._provider.reboot(id_)
        except ProviderError as error:
            _log.warning("reboot refused", claim=node.claim.name, instance=id_, error=str(error))
            if error.lost:
                self._called.discard(uid)
            elif error.class_.passes:
                self._refused.add(uid)
            else:
                message = f"EC2 refuses to reboot {id_}: {error.code}: {error.message}"
                self._fail(node, reboots, reboot, "Refused", message, now)

    def _observe(
        self, node: ManagedNode, reboots: Reboots, reboot: Reboot, now: datetime, *, due: bool
    ) -> None:
        assert node.node is not None
        uid, taken = node.claim.uid, now - reboot.began
        if node.node.status.node_info.boot_id not in ("", reboot.boot_id):
            if node.node.ready:
                self._succeed(node, reboots, reboot, now)
                return
        elif uid in self._refused:
            if not due:
                self._withdraw(node, reboots)
            elif taken < FORCED:
                if self._unchanged(node, reboot):
                    self._call(node, reboots, reboot, now)
            else:
                message = f"EC2 refused to reboot {node.claim.instance_id} for {FORCED}"
                self._fail(node, reboots, reboot, "Refused", message, now)
            return
        elif node.node.ready and taken >= FORCED:
            if not due:  # it did not reboot, whatever EC2 answered, and needs it no more
                self._withdraw(node, reboots)
                return
            if uid not in self._called and self._unchanged(node, reboot):
                self._call(node, reboots, reboot, now)
                self._called.add(uid)  # a second lost answer is not asked for again
        if now >= reboot.deadline:
            message = f"node {node.node.name} was not Ready after a reboot within {OBSERVED}"
            self._fail(node, reboots, reboot, "TimedOut", message, now)

    def _unchanged(self, node: ManagedNode, reboot: Reboot) -> bool:
        """Whether the reboot is still due, and the node was not rebooted meanwhile."""
        current = self._confirmation.broken(node, "reboot")
        return current is not None and current.status.node_info.boot_id == reboot.boot_id

    def _withdraw(self, node: ManagedNode, reboots: Reboots) -> None:
        self._end(node, reboots.without_last())
        message = "it is not rebooted: no reboot is due any more, or its repair was stopped"
        self._report(node, WITHDRAWN, message, normal=True)
        # Last: another pass repeats it after a conflict.
        reopen(self._client, self._caches.nodes, node.node, names.REBOOTING_TAINT)

    def _succeed(self, node: ManagedNode, reboots: Reboots, reboot: Reboot, now: datetime) -> None:
        self._end(node, reboots.updated(reboot.ended("Succeeded", now)))
        REBOOTS.labels("Succeeded").inc()
        taken = timedelta(seconds=round((now - reboot.began).total_seconds()))
        self._report(node, OBSERVED_EVENT, f"it was rebooted, and is Ready after {taken}", normal=True)
        reopen(self._client, self._caches.nodes, node.node, names.REBOOTING_TAINT)

    def _fail(
        self, node: ManagedNode, reboots: Reboots, reboot: Reboot, result: str, message: str, now: datetime
    ) -> None:
        self._end(node, reboots.updated(reboot.ended("Failed", now)))
        REBOOTS.labels(result).inc()
        self._report(node, FAILED, f"{message}: it is replaced if it is still broken")

    def _end(self, node: ManagedNode, reboots: Reboots) -> None:
        self._record(node, reboots)
        self._called.discard(node.claim.uid)
        self._refused.discard(node.claim.uid)

    def _record(self, node: ManagedNode, reboots: Reboots) -> None:
        """Writes the reboots on the claim: what is done next must not be done twice."""
        text = str(reboots) or None

        def metadata(claim: NodeClaim) -> Mapping[str, Any]:
            return (
                {"annotations": {names.REBOOTS: text}} if claim.annotations.get(names.REBOOTS) != text else {}
            )

        patch(self._client, self._caches.claims, node.claim, metadata)

    def _report(self, node: ManagedNode, reason: str, message: str, *, normal: bool = False) -> None:
        for subject in (node.claim, *((node.node,) if node.node is not None else ())):
            self._recorder.event(subject, "Normal" if normal else "Warning", reason, message)
        _log.warning("reboot", claim=node.claim.name, step=reason, why=message)
