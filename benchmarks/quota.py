"""The speed of entitlement: rounds of admission, and one preemption, beside a plain implementation.

Time in the world of the rounds stands still during a round. It jumps to the next workload's end when nothing
more can be admitted, so that only deciding is measured. Kueue's published figure for this shape, 50,000
workloads in 1,179 s, is of a whole Kueue with its API server and 50 requests a second. The writes of a
deciding process are therefore counted, not timed. Times are the deciding thread's processor time.
"""

from __future__ import annotations

import gc
import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, TypeVar

from benchmarks.figures import Figure, run
from benchmarks.quota_world import (
    FLAVORS,
    KEY,
    SECONDS,
    WaitingHeads,
    admitted,
    heads,
    lent_slots,
    plain_admit,
    plain_preempt,
    queues,
)
from broker.quota.classical import preempt
from broker.quota.cycle import Head, HeadDecision, HeadOutcome, decide
from broker.quota.flavors import FlavorRequest
from broker.quota.ledger import QuotaLedger
from broker.quota.model import AdmittedWorkload, Preemption, QuotaRequest
from broker.quota.slot_model import Member, SlotRequest
from broker.quota.slots import SlotTree
from broker.quota.tree import Tree

T = TypeVar("T")
NEEDED = frozenset((KEY,))
SAMPLE: Final = 40  # heads of a round that is too slow to measure in full
KUEUE = (
    42.4  # admissions a second: kueue v0.20, test/performance/scheduler/configs/large-scale, 50,000 / 1,179 s
)


@dataclass(slots=True)
class Rounds:
    """A cluster's days in fast motion."""

    ledger: QuotaLedger
    waiting: WaitingHeads
    arrivals: list[tuple[float, Head]]
    now: float = 0.0
    # When each ends, its name, and when it was admitted.
    running: list[tuple[float, str, float]] = field(default_factory=list)
    heads: dict[str, Head] = field(default_factory=dict)
    counts: dict[HeadOutcome, int] = field(default_factory=lambda: dict.fromkeys(HeadOutcome, 0))
    victims: int = 0
    seconds: float = 0.0

    def finish(self) -> None:
        """Rounds until no workload waits or runs."""
        while self.arrivals or len(self.waiting) or self.running:
            self.arrive()
            began = time.thread_time()
            taken = list(self.waiting.heads())
            decisions = decide(self.ledger, taken, FLAVORS)
            changed = [self.apply(decision) for decision in decisions]
            self.seconds += time.thread_time() - began
            if not any(changed):
                self.pass_time()

    def arrive(self) -> None:
        while self.arrivals and self.arrivals[-1][0] <= self.now:
            self.waiting.push(self.arrivals.pop()[1])

    def apply(self, decision: HeadDecision) -> bool:
        """Applies the decision. Returns whether quota changed hands."""
        head = decision.head
        self.counts[decision.outcome] += 1
        if decision.outcome is HeadOutcome.WAIT:
            self.waiting.set_aside(head)
            return False
        if decision.outcome is HeadOutcome.PREEMPT:
            for target in decision.targets:
                self.victims += 1
                self.ledger.release(target.workload.name)
                self.waiting.push(self.heads.pop(target.workload.name))
            self.waiting.wake({head.queue})
            self.waiting.push(head)
            return True
        self.ledger.admit(
            AdmittedWorkload(
                name=head.name,
                queue=head.queue,
                usage=decision.assignment.usage,
                priority=head.priority,
                queued=head.queued,
                reserved=self.now,
            )
        )
        self.heads[head.name] = head
        cores = head.request.requests["cpu"] // 1000
        heapq.heappush(self.running, (self.now + SECONDS[cores], head.name, self.now))
        return True

    def pass_time(self) -> None:
        """Jumps to the next moment at which a workload comes or ends; one that was preempted since does not
        end.
        """
        moments = [upcoming[0][0] for upcoming in (self.running[:1], self.arrivals[-1:]) if upcoming]
        self.now = min(moments, default=self.now)
        freed: set[str] = set()
        while self.running and self.running[0][0] <= self.now:
            _, name, since = heapq.heappop(self.running)
            held = self.ledger.workloads.get(name)
            if held is not None and held.reserved == since:
                self.ledger.release(name)
                freed.add(self.heads.pop(name).queue)
        self.waiting.wake(freed)


def measure(*, small: bool) -> Sequence[Figure]:
    """Decisions about entitlement, in the shape of Kueue's large-scale test."""
    return [*_rounds(small), *_one_round(small), *_preemptions(small)]


def _rounds(small: bool) -> list[Figure]:
    shape = (2, 10) if small else (10, 100)
    cluster_queues = queues(*shape)
    tree = Tree(cluster_queues)
    arrivals = sorted(
        ((head.queued, head) for head in heads(cluster_queues, 50)), key=lambda arrival: -arrival[0]
    )
    rounds = Rounds(QuotaLedger(tree), WaitingHeads(tree), list(arrivals))
    rounds.finish()
    admissions, decisions = rounds.counts[HeadOutcome.ADMIT], sum(rounds.counts.values())
    plain = _plain_rate(*shape, 20 if small else 200)
    size = f"{len(arrivals):,} workloads, {len(cluster_queues):,} queues"
    # An admission and an eviction each write a workload's status once.
    writes = admissions + rounds.victims
    return [
        Figure(
            name=f"decisions a second ({size})",
            measured=round(decisions / rounds.seconds),
            least=KUEUE,
            baseline=round(plain),
            of="adding up the cohort's usage for each decision",
        ),
        Figure(
            name="workloads through a second, deciding only",
            measured=round(len(arrivals) / rounds.seconds),
            least=KUEUE,
            baseline=KUEUE,
            of="Kueue's published rate, with its API writes",
        ),
        Figure(name="of the decisions: admitted (again after a preemption, too)", measured=admissions),
        Figure(name="of the decisions: preempts others", measured=rounds.counts[HeadOutcome.PREEMPT]),
        Figure(name="of the decisions: waits", measured=rounds.counts[HeadOutcome.WAIT]),
        Figure(name="API writes that these need, not timed", measured=writes),
        Figure(name="deciding all of it", measured=rounds.seconds, unit="s"),
    ]


def _one_round(small: bool) -> list[Figure]:
    """A head in each queue of one cohort, half of them beyond their quota; others lend them the rest, or must
    reclaim theirs."""
    many = 200 if small else 2000
    name = f"one round over {many:,} queues in a cohort"
    seconds = _seconds(QuotaLedger(Tree(queues(1, many))), many)
    figures = [Figure(name=name, measured=seconds, unit="s", most=1)]
    full = admitted(1, many, 20 * many)
    anew = _seconds(_UncachedLedger(full.tree), SAMPLE, held=full) * many / SAMPLE
    name = f"one round over {many:,} queues in a full cohort"
    seconds = _seconds(full, many)
    figures.append(
        Figure(name=name, measured=seconds, unit="s", most=1, baseline=anew, of="no cache between heads")
    )
    return [*figures, _slots(many)]


class _UncachedLedger(QuotaLedger):
    """A ledger without a cache between heads."""

    def cached(self, key: Any, compute: Callable[[], T]) -> T:
        del key
        return compute()


def _slots(many: int) -> Figure:
    """Each queue owns four slots and reclaims two of them from borrowers."""
    rule = Preemption(within="LowerPriority", reclaim="Any")
    members = [
        Member(name=f"q{n:04}", cohort="c", borrowing_limit={"f": None}, preemption=rule) for n in range(many)
    ]
    owned, holders = lent_slots(many)
    requests = [SlotRequest(name=f"w{n:04}", queue=f"q{n:04}", odcr_ids=(f"cr-{n:04}",)) for n in range(many)]
    began = time.thread_time()
    if not SlotTree(owned, members, holders).reclaim(requests):
        raise AssertionError("no slot is reclaimed")
    seconds = time.thread_time() - began
    return Figure(name=f"one decision about the slots of {many:,} queues", measured=seconds, unit="s", most=1)


def _seconds(ledger: QuotaLedger, many: int, *, held: QuotaLedger | None = None) -> float:
    """`held`: a ledger of the same tree that has the workloads already."""
    if held is not None:
        for workload in held.workloads.values():
            ledger.tree.queues[workload.queue].remove(workload.usage)
        for workload in held.workloads.values():
            ledger.admit(workload)
    heads = [
        Head(
            name=f"head-{number:04}",
            queue=name,
            request=FlavorRequest(requests={"cpu": (16_000, 24_000)[number % 2]}),
            priority=(50, 100, 200)[number % 3],
            queued=float(number % 7),
        )
        for number, name in enumerate(sorted(ledger.tree.queues)[:many])
    ]
    began = time.thread_time()
    if len(decide(ledger, heads, FLAVORS)) != many:
        raise AssertionError("a head has no decision")
    return time.thread_time() - began


def _plain_rate(cohorts: int, per_cohort: int, many: int) -> float:
    cluster_queues = queues(cohorts, per_cohort)
    workloads = list(admitted(cohorts, per_cohort, 20 * len(cluster_queues)).workloads.values())
    waiting_heads = [
        next(heads([cluster_queues[number % len(cluster_queues)]], 50)) for number in range(many)
    ]
    began = time.thread_time()
    for head in waiting_heads:
        plain_admit(workloads, cluster_queues, head)
    return many / (time.thread_time() - began)


def _preemptions(small: bool) -> list[Figure]:
    return [
        figure
        for cohorts, per_cohort in (((2, 10), (1, 20)) if small else ((10, 100), (1, 1000)))
        for figure in _one_preemption(cohorts, per_cohort)
    ]


def _one_preemption(cohorts: int, per_cohort: int) -> list[Figure]:
    """Queues below their own quota request the rest of it, in a cohort that others fill."""
    ledger = admitted(cohorts, per_cohort, 20 * cohorts * per_cohort)
    under = [node for node in ledger.tree.queues.values() if node.uses(KEY) < node.quota(KEY)]
    # So that one walk of the collector through the whole world is not taken for a slow decision.
    gc.collect()
    gc.freeze()
    requests = [
        QuotaRequest(queue=node.name, amounts={KEY: node.quota(KEY) - node.uses(KEY)}, priority=200)
        for node in under[:: max(1, len(under) // 100)]
    ]
    for request in requests[:2]:
        victims = [target.workload.name for target in preempt(ledger, request, NEEDED)]
        if not victims or sorted(victims) != sorted(plain_preempt(ledger, request)):
            raise AssertionError(f"the plain implementation preempts others for {request}: {victims}")
    plain = median(_milliseconds(lambda request: plain_preempt(ledger, request), requests[:2]))
    size = f"{len(ledger.workloads):,} admitted, {cohorts} x {per_cohort} queues"
    times = _milliseconds(lambda request: preempt(ledger, request, NEEDED), requests)
    return [
        Figure(
            name=f"one preemption, {size}",
            measured=median(times),
            unit="ms",
            most=10,
            baseline=plain,
            of="every workload read, usage summed anew",
        ),
        Figure(name=f"  slowest of {len(times)}", measured=max(times), unit="ms", most=10),
    ]


def _milliseconds(work: Callable[[QuotaRequest], object], requests: Sequence[QuotaRequest]) -> list[float]:
    times = []
    for request in requests:
        began = time.thread_time()
        work(request)
        times.append((time.thread_time() - began) * 1000)
    return times


if __name__ == "__main__":
    run(measure)
