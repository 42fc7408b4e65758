"""The pass that decides jointly about quota of dedicated clusters and slots of claims.

Invariant: there is one decision at a time. While this one is made no launch is planned. The next plan knows
its admissions before they are written, and this decision knows the plan's assignments before they are
launched. So no slot is promised twice. If Kueue counts quota, its decisions are an input, and only slots are
decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, pods_of
from broker.apis.meta import Object
from broker.apis.units import whole
from broker.capacity.entitlement import NominatedSlot
from broker.capacity.inventory import Inventory
from broker.controllers.dedicatedaicluster.controller import RETRY_SECONDS, ClusterController, ClusterPass
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.newest import unchanged
from broker.controllers.slots.builder import SlotSnapshotBuilder
from broker.controllers.slots.entitlements import EntitlementReader
from broker.controllers.slots.headroom import without_room
from broker.controllers.slots.preemptor import Preemptor
from broker.controllers.snapshot import Snapshot
from broker.kube.controller import Result
from broker.kube.errors import ApiError
from broker.kube.for_each import for_each
from broker.kube.watches import Signal
from broker.quota.entitled import AdmissionPhase, Eviction
from broker.quota.joint import JointDecision, SlotState, WaitingClaim, decide
from broker.quota.model import AdmittedWorkload, Amounts
from broker.quota.slot_model import CLAIM, Victim
from broker.quota.usage import ReservationKey
from broker.reservations.claim_holders import share
from broker.reservations.claims import nominated, slot_request
from broker.reservations.cluster_admission import ClusterAdmission
from broker.reservations.queues import queues
from broker.reservations.sizing import supply
from providers.errors import ProviderError

RECHECK_SECONDS: Final = 5.0  # seconds, while a claim waits: a slot counts as being freed only for a time
_log = structlog.get_logger("preemption")


class PreemptionController:
    """`run` is one pass. Loops that plan launches use the other public methods.

    `nominated` is called when a plan nominates an occupied slot.
    """

    def __init__(self, shared: ReservationDependencies) -> None:
        self.nominated = Signal()
        self._shared = shared
        self._assumed = assumed = shared.inventory.assumed
        self.reader = EntitlementReader(
            SlotSnapshotBuilder(shared.reads, shared.caches, settings=shared.settings, assumed=assumed),
            held_back=self._held_back,
        )
        self._preemptor = Preemptor(
            shared.client,
            shared.caches.claims,
            assumed,
            recorder=shared.recorder,
            non_preemptible=lambda claim: shared.caches.non_preemptible_now(
                claim, shared.client, shared.clock.now()
            ),
            wake=self.nominated,
        )
        self.clusters = ClusterController(shared)
        self.exclusive = assumed.exclusive
        self.entitlements = self.reader.entitlements
        self.known = self.reader.known
        self.planned = self._preemptor.planned

    def begin(self) -> bool:
        """Whether plans may be made."""
        claims = self._shared.caches.claims.list()
        self._assumed.begin_pass({claim.uid for claim in claims if not claim.status.provider_id})
        return self.reader.known()

    def snapshot(self) -> Snapshot:
        """Everything but claims that one plan decides by."""
        return self._shared.reads.snapshot()

    def run(self, _items: Sequence[str] = ()) -> Result | None:
        """Raises ProviderError; ApiError after everything else had its turn."""
        late = False
        for asked in (False, True):
            with self._assumed.exclusive():
                waiting_claims = self._preemptor.waiting()
                snapshot = self.snapshot()
                observed = self.clusters.observe(snapshot)
                decided = self._decide(snapshot, observed, waiting_claims)
                begun, new = parted(snapshot, decided)
                if asked or not (new.evictions or new.victims):
                    decided = begun if late else decided
                    self._assume(snapshot, observed, decided)
                    break
            late = overtaken(self._shared, snapshot, new)  # beside launches: EC2 may be slow
        waits = [RECHECK_SECONDS] if late or waiting_claims else []
        if self.clusters.waits_for_kueue:
            waits.append(RETRY_SECONDS)

        def clusters() -> None:
            soonest = (
                None
                if observed is None
                else self.clusters.reconcile(observed, None if self._shared.reads.kueue else decided)
            )
            waits.extend([] if soonest is None else [soonest])

        # An error in one step must not skip the others.
        for_each(
            (self._preemptor.clear, lambda: self._preemptor.evict(decided), clusters), lambda step: step()
        )
        return Result(requeue_after=min(waits)) if waits else None

    def _assume(self, snapshot: Snapshot, observed: ClusterPass | None, decided: JointDecision) -> None:
        """Records the decision before it is written, so that the next plan and the next decision know it.

        Plans keep the quota of a nominated cluster, and the next decision considers it first.
        """
        admitted, nominated_quota = (
            {} if observed is None else self.clusters.new_quota(observed, decided, phase)
            for phase in (AdmissionPhase.ADMITTED, AdmissionPhase.PREEMPTING)
        )
        evicted_for = {name: eviction.preemptor for name, eviction in decided.evictions.items()}
        evicted_for |= {
            f"{CLAIM}{victim.holder.name}": f"{CLAIM}{victim.request.name}" for victim in decided.victims
        }
        clusters = snapshot.clusters
        present = {cluster.name for cluster in clusters if cluster.uid not in admitted}
        active = {cluster.uid for cluster in clusters if cluster.status.dac_lifecycle_state == "ACTIVE"}
        with self._assumed.lock:
            self._assumed.served.confirm(active)
            self._assumed.assume_decision(
                admitted=admitted,
                nominated=nominated_quota,
                evicted=decided.evictions.keys(),
                evicted_for=evicted_for,
            )
            claims, evicted = self._shared.caches.claims, self._assumed.evicted_for.values().keys()
            of_claims = (name for name in evicted if name.startswith(CLAIM))
            present |= {name for name in of_claims if claims.get(name.removeprefix(CLAIM)) is not None}
            self._assumed.evicted_for.confirm(evicted - present)

    def decide(self, snapshot: Snapshot) -> JointDecision:
        """The decision that a pass would make now. Writes nothing. Raises ProviderError."""
        return self._decide(snapshot, self.clusters.observe(snapshot), self._preemptor.waiting())

    def _decide(
        self,
        snapshot: Snapshot,
        observed: ClusterPass | None,
        waiting_claims: Sequence[tuple[NodeClaim, NominatedSlot]],
    ) -> JointDecision:
        if not waiting_claims and (observed is None or self._shared.reads.kueue):
            return JointDecision()
        if snapshot.inventory.described is None:
            quota = None if observed is None else self.clusters.quota(observed, ())
            return decide(quota, None, ())
        waiting_uids = {claim.uid for claim, _ in waiting_claims}
        slots = self.reader.slot_state(snapshot, requesting=waiting_uids)
        shares = _Shares(observed, slots, snapshot.inventory)
        quota = None if observed is None else self.clusters.quota(observed, self._launching(slots, shares))
        waiting = []
        for claim, slot in waiting_claims:
            usage = {} if names.DEDICATED in claim.labels else shares.of(slot.queue, slot.odcr_ids[0])
            request = slot_request(claim, slot.queue, slot.odcr_ids)
            waiting.append(WaitingClaim(request=request, usage=usage, nominated=nominated(claim)))
        uids = snapshot.assumed.nominated_quota
        nominated_clusters = {cluster.name for cluster in snapshot.clusters if cluster.uid in uids}
        return decide(quota, slots, waiting, nominated=nominated_clusters)

    def _held_back(
        self,
        snapshot: Snapshot,
        claims: Mapping[str, NodeClaim],
        draws: Mapping[str, str],
        nominated_quota: Mapping[str, ClusterAdmission],
    ) -> Collection[str]:
        """The claims that would take quota for which clusters (by uid) are nominated."""
        observed = self.clusters.observe(snapshot)
        quota = None if observed is None else self.clusters.quota(observed, ())
        if observed is None or quota is None:
            return ()
        named = {
            state.cluster.name: nominated_quota[state.cluster.uid]
            for state in observed.snapshot.clusters
            if state.cluster.uid in nominated_quota
        }
        waiting = [
            (claim, draws[uid])
            for uid, claim in claims.items()
            if names.DEDICATED not in claim.labels and uid in draws
        ]
        machines = {uid: queue for uid, queue in draws.items() if uid not in claims}
        return without_room(
            quota, named, waiting, machines, flavors=observed.snapshot.flavors, types=observed.types
        )

    def _launching(self, slots: SlotState | None, shares: _Shares) -> Iterable[AdmittedWorkload]:
        """Claims of no cluster that have a slot and no instance yet. They are non-preemptible."""
        for holder in slots.holders if slots is not None else ():
            claim = None if holder.cluster else self._shared.caches.claims.get(holder.name)
            if claim is not None and not claim.status.provider_id:
                yield AdmittedWorkload(
                    name=f"{CLAIM}{holder.name}",
                    queue=holder.queue,
                    usage=shares.of(holder.queue, holder.odcr_id),
                    priority=holder.priority,
                    non_preemptible=True,
                )


class _Shares:
    """The part of a reservation's quota that a slot without an instance uses."""

    def __init__(self, observed: ClusterPass | None, slots: SlotState | None, inventory: Inventory) -> None:
        self._types = {} if observed is None else observed.types
        self._inventory = inventory
        self._queues = (
            {} if observed is None else {queue.name: queue for queue in queues(observed.snapshot.specs)}
        )
        self._flavors = {
            id_: pool.flavor for pool in (slots.owned_slots if slots else ()) for id_ in pool.slots
        }

    def of(self, queue: str, odcr_id: str) -> Amounts:
        member, odcr = self._queues.get(queue), self._inventory.odcrs.get(odcr_id)
        kind = None if odcr is None else self._types.get(odcr.instance_type)
        if member is None or kind is None or odcr_id not in self._flavors:
            return {}
        return share(member, self._flavors[odcr_id], whole(supply(kind)))


def overtaken(shared: ReservationDependencies, snapshot: Snapshot, decided: JointDecision) -> bool:
    """Whether a slot has become free for whom anybody is evicted, or an object by which this was decided has
    changed, or neither can be read. Asked of evictions that have not begun.

    EC2's last description may be half a minute old, and each cache behind by another time. An eviction
    cannot be taken back, so both are read again before it.
    """
    parties = _parties(snapshot, [*decided.evictions.values(), *decided.victims])
    wanted = {id_ for victim in decided.victims for id_ in victim.request.odcr_ids}
    wanted |= {id_ for id_, owner in snapshot.odcrs.owned.owner.items() if owner in parties}
    preemptors = {f"{CLAIM}{victim.request.name}" for victim in decided.victims}
    preemptors |= {eviction.preemptor for eviction in decided.evictions.values()}
    # A cluster that shrank meanwhile leaves quota to the others of its reservation.
    beside = {holder.name for key in parties for holder in snapshot.cluster_holders.get(key, ())}
    rules = [snapshot.reservations[key] for key in parties]
    try:
        shared.inventory.refresh()
        inventory = shared.inventory.snapshot()
        return any(inventory.unused(id_) > snapshot.inventory.unused(id_) for id_ in wanted) or not unchanged(
            shared.client, [*rules, *_holders(shared, snapshot, preemptors | beside)]
        )
    except (ProviderError, ApiError) as error:
        _log.warning("nobody evicted: the decision cannot be confirmed", error=str(error))
        return True


def parted(snapshot: Snapshot, decided: JointDecision) -> tuple[JointDecision, JointDecision]:
    """The decision with the evictions that have begun only, and with the others only."""
    known = snapshot.assumed.evicted_for

    def part(begun: bool) -> JointDecision:
        return replace(
            decided,
            evictions={name: item for name, item in decided.evictions.items() if (name in known) is begun},
            victims=[v for v in decided.victims if (f"{CLAIM}{v.holder.name}" in known) is begun],
        )

    return part(True), part(False)


def _parties(snapshot: Snapshot, causes: Iterable[Eviction | Victim]) -> list[ReservationKey]:
    """The reservations that reclaim, and those that lose."""
    paths = tuple(path for cause in causes for path in (cause.preemptor_path, cause.preemptee_path))
    queues = {path.rpartition("/")[2] for path in paths}
    return [key for key in snapshot.reservations if key.queue in queues]


def _holders(shared: ReservationDependencies, snapshot: Snapshot, names: Iterable[str]) -> Iterator[Object]:
    """Clusters, and claims with the pods that they were made for."""
    clusters = {cluster.name: cluster for cluster in snapshot.clusters}
    for name in names:
        if name in clusters:
            yield clusters[name]
        elif claim := shared.caches.claims.get(name.removeprefix(CLAIM)):
            yield from _claim(shared, claim)


def _claim(shared: ReservationDependencies, claim: NodeClaim) -> Iterator[Object]:
    yield claim
    pods: Iterable[Pod | None] = map(shared.caches.pods.find, pods_of(claim))
    yield from (pod for pod in pods if pod is not None)
