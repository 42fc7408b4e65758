"""What follows from the answers to fleet calls: what is remembered, who is told, and who goes on.

Invariant: what EC2 said is remembered before anything is planned again; claims with an instance are written
while other calls are under way, and each of them is written, or held for adoption, when the pass ends. A
claim that was in a call and got no answer is not asked for again in the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.answers import answer, foremost, full, learn
from broker.capacity.launches import LaunchGroup, LeftOver
from broker.capacity.model import Attempt, Inventory
from broker.capacity.shortages import Shortages
from broker.controllers.inventory import InventoryKeeper
from broker.controllers.nodeclaim.answered import Answered
from broker.controllers.nodeclaim.execute import Executor
from broker.controllers.nodeclaim.holds import RETRY, STOPPED, Holds
from broker.controllers.nodeclaim.instances import InstanceView
from broker.controllers.nodeclaim.report import Reporter, limit
from broker.controllers.nodeclaim.work import Pass, Written
from broker.controllers.nodeclaim.writers import Writers
from broker.controllers.nodeclass.resolve import LaunchClass
from broker.kube.cache import Cache
from broker.kube.clock import Clock
from providers.model import ErrorClass


class Outcomes:
    """Used by the one launch loop alone; `shortages` and `holds` are what it plans with."""

    def __init__(
        self,
        claims: Cache[NodeClaim],
        inventory: InventoryKeeper,
        view: InstanceView,
        executor: Executor,
        reporter: Reporter,
        *,
        clock: Clock,
        writers: Writers,
        limits: Callable[[Attempt], None],
        doubt: Callable[[str], None],
        sweep: Callable[[], None],
        launched: Callable[[LaunchClass], None],
    ) -> None:
        self._claims = claims
        self._inventory = inventory
        self._view = view
        self._executor = executor
        self._reporter = reporter
        self._clock = clock
        self._writers = writers
        self._limits = limits
        self._doubt = doubt
        self._sweep = sweep
        self._launched = launched
        self.shortages = Shortages()
        self.holds = Holds()

    def settle(self, asked: LaunchGroup, answered: Answered, work: Pass, inventory: Inventory) -> None:
        """Remembers what EC2 said, tells the claims, and decides who goes on in this pass."""
        group, dealt, now = answered.group, answered.dealt, self._clock.now()
        ready = work.classes[group.node_class]
        if answered.uncertain or not all(p.instance.described for p in dealt.pairs):
            self._view.doubt()
        if any(answer(error.class_).refresh for error in answered.errors):
            self._doubt(group.node_class)
        if any(answer(error.class_).sweep for error in answered.errors):
            self._sweep()
        if dealt.pairs:
            self._launched(ready)
        self.shortages = learn(self.shortages, group, dealt, answered.errors, inventory=inventory, now=now)
        for odcr_id in full(group, dealt, answered.errors):
            self._inventory.full(odcr_id)
        self._view.put(pair.instance for pair in dealt.pairs)
        self._view.put(dealt.surplus)
        told, bound = self._executor.binder.tell(
            answered,
            ready,
            work.types,
            skipped=work.skipped,
            before=work.attempts,
            begin=self._writers.begin,
        )
        for pair in dealt.pairs:
            work.waiting.pop(pair.claim.uid, None)
        written = Written(pairs=dealt.pairs, ready=ready, wait=bound)
        if group.gang:
            self._finish(written)  # the next plan counts how many of the gang have launched
        else:
            work.written.append(written)
        for left in dealt.left:
            attempts = self._executor.binder.refusals(answered, left, ready)
            work.attempts.setdefault(left.claim.uid, []).extend(attempts)
            told += attempts
            self._decide(left, work)
        self._tell_limits(told)
        # Only claims that were asked for go on; one that could not be marked is tried again soon.
        answered_for = {p.claim.uid for p in dealt.pairs} | {each.claim.uid for each in dealt.left}
        for assignment in asked.assignments:
            if (uid := assignment.claim.uid) not in answered_for:
                work.waiting.pop(uid, None)
                self.hold(uid, ready)

    def finish(self, work: Pass) -> None:
        """Waits until every claim that got an instance is written."""
        while work.written:
            self._finish(work.written.pop(0))

    def hold(self, uid: str, ready: LaunchClass, waits: tuple[timedelta, timedelta] = RETRY) -> None:
        self.holds.put(uid, ready, waits, now=self._clock.now())

    def _finish(self, written: Written) -> None:
        written.wait()
        for pair in written.pairs:
            bound = self._claims.get(pair.claim.name)
            if bound is not None and bound.uid == pair.claim.uid and not bound.status.provider_id:
                self.hold(pair.claim.uid, written.ready)  # it adopts its instance then
            else:
                self.holds.drop(pair.claim.uid)

    def _tell_limits(self, attempts: Iterable[Attempt]) -> None:
        """The last word on the reservations of each class and pool: a thousand attempts are one write."""
        last: dict[tuple[str, str], Attempt] = {}
        for attempt in attempts:
            if limit(attempt) is not None:
                claim = self._claims.get(attempt.claim)
                pool = claim.labels.get(names.NODEPOOL, "") if claim is not None else ""
                last[attempt.node_class, pool] = attempt
        for attempt in last.values():
            self._limits(attempt)

    def _decide(self, left: LeftOver, work: Pass) -> None:
        """Whether the claim tries its next option now, the same again later, or waits for a person."""
        uid, worst = left.claim.uid, foremost(left.errors)
        class_ = worst.class_ if worst else ErrorClass.TRANSIENT
        told = answer(class_, code=worst.code if worst else "")
        if told.elsewhere:
            return
        if class_ is ErrorClass.TEMPLATE_GONE and not work.repeats.get(uid):
            work.repeats[uid] = 1
            return
        self.hold(uid, work.classes[left.claim.node_class], STOPPED if told.stops else RETRY)
        claim = work.waiting.pop(uid, None)
        if claim and worst:
            attempts = work.attempts.pop(uid, [])
            last = next((a for a in reversed(attempts) if a.code == worst.code), None)
            where = f"{last.pool}: " if last else ""
            known = self._claims.get(claim.name) or work.objects[uid]
            self._reporter.waiting(
                known,
                reason=told.reason,
                message=f"{where}{worst.code}: {worst.message}; {told.next_step}",
                attempts=attempts,
                quiet=told.quiet,
            )
