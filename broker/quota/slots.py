"""The slots of EC2 reservations as a quota tree: the slots that each queue may use, and the order of
victims.

Invariant: a slot held in another reservation always counts as borrowed, even if the holder's own slots
are idle. So an owner can reclaim each slot that its quota covers, and a holder on its owner's slots is
never a victim of another queue. For that, the tree's flavors are lots: slots of one flavor that one
reservation owns. A queue has a nominal quota in its own lots and none in those of others. Limits and the
order of victims are then the tree's own (Kueue's `nominalQuota`, `borrowingLimit`, `lendingLimit`, and
classical preemption). A borrowing limit counts over all lots of a flavor together.

A borrowing limit is a separate lot that only its queue uses: a queue at its limit can make room only by a
victim of its own. A dedicated cluster gives back all of its slots or none. The part of its quota without
instances is promised to it, counts as held, and is given back separately. Within a queue, and while
borrowing, the lower priority gives way as `withinClusterQueue` and `borrowWithinCohort` define.

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
from typing import Final

from broker.quota.candidates import fits
from broker.quota.classical import preempt
from broker.quota.entitled import path
from broker.quota.ledger import QuotaLedger
from broker.quota.model import (
    UNLIMITED,
    AdmittedWorkload,
    Amounts,
    FlavorResource,
    Queue,
    Quota,
    QuotaCohort,
    QuotaRequest,
    Reason,
)
from broker.quota.slot_model import (
    CLAIM,
    Member,
    OwnedSlots,
    Promise,
    SlotHolder,
    SlotRequest,
    Victim,
    VictimRank,
    victim_order,
    whole,
)
from broker.quota.tree import QuotaNode, Tree

_SLOTS: Final = "slots"
_BORROWED: Final = "borrowed slots"


class SlotTree:
    """The tree with the holders of slots. `inactive`: why a queue has no part in it."""

    def __init__(
        self,
        lots: Iterable[OwnedSlots],
        members: Iterable[Member],
        holders: Iterable[SlotHolder],
        *,
        promises: Iterable[Promise] = (),
        nominated: Iterable[SlotRequest] = (),
        cohorts: Iterable[QuotaCohort] = (),
    ) -> None:
        """`nominated`: claims with victims terminating for them, and the slots of these.

        A nominated cluster gets no slot that is freed for these claims.
        """
        self._members = {member.name: member for member in members}
        bare = Tree((Queue(name=each.name, cohort=each.cohort) for each in self._members.values()), cohorts)
        roots = {name: node.root() for name, node in bare.queues.items()}
        given = tuple(lots)
        owners = {odcr_id: lot.owner for lot in given for odcr_id in lot.slots}
        unattributed: Counter[str] = Counter()
        self.holders: dict[str, SlotHolder] = {}
        for each in holders:
            if (owner := owners.get(each.odcr_id)) is None:
                continue
            if each.queue in roots and roots[each.queue] is roots.get(owner):
                self.holders[each.name] = each
            else:
                unattributed[each.odcr_id] += 1
        self.lots = {
            (lot.owner, lot.flavor): replace(
                lot, slots={id_: max(0, count - unattributed[id_]) for id_, count in lot.slots.items()}
            )
            for lot in given
        }
        self._lot_of = {odcr_id: lot for lot in self.lots.values() for odcr_id in lot.slots}
        self._owned: dict[str, list[OwnedSlots]] = defaultdict(list)
        for lot in self.lots.values():
            self._owned[lot.owner].append(lot)
        self._peers: dict[QuotaNode, frozenset[str]] = {}
        self._tree = Tree([*map(self._queue, self._members.values())], cohorts)
        self.inactive: Mapping[str, str] = self._tree.inactive
        self._ledger = QuotaLedger(self._tree)
        self._takers: dict[tuple[str, str], list[SlotHolder]] = defaultdict(list)
        self._of: dict[str, list[SlotHolder]] = defaultdict(list)  # by the name of the workload
        self._leaving_for: dict[str, list[SlotHolder]] = defaultdict(list)
        for each in sorted(self.holders.values(), key=victim_order):
            if each.terminating and each.evicted_for:
                self._leaving_for[each.evicted_for].append(each)
        self._non_preemptible: Counter[tuple[str, str]] = Counter()  # of each lot: lent, and not reclaimable
        self._taken: set[str] = set()  # holders that terminate for a nominated cluster, which has their slots
        for each in self.holders.values():
            self._count(each, self._lot_of[each.odcr_id], 1)
        given_out = [*promises]
        for promise in given_out:
            if not promise.later:
                self._promise(promise)
        if later := [each for each in given_out if each.later]:
            with self._theirs(nominated):
                for promise in later:
                    self._promise(promise)

    def quota(self, lot: OwnedSlots) -> int:
        """The number of further slots that the owner is entitled to."""
        node, fixed = self._tree.queues.get(lot.owner), self._non_preemptible[lot.owner, lot.flavor]
        return 0 if node is None else max(0, lot.nominal - node.uses(_key(lot)) - fixed)

    def room(self, lot: OwnedSlots) -> int:
        """The number of further slots available at all. Negative if more is held or promised than exists."""
        node = self._tree.queues.get(lot.owner)
        return 0 if node is None else node.available(_key(lot))

    def lendable(self, lot: OwnedSlots) -> int:
        """The number of further slots for all borrowers together. Negative as `room` is."""
        node = self._tree.queues.get(lot.owner)
        return 0 if node is None or node.parent is None else node.parent.available(_key(lot))

    def borrowable(self, queue: str, flavor: str) -> int:
        """The number of further slots of others for a queue."""
        if self._members[queue].borrowing_limit.get(flavor, 0) is None:
            return UNLIMITED
        node = self._tree.queues.get(queue)
        return 0 if node is None else max(0, node.available(_limit(queue, flavor)))

    def peers(self, queue: str) -> frozenset[str]:
        """The queues of its cohort tree, including itself; none for a queue that may not borrow."""
        node = self._tree.queues.get(queue)
        limits = self._members[queue].borrowing_limit.values()
        if node is None or node.parent is None or not any(limit is None or limit > 0 for limit in limits):
            return frozenset()
        root = node.root()
        if root not in self._peers:
            self._peers[root] = frozenset(each.name for each in root.members())
        return self._peers[root]

    def takers(self, lot: OwnedSlots) -> tuple[SlotHolder, ...]:
        """The holders that may be victims for a slot of the lot, or are terminating, in order.

        A slot that is only promised belongs to no EC2 reservation yet.
        """
        found = self._takers.get((lot.owner, lot.flavor), ())
        some = (
            each
            for each in found
            if each.name not in self._taken and (each.terminating or not each.non_preemptible)
        )
        return tuple(sorted(some, key=victim_order))

    def borrows(self, cluster: str) -> bool:
        """Whether a dedicated cluster holds slots of others."""
        return any(
            each.odcr_id and self._lot_of[each.odcr_id].owner != each.queue
            for each in self._of.get(whole(cluster), ())
        )

    def reclaim(self, wants: Sequence[SlotRequest]) -> tuple[Victim, ...]:
        """The victims for these requests, beyond terminating holders. Requests in order of importance.

        The tree cannot be used afterwards.
        """
        served = {want.name for want in wants if self._comes_free(want)}
        with self._ledger.still():  # a served request is no victim of another
            found = [self._reclaim(want) for want in wants if want.name not in served]
        return tuple(victim for victim in found if victim is not None)

    def _comes_free(self, want: SlotRequest) -> bool:
        """Gives the request the slot of a holder that terminates for it, if one exists and limits still
        allow it."""
        for holder in self._leaving_for.get(f"{CLAIM}{want.name}", ()):
            lot = self._lot_of[holder.odcr_id]
            if holder.name in self._taken or holder.odcr_id not in want.odcr_ids:
                continue
            gone = self._ledger.release(holder.name)
            amounts = self._amounts(want.queue, lot, holder.odcr_id)
            if fits(self._tree.queues[want.queue], amounts, borrow=lot.owner != want.queue):
                self._taken.add(holder.name)
                self._admit(want, lot, holder.odcr_id)
                return True
            self._ledger.admit(gone)
        return False

    def _reclaim(self, want: SlotRequest) -> Victim | None:
        """Gives the request its slot in the tree; returns the new victim, if one is needed."""
        node = self._tree.queues.get(want.queue)
        if node is None:
            return None
        reach = [(id_, self._lot_of[id_]) for id_ in want.odcr_ids if id_ in self._lot_of]
        for odcr_id, lot in reach:
            if fits(node, self._amounts(want.queue, lot, odcr_id), borrow=lot.owner != want.queue):
                self._admit(want, lot, odcr_id)
                return None
        best: tuple[VictimRank, AdmittedWorkload, Reason, str, OwnedSlots] | None = None
        for odcr_id, lot in reach:
            amounts = self._amounts(want.queue, lot, odcr_id)
            ask = QuotaRequest(queue=want.queue, amounts=amounts, priority=want.priority, queued=want.queued)
            lacking = frozenset(key for key in amounts if node.available(key) <= 0)
            if not lacking:
                continue  # only more quota would help
            targets = preempt(self._ledger, ask, lacking)
            if len(targets) != 1:
                continue
            leaves = targets[0].workload
            rank = VictimRank(not leaves.evicted, leaves.priority, -leaves.reserved, leaves.name)
            if best is None or rank < best[0]:
                best = rank, leaves, targets[0].reason, odcr_id, lot
        if best is None:
            return None
        _, leaves, reason, odcr_id, lot = best
        self._ledger.release(leaves.name)
        self._admit(want, lot, odcr_id)
        if leaves.evicted:
            return None
        held = self._of[leaves.name]
        return Victim(
            holder=next((each for each in held if each.odcr_id == odcr_id), held[0]),
            want=want,
            reason=reason,
            preemptor_path=path(node),
            preemptee_path=path(self._tree.queues[leaves.queue]),
        )

    def _admit(self, want: SlotRequest, lot: OwnedSlots, odcr_id: str) -> None:
        name = f"want/{want.name}"  # no object's name contains a slash
        usage = self._amounts(want.queue, lot, odcr_id)
        self._ledger.admit(
            AdmittedWorkload(
                name=name, queue=want.queue, usage=usage, priority=want.priority, non_preemptible=True
            )
        )

    def _count(self, each: SlotHolder, lot: OwnedSlots, count: int) -> None:
        """Counts slots of a lot as held, by a claim or by a cluster as a whole."""
        self._takers[lot.owner, lot.flavor] += [each] * count
        amounts = dict.fromkeys(self._amounts(each.queue, lot, each.odcr_id), count)
        if each.non_preemptible and not each.terminating:
            self._non_preemptible[lot.owner, lot.flavor] += count if each.queue != lot.owner else 0
            fixed = f"{each.name}/{lot.owner}/{lot.flavor}"
            if fixed in self._ledger.workloads:
                amounts = _sum(amounts, self._ledger.release(fixed).usage)
            self._hold(fixed, each.queue, amounts, each)
            return
        name = whole(each.cluster) if each.cluster and each.odcr_id and not each.terminating else each.name
        if name in self._ledger.workloads:
            amounts = _sum(amounts, self._ledger.release(name).usage)
        self._hold(name, each.queue, amounts, each)
        self._of[name].append(each)

    def _hold(self, name: str, queue: str, usage: Amounts, each: SlotHolder) -> None:
        self._ledger.admit(
            AdmittedWorkload(
                name=name,
                queue=queue,
                usage=usage,
                priority=each.priority,
                reserved=each.since,
                evicted=each.terminating,
                non_preemptible=each.non_preemptible and not each.terminating,
            )
        )

    @contextmanager
    def _theirs(self, nominated: Iterable[SlotRequest]) -> Iterator[None]:
        """Treats nominated claims as holders of their slots, in place of the holders that terminate for
        them."""
        changes: list[tuple[QuotaNode, Amounts, Amounts]] = []
        firm: Counter[tuple[str, str]] = Counter()
        for want in nominated:
            node = self._tree.queues.get(want.queue)
            lot = next((self._lot_of[each] for each in want.odcr_ids if each in self._lot_of), None)
            if node is None or lot is None:
                continue
            changes.append((node, self._amounts(want.queue, lot, ""), {}))
            firm[lot.owner, lot.flavor] += lot.owner != want.queue
            for holder in self._leaving_for.get(f"{CLAIM}{want.name}", ())[:1]:
                gone = self._ledger.workloads[holder.name].usage
                changes.append((self._tree.queues[holder.queue], {}, gone))
        self._non_preemptible += firm
        for node, more, less in changes:
            node.remove(less)
            node.add(more)
        yield
        for node, more, less in changes:
            node.remove(more)
            node.add(less)
        self._non_preemptible -= firm

    def _promise(self, each: Promise) -> None:
        """Counts the promise as held: in its own lot as far as quota covers, then in lots that lend to
        it.

        A nominated cluster has the slots of its victims, and of any owner the further slots that
        it will need.
        """
        if each.queue not in self._tree.queues:
            return
        asking = []
        for lot, count in self._shared_out(each, self._within_reach(each), each.asking):
            self._ask(each, lot, count)
            asking.append((lot, count))
        left = each.count - (self._leaving(each) if each.later else 0)
        for lot, count in self._shared_out(each, self._within_reach(each), left):
            self._count(each.holder(), lot, count)
        for lot, count in asking:
            self._ask(each, lot, -count)

    def _within_reach(self, each: Promise) -> Iterator[OwnedSlots]:
        """Its own lot, then those that it may borrow from."""
        if (own := self.lots.get((each.queue, each.flavor))) is not None:
            yield own
        for peer in sorted(self.peers(each.queue) - {each.queue}):
            if (lot := self.lots.get((peer, each.flavor))) is not None:
                yield lot

    def _shared_out(
        self, each: Promise, lots: Iterable[OwnedSlots], left: int
    ) -> Iterator[tuple[OwnedSlots, int]]:
        """The slots by lot, within quota and limits; each count must be applied before the next."""
        for lot in lots:
            if left <= 0:
                return
            if lot.owner == each.queue:
                count = min(left, self.quota(lot))
            else:
                count = min(left, self.lendable(lot), self.borrowable(each.queue, each.flavor))
            if count > 0:
                left -= count
                yield lot, count

    def _ask(self, each: Promise, lot: OwnedSlots, count: int) -> None:
        node = self._tree.queues[each.queue]
        amounts = dict.fromkeys(self._amounts(each.queue, lot, ""), abs(count))
        (node.add if count > 0 else node.remove)(amounts)

    def _leaving(self, each: Promise) -> int:
        """The number of terminating holders that serve the promise; it already has the slots of its own
        victims."""
        reach = {(lot.owner, lot.flavor): lot for lot in self._within_reach(each)}
        found = 0
        for holder in sorted((one for one in self.holders.values() if one.terminating), key=victim_order):
            place = self._lot_of[holder.odcr_id]
            lot = reach.get((place.owner, place.flavor))
            if lot is None or found == each.count or holder.evicted_for not in ("", each.cluster):
                continue
            if holder.evicted_for:
                gone = self._ledger.release(holder.name)
                if next(self._shared_out(each, [lot], 1), None) is None:
                    self._ledger.admit(gone)
                    continue
                self._taken.add(holder.name)
                self._count(each.holder(), lot, 1)
            found += 1
        return found

    def _queue(self, member: Member) -> Queue:
        quotas: dict[FlavorResource, Quota] = {}
        for lot in self._owned.get(member.name, ()):
            quotas[_key(lot)] = Quota(nominal=lot.nominal, lending_limit=lot.lending_limit)
            quotas |= {_place(id_): Quota(nominal=count) for id_, count in lot.slots.items()}
        for flavor, limit in member.borrowing_limit.items():
            if limit is not None:
                quotas[_limit(member.name, flavor)] = Quota(nominal=limit, lending_limit=0)
        return Queue(name=member.name, cohort=member.cohort, quotas=quotas, preemption=member.preemption)

    def _amounts(self, queue: str, lot: OwnedSlots, odcr_id: str) -> Amounts:
        """The quota of a slot for a queue: in the lot, in the EC2 reservation, and in the borrowing limit
        if it borrows."""
        found = {_key(lot): 1}
        if odcr_id:
            found[_place(odcr_id)] = 1
        if lot.owner != queue and self._members[queue].borrowing_limit.get(lot.flavor, 0) is not None:
            found[_limit(queue, lot.flavor)] = 1
        return found


def _sum(one: Amounts, other: Amounts) -> dict[FlavorResource, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


def _key(lot: OwnedSlots) -> FlavorResource:
    return FlavorResource(f"{lot.owner}/{lot.flavor}", _SLOTS)


def _place(odcr_id: str) -> FlavorResource:
    return FlavorResource(odcr_id, _SLOTS)


def _limit(queue: str, flavor: str) -> FlavorResource:
    return FlavorResource(f"{queue}/{flavor}", _BORROWED)
