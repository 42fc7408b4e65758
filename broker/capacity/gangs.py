"""Chooses the gangs that launch, by branch and bound: all of a gang or none of it.

Invariant: the chosen gangs fit together, and no other choice reaches a better objective. The objective is
compared level by level: most claims in reservations by priority, most claims launched, least on-demand cost,
smallest instances, soonest ends. Only gangs are decided here; the slots follow from them (see `network`).

Gangs of equal needs are counted together, so a hundred gangs of eight nodes each are one number to find. A
part of the search bounds the number of launched gangs of each kind, from below and above. Its own bound is
the network's optimum with the lower numbers served first and all other gangs split into single claims. No
choice in that part is better, level by level. The part is divided at a kind that the network leaves in
pieces. (Land and Doig, 1960.)
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broker.capacity.network import give, weights
from broker.capacity.problem import Bundle, SlotFlow, SlotProblem

_DOLLAR: Final = 10_000  # costs are counted in hundredths of a cent

Objective = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GangChoice:
    """The gangs that launch; `proven` if no other choice is better."""

    gangs: frozenset[str]
    proven: bool


class _Part(NamedTuple):
    """A gang's claims of one need. Claims that `must` can only launch into a slot."""

    reach: int
    must: bool
    cost: int
    claims: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _GangKind:
    """Gangs of equal needs, in the order in which they launch."""

    priority: int  # negated
    parts: tuple[_Part, ...]
    gangs: tuple[str, ...]

    @property
    def pays(self) -> bool:
        """Whether it has claims that may fall back."""
        return not all(part.must for part in self.parts)


class _ClaimClass(NamedTuple):
    """Claims that count as one: so many for each gang of a kind, or of no gang."""

    reach: int
    priority: int  # negated
    falls_back: bool
    cost: int
    kind: int | None
    claims: int


class _Node(NamedTuple):
    """A part of the search: the least and the most launched gangs of each kind, and the resulting objective.

    `bound` is None if so many do not fit. `counts` gangs launch whole in the network's optimum;
    `reached` is its objective if no other gang is in it. `split` is the kind to divide at, if any.
    """

    least: tuple[int, ...]
    most: tuple[int, ...]
    bound: Objective | None
    counts: tuple[int, ...] = ()
    reached: Objective | None = None
    split: int | None = None


def rivals(problem: SlotProblem, undecided: Iterable[str], *, present: Collection[str]) -> list[str]:
    """The undecided gangs and the present gangs that share a slot with them, directly or through others."""
    named, before = set(undecided), 0
    while len(named) != before:
        before = len(named)
        reached = _reached(problem, named)
        for gang in present:
            if any(reached[problem.bundles[place].reach] for place in problem.gangs[gang]):
                named.add(gang)
    return [gang for gang in problem.gangs if gang in named]


def choose(
    problem: SlotProblem,
    gangs: Sequence[str],
    *,
    fitting: Collection[str],
    until: float,
    timer: Callable[[], float],
) -> GangChoice:
    """The best choice among rivals in the time that `timer` leaves; at worst the `fitting` gangs."""
    search = _GangSearch(problem, gangs)
    counts = tuple(sum(gang in fitting for gang in kind.gangs) for kind in search.kinds)
    best = search.node(least=counts, most=counts)
    heap: list[tuple[list[int], int, _Node]] = []  # the best bound first; of equals the latest, the deepest
    bounds = [((0,) * len(search.kinds), tuple(len(kind.gangs) for kind in search.kinds))]
    serial = 0
    while bounds or heap:
        for least, most in bounds:
            if timer() >= until:
                return GangChoice(gangs=search.first(best.counts), proven=False)
            node = search.node(least=least, most=most)
            if _better(node.reached, best.reached):
                best = node
            if node.split is not None and node.bound is not None:
                serial -= 1
                heapq.heappush(heap, ([-level for level in node.bound], serial, node))
        if not heap:
            break
        _, _, node = heapq.heappop(heap)
        bounds = search.halves(node) if _better(node.bound, best.reached) else []
    return GangChoice(gangs=search.first(best.counts), proven=True)


class _GangSearch:
    """The problem of some gangs and all others that share slots with them."""

    def __init__(self, problem: SlotProblem, gangs: Sequence[str]) -> None:
        reached = _reached(problem, gangs)
        arcs = reached[problem.arc_reach]
        self._problem = replace(
            problem, bundles=(), arc_reach=problem.arc_reach[arcs], arc_slot=problem.arc_slot[arcs]
        )
        self.kinds = _kinds(problem, gangs)
        self._classes = _claim_classes(problem, reached, self.kinds)
        self._priorities = sorted({claim_class.priority for claim_class in self._classes})

    def node(self, *, least: tuple[int, ...], most: tuple[int, ...]) -> _Node:
        """The network's optimum in this part of the search."""
        reaches: list[int] = []
        at_most: list[int] = []
        order: list[tuple[object, ...]] = []
        for claim_class in self._classes:
            single = claim_class.kind is None
            low, high = (
                (0, 1) if claim_class.kind is None else (least[claim_class.kind], most[claim_class.kind])
            )
            sure = 0 if single or claim_class.falls_back else low * claim_class.claims
            rank = (
                claim_class.priority,
                claim_class.falls_back,
                -claim_class.cost,
                single,
                claim_class.kind or 0,
            )
            reaches += [claim_class.reach, claim_class.reach]
            at_most += [sure, high * claim_class.claims - sure]
            order += [(False, *rank), (True, *rank)]
        taken = give(
            self._problem,
            reaches=np.array(reaches, dtype=np.int64),
            at_most=np.array(at_most, dtype=np.int64),
            weights=weights(order),
        )
        if (taken.served[::2] != np.array(at_most[::2])).any():
            return _Node(least, most, None)
        served = (taken.served[::2] + taken.served[1::2]).tolist()
        counts, pieces = list(most), set()
        for claim_class, count in zip(self._classes, served, strict=True):
            if claim_class.kind is not None and not claim_class.falls_back:
                counts[claim_class.kind] = min(counts[claim_class.kind], count // claim_class.claims)
        for claim_class, count in zip(self._classes, served, strict=True):
            if claim_class.kind is not None:
                whole = counts[claim_class.kind] * claim_class.claims
                if count > whole or (count < whole and not claim_class.falls_back):
                    pieces.add(claim_class.kind)
        bound = self._objective(taken, served, launched=most, paying=least)
        if pieces:
            return _Node(least, most, bound, tuple(counts), None, min(pieces))
        reached = self._objective(taken, served, launched=counts, paying=counts)
        # Gangs with claims that fall back cost something, so fewer of them may be better.
        paying = (place for place, kind in enumerate(self.kinds) if kind.pays and least[place] < most[place])
        return _Node(least, most, bound, tuple(counts), reached, next(paying) if reached != bound else None)

    def halves(self, node: _Node) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The same with fewer gangs of the kind to divide at, and with more."""
        split = node.split
        if split is None:
            return []
        count = min(node.counts[split], node.most[split] - 1)
        fewer = (*node.most[:split], count, *node.most[split + 1 :])
        more = (*node.least[:split], count + 1, *node.least[split + 1 :])
        return [(node.least, fewer), (more, node.most)]

    def first(self, counts: Sequence[int]) -> frozenset[str]:
        """The first gangs of each kind, as many as counted."""
        return frozenset(
            gang for kind, count in zip(self.kinds, counts, strict=True) for gang in kind.gangs[:count]
        )

    def _objective(
        self, taken: SlotFlow, served: Sequence[int], *, launched: Sequence[int], paying: Sequence[int]
    ) -> Objective:
        """The objective: larger is better. Of each kind, `launched` gangs launch and `paying` gangs pay for
        fallbacks."""
        by_priority = dict.fromkeys(self._priorities, 0)
        running = saved = 0
        for claim_class, count in zip(self._classes, served, strict=True):
            by_priority[claim_class.priority] += count
            if not claim_class.falls_back:
                running += count
            elif claim_class.kind is not None:
                running += launched[claim_class.kind] * claim_class.claims
                saved -= claim_class.cost * paying[claim_class.kind] * claim_class.claims
            saved += claim_class.cost * count
        used = (
            -int((taken.flow * ranks[self._problem.arc_slot]).sum())
            for ranks in (self._problem.sizes, self._problem.ends)
        )
        return (*by_priority.values(), running, saved, *used)


def _better(objective: Objective | None, current: Objective | None) -> bool:
    return objective is not None and (current is None or objective > current)


def _kinds(problem: SlotProblem, gangs: Iterable[str]) -> list[_GangKind]:
    gangs_by_need: dict[tuple[int, tuple[_Part, ...]], list[str]] = defaultdict(list)
    for gang in gangs:
        bundles = [problem.bundles[place] for place in problem.gangs[gang]]
        parts = sorted(_Part(bundle.reach, bundle.must, _cost(bundle), bundle.count) for bundle in bundles)
        gangs_by_need[bundles[0].rank.priority, tuple(parts)].append(gang)
    return [
        _GangKind(priority=priority, parts=parts, gangs=tuple(members))
        for (priority, parts), members in gangs_by_need.items()
    ]


def _claim_classes(
    problem: SlotProblem, reached: NDArray[np.bool_], kinds: Sequence[_GangKind]
) -> list[_ClaimClass]:
    single_claims: dict[tuple[int, int, bool, int], int] = defaultdict(int)
    for bundle in problem.bundles:
        if not bundle.gang and reached[bundle.reach]:
            single_claims[bundle.reach, bundle.rank.priority, bundle.rank.falls_back, _cost(bundle)] += (
                bundle.count
            )
    return [
        *(_ClaimClass(*key, kind=None, claims=count) for key, count in single_claims.items()),
        *(
            _ClaimClass(part.reach, kind.priority, not part.must, part.cost, kind=place, claims=part.claims)
            for place, kind in enumerate(kinds)
            for part in kind.parts
        ),
    ]


def _cost(bundle: Bundle) -> int:
    return round(-bundle.rank.cost * _DOLLAR)


def _reached(problem: SlotProblem, gangs: Iterable[str]) -> NDArray[np.bool_]:
    """The reaches that share a slot with these gangs, directly or through others."""
    reached = np.zeros(problem.reaches, dtype=bool)
    for gang in gangs:
        reached[[problem.bundles[place].reach for place in problem.gangs[gang]]] = True
    while True:
        slots = np.zeros(len(problem.room), dtype=bool)
        slots[problem.arc_slot[reached[problem.arc_reach]]] = True
        more = reached.copy()
        more[problem.arc_reach[slots[problem.arc_slot]]] = True
        if (more == reached).all():
            return reached
        reached = more
