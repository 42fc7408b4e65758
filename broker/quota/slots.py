"""The slots of EC2 reservations as a quota tree: the slots that each queue may use, and the order of
victims.

Invariant: a slot held in another reservation always counts as borrowed, even if the holder's own slots
are idle. So an owner can reclaim each slot that its quota covers, and a holder on its owner's slots is
never a victim of another queue. For that, the tree's flavors are slot pools: slots of one flavor that one
reservation owns. A queue has a nominal quota in its own pools and none in those of others. Limits and the
order of victims are then the tree's own (Kueue's `nominalQuota`, `borrowingLimit`, `lendingLimit`, and
classical preemption). A borrowing limit counts over all pools of a flavor together.

A borrowing limit is a separate pool that only its queue uses: a queue at its limit can make room only by a
victim of its own. A dedicated cluster gives back all of its slots or none. The part of its quota without
instances is pending (`PendingSlots`): it counts as held, and is given back separately. Within a queue, and
while borrowing, the lower priority gives way as `withinClusterQueue` and `borrowWithinCohort` define.

A terminating holder comes first in the order of victims, so that no second victim frees the same slot. If
it leaves for a waiting claim or cluster, its slot is kept for that. A nominated cluster counts as the
holder of its victims' slots. A non-preemptible holder borrows as any other, and the owner cannot reclaim
its slot. Unattributed holders (claims of no reservation, or of another cohort) remove their slots from
the tree.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from broker.lists import lists_by_key
from broker.quota.candidates import fits
from broker.quota.classical import preempt
from broker.quota.ledger import QuotaLedger
from broker.quota.model import (
    UNLIMITED,
    AdmittedWorkload,
    Amounts,
    Queue,
    QuotaCohort,
    QuotaRequest,
    Reason,
    summed,
)
from broker.quota.slot_amounts import limit_key, pool_key, queue_of, slot_amounts
from broker.quota.slot_model import (
    CLAIM,
    Member,
    OwnedSlots,
    PendingSlots,
    SlotHolder,
    SlotRequest,
    Victim,
    VictimRank,
    cluster_holder,
    victim_order,
)
from broker.quota.tree import QuotaNode, Tree


class SlotTree:
    """The tree with the holders of slots. `inactive`: why a queue has no part in it."""

    def __init__(
        self,
        owned_slots: Iterable[OwnedSlots],
        members: Iterable[Member],
        holders: Iterable[SlotHolder],
        *,
        pending_slots: Iterable[PendingSlots] = (),
        nominated: Iterable[SlotRequest] = (),
        cohorts: Iterable[QuotaCohort] = (),
    ) -> None:
        """`nominated`: claims with victims terminating for them, and the slots of these.

        A nominated cluster gets no slot that is freed for these claims.
        """
        self._members = {member.name: member for member in members}
        bare = Tree(
            (Queue(name=member.name, cohort=member.cohort) for member in self._members.values()), cohorts
        )
        roots = {name: node.root() for name, node in bare.queues.items()}
        pools = tuple(owned_slots)
        owners = {odcr_id: slot_pool.owner for slot_pool in pools for odcr_id in slot_pool.slots}
        unattributed: Counter[str] = Counter()
        self.holders: dict[str, SlotHolder] = {}
        for holder in holders:
            if (owner := owners.get(holder.odcr_id)) is None:
                continue
            if holder.queue in roots and roots[holder.queue] is roots.get(owner):
                self.holders[holder.name] = holder
            else:
                unattributed[holder.odcr_id] += 1
        self.owned_slots = {
            (slot_pool.owner, slot_pool.flavor): replace(
                slot_pool,
                slots={id_: max(0, count - unattributed[id_]) for id_, count in slot_pool.slots.items()},
            )
            for slot_pool in pools
        }
        self._slot_pool_of = {
            odcr_id: slot_pool for slot_pool in self.owned_slots.values() for odcr_id in slot_pool.slots
        }
        self._owned = lists_by_key((pool.owner, pool) for pool in self.owned_slots.values())
        self._peers: dict[QuotaNode, frozenset[str]] = {}
        self._tree = Tree(
            [*(queue_of(member, self._owned.get(member.name, ())) for member in self._members.values())],
            cohorts,
        )
        self.inactive: Mapping[str, str] = self._tree.inactive
        self._ledger = QuotaLedger(self._tree)
        self._holders_by_pool: dict[tuple[str, str], list[SlotHolder]] = defaultdict(list)
        self._holders_of: dict[str, list[SlotHolder]] = defaultdict(list)  # by the name of the workload
        self._terminating_for: dict[str, list[SlotHolder]] = defaultdict(list)
        for holder in sorted(self.holders.values(), key=victim_order):
            if holder.terminating and holder.evicted_for:
                self._terminating_for[holder.evicted_for].append(holder)
        self._non_preemptible: Counter[tuple[str, str]] = Counter()  # by pool: lent, and not reclaimable
        self._taken: set[str] = set()  # holders that terminate for a nominated cluster, which has their slots
        for holder in self.holders.values():
            self._count(holder, self._slot_pool_of[holder.odcr_id], 1)
        all_pending = [*pending_slots]
        for pending in all_pending:
            if not pending.nominated:
                self._count_pending(pending)
        if nominated_pending := [pending for pending in all_pending if pending.nominated]:
            with self._assuming_nominated(nominated):
                for pending in nominated_pending:
                    self._count_pending(pending)

    def quota(self, slot_pool: OwnedSlots) -> int:
        """The number of further slots that the owner is entitled to."""
        return self._unused(slot_pool) - self.unreturned(slot_pool)

    def unreturned(self, slot_pool: OwnedSlots) -> int:
        """How many of the slots that the owner has quota for are held by others that give them to nobody."""
        return min(self._unused(slot_pool), self._non_preemptible[slot_pool.owner, slot_pool.flavor])

    def _unused(self, slot_pool: OwnedSlots) -> int:
        """The number of slots that the owner has quota for and does not use."""
        node = self._tree.queues.get(slot_pool.owner)
        return max(0, slot_pool.nominal - node.uses(pool_key(slot_pool))) if node is not None else 0

    def room(self, slot_pool: OwnedSlots) -> int:
        """The number of further slots available at all. Negative if more is held or pending than exists."""
        node = self._tree.queues.get(slot_pool.owner)
        return 0 if node is None else node.available(pool_key(slot_pool))

    def lendable(self, slot_pool: OwnedSlots) -> int:
        """The number of further slots for all borrowers together. Negative as `room` is."""
        node = self._tree.queues.get(slot_pool.owner)
        return 0 if node is None or node.parent is None else node.parent.available(pool_key(slot_pool))

    def borrowable(self, queue: str, flavor: str) -> int:
        """The number of further slots of others for a queue."""
        if self._members[queue].borrowing_limit.get(flavor, 0) is None:
            return UNLIMITED
        node = self._tree.queues.get(queue)
        return 0 if node is None else max(0, node.available(limit_key(queue, flavor)))

    def peers(self, queue: str) -> frozenset[str]:
        """The queues of its cohort tree, including itself; none for a queue that may not borrow."""
        node = self._tree.queues.get(queue)
        limits = self._members[queue].borrowing_limit.values()
        if node is None or node.parent is None or not any(limit is None or limit > 0 for limit in limits):
            return frozenset()
        root = node.root()
        if root not in self._peers:
            self._peers[root] = frozenset(queue_node.name for queue_node in root.members())
        return self._peers[root]

    def victim_candidates(self, slot_pool: OwnedSlots) -> tuple[SlotHolder, ...]:
        """The holders that may be victims for a slot of the pool, or are terminating, in order.

        A pending slot belongs to no EC2 reservation yet.
        """
        holders = self._holders_by_pool.get((slot_pool.owner, slot_pool.flavor), ())
        candidates = (
            holder
            for holder in holders
            if holder.name not in self._taken and (holder.terminating or not holder.non_preemptible)
        )
        return tuple(sorted(candidates, key=victim_order))

    def reclaim(self, requests: Sequence[SlotRequest]) -> tuple[Victim, ...]:
        """The victims for these requests, beyond terminating holders. Requests in order of importance.

        The tree cannot be used afterwards.
        """
        served = {request.name for request in requests if self._take_freed_slot(request)}
        with self._ledger.stable():  # a served request is no victim of another
            victims = [self._reclaim(request) for request in requests if request.name not in served]
        return tuple(victim for victim in victims if victim is not None)

    def _take_freed_slot(self, request: SlotRequest) -> bool:
        """Gives the request the slot of a holder that terminates for it, if one exists and limits still
        allow it."""
        for holder in self._terminating_for.get(f"{CLAIM}{request.name}", ()):
            slot_pool = self._slot_pool_of[holder.odcr_id]
            if holder.name in self._taken or holder.odcr_id not in request.odcr_ids:
                continue
            released = self._ledger.release(holder.name)
            if self._fits(request, slot_pool, holder.odcr_id):
                self._taken.add(holder.name)
                self._admit(request, slot_pool, holder.odcr_id)
                return True
            self._ledger.admit(released)
        return False

    def _fits(self, request: SlotRequest, slot_pool: OwnedSlots, odcr_id: str) -> bool:
        amounts = slot_amounts(self._members[request.queue], slot_pool, odcr_id)
        return fits(self._tree.queues[request.queue], amounts, borrow=slot_pool.owner != request.queue)

    def _reach(self, request: SlotRequest) -> list[tuple[str, OwnedSlots]]:
        return [(id_, self._slot_pool_of[id_]) for id_ in request.odcr_ids if id_ in self._slot_pool_of]

    def _reclaim(self, request: SlotRequest) -> Victim | None:
        """Gives the request its slot in the tree; returns the new victim, if one is needed."""
        node = self._tree.queues.get(request.queue)
        if node is None:
            return None
        reach = self._reach(request)
        for odcr_id, slot_pool in reach:
            if self._fits(request, slot_pool, odcr_id):
                self._admit(request, slot_pool, odcr_id)
                return None
        best: tuple[VictimRank, AdmittedWorkload, Reason, str, OwnedSlots] | None = None
        for odcr_id, slot_pool in reach:
            amounts = slot_amounts(self._members[request.queue], slot_pool, odcr_id)
            quota_request = QuotaRequest(
                queue=request.queue, amounts=amounts, priority=request.priority, queued=request.queued
            )
            lacking = frozenset(key for key in amounts if node.available(key) <= 0)
            if not lacking:
                continue  # only more quota would help
            targets = preempt(self._ledger, quota_request, lacking)
            if len(targets) != 1:
                continue
            target = targets[0].workload
            rank = VictimRank(not target.evicted, target.priority, -target.reserved, target.name)
            if best is None or rank < best[0]:
                best = rank, target, targets[0].reason, odcr_id, slot_pool
        if best is None:
            return None
        _, target, reason, odcr_id, slot_pool = best
        self._ledger.release(target.name)
        self._admit(request, slot_pool, odcr_id)
        if target.evicted:
            return None
        held = self._holders_of[target.name]
        return Victim(
            holder=next((holder for holder in held if holder.odcr_id == odcr_id), held[0]),
            request=request,
            reason=reason,
            preemptor_path=node.path_text,
            preemptee_path=self._tree.queues[target.queue].path_text,
        )

    def _admit(self, request: SlotRequest, slot_pool: OwnedSlots, odcr_id: str) -> None:
        name = f"request/{request.name}"  # no object's name contains a slash
        usage = slot_amounts(self._members[request.queue], slot_pool, odcr_id)
        self._ledger.admit(
            AdmittedWorkload(
                name=name, queue=request.queue, usage=usage, priority=request.priority, non_preemptible=True
            )
        )

    def _count(self, holder: SlotHolder, slot_pool: OwnedSlots, count: int) -> None:
        """Counts slots of a pool as held, by a claim or by a cluster as a whole."""
        self._holders_by_pool[slot_pool.owner, slot_pool.flavor] += [holder] * count
        amounts = dict.fromkeys(slot_amounts(self._members[holder.queue], slot_pool, holder.odcr_id), count)
        name, stays = holder.name, holder.non_preemptible and not holder.terminating
        if stays:
            name = f"{holder.name}/{slot_pool.owner}/{slot_pool.flavor}"
            if holder.queue != slot_pool.owner:
                self._non_preemptible[slot_pool.owner, slot_pool.flavor] += count
        elif holder.cluster and holder.odcr_id and not holder.terminating:
            name = cluster_holder(holder.cluster)
        if name in self._ledger.workloads:
            amounts = summed((amounts, self._ledger.release(name).usage))
        self._ledger.admit(
            AdmittedWorkload(
                name=name,
                queue=holder.queue,
                usage=amounts,
                priority=holder.priority,
                reserved=holder.since,
                evicted=holder.terminating,
                non_preemptible=stays,
            )
        )
        self._holders_of[name].append(holder)

    @contextmanager
    def _assuming_nominated(self, nominated: Iterable[SlotRequest]) -> Iterator[None]:
        """Treats nominated claims as holders of their slots, in place of the holders that terminate for
        them."""
        changes: list[tuple[QuotaNode, Amounts, Amounts]] = []
        non_preemptible: Counter[tuple[str, str]] = Counter()
        for request in nominated:
            node, reach = self._tree.queues.get(request.queue), self._reach(request)
            if node is None or not reach:
                continue
            _, slot_pool = reach[0]
            changes.append((node, slot_amounts(self._members[request.queue], slot_pool, ""), {}))
            non_preemptible[slot_pool.owner, slot_pool.flavor] += slot_pool.owner != request.queue
            for holder in self._terminating_for.get(f"{CLAIM}{request.name}", ())[:1]:
                usage = self._ledger.workloads[holder.name].usage
                changes.append((self._tree.queues[holder.queue], {}, usage))
        self._non_preemptible += non_preemptible
        for node, more, less in changes:
            node.remove(less)
            node.add(more)
        yield
        for node, more, less in changes:
            node.remove(more)
            node.add(less)
        self._non_preemptible -= non_preemptible

    def _count_pending(self, pending: PendingSlots) -> None:
        """Counts pending slots as held: in the queue's own pool as far as quota covers, then in pools that
        lend to it.

        A nominated cluster has the slots of its victims, and of any owner the further slots that
        it will need.
        """
        if pending.queue not in self._tree.queues:
            return
        requesting = []
        for slot_pool, count in self._allocate(pending, self._within_reach(pending), pending.requesting):
            self._count_requesting(pending, slot_pool, count)
            requesting.append((slot_pool, count))
        remaining = pending.count - (self._take_terminating(pending) if pending.nominated else 0)
        for slot_pool, count in self._allocate(pending, self._within_reach(pending), remaining):
            self._count(pending.holder(), slot_pool, count)
        for slot_pool, count in requesting:
            self._count_requesting(pending, slot_pool, -count)

    def _within_reach(self, pending: PendingSlots) -> Iterator[OwnedSlots]:
        """The queue's own pool, then those that it may borrow from."""
        if (own := self.owned_slots.get((pending.queue, pending.flavor))) is not None:
            yield own
        for peer in sorted(self.peers(pending.queue) - {pending.queue}):
            if (slot_pool := self.owned_slots.get((peer, pending.flavor))) is not None:
                yield slot_pool

    def _allocate(
        self, pending: PendingSlots, owned_slots: Iterable[OwnedSlots], remaining: int
    ) -> Iterator[tuple[OwnedSlots, int]]:
        """The slots by pool, within quota and limits; each count must be applied before the next."""
        for slot_pool in owned_slots:
            if remaining <= 0:
                return
            if slot_pool.owner == pending.queue:
                count = min(remaining, self.quota(slot_pool))
            else:
                count = min(
                    remaining, self.lendable(slot_pool), self.borrowable(pending.queue, pending.flavor)
                )
            if count > 0:
                remaining -= count
                yield slot_pool, count

    def _count_requesting(self, pending: PendingSlots, slot_pool: OwnedSlots, count: int) -> None:
        node = self._tree.queues[pending.queue]
        amounts = dict.fromkeys(slot_amounts(self._members[pending.queue], slot_pool, ""), abs(count))
        (node.add if count > 0 else node.remove)(amounts)

    def _take_terminating(self, pending: PendingSlots) -> int:
        """The number of terminating holders that free pending slots. A nominated cluster gets the slots of
        its own victims at once."""
        reach = {(slot_pool.owner, slot_pool.flavor): slot_pool for slot_pool in self._within_reach(pending)}
        served = 0
        for holder in sorted(
            (holder for holder in self.holders.values() if holder.terminating), key=victim_order
        ):
            place = self._slot_pool_of[holder.odcr_id]
            slot_pool = reach.get((place.owner, place.flavor))
            if (
                slot_pool is None
                or served == pending.count
                or holder.evicted_for not in ("", pending.cluster)
            ):
                continue
            if holder.evicted_for:
                released = self._ledger.release(holder.name)
                if next(self._allocate(pending, [slot_pool], 1), None) is None:
                    self._ledger.admit(released)
                    continue
                self._taken.add(holder.name)
                self._count(pending.holder(), slot_pool, 1)
            served += 1
        return served
