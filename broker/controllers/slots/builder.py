"""Builds `SlotSnapshot` from a snapshot and the claims: for plans, preemption and dry runs alike.

Invariant: it makes no call and writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import since
from broker.capacity.entitlement import SlotPool
from broker.controllers.assumed import AssumedSlots, AssumptionStore, UnattributedSlots
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.dedicatedaicluster.demand import cluster_demand
from broker.controllers.reservation_reads import ReservationReads
from broker.controllers.slots.cluster_slots import (
    ClusterHolding,
    cluster_holdings,
    nominated_slots,
    pending_slots,
)
from broker.controllers.snapshot import Snapshot
from broker.kube.cache import Guard
from broker.kube.clock import Clock
from broker.placement.claims import priority_of
from broker.quota.joint import SlotState
from broker.quota.model import Preemption
from broker.quota.resolve import ReservationNames, UnresolvedName
from broker.quota.slot_model import CLAIM, SlotHolder, SlotRequest
from broker.quota.usage import ReservationKey
from broker.reservations.claims import cluster_of, nominated_requests, occupied_odcr
from broker.reservations.cluster_sizes import sizes
from broker.reservations.drawing import DrawRequest, DrawRights, draw_request
from broker.reservations.slots import (
    SlotQuotaReader,
    SlotSnapshot,
    owned_slots,
    slot_pools_of,
    tagged_owner,
    unheld,
    without_ended,
)
from broker.settings import Settings

# How long the slots of a tagged ODCR are kept for a CapacityReservation that does not exist.
KEPT_FOR_OWNER: Final = timedelta(minutes=10)
# How long a terminating claim counts as giving its slot back.
DRAINING: Final = timedelta(minutes=10)


class SlotSnapshotBuilder:
    """`build` is safe to call from any loop."""

    def __init__(
        self,
        reads: ReservationReads,
        caches: ClaimCaches,
        *,
        settings: Settings,
        assumed: AssumptionStore,
    ) -> None:
        self.reads = reads
        self.clock: Clock = assumed.clock
        self._caches = caches
        self.claims = caches.claims
        self._settings = settings
        self._assumed = assumed
        self._quota = SlotQuotaReader()
        self._unattributed = UnattributedSlots()
        self._missing: Mapping[str, float] = {}  # since when the owner of an ODCR is missing, by id

    def build(
        self,
        snapshot: Snapshot,
        *,
        planning: Collection[str],
        assumed: AssumedSlots,
    ) -> SlotSnapshot | None:
        """None if no reservation owns a slot, or will. `planning`: claims (by uid) that are considered by
        themselves, and not as part of their cluster. `assumed`: those of the snapshot that still count.
        """
        inventory = snapshot.inventory
        missing = self._missing_owners(snapshot)
        if not snapshot.reservations and not missing:
            return None
        now = self.clock.now()
        reservations = self._quota.read(
            snapshot.reservations,
            snapshot.judged,
            snapshot.barred,
            snapshot.flavors,
            snapshot.types,
            self._settings.bought_zones,
        )
        slot_pools = slot_pools_of(
            snapshot.odcrs.owned,
            inventory,
            {*snapshot.reservations, *missing},
            cluster=self._settings.cluster_name,
        )
        rules = {slots.member.name: slots.member.preemption for slots in reservations}
        holders = without_ended(self._holders(snapshot, slot_pools, assumed, rules), inventory)
        unattributed, freed = self._unheld(unheld(slot_pools, holders, inventory), now)
        clusters = self._clusters(snapshot, assumed, requesting={*planning} - assumed.in_slots.keys())
        kueue = self.reads.kueue
        state = SlotState(
            owned_slots=owned_slots(reservations, slot_pools, inventory, unattributed, now),
            members=[slots.member for slots in reservations],
            cohorts=snapshot.cohorts,
            holders=holders,
            nominated=self._nominated(snapshot, planning, assumed, slot_pools),
            pending_slots=lambda usage, evicted: pending_slots(
                clusters, usage=usage, evicted={*evicted, *assumed.evicted}, non_preemptible=kueue
            ),
            # If Kueue decides about evictions, no cluster is nominated here.
            nominated_slots=lambda usage, evicted: (
                [] if kueue else nominated_slots(clusters, usage=usage, evicted={*evicted, *assumed.evicted})
            ),
        )
        return SlotSnapshot(
            state=state,
            reservations=reservations,
            slot_pools=slot_pools,
            freed=freed,
            missing=missing,
            holding={cluster.name for cluster in clusters if cluster.held.usage} - {*assumed.evicted},
            stuck={claim.name for claim in self._caches.claims.list() if _stuck(claim, now)},
        )

    def _missing_owners(self, snapshot: Snapshot) -> frozenset[ReservationKey]:
        """The reservations that tags of ODCRs name, and that do not exist, for a bounded time.

        Infrastructure code makes an ODCR before its CapacityReservation, or replaces the object.
        """
        if not (self.reads.reservations.served or self.reads.cluster_reservations.served):
            return frozenset()
        named = {
            odcr.id: reserved
            for odcr in snapshot.inventory.odcrs.values()
            if snapshot.odcrs.owned.owner.get(odcr.id) not in snapshot.reservations
            and (reserved := tagged_owner(odcr, self._settings.cluster_name)) is not None
            and reserved not in snapshot.reservations
        }
        now = self.clock.monotonic()
        self._missing = since = {odcr_id: self._missing.get(odcr_id, now) for odcr_id in named}
        kept = KEPT_FOR_OWNER.total_seconds()
        return frozenset(named[odcr_id] for odcr_id, begun in since.items() if now - begun < kept)

    def _unheld(self, uses: Mapping[str, int], now: datetime) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the slots that no claim holds: the unattributed ones, and those that ended claims leave.

        No claim is preempted for a slot that is being freed.
        """
        unattributed = self._unattributed.count(uses, now)
        self._assumed.ended.expire(now)
        ended = Counter(self._assumed.ended.values().values())
        return unattributed, {
            odcr_id: min(ended[odcr_id], uses[odcr_id] - count) for odcr_id, count in unattributed.items()
        }

    def _nominated(
        self,
        snapshot: Snapshot,
        planning: Collection[str],
        assumed: AssumedSlots,
        slot_pools: Mapping[str, SlotPool],
    ) -> list[SlotRequest]:
        requests = nominated_requests(
            [claim for claim in self._caches.claims.list() if claim.uid in planning],
            assumed.nominated_slots,
            {uid: odcr_id for uid, odcr_id in assumed.kept.items() if odcr_id in slot_pools},
            queue=lambda claim: drawn(draw_requests((claim,)), snapshot.rights)[0].get(claim.uid, ""),
        )
        return [*requests]

    def _clusters(
        self,
        snapshot: Snapshot,
        assumed: AssumedSlots,
        *,
        requesting: Collection[str],
    ) -> Sequence[ClusterHolding]:
        """The dedicated clusters with the number of their existing instances."""
        clusters = snapshot.clusters
        if not clusters:
            return ()
        known, flavors = snapshot.reservations, snapshot.resource_flavors
        profiles = self.reads.profiles.cache
        return cluster_holdings(
            clusters,
            self._caches.claims.list(),
            by_name=ReservationNames(known),
            demand=lambda cluster: cluster_demand(cluster, profiles.get(cluster.spec.profile)),
            flavors=[*flavors.values()],
            sizes=sizes(flavors, known, snapshot.types, self._settings.bought_zones),
            counted_claims={*requesting, *assumed.in_slots},
            requesting=requesting,
            admitted=assumed.admitted,
            nominated_quota=assumed.nominated_quota,
        )

    def _holders(
        self,
        snapshot: Snapshot,
        slot_pools: Mapping[str, SlotPool],
        assumed: AssumedSlots,
        rules: Mapping[str, Preemption],
    ) -> list[SlotHolder]:
        """Claims with an instance in an owned slot, or planned into one."""
        held = {}
        top = 0  # the highest waiting priority: a holder that no claim outranks needs no disruption check
        for claim in self._caches.claims.list():
            with self._caches.claims.guard(claim):
                priority = priority_of(claim)
                odcr_id = occupied_odcr(claim) or assumed.launches.get(claim.uid, "")
                if odcr_id in slot_pools:
                    held[claim.uid] = claim, odcr_id
                elif not claim.status.provider_id:
                    top = max(top, priority)
        claims = [claim for claim, _ in held.values()]
        draws, _, _ = drawn(draw_requests(claims, self._caches.claims.guard), snapshot.rights)
        holders = []
        for claim, odcr_id in held.values():
            launched = since(claim, names.LAUNCHED)
            queue, priority = draws.get(claim.uid, ""), priority_of(claim)
            own = queue == slot_pools[odcr_id].owner
            rule = rules.get(queue)
            candidate = not own or (priority < top and rule is not None and rule.within != "Never")
            _, cluster = cluster_of(claim)
            holders.append(
                SlotHolder(
                    name=claim.name,
                    queue=queue,
                    odcr_id=odcr_id,
                    cluster=cluster,
                    priority=priority,
                    since=launched.timestamp() if launched is not None else float("inf"),
                    terminating=claim.deleting
                    or claim.uid in assumed.deleted
                    or (bool(cluster) and cluster in assumed.evicted),
                    # A claim without an instance cannot be drained: the next plan decides about it.
                    non_preemptible=not claim.status.provider_id
                    or (candidate and self._non_preemptible(claim)),
                    evicted_for=assumed.evicted_for.get(cluster or f"{CLAIM}{claim.name}", ""),
                )
            )
        return holders

    def _non_preemptible(self, claim: NodeClaim) -> bool:
        """Whether the claim is never a victim. A dedicated cluster is preempted as a whole, unless Kueue
        counts its quota.
        """
        if names.DEDICATED in claim.labels:
            return self.reads.kueue
        return self._caches.non_preemptible(claim, self.clock.now())


def draw_requests(
    claims: Iterable[NodeClaim], guard: Guard[NodeClaim] = nullcontext
) -> dict[str, DrawRequest]:
    requests = {}
    for claim in claims:
        with guard(claim):
            requests[claim.uid] = draw_request(claim)
    return requests


def drawn(
    requests: Mapping[str, DrawRequest], rights: DrawRights
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """The queue of each request by uid; for names that give no right also the reason, and the name as
    written, by queue.
    """
    draws: dict[str, str] = {}
    barred: dict[str, str] = {}
    written: dict[str, str] = {}
    for uid, request in requests.items():
        reserved = rights.decide(*request) if request.named else None
        if isinstance(reserved, UnresolvedName):
            # One name may be refused for several reasons: each is that of the request's own pods.
            draws[uid] = queue = f"?{request.named}: {reserved.message}"
            barred[queue], written[queue] = reserved.message, request.named
        elif reserved is not None:
            draws[uid] = reserved.queue
    return draws, barred, written


def _stuck(claim: NodeClaim, now: datetime) -> bool:
    since = claim.metadata.deletion_timestamp
    return since is not None and now - since > DRAINING
