"""Who gets quota, who waits and why, and who must give some back, over all reservations at once.

Invariant: what is held never exceeds a queue's nominal quota and what it may borrow. Two states of one
tree are kept: `now`, with everybody who holds quota, and `later`, without those on their way out. Whom to
preempt is decided on `later`, by Kueue's rules (`broker.quota.cycle`), so that nobody is preempted for
room that is being made already; quota is given only where it fits `now`, so that nothing is held twice
while somebody leaves. What was promised to one is not given to another, in the same decision or in a later
one: those that others leave for are nominated, and come first.

Who holds quota already and wants more asks for the rest, in the flavors that it holds: a cluster in two
flavors would be two clusters. The same state gives the same answer: nothing is remembered in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto
from typing import Final

from broker.quota.assign import SharingRules, assign
from broker.quota.candidates import covered, fits
from broker.quota.cycle import Head, HeadDecision, HeadOutcome, decide
from broker.quota.flavors import Expression, Flavor, PodSetRequest, misfit
from broker.quota.ledger import QuotaLedger
from broker.quota.model import (
    AdmittedWorkload,
    Amounts,
    FlavorResource,
    Mode,
    Possibility,
    PreemptionTarget,
    Queue,
    QuotaCohort,
    Reason,
)
from broker.quota.tree import QuotaNode, Tree
from broker.quota.waiting import WaitingHeads

# Times that a decision is made anew without what was given and lost again in it; the last one stands.
PASSES: Final = 4
# A label that only flavors in here have: the flavor's own name. No label of Kubernetes is written so.
_PIN = "#flavor"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """What wants quota, or more than it holds. `pods.requests` is all that it wants, `pods.count` is 1."""

    name: str
    queue: str
    pods: PodSetRequest
    priority: int = 0
    queued: float = 0.0


class _Turn(Enum):
    """The order in which wants are judged."""

    NOMINATED = auto()
    NEW = auto()
    GROWTH = auto()
    LAST = auto()


class AdmissionPhase(StrEnum):
    ADMITTED = "Admitted"  # it may have what `usage` says, now
    PREEMPTING = "Preempting"  # others are leaving for it
    WAITING = "Waiting"  # until somebody gives quota back
    NEVER = "Never"  # nobody's leaving would help


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What one flavor cannot give: `most` of what is `wanted`."""

    key: FlavorResource
    wanted: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionDecision:
    """`usage` is all that it holds from now on, where it is admitted, or once others have left. `lacks` and
    `misfits` say, where it is not, what each flavor cannot give and which flavors it may not run in."""

    standing: AdmissionPhase
    usage: Amounts = field(default_factory=dict)
    lacks: tuple[Shortfall, ...] = ()
    misfits: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Why somebody must give its quota back: for whom, and where both are in the tree."""

    reason: Reason
    preemptor: str
    preemptor_path: str
    preemptee_path: str


@dataclass(frozen=True, slots=True)
class Entitled:
    """By the name of who wants, and of who holds."""

    verdicts: Mapping[str, AdmissionDecision]
    evictions: Mapping[str, Eviction]


def entitle(
    queues: Sequence[Queue],
    cohorts: Sequence[QuotaCohort],
    *,
    holders: Iterable[AdmittedWorkload],
    wants: Iterable[ClusterRequest],
    rules: SharingRules,
    claimed: Iterable[AdmittedWorkload] = (),
    nominated: Collection[str] = (),
) -> Entitled:
    """Decides about all wants. `holders` hold quota, also those that are `evicted` and have not left; those
    of a queue that is not there any more count for nothing. `claimed` will hold some soon: each counts as far
    as its queue has it, or there is room for it. `nominated` are the wants and the claimed, by name, that
    room was made for by an earlier decision: they come before all others, so the room is given to nothing
    else.

    A want that gets quota here and loses it to a later one is judged again, last, as if it had come last:
    otherwise workloads would be evicted for a want that gets nothing."""
    there, soon, wanting = [*holders], [*claimed], [*wants]
    last: frozenset[str] = frozenset()
    for _ in range(PASSES):
        decision = _AdmissionRound(queues, cohorts, there, rules)
        found = decision.of(wanting, soon, nominated=frozenset(nominated), last=last)
        if decision.beaten <= last:
            break
        last |= decision.beaten
    return found


class _AdmissionRound:
    def __init__(
        self,
        queues: Sequence[Queue],
        cohorts: Sequence[QuotaCohort],
        holders: Iterable[AdmittedWorkload],
        rules: SharingRules,
    ) -> None:
        self._rules = replace(
            rules,
            flavors={
                name: replace(each, labels={**each.labels, _PIN: name})
                for name, each in rules.flavors.items()
            },
        )
        self._empty = Tree(queues, cohorts)
        self._before, self._now = Tree(queues, cohorts), Tree(queues, cohorts)
        self._later = QuotaLedger(Tree(queues, cohorts))
        self._held: dict[str, AdmittedWorkload] = {}
        for each in holders:
            self._hold(each)
        self.beaten: set[str] = set()  # those that got quota in this decision and lost it to others
        self._given: dict[str, AdmissionDecision] = {}
        self._evictions: dict[str, Eviction] = {}
        self._wants: dict[str, ClusterRequest] = {}
        self._nominated: frozenset[str] = frozenset()

    def _hold(self, each: AdmittedWorkload) -> None:
        if (node := self._now.queues.get(each.queue)) is None:
            return
        node.add(each.usage)
        self._before.queues[each.queue].add(each.usage)
        self._held[each.name] = each
        if not each.evicted:
            self._later.admit(each)

    def of(
        self,
        wants: Iterable[ClusterRequest],
        claimed: Sequence[AdmittedWorkload],
        *,
        nominated: frozenset[str],
        last: frozenset[str],
    ) -> Entitled:
        self._nominated = nominated
        # Growth comes last: what it is given is not taken from it with all that it held before.
        turns = {turn: WaitingHeads(self._later.tree) for turn in _Turn}
        for want in wants:
            if (held := self._held.get(want.name)) is not None and held.evicted:
                continue  # it leaves first
            self._wants[want.name] = want
            if (never := self._never(want)) is not None:
                self._given[want.name] = never
            elif want.name in nominated:
                turns[_Turn.NOMINATED].push(self._head(want))
            elif want.name in last:
                turns[_Turn.LAST].push(self._head(want))
            else:
                turns[_Turn.GROWTH if held else _Turn.NEW].push(self._head(want))
        self._claim(each for each in claimed if each.name in nominated)
        for turn, waiting in turns.items():
            self._rounds(waiting)
            if turn is _Turn.NOMINATED:
                self._claim(each for each in claimed if each.name not in nominated)
        return Entitled(self._given, self._evictions)

    def _claim(self, claimed: Iterable[AdmittedWorkload]) -> None:
        """Counts those as held that their queue has quota for, or that there is room for."""
        for each in claimed:
            later = self._later.tree.queues.get(each.queue)
            if later is not None and (covered(later, each.usage) or fits(later, each.usage, borrow=True)):
                self._hold(
                    replace(each, non_preemptible=each.non_preemptible or each.name in self._nominated)
                )

    def _rounds(self, waiting: WaitingHeads) -> None:
        """Until nobody is left to judge. A head that could have been admitted, but for what others were given
        in its round, is judged again in the next one, before those behind it."""
        again: set[str] = set()
        while heads := [*waiting.heads()]:
            staying = [head for head in heads if head.name not in self._evictions]
            for decision in decide(self._later, staying, self._rules):
                self._settle(decision)
                mode, name = decision.assignment.mode, decision.head.name
                lost = decision.outcome is HeadOutcome.WAIT and mode is not Mode.NO_FIT
                if lost and (mode is Mode.FIT or name not in again):
                    again.add(name)
                    waiting.push(decision.head)

    def _head(self, want: ClusterRequest) -> Head:
        held = self._held.get(want.name)
        pods = want.pods if held is None else self._rest(want, held)
        return Head(
            name=want.name, queue=want.queue, pod_sets=(pods,), priority=want.priority, queued=want.queued
        )

    def _rest(self, want: ClusterRequest, held: AdmittedWorkload) -> PodSetRequest:
        """What it does not hold yet, in the flavors that it holds."""
        has = held_of(held.usage)
        requests = {
            resource: value - has.get(resource, 0)
            for resource, value in want.pods.requests.items()
            if value > has.get(resource, 0)
        }
        own = {key.flavor for key in held.usage}
        groups = self._groups(want.queue)
        pinned = tuple(flavor for group in groups for flavor in ([f for f in group if f in own] or group))
        pin = Expression(_PIN, "In", pinned)
        terms = want.pods.affinity or ((),)
        return replace(want.pods, requests=requests, affinity=tuple((*term, pin) for term in terms))

    def _groups(self, queue: str) -> list[tuple[str, ...]]:
        node = self._now.queues.get(queue)
        return [] if node is None or node.queue is None else [group.flavors for group in node.queue.groups]

    def _never(self, want: ClusterRequest) -> AdmissionDecision | None:
        """Where not even an empty tree would do."""
        node = self._empty.queues.get(want.queue)
        if node is None:
            why = self._empty.inactive.get(want.queue, "there is no such queue")
            return AdmissionDecision(standing=AdmissionPhase.NEVER, why=f"queue {want.queue}: {why}")
        head = self._head(want)
        held = self._held.get(want.name)
        pods = head.pod_sets[0]
        if held is not None:
            node.add(held.usage)
        found = assign(node, (pods,), self._rules, lambda *_: (Possibility.NO_FIT, 0))
        lacks = () if found.mode is Mode.FIT else tuple(self._lacks(node, pods, want))
        if held is not None:
            node.remove(held.usage)
        if found.mode is Mode.FIT:
            return None
        return AdmissionDecision(
            standing=AdmissionPhase.NEVER, lacks=lacks, misfits=tuple(self._misfits(node, pods))
        )

    def _settle(self, decision: HeadDecision) -> None:
        head, targets = decision.head, decision.targets
        if decision.outcome is HeadOutcome.WAIT or any(self._early(each, head) for each in targets):
            self._given[head.name] = self._waits(decision)
            return
        for target in targets:
            self._evict(target, for_=head)
        usage = decision.assignment.usage
        total = self._promise(head, usage)
        now = self._now.queues[head.queue]
        if leaving := [each.workload.name for each in targets if each.workload.name in self._held]:
            names = ", ".join(leaving)
            why = f"{names} must leave first"
            self._given[head.name] = AdmissionDecision(
                standing=AdmissionPhase.PREEMPTING, usage=total, why=why
            )
        elif fits(now, usage, borrow=True):
            now.add(usage)
            self._given[head.name] = AdmissionDecision(standing=AdmissionPhase.ADMITTED, usage=total)
        else:
            why = "its quota is held by others that are leaving"
            self._given[head.name] = AdmissionDecision(
                standing=AdmissionPhase.PREEMPTING, usage=total, why=why
            )

    def _promise(self, head: Head, usage: Amounts) -> Amounts:
        """Counts it as held later, with what it holds already; all of that."""
        held = self._later.workloads.get(head.name)
        if held is None:
            held = AdmittedWorkload(
                name=head.name, queue=head.queue, usage={}, priority=head.priority, queued=head.queued
            )
        else:
            self._later.release(head.name)
        keys = {**held.usage, **usage}
        total = {key: held.usage.get(key, 0) + usage.get(key, 0) for key in keys}
        # What others left for is given to nothing else before it has it.
        self._later.admit(
            replace(held, usage=total, non_preemptible=held.non_preemptible or head.name in self._nominated)
        )
        return total

    def _early(self, target: PreemptionTarget, head: Head) -> bool:
        """Whether only this decision makes it a target: it got more a moment ago, or others of its queue did
        that borrow. The next look decides; nothing that was within its quota is taken for this one."""
        held = self._held.get(target.workload.name)
        if held is None:
            return False
        if held.name == head.name or target.workload.usage != held.usage:
            return True
        return held.queue != head.queue and not self._before.queues[held.queue].over_quota(held.usage)

    def _evict(self, target: PreemptionTarget, *, for_: Head) -> None:
        name = target.workload.name
        self._later.release(name)
        if name not in self._held:  # it got its quota, or the promise of it, a moment ago
            self.beaten.add(name)
            for victim, eviction in self._evictions.items():
                if eviction.preemptor == name:  # what leaves for it leaves for the one that has its room
                    path_ = path(self._later.node(for_.queue))
                    self._evictions[victim] = replace(eviction, preemptor=for_.name, preemptor_path=path_)
            if self._given[name].standing is AdmissionPhase.ADMITTED:
                self._now.queues[target.workload.queue].remove(target.workload.usage)
            self._given[name] = AdmissionDecision(
                standing=AdmissionPhase.WAITING, why=f"{for_.name} goes before it"
            )
            return
        self._evictions[name] = Eviction(
            reason=target.reason,
            preemptor=for_.name,
            preemptor_path=path(self._later.node(for_.queue)),
            preemptee_path=path(self._later.node(target.workload.queue)),
        )

    def _waits(self, decision: HeadDecision) -> AdmissionDecision:
        want, node = self._wants[decision.head.name], self._later.node(decision.head.queue)
        pods = decision.head.pod_sets[0]
        return AdmissionDecision(
            standing=AdmissionPhase.WAITING,
            lacks=tuple(self._lacks(node, pods, want)),
            misfits=tuple(self._misfits(node, pods)),
            why=decision.why,
        )

    def _lacks(self, node: QuotaNode, pods: PodSetRequest, want: ClusterRequest) -> Iterable[Shortfall]:
        held = held_of(self._held[want.name].usage) if want.name in self._held else {}
        covered = {
            resource for group in (node.queue.groups if node.queue else ()) for resource in group.resources
        }
        for resource, value in pods.requests.items():
            if resource not in covered:
                yield Shortfall(FlavorResource("", resource), value, 0)
        for group in node.queue.groups if node.queue else ():
            for flavor in self._fitting(pods, group.flavors):
                for resource in sorted(group.resources & pods.requests.keys()):
                    key = FlavorResource(flavor.name, resource)
                    most = max(0, node.available(key))
                    if (value := pods.requests[resource]) > most:
                        has = held.get(resource, 0)
                        yield Shortfall(key, value + has, most + has)

    def _fitting(self, pods: PodSetRequest, flavors: Iterable[str]) -> Iterable[Flavor]:
        known = (self._rules.flavors.get(name) for name in flavors)
        return (each for each in known if each is not None and not misfit(pods, each))

    def _misfits(self, node: QuotaNode, pods: PodSetRequest) -> Iterable[str]:
        for group in node.queue.groups if node.queue else ():
            if not group.resources & pods.requests.keys():
                continue
            for name in group.flavors:
                known = self._rules.flavors.get(name)
                if known is None:
                    yield f"flavor {name} is not there: create the ResourceFlavor"
                elif why := misfit(pods, known):
                    yield why


def held_of(usage: Amounts) -> dict[str, int]:
    """What is held of each resource, in all flavors together."""
    found: dict[str, int] = {}
    for key, value in usage.items():
        found[key.resource] = found.get(key.resource, 0) + value
    return found


def path(node: QuotaNode) -> str:
    """From the root down to the queue, as Kueue writes it into the condition of who is preempted."""
    return "/" + "/".join(each.name for each in (*reversed([*node.path()]), node))
