"""The one loop that launches: observe, plan, act, until nothing that waits can be launched now.

Invariant: it never runs twice at once and never plans without EC2's description; orphans are adopted before
anything is launched; what refuses is not asked again in the pass, so the pass ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import groupby
from typing import TypeVar

import structlog

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity import launches
from broker.capacity.answers import answer, foremost, full, learn
from broker.capacity.model import Attempt, Inventory, Plan, Unplaced
from broker.capacity.shortages import Scope, Shortages
from broker.capacity.solve import SECONDS
from broker.controllers.inventory import InventoryKeeper
from broker.controllers.nodeclaim import planning
from broker.controllers.nodeclaim.answered import GANG_BROKEN, Answered
from broker.controllers.nodeclaim.execute import Executor
from broker.controllers.nodeclaim.holds import RETRY, STOPPED, Holds
from broker.controllers.nodeclaim.instances import InstanceView
from broker.controllers.nodeclaim.leftovers import Leftovers
from broker.controllers.nodeclaim.report import Reporter, limit
from broker.controllers.nodeclaim.template import template_key
from broker.controllers.nodeclaim.translate import BadClaim, planned
from broker.controllers.nodeclaim.work import Pass
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.resolve import LaunchClass, Unresolved
from broker.kube.bugs import contained
from broker.kube.cache import Cache
from broker.kube.clock import Clock
from broker.kube.controller import Again
from providers.base import CapacityProvider
from providers.model import ErrorClass, InstanceType, ProviderError

ROUNDS = 64
PARALLEL = 8
MANY = 16
LONGEST_WAIT = 60.0
DOUBTED = 5.0  # until EC2 is looked at again for what it did not show
REMEMBERED = "ShortageRemembered"  # the planner's word for refusals that are not over
_log = structlog.get_logger("launch")

T = TypeVar("T")
R = TypeVar("R")


class Launcher:
    """`run` is called by a Singleton; everything else is its steps."""

    def __init__(
        self,
        provider: CapacityProvider,
        claims: Cache[NodeClaim],
        classes: NodeClassController,
        inventory: InventoryKeeper,
        view: InstanceView,
        executor: Executor,
        reporter: Reporter,
        *,
        clock: Clock,
        owns: Callable[[NodeClaim], bool],
        limits: Callable[[Attempt], None],
        doubt: Callable[[str], None],
        plan_seconds: float = SECONDS,
        entitling: Callable[[], planning.Entitling] = planning.Free,
    ) -> None:
        self._provider = provider
        self._claims = claims
        self._classes = classes
        self._inventory = inventory
        self._view = view
        self._executor = executor
        self._reporter = reporter
        self._clock = clock
        self._owns = owns
        self._limits = limits
        self._doubt = doubt
        self._plan_seconds = plan_seconds
        self._entitling = entitling
        self._shortages = Shortages()
        self._holds = Holds()
        self._announced: deque[tuple[Scope, str, str]] = deque()
        self._leftovers = Leftovers(claims, inventory, view, executor, reporter, clock=clock, limits=limits)
        self._launching: frozenset[str] = frozenset()
        self._unsure: frozenset[str] | None = None  # claims whose last call has no answer yet
        self._pool = ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix="fleet")

    @property
    def shortages(self) -> Shortages:
        return self._shortages

    def launching(self, uid: str) -> bool:
        """Whether EC2 is being asked for this claim right now, or was and the answer is not known."""
        return uid in self._launching or self._unsure is None or uid in self._unsure

    def announced(self, scope: Scope, *, code: str, message: str) -> None:
        """EC2 says by itself that a pool has nothing more to give: as good as a refusal. For any thread."""
        self._announced.append((scope, code, message))

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def run(self, _items: Sequence[str]) -> Again | None:
        """One pass. Raises ProviderError where EC2 cannot be read at all."""
        claims = [claim for claim in self._claims.list() if self._owns(claim)]
        self._unsure = self._leftovers.look(self._claims.list())
        waiting = [c for c in claims if not c.status.provider_id and not c.deleting]
        if not self._inventory.described:
            self._blind(waiting, self._inventory.error)
            return Again(1.0)
        if not self._entitling().begin():
            return Again(0.2)
        try:
            self._view.refresh()
            self._lose_gone(claims)
            # Any claim may own an instance, also one of another launcher that was taken over.
            orphans = self._view.orphans(self._claims.list())
            types = self._provider.instance_types()
        except ProviderError as error:
            self._blind(waiting, error)
            raise
        self._shortages = self._shortages.observed(self._inventory.snapshot(), self._clock.now())
        self._hear()
        self._holds.keep({claim.uid for claim in waiting})
        work = self._observe(waiting, types)
        self._leftovers.settle(work, orphans, self._not_yet(work))
        self._unsure = self._leftovers.look(self._claims.list())
        retry_at = self._launch(work)
        self._executor.tidy(self._claims.list())
        now = self._clock.now()
        wakes = [at for at in (*retry_at, *self._holds.ends()) if at > now]
        soonest = min(((at - now).total_seconds() for at in wakes), default=LONGEST_WAIT)
        return Again(min(DOUBTED if self._view.doubted else LONGEST_WAIT, max(0.2, soonest)))

    def _hear(self) -> None:
        """Remembers what EC2 announced since the last pass."""
        inventory = self._inventory.snapshot()
        while self._announced:
            scope, code, message = self._announced.popleft()
            self._shortages = self._shortages.record(
                scope,
                class_=ErrorClass.CAPACITY,
                code=code,
                now=self._clock.now(),
                free=inventory.free(scope.key) if scope.kind == "reservation" else 0,
                message=message,
            )

    def _blind(self, waiting: Iterable[NodeClaim], error: ProviderError | None) -> None:
        """Nothing is decided before EC2 was seen; the claims are told why it was not."""
        if error is None:
            return  # it is seen in a moment
        for claim in waiting:
            self._reporter.waiting(claim, reason=answer(error.class_).reason, message=str(error))

    def _observe(self, waiting: Sequence[NodeClaim], types: Mapping[str, InstanceType]) -> Pass:
        """The claims that can be planned; each of the others is told why not."""
        work = Pass(classes={}, plans={}, types=types, waiting={}, objects={})
        now = self._clock.now()
        for claim in waiting:
            try:
                wanted = planned(claim, template=template_key(claim))
                ready = self._classes.ready(wanted.node_class)
            except (BadClaim, Unresolved) as error:
                if not (isinstance(error, Unresolved) and error.passing):
                    self._reporter.waiting(claim, reason=error.reason, message=error.message)
                continue
            if self._holds.holds(claim.uid, ready, now=now):
                continue
            work.classes[wanted.node_class] = ready
            work.plans[wanted.node_class] = ready.plan
            work.waiting[claim.uid] = wanted
            work.objects[claim.uid] = claim
        work.held.update(
            launch
            for claim in waiting
            if claim.uid not in work.waiting and (launch := claim.annotations.get(names.LAUNCH))
        )
        return work

    def _launch(self, work: Pass) -> list[datetime]:
        """Plans and launches until nothing more can be; returns when remembered shortages end."""
        result = Plan()
        for _ in range(ROUNDS):
            if not work.waiting:
                break
            now = self._clock.now()
            inventory = self._inventory.snapshot()
            result = planning.solved(
                work.waiting.values(),
                work.plans,
                work.types,
                inventory,
                self._shortages,
                now,
                launched=planning.in_gangs(self._claims.list()),
                entitlements=self._entitling().entitlements(
                    {uid: work.objects[uid] for uid in work.waiting}, inventory, work.types
                ),
                seconds=self._plan_seconds,
                clock=self._clock,
            )
            self._entitling().planned(result)
            if not result.assignments:
                break
            work.skipped = result.skipped
            self._round(self._waves(result, work, now), work, inventory)
        left = [unplaced for unplaced in result.unplaced if unplaced.claim.uid in work.waiting]
        self._each(lambda unplaced: self._tell_unplaced(unplaced, work), left)
        return [unplaced.retry_at for unplaced in left if unplaced.retry_at]

    def _each(self, does: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Writes for many claims wait for the API server together; for a few, threads are not worth it."""
        return [*map(does, items)] if len(items) < MANY else [*self._pool.map(does, items)]

    def _waves(self, result: Plan, work: Pass, now: datetime) -> list[list[launches.LaunchGroup]]:
        groups = launches.group(
            result.assignments,
            node_classes=work.plans,
            types=work.types,
            shortages=self._shortages,
            now=now,
        )
        return [list(wave) for _, wave in groupby(groups, key=lambda each: each.wave)]

    def _round(
        self, waves: Sequence[Sequence[launches.LaunchGroup]], work: Pass, inventory: Inventory
    ) -> None:
        """The calls of one plan, those that do not compete for a slot at the same time; then what follows."""
        self._launching = frozenset(a.claim.uid for wave in waves for g in wave for a in g.assignments)
        try:
            answers: list[Answered] = []
            for wave in waves:
                calls = [
                    self._pool.submit(self._call, group, work.classes[group.node_class]) for group in wave
                ]
                answers += [call.result() for call in calls]
            for answered in self._given_back(answers):
                self._settle(answered, work, inventory)
        finally:
            self._unsure = self._leftovers.look(self._claims.list())
            self._launching = frozenset()

    def _call(self, group: launches.LaunchGroup, ready: LaunchClass) -> Answered:
        """One call; a bug in it is not the bug of the others, whose instances are to be told of."""
        with contained("launch", nodeclass=group.node_class, claims=group.count):
            return self._executor.launch(group, ready)
        return Answered(group=group, dealt=launches.Distribution(), errors=(), uncertain=True)

    def _given_back(self, answers: Sequence[Answered]) -> list[Answered]:
        """Instances that a claim did not ask for end at once, and those of a gang that is not whole."""
        kept = [answered.kept_out() for answered in answers]
        broken = {pair.claim.uid for pair in launches.undone(answered.dealt for answered in kept)}
        whole = [answered.without(broken, answered.errors or (GANG_BROKEN,)) for answered in kept]
        before = {p.instance.id: p.instance for answered in answers for p in answered.dealt.pairs}
        for answered in whole:
            for pair in answered.dealt.pairs:
                del before[pair.instance.id]
        self._view.put(before.values())
        try:
            self._view.terminate([*before.values()], why="the launch did not give what its claims ask for")
        except ProviderError as error:
            # They are orphans now, and end when their grace time does.
            _log.warning("instances could not be given back", error=str(error))
        return whole

    def _settle(self, answered: Answered, work: Pass, inventory: Inventory) -> None:
        """Remembers what EC2 said, tells the claims, and decides who goes on in this pass."""
        group, now = answered.group, self._clock.now()
        ready = work.classes[group.node_class]
        if answered.uncertain or not all(p.instance.described for p in answered.dealt.pairs):
            self._view.doubt()
        if any(answer(error.class_).refresh for error in answered.errors):
            self._doubt(group.node_class)
        self._shortages = learn(
            self._shortages, group, answered.dealt, answered.errors, inventory=inventory, now=now
        )
        for odcr_id in full(group, answered.dealt, answered.errors):
            self._inventory.full(odcr_id)
        self._view.put(pair.instance for pair in answered.dealt.pairs)
        self._view.put(answered.dealt.surplus)
        told = self._executor.binder.tell(
            answered, ready, work.types, skipped=work.skipped, before=work.attempts, each=self._each
        )
        for pair in answered.dealt.pairs:
            work.waiting.pop(pair.claim.uid, None)
            bound = self._claims.get(pair.claim.name)
            if bound is not None and bound.uid == pair.claim.uid and not bound.status.provider_id:
                self._hold(pair.claim.uid, ready)  # it adopts its instance then
            else:
                self._holds.drop(pair.claim.uid)
        for left in answered.dealt.left:
            attempts = self._executor.binder.refusals(answered, left, ready)
            work.attempts.setdefault(left.claim.uid, []).extend(attempts)
            told += attempts
            self._decide(left, work)
        self._tell_limits(told)
        # Only claims that were asked for go on; one that could not be marked is tried again soon.
        asked = {a.claim.uid for a in group.assignments}
        answered_for = {p.claim.uid for p in answered.dealt.pairs} | {
            each.claim.uid for each in answered.dealt.left
        }
        for uid in asked - answered_for:
            work.waiting.pop(uid, None)
            self._hold(uid, ready)

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

    def _decide(self, left: launches.LeftOver, work: Pass) -> None:
        """Whether the claim tries its next option now, the same again later, or waits for a person."""
        uid, worst = left.claim.uid, foremost(left.errors)
        class_ = worst.class_ if worst else ErrorClass.TRANSIENT
        told = answer(class_)
        if told.elsewhere:
            return
        if class_ is ErrorClass.TEMPLATE_GONE and not work.repeats.get(uid):
            work.repeats[uid] = 1
            return
        self._hold(uid, work.classes[left.claim.node_class], STOPPED if told.stops else RETRY)
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
                notes=self._executor.intents.settled(known),
            )

    def _not_yet(self, work: Pass) -> Callable[[str, ProviderError | None], None]:
        def hold(uid: str, error: ProviderError | None) -> None:
            ready = work.classes[work.objects[uid].spec.node_class_ref.name]
            self._hold(uid, ready, STOPPED if error and answer(error.class_).stops else RETRY)

        return hold

    def _hold(self, uid: str, ready: LaunchClass, waits: tuple[timedelta, timedelta] = RETRY) -> None:
        self._holds.put(uid, ready, waits, now=self._clock.now())

    def _tell_unplaced(self, unplaced: Unplaced, work: Pass) -> None:
        uid = unplaced.claim.uid
        attempts = work.attempts.pop(uid, [])
        reason, message = unplaced.reason, unplaced.message
        refused = [a for a in attempts if a.class_]
        # What EC2 said, now or lately, says more than that nothing is left.
        if refused and refused[-1].class_:
            reason = answer(refused[-1].class_).reason
            message = f"{refused[-1].pool}: {refused[-1].code}: {refused[-1].message}; {unplaced.message}"
        elif reason == REMEMBERED:
            reason = next((answer(s.class_).reason for s in unplaced.skipped if s.class_), reason)
        if unplaced.retry_at:
            message += f"; tried again at {unplaced.retry_at:%Y-%m-%dT%H:%M:%SZ}"
        known = self._claims.get(unplaced.claim.name) or work.objects[uid]
        self._reporter.waiting(
            known,
            reason=reason,
            message=message,
            attempts=attempts,
            skipped=unplaced.skipped,
            notes=self._executor.intents.settled(known),
        )

    def _lose_gone(self, claims: Sequence[NodeClaim]) -> None:
        for claim in self._view.gone(claims):
            self._reporter.lost(claim)
