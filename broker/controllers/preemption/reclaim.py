"""Evicts claims for nominated slots.

Invariant: for one nominated slot at most one claim is evicted, however often this runs: terminating claims
and slots that are being freed are counted first. `broker.quota.joint` chooses the victims. A victim
terminates as any deleted NodeClaim: drained by evictions, so that PodDisruptionBudgets hold, for no longer
than its terminationGracePeriod.

Conditions on both claims come before the eviction, in Kueue's terms (conditions and reasons of its Workload:
apis/kueue/v1beta1/workload_types.go): preemptor, victim, reason, and the paths of both in the tree.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import structlog
from prometheus_client import Counter

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition
from broker.capacity.entitlement import NominatedSlot
from broker.controllers.nodeclaim.status import write
from broker.controllers.preemption.entitler import EntitlementReader
from broker.controllers.reservations.each import each
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.conditions import ConditionUpdate
from broker.kube.errors import NotFound
from broker.kube.events import Recorder
from broker.oncall.metrics import REGISTRY
from broker.quota.entitled import Eviction
from broker.quota.joint import JointDecision
from broker.quota.model import Reason
from broker.quota.slot_model import CLAIM, Victim

RECLAIMED = Counter(
    "capacity_broker_slots_reclaimed",
    "Claims that were drained for somebody with more right to their reserved slot, by Kueue's reason.",
    ["reason"],
    registry=REGISTRY,
)
_log = structlog.get_logger("borrowing")


class Preemptor:
    """Nominates and evicts claims. The launch loop calls `awaited` after each plan; the decision pass calls
    the other methods.
    """

    def __init__(
        self,
        client: Client,
        claims: Cache[NodeClaim],
        entitler: EntitlementReader,
        *,
        clock: Clock,
        recorder: Recorder,
        wake: Callable[[], None],
    ) -> None:
        self._client = client
        self._claims = claims
        self._entitler = entitler
        self._clock = clock
        self._recorder = recorder
        self._wake = wake
        self._lock = threading.Lock()
        self._awaited: Mapping[str, NominatedSlot] = {}
        self._keeping: frozenset[str] = frozenset()
        self._planned = False

    def awaited(self, found: Mapping[str, NominatedSlot], kept: Collection[str] = ()) -> None:
        """Records the claims (by uid, in order) that wait for occupied slots since the last plan. `kept`:
        claims that have a slot and wait for their gang.
        """
        with self._lock:
            before, self._awaited, self._planned = self._awaited, dict(found), True
            self._keeping = frozenset(kept)
        if found or before:
            self._wake()

    def waiting(self) -> Sequence[tuple[NodeClaim, NominatedSlot]]:
        """Claims that wait for a slot since the last plan, in order."""
        with self._lock:
            awaited = self._awaited
        there = self._there(awaited)
        return [(there[uid], slot) for uid, slot in awaited.items() if uid in there]

    def settle(self) -> None:
        """Clears the nomination of claims that have their slot or launch another way. Raises ApiError."""
        with self._lock:
            waiting, planned = self._there({*self._awaited, *self._keeping}), self._planned

        def settled(claim: NodeClaim) -> None:
            said = condition(claim.status.conditions, names.RECLAIMING)
            if said is None or said.status != "True" or claim.uid in waiting or claim.deleting:
                return
            if not claim.status.provider_id and not planned:
                return  # the first plan decides whether it still waits
            got = claim.labels.get(names.RESERVATION_ID, "")
            message = f"it has a slot of {got}" if got else "it takes another way"
            change = ConditionUpdate(
                type=names.RECLAIMING, status="False", reason="Resolved", message=message
            )
            write(self._client, self._claims, claim, change, now=self._clock.now())

        each(self._claims.list(), settled)

    def _there(self, awaited: Collection[str]) -> Mapping[str, NodeClaim]:
        return {
            claim.uid: claim
            for claim in self._claims.list()
            if claim.uid in awaited and not claim.status.provider_id and not claim.deleting
        }

    def act(self, decided: JointDecision) -> None:
        """Reports to each victim and deletes it. Clusters are evicted by their own controller. Raises
        ApiError after all victims.
        """
        told: list[tuple[str, Eviction] | Victim] = [*decided.evictions.items(), *decided.victims]
        each(told, self._act)

    def _act(self, one: tuple[str, Eviction] | Victim) -> None:
        if isinstance(one, Victim):
            self._reclaim(one)
            return
        name, eviction = one
        claim = self._claims.get(name.removeprefix(CLAIM)) if name.startswith(CLAIM) else None
        if claim is not None:
            told = _preempted(f"DedicatedAICluster {eviction.preemptor}", claim, eviction)
            self._leave(claim, told, eviction.reason)
        elif eviction.preemptor.startswith(CLAIM):
            owner = self._claims.get(eviction.preemptor.removeprefix(CLAIM))
            if owner is not None:
                self._reclaims(owner, f"DedicatedAICluster {name}", eviction)

    def _reclaim(self, victim: Victim) -> None:
        holder, owner = self._claims.get(victim.holder.name), self._claims.get(victim.want.name)
        if holder is None or holder.deleting or owner is None:
            return
        told = _preempted(f"NodeClaim {owner.name} (UID: {owner.uid})", holder, victim)
        self._reclaims(owner, f"NodeClaim {holder.name} (UID: {holder.uid})", victim)
        self._leave(holder, told, victim.reason)
        _log.info("slot reclaimed", claim=owner.name, of=holder.name, reason=str(victim.reason), why=told)

    def _reclaims(self, owner: NodeClaim, whom: str, why: Victim | Eviction) -> None:
        message = f"waits for {whom} to give back a slot ({why.reason}); {_paths(why)}"
        change = ConditionUpdate(
            type=names.RECLAIMING, status="True", reason=str(why.reason), message=message
        )
        said = condition(owner.status.conditions, names.RECLAIMING)
        if said is not None and said.status == "True" and said.message == message:
            return
        write(self._client, self._claims, owner, change, now=self._clock.now())
        self._recorder.event(owner, "Normal", "Reclaiming", message)

    def _leave(self, claim: NodeClaim, told: str, reason: Reason) -> None:
        if claim.deleting:
            return
        change = ConditionUpdate(type=names.PREEMPTED, status="True", reason=str(reason), message=told)
        write(self._client, self._claims, claim, change, now=self._clock.now())
        self._recorder.event(claim, "Warning", "Preempted", told)
        try:
            answer = self._client.delete(NodeClaim.KIND, claim.name, uid=claim.uid)
        except NotFound:
            return
        self._entitler.leaves(claim.uid)
        if answer.get("kind") == NodeClaim.KIND.kind:  # without a finalizer the response is a Status
            self._claims.observe(answer)
        RECLAIMED.labels(str(reason)).inc()


_DUE: Final[Mapping[Reason, str]] = {
    Reason.IN_QUEUE: "prioritization in the reservation",
    Reason.RECLAIM: "reclamation within the cohort",
    Reason.RECLAIM_WHILE_BORROWING: "reclamation within the cohort while borrowing",
    Reason.FAIR_SHARING: "Fair Sharing within the cohort",
}


def _preempted(whom: str, claim: NodeClaim, why: Victim | Eviction) -> str:
    """The victim's message."""
    slot = claim.labels.get(names.RESERVATION_ID, "")
    has = f": it {'has' if why.reason is Reason.IN_QUEUE else 'borrows'} a slot of {slot}" if slot else ""
    return f"Preempted to accommodate {whom} due to {_DUE[why.reason]} ({why.reason}){has}; {_paths(why)}"


def _paths(why: Victim | Eviction) -> str:
    return f"preemptor path: {why.preemptor_path}; preemptee path: {why.preemptee_path}"
