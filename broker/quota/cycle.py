"""One round of admission: decides about the heads of all queues together.

Invariant: each head is assigned flavors against the usage at the start of the round. Then heads are taken
in order, and one is admitted or given its victims only if it still fits after those before it. No quota
and no victim is given twice. A head that waits for quota of its own, and cannot reclaim it later,
keeps others of the round from it. The tree is unchanged on return; the caller applies the decisions to
the ledger.

The rule is Kueue's cycle without fair sharing (pkg/scheduler/scheduler.go): the shorter borrowing distance
comes first, then higher priority, then the longer wait. One difference: a head with victims of an earlier
head waits for the next round, while Kueue would decide again in the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from broker.quota.assign import FlavorAssignment, Simulation, assign
from broker.quota.candidates import fits
from broker.quota.flavors import Flavor, FlavorRequest
from broker.quota.ledger import QuotaLedger
from broker.quota.model import Amounts, FlavorResource, Mode, PreemptionTarget, Quota
from broker.quota.tree import QuotaNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A request for quota that waits. In a round, `request` is the part that is not held yet."""

    name: str
    queue: str
    request: FlavorRequest
    priority: int = 0
    queued: float = 0.0

    @property
    def rank(self) -> tuple[int, float, str]:
        """Sort key in its queue: the higher priority, then the longer wait, then by name."""
        return -self.priority, self.queued, self.name


@dataclass(frozen=True, slots=True)
class _Nominated:
    """A head with its possible assignment, and the victims that this needs."""

    head: Head
    node: QuotaNode
    assignment: FlavorAssignment
    targets: tuple[PreemptionTarget, ...]

    @property
    def turn(self) -> tuple[object, ...]:
        return self.assignment.level, *self.head.rank


class HeadOutcome(StrEnum):
    ADMIT = "Admit"
    PREEMPT = "Preempt"
    WAIT = "Wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadDecision:
    """The decision about a head; `why` is for people, and empty if it is admitted."""

    head: Head
    outcome: HeadOutcome
    assignment: FlavorAssignment = field(default_factory=FlavorAssignment)
    targets: tuple[PreemptionTarget, ...] = ()
    why: str = ""


@dataclass(slots=True)
class _Round:
    """The tree as it changes during a round, and the changes to undo."""

    ledger: QuotaLedger
    preempted: set[str] = field(default_factory=set)
    added: list[tuple[QuotaNode, Amounts]] = field(default_factory=list)
    removed: list[tuple[QuotaNode, Amounts]] = field(default_factory=list)

    def add(self, node: QuotaNode, amounts: Amounts) -> None:
        node.add(amounts)
        self.added.append((node, amounts))

    def take(self, targets: Iterable[PreemptionTarget]) -> None:
        for target in targets:
            node = self.ledger.node(target.workload.queue)
            node.remove(target.workload.usage)
            self.removed.append((node, target.workload.usage))
            self.preempted.add(target.workload.name)

    def undo(self) -> None:
        for node, amounts in self.added:
            node.remove(amounts)
        for node, amounts in self.removed:
            node.add(amounts)


def decide(ledger: QuotaLedger, heads: Iterable[Head], flavors: Mapping[str, Flavor]) -> list[HeadDecision]:
    """The decision about each head in this round, at most one a queue, in the order in which they were
    taken."""
    decisions: list[HeadDecision] = []
    entries: list[_Nominated] = []
    first: dict[str, str] = {}
    with ledger.stable():
        for head in heads:
            if (before := first.setdefault(head.queue, head.name)) != head.name:
                raise ValueError(
                    f"queue {head.queue} has two heads, {before} and {head.name}; give one a round"
                )
            entry = _nominate(ledger, head, flavors)
            if isinstance(entry, HeadDecision):
                decisions.append(entry)
            else:
                entries.append(entry)
    this = _Round(ledger)
    try:
        for entry in sorted(entries, key=lambda entry: entry.turn):
            decisions.append(_apply(this, entry))
    finally:
        this.undo()
    return decisions


def _nominate(ledger: QuotaLedger, head: Head, flavors: Mapping[str, Flavor]) -> _Nominated | HeadDecision:
    """The head's possible assignment now; a decision at once if no other head matters."""
    try:
        node = ledger.node(head.queue)
    except LookupError as error:
        return HeadDecision(head=head, outcome=HeadOutcome.WAIT, why=str(error.args[0]))
    oracle = Simulation(ledger, head.queue, head.priority, head.queued)
    given = assign(node, head.request, flavors, oracle)
    if given.mode is Mode.NO_FIT:
        return HeadDecision(
            head=head, outcome=HeadOutcome.WAIT, assignment=given, why="; ".join(given.reasons)
        )
    victims = oracle.targets(given.usage, given.needed) if given.mode is Mode.PREEMPT else ()
    return _Nominated(head, node, given, victims)


def _apply(this: _Round, entry: _Nominated) -> HeadDecision:
    """The decision about an entry after those before it."""
    head, node, assignment = entry.head, entry.node, entry.assignment

    def wait(why: str) -> HeadDecision:
        return HeadDecision(head=head, outcome=HeadOutcome.WAIT, assignment=assignment, why=why)

    if assignment.mode is Mode.PREEMPT and not entry.targets:
        if node.preemption.reclaim != "Any":
            this.add(node, _reserved(node, assignment))
        return wait(f"{'; '.join(assignment.reasons)}; nothing may be preempted for it")
    if taken := [target.workload.name for target in entry.targets if target.workload.name in this.preempted]:
        return wait(f"workload {taken[0]} makes room for another one; the next round decides")
    before = len(this.removed)
    this.take(entry.targets)
    if not fits(node, assignment.usage, borrow=True):
        for owner, amounts in this.removed[before:]:
            owner.add(amounts)
        del this.removed[before:]
        this.preempted.difference_update(target.workload.name for target in entry.targets)
        return wait("a workload before it in this round took the quota")
    this.add(node, assignment.usage)
    return HeadDecision(
        head=head,
        outcome=HeadOutcome.PREEMPT if entry.targets else HeadOutcome.ADMIT,
        assignment=assignment,
        targets=entry.targets,
        why="; ".join(assignment.reasons),
    )


def _reserved(node: QuotaNode, assignment: FlavorAssignment) -> dict[FlavorResource, int]:
    """The quota that a waiting head keeps from others of the round: its own, and borrowed quota if it
    would borrow."""
    reserved = {}
    for key, value in assignment.usage.items():
        quota = node.quotas.get(key, Quota())
        used = node.uses(key)
        if assignment.level == 0:
            reserved[key] = max(0, min(value, quota.nominal - used))
        elif quota.borrowing_limit is None:
            reserved[key] = value
        else:
            reserved[key] = max(0, min(value, quota.nominal + quota.borrowing_limit - used))
    return reserved
