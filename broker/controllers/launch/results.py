"""Applies fleet results: records shortages, reports to claims, and decides which claims to retry.

Invariant: an answer of EC2 is recorded before anything is planned again. Claims with an instance are written
while other calls are under way; each of them is written, or waits for adoption, when the pass ends. A claim
that was in a call and got no answer is not launched again in the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from broker.capacity.answers import answer, foremost, full, learn
from broker.capacity.attempts import Attempt
from broker.capacity.launches import LaunchGroup, RefusedAssignment
from broker.capacity.shortages import Shortages
from broker.controllers.claim_caches import ClaimCaches, Ec2State
from broker.controllers.launch.bind import Binder
from broker.controllers.launch.launch_pass import FleetResult, LaunchPass, PendingBind
from broker.controllers.launch.report import Reporter, limit
from broker.controllers.nodeclass.resolve import LaunchClass, Surroundings
from broker.doubling import doubled
from broker.kube.clock import Clock
from broker.kube.writers import WriterPool
from broker.oncall.journal import recorded
from providers.errors import ErrorClass, ProviderError

# First and longest wait: before a retry of the same launch; before a retry if the fault needs action.
RETRY = (timedelta(seconds=1), timedelta(seconds=60))
STOPPED = (timedelta(seconds=10), timedelta(minutes=5))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimHold:
    until: datetime
    times: int  # in a row
    seen: tuple[int, Surroundings]  # the class's generation, and the EC2 resources that it named


class ClaimHolds:
    """Claims that are not tried before a time, by uid, since no other option would help; for one thread.

    A hold is for the class as it was. When the class, or an EC2 resource that it names, changes, its claims
    are tried at once. Waits double as refusals repeat, up to a limit.
    """

    def __init__(self) -> None:
        self._holds: dict[str, ClaimHold] = {}

    def put(self, uid: str, ready: LaunchClass, waits: tuple[timedelta, timedelta], *, now: datetime) -> None:
        known = self._holds.get(uid)
        times = known.times + 1 if known else 1
        self._holds[uid] = ClaimHold(until=now + doubled(*waits, times - 1), times=times, seen=_seen(ready))

    def holds(self, uid: str, ready: LaunchClass, *, now: datetime) -> bool:
        hold = self._holds.get(uid)
        return hold is not None and hold.until > now and hold.seen == _seen(ready)

    def drop(self, uid: str) -> None:
        self._holds.pop(uid, None)

    def keep(self, uids: Collection[str]) -> None:
        """Forgets the holds of all other claims."""
        self._holds = {uid: hold for uid, hold in self._holds.items() if uid in uids}

    def ends(self) -> list[datetime]:
        return [hold.until for hold in self._holds.values()]


@dataclass(frozen=True, kw_only=True)
class LaunchHooks:
    """Calls after an answer of EC2, each for the class of the call or for its launch template."""

    doubt: Callable[[str], None]  # EC2 refused something that the class names
    launched: Callable[[LaunchClass], None]
    template_limit: Callable[[], None]  # EC2 makes no further template


class LaunchResults:
    """Only the one launch loop uses it; `shortages` and `holds` are inputs of its plans."""

    def __init__(
        self,
        caches: ClaimCaches,
        ec2: Ec2State,
        binder: Binder,
        reporter: Reporter,
        hooks: LaunchHooks,
        *,
        writers: WriterPool,
        clock: Clock,
    ) -> None:
        self._claims = caches.claims
        self._inventory, self._view = ec2.inventory, ec2.view
        self._binder = binder
        self._reporter = reporter
        self._hooks = hooks
        self._writers = writers
        self._clock = clock
        self.shortages = Shortages()
        self.holds = ClaimHolds()

    def apply(self, requested: LaunchGroup, result: FleetResult, work: LaunchPass) -> None:
        """Records the result, reports it, and decides which claims continue in this pass."""
        group, distribution, now = result.group, result.distribution, self._clock.now()
        ready = work.classes[group.node_class]
        if result.uncertain or not all(p.instance.described for p in distribution.pairs):
            self._view.doubt()
        if any(answer(error.class_).refresh for error in result.errors):
            self._hooks.doubt(group.node_class)
        if any(answer(error.class_).sweep for error in result.errors):
            self._hooks.template_limit()
        if distribution.pairs:
            self._hooks.launched(ready)
        inventory = work.snapshot.inventory
        self.shortages = learn(
            self.shortages, group, distribution, result.errors, inventory=inventory, now=now
        )
        for odcr_id in full(group, distribution, result.errors):
            self._inventory.full(odcr_id)
        self._view.put(pair.instance for pair in distribution.pairs)
        self._view.put(distribution.surplus)
        attempts, wait = self._binder.bind_all(
            result,
            ready,
            work.snapshot.types,
            skipped=work.skipped,
            before=work.attempts,
            begin=self._writers.begin,
        )
        for pair in distribution.pairs:
            work.waiting.pop(pair.claim.uid, None)
        bind = PendingBind(pairs=distribution.pairs, ready=ready, wait=wait)
        if group.gang:
            self._await(bind)  # the next plan counts how many of the gang have launched
        else:
            work.binds.append(bind)
        for refused in distribution.refused:
            refusals = self._binder.refusals(result, refused, ready)
            work.attempts.setdefault(refused.claim.uid, []).extend(refusals)
            attempts += refusals
            self._decide(refused, work)
        self._report_limits(attempts)
        # Only claims of the call continue; a claim that could not be marked is tried again soon.
        answered = {pair.claim.uid for pair in distribution.pairs}
        answered |= {refused.claim.uid for refused in distribution.refused}
        for assignment in requested.assignments:
            if (uid := assignment.claim.uid) not in answered:
                work.waiting.pop(uid, None)
                self.hold(uid, ready)

    def hold_unconfirmed(self, uid: str, work: LaunchPass, error: ProviderError | None) -> None:
        """Holds a claim with an earlier call that has no answer, or was refused again."""
        ready = work.classes[work.objects[uid].spec.node_class_ref.name]
        self.hold(uid, ready, STOPPED if error and answer(error.class_).stops else RETRY)

    def await_binds(self, work: LaunchPass) -> None:
        """Waits until every claim that got an instance is written."""
        while work.binds:
            self._await(work.binds.pop(0))

    def hold(self, uid: str, ready: LaunchClass, waits: tuple[timedelta, timedelta] = RETRY) -> None:
        self.holds.put(uid, ready, waits, now=self._clock.now())

    def _await(self, bind: PendingBind) -> None:
        bind.wait()
        for pair in bind.pairs:
            bound = self._claims.get(pair.claim.name)
            if bound is not None and bound.uid == pair.claim.uid and not bound.status.provider_id:
                self.hold(pair.claim.uid, bind.ready)  # it adopts its instance then
            else:
                self.holds.drop(pair.claim.uid)

    def _report_limits(self, attempts: Iterable[Attempt]) -> None:
        """Writes the last result of each class and pool only: a thousand attempts are one write."""
        last: dict[tuple[str, str], Attempt] = {}
        for attempt in attempts:
            if limit(attempt) is not None:
                claim = self._claims.get(attempt.claim)
                pool = claim.node_pool if claim is not None else ""
                last[attempt.node_class, pool] = attempt
        for attempt in last.values():
            self._reporter.limit(attempt)

    def _decide(self, refused: RefusedAssignment, work: LaunchPass) -> None:
        """Whether the claim tries its next option now, the same option later, or waits for an action."""
        uid, worst = refused.claim.uid, foremost(refused.errors)
        class_ = worst.class_ if worst else ErrorClass.TRANSIENT
        response = answer(class_, code=worst.code if worst else "")
        if response.elsewhere:
            return
        if class_ is ErrorClass.TEMPLATE_GONE and not work.retries.get(uid):
            work.retries[uid] = 1
            return
        self.hold(uid, work.classes[refused.claim.node_class], STOPPED if response.stops else RETRY)
        claim = work.waiting.pop(uid, None)
        if claim and worst:
            attempts = work.attempts.pop(uid, [])
            last = next((a for a in reversed(attempts) if a.code == worst.code), None)
            where = f"{last.pool.shown}: " if last else ""
            known = self._claims.get(claim.name) or work.objects[uid]
            refusals = [a.at for a in (*recorded(known), *attempts) if a.code == worst.code]
            self._reporter.waiting(
                known,
                reason=response.reason,
                message=f"{where}{worst.code}: {worst.message}; {response.next_step}",
                attempts=attempts,
                quiet=bool(refusals) and self._clock.now() - min(refusals) < response.quiet,
            )


def _seen(ready: LaunchClass) -> tuple[int, Surroundings]:
    return ready.source.metadata.generation, ready.surroundings
