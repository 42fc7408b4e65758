"""The end of a claim: drain the node, terminate the instance, then let the claim go.

Invariant: the claim's finalizer stays until EC2 no longer shows the instance alive, so an instance never
outlives its claim unseen. Draining uses the Eviction API, so PodDisruptionBudgets hold; it ends early only
when the claim's terminationGracePeriod runs out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition
from broker.controllers.nodeclaim import drain
from broker.controllers.nodeclaim.abandoned import release
from broker.controllers.nodeclaim.instances import SETTLED
from broker.controllers.nodeclaim.registration import BY_PROVIDER_ID, first_of
from broker.controllers.nodeclaim.report import launched_at
from broker.controllers.nodeclaim.status import Change, instance_id, is_true, patch, write
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.conditions import remove_finalizer
from broker.kube.controller import Again
from broker.kube.errors import NotFound, TooManyRequests
from broker.kube.events import Recorder
from providers.base import CapacityProvider

BY_NODE = "nodeName"
LOOK_AGAIN = 2.0
_PART = re.compile(r"(\d+)(h|m|s)")
_UNIT = {"h": "hours", "m": "minutes", "s": "seconds"}


class Termination:
    """What happens to a claim from its deletionTimestamp on."""

    def __init__(
        self,
        client: Client,
        provider: CapacityProvider,
        claims: Cache[NodeClaim],
        nodes: Cache[Node],
        pods: Cache[Pod],
        *,
        clock: Clock,
        recorder: Recorder,
        launching: Callable[[str], bool],
        ending: Callable[[NodeClaim, bool], None],
    ) -> None:
        self._client = client
        self._provider = provider
        self._claims = claims
        self._nodes = nodes
        self._pods = pods
        self._clock = clock
        self._recorder = recorder
        self._launching = launching
        self._ending = ending  # hears each time whether EC2 still has the claim's instance

    def reconcile(self, claim: NodeClaim) -> Again | None:
        """One step towards the end. Raises ApiError, ProviderError."""
        if names.TERMINATION_FINALIZER not in claim.metadata.finalizers:
            return None
        if self._launching(claim.uid):
            return Again(LOOK_AGAIN)  # EC2 may be about to give it an instance
        if claim.status.provider_id and first_of(self._claims, claim).uid != claim.uid:
            self._release_claim(claim)  # the instance lives on with another claim
            return None
        nodes = self._nodes.by(BY_PROVIDER_ID, claim.status.provider_id or "-")
        if any(self._drain(claim, node) for node in nodes):
            return Again(LOOK_AGAIN)
        if claim.status.provider_id and self._alive(claim):
            return Again(LOOK_AGAIN)
        for node in nodes:
            release(self._client, self._nodes, node)
        self._release_claim(claim)
        return None

    def _drain(self, claim: NodeClaim, node: Node) -> bool:
        """Evicts what can be; whether pods are left to wait for."""
        self._close(node)
        left = self._left(node)
        deadline = _deadline(claim)
        late = deadline is not None and self._clock.now() >= deadline
        gone = bool(left) and not late and self._gone(claim, node)
        if left and not late and not gone:
            for pod in drain.evictable(left, self._clock.now()):
                self._evict(claim, pod)
            write(
                self._client,
                self._claims,
                claim,
                Change(
                    type=names.DRAINED,
                    status="Unknown",
                    reason="Draining",
                    message=f"{len(left)} pods left on node {node.name}, {self._first(left)}",
                ),
                now=self._clock.now(),
            )
            return True
        reason = "InstanceGone" if gone else "TerminationGracePeriodElapsed" if left else "Drained"
        change = Change(
            type=names.DRAINED,
            status="True",
            reason=reason,
            message=f"{len(left)} pods end with their instance" if left else "",
        )
        write(self._client, self._claims, claim, change, now=self._clock.now())
        return False

    def _first(self, left: list[Pod]) -> str:
        if drain.kept(left[0], self._clock.now()):
            return f"{left[0].key} says {names.DO_NOT_DISRUPT} and is waited for"
        return f"{left[0].key} first"

    def _left(self, node: Node) -> list[Pod]:
        """The pods that hold the drain up. The cache may lack the last ones: before none is left, the server
        is asked."""
        now = self._clock.now()
        if known := drain.left(self._pods.by(BY_NODE, node.name), now):
            return known
        listed, _ = self._client.list(Pod.KIND, field_selector=f"spec.nodeName={node.name}")
        return drain.left(map(Pod.decode, listed), now)

    def _gone(self, claim: NodeClaim, node: Node) -> bool:
        """Whether nothing is left to drain: pods on a node without an instance never end by themselves."""
        ready = condition(node.status.conditions, names.READY)
        if ready is not None and ready.status == "True":
            return False
        found = self._provider.instances([instance_id(claim)])
        return not any(instance.alive for instance in found)

    def _close(self, node: Node) -> None:
        disrupted = {"key": names.DISRUPTED_TAINT, "effect": drain.NO_SCHEDULE}
        there = any((t.key, t.effect) == tuple(disrupted.values()) for t in node.spec.taints)
        if there and names.NODE_NO_BALANCERS in node.labels:
            return
        others = [t.wire() for t in node.spec.taints if t.key != names.DISRUPTED_TAINT]
        body = {
            "metadata": {
                "resourceVersion": node.metadata.resource_version,
                # Requests stop before the pods do.
                "labels": {names.NODE_NO_BALANCERS: "karpenter"},
            },
            "spec": {"taints": [*others, disrupted]},
        }
        self._nodes.observe(self._client.patch(Node.KIND, node.name, body))

    def _evict(self, claim: NodeClaim, pod: Pod) -> None:
        try:
            self._client.evict(pod.name, pod.namespace)
        except NotFound:
            return
        except TooManyRequests as error:
            self._recorder.event(claim, "Warning", "EvictionBlocked", f"{pod.key}: {error.message}")

    def _alive(self, claim: NodeClaim) -> bool:
        """Whether EC2 still has the instance; terminates it if nobody has yet."""
        id_ = instance_id(claim)
        found = next((i for i in self._provider.instances([id_]) if i.id == id_), None)
        if found is None:
            return self._unseen(claim, id_)
        alive = found.state != "terminated"
        self._ending(claim, alive)
        ends = not alive or found.state == "shutting-down"
        self._tell(claim, id_, ends=ends)
        if not ends:
            self._provider.terminate([id_])
        return alive

    def _tell(self, claim: NodeClaim, id_: str, *, ends: bool) -> None:
        """Says once who ended the instance: before the first call that could, or because none was needed."""
        if is_true(claim, names.INSTANCE_TERMINATING):
            return
        if ends:
            reason, message = "InstanceGone", f"instance {id_} ended in EC2, and not by the broker"
            self._recorder.event(claim, "Warning", reason, f"{message}: its claim ends with it")
        else:
            reason, message = "Terminating", f"instance {id_} is terminated"
            self._recorder.event(claim, "Normal", reason, message)
        change = Change(type=names.INSTANCE_TERMINATING, status="True", reason=reason, message=message)
        write(self._client, self._claims, claim, change, now=self._clock.now())

    def _unseen(self, claim: NodeClaim, id_: str) -> bool:
        """EC2 may neither show a new instance nor know it for some time: it is asked until it does."""
        launched = launched_at([claim]).get(claim.uid)
        if launched is None or self._clock.now() - launched >= SETTLED:
            self._tell(claim, id_, ends=True)
            return False
        self._provider.terminate([id_])
        return True

    def _release_claim(self, claim: NodeClaim) -> None:
        def wanted(now: NodeClaim) -> Mapping[str, Any]:
            # A launch that ended meanwhile gave it an instance, which has to end first.
            same = now.status.provider_id == claim.status.provider_id
            return _without_finalizer(now) if same else {}

        try:
            patch(self._client, self._claims, claim, wanted)
        except NotFound:
            return


def _without_finalizer(claim: NodeClaim) -> Mapping[str, Any]:
    found = remove_finalizer(claim, names.TERMINATION_FINALIZER)
    return dict(found["metadata"]) if found else {}


def _deadline(claim: NodeClaim) -> datetime | None:
    period, since = claim.spec.termination_grace_period, claim.metadata.deletion_timestamp
    if not period or since is None:
        return None
    parts = {_UNIT[unit]: int(number) for number, unit in _PART.findall(period)}
    return since + timedelta(**parts)
