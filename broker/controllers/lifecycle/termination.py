"""Ends a claim: drains the node, terminates the instance, then releases the claim.

Invariant: the claim's finalizer stays until EC2 no longer shows the instance alive, so an instance never
outlives its claim unseen. Draining uses the Eviction API, so PodDisruptionBudgets hold. It ends early only
when the claim's terminationGracePeriod expires. It waits for a Node that is left out of the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition, since
from broker.controllers.claim_caches import BY_NODE, ClaimCaches
from broker.controllers.claim_status import MESSAGE_LIMIT, ConditionWriter, patch
from broker.controllers.instances import LISTING_LAG
from broker.controllers.inventory import InventoryCache
from broker.controllers.lifecycle import drain
from broker.controllers.lifecycle.abandoned import release
from broker.controllers.lifecycle.evictions import close, evict, remaining_pods
from broker.controllers.lifecycle.registration import NODE_LEFT_OUT
from broker.controllers.lifecycle.terminations import Sighting, Terminations
from broker.controllers.newest import node_names
from broker.controllers.successions import bind_successors
from broker.kube.conditions import remove_finalizer
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.errors import NotFound
from broker.kube.partial import PartialObject
from broker.placement.claims import deadline_of
from broker.placement.disruption_pods import protected
from broker.placement.reading import volumes
from broker.reservations.claims import occupied_odcr
from broker.text import counted
from providers.errors import ProviderError

RECHECK = 2.0
# After so long kube-controller-manager detaches a volume that nobody unmounts (maxWaitForUnmountDuration).
DETACHED_WITHIN = timedelta(minutes=6)
REFUSED = "TerminationRefused"
NO_BALANCERS = "karpenter"  # the label's value, as Karpenter writes it


class Termination:
    """Handles a claim from its deletionTimestamp on."""

    def __init__(
        self,
        context: ControllerContext,
        caches: ClaimCaches,
        terminations: Terminations,
        inventory: InventoryCache,
        *,
        launching: Callable[[str], bool],
        freed: Callable[[], None],
        undecided: Callable[[NodeClaim, datetime], bool],
    ) -> None:
        """`freed` is called when the slot of an ended instance is free again. `undecided`: whether the slot
        of the claim may still get a successor.
        """
        self._client, self._recorder, self._clock = context.client, context.recorder, context.clock
        self._caches = caches
        self._claims, self._nodes, self._pods = caches.claims, caches.nodes, caches.pods
        self._set = ConditionWriter(context, caches.claims).set
        self._terminations = terminations
        self._inventory = inventory
        self._launching = launching
        self._freed = freed
        self._undecided = undecided

    def reconcile(self, claim: NodeClaim) -> Result | None:
        """Makes one step towards the end. Raises ApiError."""
        if names.TERMINATION_FINALIZER not in claim.metadata.finalizers:
            return None
        if self._launching(claim.uid):
            return Result(requeue_after=RECHECK)  # EC2 may be about to give it an instance
        if self._undecided(claim, self._clock.now()):
            return Result(requeue_after=RECHECK)
        if claim.status.provider_id and self._caches.first_of(claim).uid != claim.uid:
            self._release_claim(claim)  # the instance lives on with another claim
            return None
        nodes, left_out = self._caches.nodes_of(claim)
        if left_out is not None and self._unread(claim, left_out):
            return Result(requeue_after=RECHECK)
        if any(self._drain(claim, node) for node in nodes):
            return Result(requeue_after=RECHECK)
        if any(self._detaches(claim, node) for node in nodes):
            return Result(requeue_after=RECHECK)
        if claim.status.provider_id:
            if self._alive(claim, nodes):
                return Result(requeue_after=RECHECK)
            self._terminations.forget(claim.instance_id)
        for node in nodes:
            release(self._client, self._nodes, node)
        self._release_claim(claim)
        return None

    def _unread(self, claim: NodeClaim, node: PartialObject) -> bool:
        """Whether to wait for a Node that is left out: its pods may still run, and may not be evicted."""
        seen = self._terminations.watch(claim.instance_id)
        ended = seen is not None and seen.instance is not None and not seen.instance.alive
        if ended or self._late(claim):
            return False
        message = (
            f"node {node.name} is left out, so that it cannot be drained: the instance is kept until "
            f"the broker can read the Node, or the claim's terminationGracePeriod is over: {node.error}"
        )
        self._set(claim, names.DRAINED, "Unknown", NODE_LEFT_OUT, message)
        return True

    def _late(self, claim: NodeClaim) -> bool:
        deadline = deadline_of(claim)
        return deadline is not None and self._clock.now() >= deadline

    def _drain(self, claim: NodeClaim, node: Node) -> bool:
        """Evicts the pods that may go. True while the drain waits for pods."""
        self._close(node)
        remaining = remaining_pods(self._client, self._pods, node.name, self._clock.now())
        late = self._late(claim)
        gone = bool(remaining) and not late and self._gone(claim, node)
        if remaining and not late and not gone:
            evictable = drain.evictable(remaining, self._clock.now(), deadline_of(claim))
            refusals = {pod.key: refusal for pod in evictable if (refusal := self._evict(claim, pod))}
            first = self._first(remaining, refusals)
            message = f"{counted(len(remaining), 'pod')} left on node {node.name}, {first}"
            self._set(claim, names.DRAINED, "Unknown", "Draining", message)
            return True
        reason = "InstanceGone" if gone else "TerminationGracePeriodElapsed" if remaining else "Drained"
        ended = counted(len(remaining), "pod ends with its instance", "pods end with their instance")
        self._set(claim, names.DRAINED, "True", reason, ended if remaining else "")
        return False

    def _detaches(self, claim: NodeClaim, node: Node) -> bool:
        """Whether the instance waits for the volumes of its pods: their next node gets a volume late if the
        instance that has it is gone. Volumes of pods that stay do not count. The rule and the condition are
        Karpenter's (pkg/controllers/node/termination, awaitVolumeDetachment).
        """
        stay = (pod for pod in self._pods.by(BY_NODE, node.name) if not pod.ended)
        kept = sum(len([*volumes(pod)]) for pod in stay)
        left = len(node.status.volumes_attached) - kept
        drained, type_ = since(claim, names.DRAINED), names.VOLUMES_DETACHED
        late = drained is not None and self._clock.now() - drained >= DETACHED_WITHIN
        if left > 0 and node.ready and not late and not self._late(claim):
            message = f"{counted(left, 'volume is', 'volumes are')} attached to node {node.name}"
            self._set(claim, type_, "Unknown", "AwaitingVolumeDetachment", message)
            return True
        if condition(claim.status.conditions, type_) is not None:
            self._set(claim, type_, "False" if left > 0 else "True", "NotDetached" if left > 0 else type_)
        return False

    def _first(self, remaining: list[Pod], refusals: Mapping[str, str]) -> str:
        """The pod that the drain waits for, and what keeps it, if it does not only have to end."""
        if refused := next((pod.key for pod in remaining if pod.key in refusals), ""):
            return f"{refused} first: {refusals[refused]}"
        if protected(remaining[0], self._clock.now()) and not remaining[0].deleting:
            return f"{remaining[0].key} carries {names.DO_NOT_DISRUPT}, so the drain waits for it"
        return f"{remaining[0].key} first"

    def _gone(self, claim: NodeClaim, node: Node) -> bool:
        """Whether the node has no instance to drain: its pods would never end by themselves."""
        if node.ready:
            return False
        seen = self._terminations.watch(claim.instance_id)
        return seen is not None and seen.gone

    def _close(self, node: Node) -> None:
        labels = {names.NODE_NO_BALANCERS: NO_BALANCERS}  # requests stop before the pods do
        close(self._client, self._nodes, node, names.DISRUPTED_TAINT, labels=labels)

    def _evict(self, claim: NodeClaim, pod: Pod) -> str:
        """The API server's refusal, which is reported; empty without one."""
        if refusal := evict(self._client, pod, self._clock.now(), deadline_of(claim)):
            self._recorder.event(claim, "Warning", "EvictionBlocked", f"{pod.key}: {refusal}", topic=pod.key)
        return refusal

    def _alive(self, claim: NodeClaim, nodes: Sequence[Node]) -> bool:
        """Whether EC2 still has the instance. If it does not end yet, it is terminated."""
        id_ = claim.instance_id
        seen = self._terminations.watch(id_)
        if seen is None or self._undrained(claim, seen, nodes):
            return True
        if seen.instance is None:
            return self._unseen(claim, id_, seen, nodes)
        if seen.instance.ownership == "foreign":
            message = f"instance {id_} carries the UID or name of another cluster: it is left as it is"
            self._recorder.event(claim, "Warning", "ForeignInstance", message, topic=id_)
            return False
        alive = seen.instance.state != "terminated"
        self._ending(claim, id_, alive=alive, began=seen.began)
        ends = not alive or seen.instance.state == "shutting-down"
        self._report_ending(claim, id_, ends=ends, refused=seen.refused)
        if not ends:
            self._terminations.end(id_)
        return alive

    def _undrained(self, claim: NodeClaim, seen: Sighting, nodes: Sequence[Node]) -> bool:
        """Whether the cache lacks the Node of an instance that runs: the watch of Nodes is late."""
        ended = seen.instance is not None and not seen.instance.alive
        if nodes or ended or seen.requested or self._late(claim):
            return False
        return bool(node_names(self._client, claim.instance_id))

    def _ending(self, claim: NodeClaim, id_: str, *, alive: bool, began: datetime) -> None:
        """Frees the slot of an ended instance before EC2's next count."""
        odcr_id = occupied_odcr(claim)
        if odcr_id and not alive:
            bind_successors(self._client, self._claims, claim.uid, self._clock.now())
        self._inventory.ending(instance_id=id_, odcr_id=odcr_id, alive=alive, began=began)
        if odcr_id and not alive:
            self._freed()

    def _report_ending(
        self, claim: NodeClaim, id_: str, *, ends: bool, refused: ProviderError | None, listed: bool = True
    ) -> None:
        """Reports once how the instance ended, or why EC2 refuses to end it."""
        type_ = names.INSTANCE_TERMINATING
        known = condition(claim.status.conditions, type_)
        was_refused = known is not None and known.reason == REFUSED
        if refused is not None and not ends:
            reason = f"{refused.code}: {refused.message}"
            message = f"instance {id_} cannot be terminated: {reason}; tried again until it ends"
            if not was_refused or known is None or known.message != message[:MESSAGE_LIMIT]:
                self._set(claim, type_, "False", REFUSED, message, event="Warning")
            return
        if known is not None and known.status == "True":
            return
        if ends and not was_refused:
            gone = f"instance {id_} ended in EC2, and not by the broker"
            message = f"{gone if listed else f'EC2 no longer lists instance {id_}'}: its claim ends with it"
            self._set(claim, type_, "True", "InstanceGone", message, event="Warning")
        else:
            self._set(claim, type_, "True", "Terminating", f"instance {id_} is terminated", event="Normal")

    def _unseen(self, claim: NodeClaim, id_: str, seen: Sighting, nodes: Sequence[Node]) -> bool:
        """Terminates an instance that EC2 does not show. True while the claim is kept.

        EC2 may have the instance. The claim is kept while the instance may be too new to be shown, or its
        Node is Ready and EC2 refuses.
        """
        self._terminations.end(id_)
        launched = since(claim, names.LAUNCHED)
        new = launched is not None and self._clock.now() - launched < LISTING_LAG
        runs = seen.refused is not None and any(node.ready for node in nodes)
        if runs:
            self._report_ending(claim, id_, ends=False, refused=seen.refused)
        if new or runs or not seen.requested:
            return True
        self._report_ending(claim, id_, ends=True, refused=None, listed=False)
        return False

    def _release_claim(self, claim: NodeClaim) -> None:
        def released(now: NodeClaim) -> Mapping[str, Any]:
            # A launch that ended meanwhile may have given it an instance, which has to end first.
            same = now.status.provider_id == claim.status.provider_id
            return _without_finalizer(now) if same else {}

        try:
            patch(self._client, self._claims, claim, released)
        except NotFound:
            return


def _without_finalizer(claim: NodeClaim) -> Mapping[str, Any]:
    removal = remove_finalizer(claim, names.TERMINATION_FINALIZER)
    return dict(removal["metadata"]) if removal else {}
