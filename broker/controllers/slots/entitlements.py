"""Entitlements to slots, for each plan: the owner of each slot, and the slots that each queue may take.

Invariant: no plan is made before the ownership of ODCRs is known, unless a kind is served and may not be
read for PATIENCE. An API server or EC2 that is only slow is waited for. If no kind of reservation is served,
or none exists, plans do not wait. They are restricted only by tags that name a missing reservation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

import structlog

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.entitlement import KEPT, KEPT_REASON, NO_ENTITLEMENTS, Entitlements
from broker.controllers.slots.builder import SlotSnapshotBuilder, draw_requests, drawn
from broker.controllers.snapshot import Snapshot
from broker.quota.joint import SlotState
from broker.quota.resolve import UnresolvedName
from broker.reservations.claims import cluster_of, nominated
from broker.reservations.cluster_admission import ClusterAdmission
from broker.reservations.drawing import DrawRequest
from broker.reservations.slots import entitlements

# The longest time that a plan waits for kinds that the API server refuses to show.
PATIENCE: Final = timedelta(seconds=30)

HeldBack = Callable[
    [Snapshot, Mapping[str, NodeClaim], Mapping[str, str], Mapping[str, ClusterAdmission]], Collection[str]
]

_log = structlog.get_logger("preemption")


class EntitlementReader:
    """Reads entitlements from snapshots. Safe to call from any loop. It makes no call and writes nothing."""

    def __init__(self, slots: SlotSnapshotBuilder, *, held_back: HeldBack = lambda *_: ()) -> None:
        """`held_back`: of the given claims (by uid, with their queues), those that would take quota of
        nominated clusters.
        """
        self._slots = slots
        self._began = slots.clock.monotonic()
        self._logged: set[str] = set()
        self._held_back = held_back

    def known(self) -> bool:
        """Whether a plan may be made: ownership is known, or its kinds were refused for PATIENCE."""
        reads = self._slots.reads
        snapshot = reads.snapshot()
        empty = not snapshot.reservations
        if reads.reservations.complete and reads.cluster_reservations.complete and empty:
            return True
        if reads.synced() and (empty or snapshot.odcrs.known):
            return True
        unread = {name: informer for name, informer in reads.named.items() if not informer.complete}
        refused = bool(unread) and all(informer.forbidden for informer in unread.values())
        over = refused and self._slots.clock.monotonic() - self._began > PATIENCE.total_seconds()
        step = "launches continue without it" if over else "launches are paused"
        if step not in self._logged and (over or any(informer.error for informer in unread.values())):
            self._logged.add(step)
            _log.warning(
                f"reservation ownership unknown; {step}",
                longest_seconds=PATIENCE.total_seconds(),
                unread={name: informer.error or "not read yet" for name, informer in unread.items()},
                advice="the broker's role must let it list and watch these kinds",
            )
        return over

    def entitlements(
        self, claims: Mapping[str, NodeClaim], snapshot: Snapshot, machines: Mapping[str, DrawRequest] = {}
    ) -> Entitlements:
        """For a plan of these claims, by uid. Other claims planned in this pass keep their assigned slots.

        `machines`, by uid: those that may be opened for pods.
        """
        launches = {uid: id_ for uid, id_ in snapshot.assumed.launches.items() if uid not in claims}
        assumed = replace(snapshot.assumed, launches=launches)
        slots = self._slots.build(snapshot, planning=claims.keys(), assumed=assumed)
        if slots is None:
            return NO_ENTITLEMENTS
        requests = {**draw_requests(claims.values(), self._slots.claims.guard), **machines}
        draws, barred, written_names = drawn(requests, snapshot.rights)
        by_queue = entitlements(slots)
        owners = {uid: cluster_of(claim) for uid, claim in claims.items()}
        slot_pools = {
            uid: by_queue.slot_pools[id_] for uid, id_ in assumed.kept.items() if id_ in by_queue.slot_pools
        }
        slot_pools |= {uid: slot.slot_pool for uid, slot in assumed.nominated_slots.items()}
        first = {uid for uid, claim in claims.items() if nominated(claim)}
        first |= {uid for uid, (owner, _) in owners.items() if owner in assumed.served}
        if assumed.nominated_quota and (
            held_back := self._held_back(snapshot, claims, draws, assumed.nominated_quota)
        ):
            draws |= dict.fromkeys(held_back, KEPT)
            barred[KEPT] = KEPT_REASON
        missing = {reserved.queue: f"{reserved}, which does not exist" for reserved in slots.missing}
        known = snapshot.rights.names
        unresolved = {reserved.queue: known.resolve(str(reserved)) for reserved in slots.missing}
        return replace(
            by_queue,
            draws=draws,
            names={**by_queue.names, **missing, **written_names},
            absent={
                queue: f"its tag {names.TAG_RESERVATION}: {given.message}"
                for queue, given in unresolved.items()
                if isinstance(given, UnresolvedName)
            },
            barred={**by_queue.barred, **barred},
            held=frozenset(uid for uid, (_, name) in owners.items() if name in slots.holding),
            nominated={uid: slot_pools.get(uid) for uid in first},
        )

    def slot_state(self, snapshot: Snapshot, *, requesting: Collection[str]) -> SlotState | None:
        """None if no reservation exists. `requesting`: claims (by uid) that request a slot by themselves."""
        assumed = replace(snapshot.assumed, nominated_quota={})  # decided again here
        slots = self._slots.build(snapshot, planning=requesting, assumed=assumed)
        return None if slots is None else slots.state
