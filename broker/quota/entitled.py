"""Decides about quota over all reservations at once: admissions, waits with their reasons, and evictions.

Invariant: usage never exceeds a queue's nominal quota and its borrowing limit. Two states of one tree are
kept: `now` with every holder of quota, and `later` without the terminating ones. Victims are chosen on
`later` by Kueue's rules (`broker.quota.cycle`): claims that are already terminating count as freed. Quota
is granted only if it fits `now`, so it is never held twice while a victim terminates. Quota assumed for
one requester is not given to another, in this decision or a later one: nominated requesters come first.

A holder that requests more requests the rest, in the flavors that it holds: a cluster in two flavors
would be two clusters. The same state gives the same result, since nothing is remembered in between.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto
from typing import Final

from broker.quota.assign import assign
from broker.quota.candidates import fits
from broker.quota.cycle import Head, HeadDecision, HeadOutcome, decide
from broker.quota.flavors import Expression, Flavor, FlavorRequest, misfit
from broker.quota.ledger import QuotaLedger
from broker.quota.model import (
    AdmittedWorkload,
    Amounts,
    FlavorResource,
    Mode,
    Possibility,
    PreemptionTarget,
    Queue,
    Reason,
    summed,
)
from broker.quota.tree import QuotaNode, Tree

# The most repetitions of a decision for requests that won and lost quota in it; the last one is returned.
PASSES: Final = 4
# A label of the flavors in this module: the flavor's own name. It is no valid label in Kubernetes.
_PIN = "#flavor"


class _Turn(Enum):
    """The order in which requests are decided."""

    NOMINATED = auto()
    NEW = auto()
    GROWTH = auto()
    LAST = auto()


class AdmissionPhase(StrEnum):
    ADMITTED = "Admitted"  # it holds `usage` from now on
    PREEMPTING = "Preempting"  # its victims are terminating
    WAITING = "Waiting"  # until quota is given back
    NEVER = "Never"  # no eviction would help


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The shortage of one flavor: `most` of the `wanted` amount is available."""

    key: FlavorResource
    wanted: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionDecision:
    """The decision about a request. `usage`: the total that it holds from now on, or once its victims
    have left.

    If it is not admitted, `shortfalls` are the shortages of each flavor and `misfits` the flavors that it
    may not use.
    """

    phase: AdmissionPhase
    usage: Amounts = field(default_factory=dict)
    shortfalls: tuple[Shortfall, ...] = ()
    misfits: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """An eviction: its reason, the preemptor, and the position of both in the tree."""

    reason: Reason
    preemptor: str
    preemptor_path: str
    preemptee_path: str


@dataclass(frozen=True, slots=True)
class Entitled:
    """Decisions by the name of the requester, and evictions by the name of the holder."""

    decisions: Mapping[str, AdmissionDecision]
    evictions: Mapping[str, Eviction]


def entitle(
    queues: Sequence[Queue],
    *,
    holders: Iterable[AdmittedWorkload],
    requests: Iterable[Head],
    flavors: Mapping[str, Flavor],
    claimed: Iterable[AdmittedWorkload] = (),
    nominated: Collection[str] = (),
) -> Entitled:
    """Decides about all requests. That of a holder is the total.

    `holders` hold quota, including evicted ones that have not left; those of an unknown queue are
    ignored. `claimed` will hold quota soon: each counts if its queue covers it, or there is room.
    `nominated` are the requests and claimed workloads, by name, with evictions made for them earlier.
    They come before all others, so their room is given to nothing else.

    A request that gets quota here and loses it to a later one is decided again, as the last.
    Otherwise workloads would be evicted for a request that gets nothing.
    """
    held, claims, request_list = [*holders], [*claimed], [*requests]
    last: frozenset[str] = frozenset()
    for _ in range(PASSES):
        decision = _AdmissionRound(queues, held, flavors)
        entitled = decision.decide(request_list, claims, nominated=frozenset(nominated), last=last)
        if decision.outbid <= last:
            break
        last |= decision.outbid
    return entitled


class _AdmissionRound:
    def __init__(
        self,
        queues: Sequence[Queue],
        holders: Iterable[AdmittedWorkload],
        flavors: Mapping[str, Flavor],
    ) -> None:
        self._flavors = {
            name: replace(flavor, labels={**flavor.labels, _PIN: name}) for name, flavor in flavors.items()
        }
        self._empty = Tree(queues)
        self._before, self._now = Tree(queues), Tree(queues)
        self._later = QuotaLedger(Tree(queues))
        self._held: dict[str, AdmittedWorkload] = {}
        for holder in holders:
            self._hold(holder)
        self.outbid: set[str] = set()  # requests that won and lost quota in this decision
        self._decisions: dict[str, AdmissionDecision] = {}
        self._evictions: dict[str, Eviction] = {}
        self._requests: dict[str, Head] = {}
        self._nominated: frozenset[str] = frozenset()

    def _hold(self, holder: AdmittedWorkload) -> None:
        if (node := self._now.queues.get(holder.queue)) is None:
            return
        node.add(holder.usage)
        self._before.queues[holder.queue].add(holder.usage)
        self._held[holder.name] = holder
        if not holder.evicted:
            self._later.admit(holder)

    def decide(
        self,
        requests: Iterable[Head],
        claimed: Sequence[AdmittedWorkload],
        *,
        nominated: frozenset[str],
        last: frozenset[str],
    ) -> Entitled:
        self._nominated = nominated
        # Growth comes last: a growth that is taken back would take the earlier quota with it.
        turns: dict[_Turn, list[Head]] = {turn: [] for turn in _Turn}
        for request in requests:
            if (held := self._held.get(request.name)) is not None and held.evicted:
                continue  # it terminates first
            self._requests[request.name] = request
            if (never := self._never(request)) is not None:
                self._decisions[request.name] = never
            elif request.name in nominated:
                turns[_Turn.NOMINATED].append(self._head(request))
            elif request.name in last:
                turns[_Turn.LAST].append(self._head(request))
            else:
                turns[_Turn.GROWTH if held else _Turn.NEW].append(self._head(request))
        self._claim(claim for claim in claimed if claim.name in nominated)
        for turn, waiting in turns.items():
            self._rounds(waiting)
            if turn is _Turn.NOMINATED:
                self._claim(claim for claim in claimed if claim.name not in nominated)
        return Entitled(self._decisions, self._evictions)

    def _claim(self, claimed: Iterable[AdmittedWorkload]) -> None:
        """Counts the claimed workloads that their queue covers, or that have room."""
        for claim in claimed:
            later = self._later.tree.queues.get(claim.queue)
            if later is not None and (later.covers(claim.usage) or fits(later, claim.usage, borrow=True)):
                self._hold(
                    replace(claim, non_preemptible=claim.non_preemptible or claim.name in self._nominated)
                )

    def _rounds(self, waiting: Iterable[Head]) -> None:
        """Runs rounds, of one head of each queue, until none is left.

        A head that lost only to others of its round is decided again in the next one, before
        those behind it.
        """
        queues: dict[str, list[tuple[tuple[int, float, str], Head]]] = defaultdict(list)
        for head in waiting:
            heapq.heappush(queues[head.queue], (head.rank, head))
        again: set[str] = set()
        while heads := [heapq.heappop(heap)[1] for heap in queues.values() if heap]:
            staying = [head for head in heads if head.name not in self._evictions]
            for decision in decide(self._later, staying, self._flavors):
                self._apply(decision)
                mode, name = decision.assignment.mode, decision.head.name
                lost = decision.outcome is HeadOutcome.WAIT and mode is not Mode.NO_FIT
                if lost and (mode is Mode.FIT or name not in again):
                    again.add(name)
                    heapq.heappush(queues[decision.head.queue], (decision.head.rank, decision.head))

    def _head(self, request: Head) -> Head:
        held = self._held.get(request.name)
        return request if held is None else replace(request, request=self._rest(request, held))

    def _rest(self, request: Head, held: AdmittedWorkload) -> FlavorRequest:
        """The part of the request that is not held yet, in the held flavors."""
        has = held_of(held.usage)
        requests = {
            resource: value - has.get(resource, 0)
            for resource, value in request.request.requests.items()
            if value > has.get(resource, 0)
        }
        own = {key.flavor for key in held.usage}
        groups = [group.flavors for group in self._now.queues[request.queue].groups]
        pinned = tuple(flavor for group in groups for flavor in ([f for f in group if f in own] or group))
        pin = Expression(_PIN, "In", pinned)
        terms = request.request.affinity or ((),)
        return replace(request.request, requests=requests, affinity=tuple((*term, pin) for term in terms))

    def _never(self, request: Head) -> AdmissionDecision | None:
        """The decision for a request that would not fit an empty tree."""
        node = self._empty.queues.get(request.queue)
        if node is None:
            why = self._empty.inactive.get(request.queue, "there is no such queue")
            return AdmissionDecision(phase=AdmissionPhase.NEVER, why=f"queue {request.queue}: {why}")
        head = self._head(request)
        held = self._held.get(request.name)
        wants = head.request
        if held is not None:
            node.add(held.usage)
        assignment = assign(node, wants, self._flavors, lambda *_: (Possibility.NO_FIT, 0))
        lacks = () if assignment.mode is Mode.FIT else tuple(self._shortfalls(node, wants, request))
        if held is not None:
            node.remove(held.usage)
        if assignment.mode is Mode.FIT:
            return None
        return AdmissionDecision(
            phase=AdmissionPhase.NEVER, shortfalls=lacks, misfits=tuple(self._misfits(node, wants))
        )

    def _apply(self, decision: HeadDecision) -> None:
        head, targets = decision.head, decision.targets
        if decision.outcome is HeadOutcome.WAIT or any(self._early(target, head) for target in targets):
            self._decisions[head.name] = self._waiting(decision)
            return
        for target in targets:
            self._evict(target, for_=head)
        usage = decision.assignment.usage
        total = self._assume(head, usage)
        now = self._now.queues[head.queue]
        if terminating := [target.workload.name for target in targets if target.workload.name in self._held]:
            why, phase = f"{', '.join(terminating)} must leave first", AdmissionPhase.PREEMPTING
        elif fits(now, usage, borrow=True):
            now.add(usage)
            why, phase = "", AdmissionPhase.ADMITTED
        else:
            why, phase = "its quota is held by others that are terminating", AdmissionPhase.PREEMPTING
        self._decisions[head.name] = AdmissionDecision(phase=phase, usage=total, why=why)

    def _assume(self, head: Head, usage: Amounts) -> Amounts:
        """Counts the request as held later, with its present usage; returns the total."""
        held = self._later.workloads.get(head.name)
        if held is None:
            held = AdmittedWorkload(
                name=head.name, queue=head.queue, usage={}, priority=head.priority, queued=head.queued
            )
        else:
            self._later.release(head.name)
        total = summed((held.usage, usage))
        # Quota freed for a nominated request is given to nothing else.
        self._later.admit(
            replace(held, usage=total, non_preemptible=held.non_preemptible or head.name in self._nominated)
        )
        return total

    def _early(self, target: PreemptionTarget, head: Head) -> bool:
        """Whether only this decision makes it a target: it, or borrowers of its queue, got quota a moment
        ago.

        The next decision settles that; nothing that was within its quota is evicted for such a
        gain.
        """
        held = self._held.get(target.workload.name)
        if held is None:
            return False
        if held.name == head.name or target.workload.usage != held.usage:
            return True
        return held.queue != head.queue and not self._before.queues[held.queue].over_quota(held.usage)

    def _evict(self, target: PreemptionTarget, *, for_: Head) -> None:
        name = target.workload.name
        self._later.release(name)
        if name not in self._held:  # it got its quota, or was nominated for it, in this decision
            self.outbid.add(name)
            for victim, eviction in self._evictions.items():
                if eviction.preemptor == name:  # its victims now leave for the new holder of its room
                    path_ = self._later.node(for_.queue).path_text
                    self._evictions[victim] = replace(eviction, preemptor=for_.name, preemptor_path=path_)
            if self._decisions[name].phase is AdmissionPhase.ADMITTED:
                self._now.queues[target.workload.queue].remove(target.workload.usage)
            self._decisions[name] = AdmissionDecision(
                phase=AdmissionPhase.WAITING, why=f"{for_.name} goes before it"
            )
            return
        self._evictions[name] = Eviction(
            reason=target.reason,
            preemptor=for_.name,
            preemptor_path=self._later.node(for_.queue).path_text,
            preemptee_path=self._later.node(target.workload.queue).path_text,
        )

    def _waiting(self, decision: HeadDecision) -> AdmissionDecision:
        request, node = self._requests[decision.head.name], self._later.node(decision.head.queue)
        wants = decision.head.request
        return AdmissionDecision(
            phase=AdmissionPhase.WAITING,
            shortfalls=tuple(self._shortfalls(node, wants, request)),
            misfits=tuple(self._misfits(node, wants)),
            why=decision.why,
        )

    def _shortfalls(self, node: QuotaNode, wants: FlavorRequest, request: Head) -> Iterable[Shortfall]:
        held = held_of(self._held[request.name].usage) if request.name in self._held else {}
        covered = {resource for group in node.groups for resource in group.resources}
        for resource, value in wants.requests.items():
            if resource not in covered:
                yield Shortfall(FlavorResource("", resource), value, 0)
        for group in node.groups:
            for flavor in self._matching_flavors(wants, group.flavors):
                for resource in sorted(group.resources & wants.requests.keys()):
                    key = FlavorResource(flavor.name, resource)
                    most = max(0, node.available(key))
                    if (value := wants.requests[resource]) > most:
                        has = held.get(resource, 0)
                        yield Shortfall(key, value + has, most + has)

    def _matching_flavors(self, wants: FlavorRequest, flavors: Iterable[str]) -> Iterable[Flavor]:
        known = (self._flavors.get(name) for name in flavors)
        return (flavor for flavor in known if flavor is not None and not misfit(wants, flavor))

    def _misfits(self, node: QuotaNode, wants: FlavorRequest) -> Iterable[str]:
        for group in node.groups:
            if not group.resources & wants.requests.keys():
                continue
            for name in group.flavors:
                known = self._flavors.get(name)
                if known is None:
                    yield f"flavor {name} does not exist: create the ResourceFlavor"
                elif why := misfit(wants, known):
                    yield why


def held_of(usage: Amounts) -> dict[str, int]:
    """The held amount of each resource, in all flavors together."""
    return summed({key.resource: value} for key, value in usage.items())
