"""The slots of EC2 reservations as a quota tree: who may take whose, and who gives back first.

Invariant: whoever holds a slot of another's borrows it, however much of his own he leaves idle, so an owner
can have each slot that his quota covers back, and what is in an owner's own slots is never taken for anybody
else. For that the tree's flavors are lots (slots of one flavor that one reservation owns): in his own lots
a queue has a nominal quota, in those of others none. Limits and the choice of who gives back are then the
tree's own (Kueue's `nominalQuota`, `borrowingLimit`, `lendingLimit`, and classical preemption with
`reclaimWithinCohort`); a borrowing limit counts over all lots of a flavor together.

Who is leaving already counts as the first to give back, so that nobody else is asked for the same slot. Who
may not be asked counts as the owner's own use. What outsiders hold (nobody's claims, or those of another
cohort) is no slot at all: it cannot be had back.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from broker.quota.candidates import fits
from broker.quota.classical import preempt
from broker.quota.entitled import path
from broker.quota.ledger import Ledger
from broker.quota.model import (
    UNLIMITED,
    Amounts,
    Ask,
    Cohort,
    FlavorResource,
    Preemption,
    Queue,
    Quota,
    Reason,
    Workload,
)
from broker.quota.tree import Node, Tree

Reclaim = Literal["Never", "LowerPriority", "Any"]

_SLOTS: Final = "slots"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lot:
    """The slots of one flavor that a queue owns, by EC2 reservation; `quota` of them it is entitled to."""

    owner: str
    flavor: str
    slots: Mapping[str, int]
    quota: int
    lending_limit: int | None = None

    @property
    def nominal(self) -> int:
        return min(self.quota, sum(self.slots.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A queue, and how many slots of others it may hold, by flavor; None does not limit, absent is none."""

    name: str
    cohort: str = ""
    borrowing_limit: Mapping[str, int | None] = field(default_factory=dict)
    reclaim: Reclaim = "Never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a slot, and since when. `leaving`: it gives it back; `spared`: it may not be asked to."""

    name: str
    queue: str
    odcr_id: str
    priority: int = 0
    since: float = float("inf")
    leaving: bool = False
    spared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Who wants a slot of its queue's own, in any of these EC2 reservations."""

    name: str
    queue: str
    odcr_ids: tuple[str, ...]
    priority: int = 0
    queued: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """Who is to give its slot back, for whom, why, and where both are in the tree."""

    holder: Holder
    want: Want
    reason: Reason
    preemptor_path: str
    preemptee_path: str


class _Rank(NamedTuple):
    """Who gives back first: the smaller."""

    stays: bool
    priority: int
    before: float
    name: str


class Slots:
    """The tree with those who hold slots in it. `inactive` says of a queue why it has no part in it."""

    def __init__(
        self,
        lots: Iterable[Lot],
        members: Iterable[Member],
        holders: Iterable[Holder],
        *,
        cohorts: Iterable[Cohort] = (),
    ) -> None:
        self._members = {member.name: member for member in members}
        bare = Tree((Queue(name=each.name, cohort=each.cohort) for each in self._members.values()), cohorts)
        roots = {name: _root(node) for name, node in bare.queues.items()}
        given = tuple(lots)
        owners = {odcr_id: lot.owner for lot in given for odcr_id in lot.slots}
        outside: Counter[str] = Counter()
        self.holders: dict[str, Holder] = {}
        for each in holders:
            if (owner := owners.get(each.odcr_id)) is None:
                continue
            if each.queue in roots and roots[each.queue] is roots.get(owner):
                self.holders[each.name] = each
            else:
                outside[each.odcr_id] += 1
        self.lots = {
            (lot.owner, lot.flavor): replace(
                lot, slots={id_: max(0, count - outside[id_]) for id_, count in lot.slots.items()}
            )
            for lot in given
        }
        self._lot_of = {odcr_id: lot for lot in self.lots.values() for odcr_id in lot.slots}
        self._owned: dict[str, list[Lot]] = defaultdict(list)
        for lot in self.lots.values():
            self._owned[lot.owner].append(lot)
        self._borrowers: dict[tuple[str, str], list[Holder]] = defaultdict(list)
        self._borrowed: Counter[tuple[str, str]] = Counter()
        for each in self.holders.values():
            if (lot := self._lot_of[each.odcr_id]).owner != each.queue:
                self._borrowers[lot.owner, lot.flavor].append(each)
                self._borrowed[each.queue, lot.flavor] += 1
        self._peers: dict[Node, frozenset[str]] = {}
        self._tree = Tree([*map(self._queue, self._members.values())], cohorts)
        self.inactive: Mapping[str, str] = self._tree.inactive
        self._ledger = Ledger(self._tree, map(self._workload, self.holders.values()))

    def quota(self, lot: Lot) -> int:
        """How many more slots its owner is entitled to."""
        node = self._tree.queues.get(lot.owner)
        return 0 if node is None else max(0, lot.nominal - node.uses(_key(lot)))

    def room(self, lot: Lot) -> int:
        """How many more are to be had at all."""
        node = self._tree.queues.get(lot.owner)
        return 0 if node is None else max(0, node.available(_key(lot)))

    def lendable(self, lot: Lot) -> int:
        """How many more others may take, all together."""
        node = self._tree.queues.get(lot.owner)
        return 0 if node is None or node.parent is None else max(0, node.parent.available(_key(lot)))

    def borrowable(self, queue: str, flavor: str) -> int:
        """How many more slots of others a queue may take."""
        limit = self._members[queue].borrowing_limit.get(flavor, 0)
        return UNLIMITED if limit is None else max(0, limit - self._borrowed[queue, flavor])

    def peers(self, queue: str) -> frozenset[str]:
        """The queues of its cohort tree, itself among them; nobody for one that may not borrow."""
        node = self._tree.queues.get(queue)
        limits = self._members[queue].borrowing_limit.values()
        if node is None or node.parent is None or not any(limit is None or limit > 0 for limit in limits):
            return frozenset()
        root = _root(node)
        if root not in self._peers:
            self._peers[root] = frozenset(each.name for each in _below(root))
        return self._peers[root]

    def borrowers(self, lot: Lot) -> tuple[Holder, ...]:
        """Who could be asked for a slot of the lot, or gives one back already, in that order."""
        found = self._borrowers.get((lot.owner, lot.flavor), ())
        return tuple(sorted((each for each in found if each.leaving or not each.spared), key=_rank))

    def reclaim(self, wants: Sequence[Want]) -> tuple[Victim, ...]:
        """Who is to be asked for a slot, beyond those who leave already. Wants in order of importance.

        The tree is used up by this.
        """
        found = []
        for want in wants:
            if (victim := self._reclaim(want)) is not None:
                found.append(victim)
        return tuple(found)

    def _reclaim(self, want: Want) -> Victim | None:
        """Gives the want its slot in the tree, and says who has to leave for it and does not yet."""
        node = self._tree.queues.get(want.queue)
        own = [(id_, self._lot_of[id_]) for id_ in want.odcr_ids if id_ in self._lot_of]
        own = [(id_, lot) for id_, lot in own if lot.owner == want.queue]
        if node is None:
            return None
        for odcr_id, lot in own:
            if fits(node, _amounts(lot, odcr_id), borrow=False):
                self._admit(want, lot, odcr_id)
                return None
        best: tuple[_Rank, Holder, Reason, str, Lot] | None = None
        for odcr_id, lot in own:
            amounts = _amounts(lot, odcr_id)
            ask = Ask(queue=want.queue, amounts=amounts, priority=want.priority, queued=want.queued)
            if self.quota(lot) <= 0:
                continue
            lacking = frozenset(key for key in amounts if node.available(key) <= 0)
            targets = preempt(self._ledger, ask, lacking)
            if len(targets) != 1:
                continue
            holder = self.holders[targets[0].workload.name]
            rank = _rank(holder)
            if best is None or rank < best[0]:
                best = rank, holder, targets[0].reason, odcr_id, lot
        if best is None:
            return None
        _, holder, reason, odcr_id, lot = best
        preemptee = self._tree.queues[holder.queue]
        self._ledger.release(holder.name)
        self._admit(want, lot, odcr_id)
        if holder.leaving:
            return None
        return Victim(
            holder=holder,
            want=want,
            reason=reason,
            preemptor_path=path(node),
            preemptee_path=path(preemptee),
        )

    def _admit(self, want: Want, lot: Lot, odcr_id: str) -> None:
        name = f"want/{want.name}"  # the slash is in no object's name
        usage = _amounts(lot, odcr_id)
        self._ledger.admit(Workload(name=name, queue=want.queue, usage=usage, priority=want.priority))

    def _queue(self, member: Member) -> Queue:
        quotas: dict[FlavorResource, Quota] = {}
        for lot in self._owned.get(member.name, ()):
            quotas[_key(lot)] = Quota(nominal=lot.nominal, lending_limit=lot.lending_limit)
            quotas |= {_place(id_): Quota(nominal=count) for id_, count in lot.slots.items()}
        return Queue(
            name=member.name,
            cohort=member.cohort,
            quotas=quotas,
            preemption=Preemption(reclaim=member.reclaim),
        )

    def _workload(self, holder: Holder) -> Workload:
        lot = self._lot_of[holder.odcr_id]
        return Workload(
            name=holder.name,
            queue=lot.owner if holder.spared and not holder.leaving else holder.queue,
            usage=_amounts(lot, holder.odcr_id),
            priority=holder.priority,
            reserved=holder.since,
            evicted=holder.leaving,
        )


def _key(lot: Lot) -> FlavorResource:
    return FlavorResource(f"{lot.owner}/{lot.flavor}", _SLOTS)


def _place(odcr_id: str) -> FlavorResource:
    return FlavorResource(odcr_id, _SLOTS)


def _amounts(lot: Lot, odcr_id: str) -> Amounts:
    return {_key(lot): 1, _place(odcr_id): 1}


def _rank(holder: Holder) -> _Rank:
    return _Rank(not holder.leaving, holder.priority, -holder.since, holder.name)


def _root(node: Node) -> Node:
    *_, root = (node, *node.path())
    return root


def _below(node: Node) -> Iterator[Node]:
    yield from node.queues
    for cohort in node.cohorts:
        yield from _below(cohort)
