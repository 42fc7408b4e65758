"""Evicts claims for nominated slots.

Invariant: for one nominated slot at most one claim is evicted, however often this runs: terminating claims
and slots that are being freed are counted first. `broker.quota.joint` chooses the victims. A victim
terminates as any deleted NodeClaim: drained by evictions, so that PodDisruptionBudgets hold, for no longer
than its terminationGracePeriod.

Conditions on both claims come before the eviction, in Kueue's terms (conditions and reasons of its Workload:
apis/kueue/v1beta1/workload_types.go): preemptor, victim, reason, and the paths of both in the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import structlog
from prometheus_client import Counter

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import ConditionUpdate, condition, true_condition
from broker.capacity.entitlement import NominatedSlot
from broker.capacity.model import Plan
from broker.controllers.assumed import AssumptionStore
from broker.controllers.claim_caches import BY_SIGN
from broker.controllers.claim_status import write
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.events import Recorder
from broker.kube.for_each import for_each
from broker.kube.removal import remove
from broker.oncall.metrics import REGISTRY
from broker.quota.entitled import Eviction
from broker.quota.joint import JointDecision
from broker.quota.model import Reason
from broker.quota.slot_model import CLAIM, Victim
from broker.reservations.claims import cluster_of, occupied_odcr

RECLAIMED = Counter(
    "capacity_broker_slots_reclaimed",
    "Claims that were preempted, because another claim or cluster is entitled to their reserved slot, by "
    "Kueue's reason.",
    ["reason"],
    registry=REGISTRY,
)
# The reason of a claim that is no longer nominated, although it has no instance yet.
NOT_WAITING: Final = "NotWaiting"
_log = structlog.get_logger("preemption")


class Preemptor:
    """Nominates and evicts claims. The launch loop calls `planned` after each plan; the decision pass calls
    the other methods.
    """

    def __init__(
        self,
        client: Client,
        claims: Cache[NodeClaim],
        assumed: AssumptionStore,
        *,
        recorder: Recorder,
        non_preemptible: Callable[[NodeClaim], bool],
        wake: Callable[[], None],
    ) -> None:
        """`non_preemptible`: whether a claim is never a victim, by what the API server has."""
        self._client = client
        self._claims = claims
        self._assumed = assumed
        self._clock = assumed.clock
        self._recorder = recorder
        self._non_preemptible = non_preemptible
        self._wake = wake
        claims.on_change(self._confirm)

    def planned(self, plan: Plan) -> None:
        """Records the claims that the last plan launches, and the claims that wait for occupied slots."""
        assigned_clusters = {self._cluster(assignment.claim.name) for assignment in plan.assignments}
        unplaced_clusters = {self._cluster(unplaced.claim.name) for unplaced in plan.unplaced}
        with self._assumed.lock:
            before = self._assumed.nominated_slots.values()
            self._assumed.planned(plan)
            self._assumed.served.forget(unplaced_clusters - assigned_clusters)
        if plan.nominated or before:
            self._wake()

    def waiting(self) -> Sequence[tuple[NodeClaim, NominatedSlot]]:
        """Claims that wait for a slot since the last plan, in order."""
        nominated = self._assumed.nominated_slots.values()
        claims = self._unlaunched(nominated)
        return [(claims[uid], slot) for uid, slot in nominated.items() if uid in claims]

    def clear(self) -> None:
        """Ends the nomination of claims that have their slot or launch another way. Raises ApiError."""
        with self._assumed.lock:
            assumed, planned = self._assumed.slots(), self._assumed.planned_once
        waiting = self._unlaunched({*assumed.nominated_slots, *assumed.kept, *assumed.launches})

        def clear(claim: NodeClaim) -> None:
            before = condition(claim.status.conditions, names.RECLAIMING)
            if before is None or claim.uid in waiting or claim.deleting:
                return
            if before.status != "True" and before.reason != NOT_WAITING:
                return
            if not claim.status.provider_id and not planned:
                return  # the first plan decides whether it still waits
            if change := _outcome(claim):
                write(self._client, self._claims, claim, change, now=self._clock.now())

        for_each(self._claims.by(BY_SIGN, names.RECLAIMING), clear)

    def _unlaunched(self, uids: Collection[str]) -> Mapping[str, NodeClaim]:
        claims = self._claims.list() if uids else ()
        return {claim.uid: claim for claim in claims if claim.uid in uids and claim.waits}

    def _cluster(self, claim_name: str) -> str:
        """The uid of the claim's dedicated cluster."""
        claim = self._claims.get(claim_name)
        return "" if claim is None else cluster_of(claim)[0]

    def _confirm(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """Records that a claim is gone: EC2 may not show its slot free yet."""
        if old is None or new is not None:
            return
        self._assumed.deleted.confirm((old.uid,))
        if odcr_id := occupied_odcr(old):
            self._assumed.ended.assume(old.uid, odcr_id)

    def evict(self, decided: JointDecision) -> None:
        """Reports to each victim and deletes it. Clusters are evicted by their own controller. Raises
        ApiError after all victims.
        """
        evictions: list[tuple[str, Eviction] | Victim] = [*decided.evictions.items(), *decided.victims]
        for_each(evictions, self._evict)

    def _evict(self, decision: tuple[str, Eviction] | Victim) -> None:
        if isinstance(decision, Victim):
            self._evict_for_slot(decision)
            return
        name, eviction = decision
        claim = self._claims.get(name.removeprefix(CLAIM)) if name.startswith(CLAIM) else None
        if claim is not None:
            if self._protected_meanwhile(claim):
                return
            message = _preempted(f"DedicatedAICluster {eviction.preemptor}", claim, eviction)
            self._delete_victim(claim, message, eviction.reason)
        elif eviction.preemptor.startswith(CLAIM):
            preemptor = self._claims.get(eviction.preemptor.removeprefix(CLAIM))
            if preemptor is not None:
                self._report_nomination(preemptor, f"DedicatedAICluster {name}", eviction)

    def _evict_for_slot(self, victim: Victim) -> None:
        holder, preemptor = self._claims.get(victim.holder.name), self._claims.get(victim.request.name)
        if (
            holder is None
            or holder.deleting
            or preemptor is None
            or preemptor.deleting
            or preemptor.status.provider_id
            or self._protected_meanwhile(holder)
        ):
            return
        message = _preempted(f"NodeClaim {preemptor.name} (UID: {preemptor.uid})", holder, victim)
        self._report_nomination(preemptor, f"NodeClaim {holder.name} (UID: {holder.uid})", victim)
        self._delete_victim(holder, message, victim.reason)
        _log.info(
            "slot reclaimed",
            preemptor=preemptor.name,
            victim=holder.name,
            reason=str(victim.reason),
            why=message,
        )

    def _protected_meanwhile(self, claim: NodeClaim) -> bool:
        """Whether the decision, which was made by the caches, may not be carried out. Raises ApiError."""
        if claim.deleting or not self._non_preemptible(claim):
            return False
        self._assumed.evicted_for.forget([f"{CLAIM}{claim.name}"])
        return True

    def _report_nomination(self, preemptor: NodeClaim, victim: str, cause: Victim | Eviction) -> None:
        message = f"waits for {victim} to give back a slot ({cause.reason}); {_paths(cause)}"
        change = ConditionUpdate(
            type=names.RECLAIMING, status="True", reason=str(cause.reason), message=message
        )
        before = true_condition(preemptor, names.RECLAIMING)
        if before is not None and before.message == message:
            return
        write(self._client, self._claims, preemptor, change, now=self._clock.now())
        self._recorder.event(preemptor, "Normal", "Reclaiming", message)

    def _delete_victim(self, claim: NodeClaim, message: str, reason: Reason) -> None:
        if claim.deleting:
            return
        change = ConditionUpdate(type=names.PREEMPTED, status="True", reason=str(reason), message=message)
        write(self._client, self._claims, claim, change, now=self._clock.now())
        self._recorder.event(claim, "Warning", "Preempted", message)
        if remove(self._client, claim, self._claims):
            self._assumed.deleted.assume(claim.uid, None)
            RECLAIMED.labels(str(reason)).inc()


def _outcome(claim: NodeClaim) -> ConditionUpdate | None:
    """The condition of a claim that is no longer nominated; None until its labels show where it runs."""
    slot = claim.labels.get(names.RESERVATION_ID)
    capacity_type = claim.labels.get(names.CAPACITY_TYPE)
    if not claim.status.provider_id:
        reason, message = NOT_WAITING, "it waits for no occupied slot any more"
    elif slot:
        reason, message = "HasSlot", f"it has a slot of {slot}"
    elif capacity_type:
        reason, message = (
            "LaunchedElsewhere",
            f"it runs in no reservation: its capacity type is {capacity_type}",
        )
    else:
        return None
    return ConditionUpdate(type=names.RECLAIMING, status="False", reason=reason, message=message)


def _preempted(preemptor: str, claim: NodeClaim, cause: Victim | Eviction) -> str:
    """The victim's message."""
    slot = occupied_odcr(claim)
    slot_text = (
        f": it {'has' if cause.reason is Reason.IN_QUEUE else 'borrows'} a slot of {slot}" if slot else ""
    )
    return f"Preempted to accommodate {preemptor} due to {cause.reason.text}{slot_text}; {_paths(cause)}"


def _paths(cause: Victim | Eviction) -> str:
    return f"preemptor path: {cause.preemptor_path}; preemptee path: {cause.preemptee_path}"
