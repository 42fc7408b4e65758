"""The one loop that launches: observe, plan, act, until nothing that waits can be launched now.

Invariant: it never runs twice at once and never plans without EC2's description; orphans are adopted before
anything is launched; what refuses is not asked again in the pass, so the pass ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor as Threads
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from datetime import datetime
from itertools import groupby
from typing import Any

import structlog

from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.capacity import launches
from broker.capacity.answers import answer
from broker.capacity.model import Attempt, Inventory, Plan, Unplaced
from broker.capacity.shortages import Scope, Shortages
from broker.capacity.solve import SECONDS
from broker.controllers.inventory import InventoryKeeper
from broker.controllers.nodeclaim import planning
from broker.controllers.nodeclaim.answered import GANG_BROKEN, Answered
from broker.controllers.nodeclaim.execute import NOT_RECORDED, Executor
from broker.controllers.nodeclaim.holds import RETRY, STOPPED
from broker.controllers.nodeclaim.instances import InstanceView
from broker.controllers.nodeclaim.leftovers import Leftovers
from broker.controllers.nodeclaim.losses import Losses
from broker.controllers.nodeclaim.outcomes import Outcomes
from broker.controllers.nodeclaim.report import Reporter
from broker.controllers.nodeclaim.standstill import Inputs, Standstill
from broker.controllers.nodeclaim.template import template_key
from broker.controllers.nodeclaim.translate import BadClaim, planned
from broker.controllers.nodeclaim.work import Pass
from broker.controllers.nodeclaim.writers import MANY, Writers
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.resolve import LaunchClass, Unresolved
from broker.kube.cache import Cache
from broker.kube.clock import Clock
from broker.kube.controller import Result
from broker.kube.errors import ApiError
from broker.kube.panics import guarded
from broker.kube.suspects import DeferredPanic, Panic
from providers.base import CapacityProvider
from providers.model import ErrorClass, InstanceType, ProviderError

ROUNDS = 64
PARALLEL = 8
LONGEST_WAIT = 60.0
REMEMBERED = "BackingOff"  # the planner's word for refusals that are not over
_log = structlog.get_logger("launch")


class Launcher:
    """`run` is called by a Singleton; everything else is its steps."""

    def __init__(
        self,
        provider: CapacityProvider,
        claims: Cache[NodeClaim],
        nodes: Cache[Node],
        classes: NodeClassController,
        inventory: InventoryKeeper,
        view: InstanceView,
        executor: Executor,
        reporter: Reporter,
        losses: Losses,
        *,
        clock: Clock,
        owns: Callable[[NodeClaim], bool],
        limits: Callable[[Attempt], None],
        doubt: Callable[[str], None],
        sweep: Callable[[], None] = lambda: None,
        launched: Callable[[LaunchClass], None] = lambda _: None,
        plan_seconds: float = SECONDS,
        entitling: planning.Entitling,
        threads: Threads | None = None,
    ) -> None:
        """`threads` makes the calls of a wave; a pool of its own where none is given."""
        self._provider = provider
        self._claims = claims
        self._classes = classes
        self._inventory = inventory
        self._view = view
        self._executor = executor
        self._reporter = reporter
        self._losses = losses
        self._clock = clock
        self._owns = owns
        self._writers = Writers("claims")
        self._plan_seconds = plan_seconds
        self._entitling = entitling
        self._announced: deque[tuple[Scope, str, str]] = deque()
        self._leftovers = Leftovers(
            claims, nodes, inventory, view, executor, reporter, clock=clock, limits=limits
        )
        self._outcomes = Outcomes(
            claims,
            inventory,
            view,
            executor,
            reporter,
            clock=clock,
            writers=self._writers,
            limits=limits,
            doubt=doubt,
            sweep=sweep,
            launched=launched,
        )
        self._standstill = Standstill()
        self._failed: dict[Panic, Collection[str]] = {}  # of calls of this pass, and their claims
        self._untold = False  # whether a claim could not be told in this pass
        self._launching: frozenset[str] = frozenset()
        self._unsure: frozenset[str] | None = None  # claims whose last call has no answer yet
        self._pool = threads or ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix="fleet")

    @property
    def shortages(self) -> Shortages:
        return self._outcomes.shortages

    def launching(self, uid: str) -> bool:
        """Whether EC2 is being asked for this claim right now, or was and the answer is not known."""
        return uid in self._launching or self._unsure is None or uid in self._unsure

    def announced(self, scope: Scope, *, code: str, message: str) -> None:
        """EC2 says by itself that a pool has nothing more to give: as good as a refusal. For any thread."""
        self._announced.append((scope, code, message))

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        self._executor.close()
        self._writers.close()
        self._losses.close()

    def run(self, _items: Sequence[str]) -> Result | None:
        """One pass. Raises ProviderError where EC2 cannot be read at all."""
        claims = [claim for claim in self._claims.list() if self._owns(claim)]
        waiting = [c for c in claims if not c.status.provider_id and not c.deleting]
        try:
            self._executor.calls.load()
        except ApiError as error:
            for claim in waiting:
                self._tell(claim, reason=NOT_RECORDED, message=f"open calls to EC2 cannot be read: {error}")
            raise
        unsettled = self._leftovers.unsettled()
        self._unsure = self._waits_for_call()
        if not self._inventory.described:
            self._blind(waiting, self._inventory.error)
            return Result(requeue_after=1.0)
        if not self._entitling.begin():
            return Result(requeue_after=0.2)
        try:
            self._view.refresh()
            self._losses.settle(self._view.missing(claims), claims)
            # Any claim may own an instance, also one of another launcher that was taken over.
            orphans = self._view.orphans(self._claims.list())
            types = self._provider.instance_types()
        except ProviderError as error:
            self._blind(waiting, error)
            raise
        self._outcomes.shortages = self._outcomes.shortages.observed(
            self._inventory.snapshot(), self._clock.now()
        )
        self._hear()
        self._outcomes.holds.keep({claim.uid for claim in waiting})
        inputs = self._inputs(waiting, types)
        if not orphans and not unsettled and (until := self._standstill.until(inputs, self._clock.now())):
            if self._leftovers.finish():
                self._executor.tidy(self._claims.list())
            return self._again([until])
        self._standstill.forget()
        self._untold = False
        work = self._observe(waiting, types)
        self._leftovers.settle(work, orphans, self._not_yet(work))
        self._unsure = self._waits_for_call()
        retry_at = self._launch(work)
        self._executor.tidy(self._claims.list())
        self._raise_failed()
        now = self._clock.now()
        wakes = [at for at in (*retry_at, *self._outcomes.holds.ends()) if at > now]
        if not self._untold:
            self._standstill.passed(inputs, now=now, wakes=min(wakes, default=None))
        return self._again(wakes)

    def _raise_failed(self) -> None:
        """The bug of a call, once all calls are answered: it leads to the object that is left out then."""
        failed, self._failed = self._failed, {}
        for uid in (uid for uids in failed.values() for uid in uids):
            self._outcomes.holds.drop(uid)
        for panic in failed:
            raise DeferredPanic(panic)

    def _waits_for_call(self) -> frozenset[str]:
        return self._executor.calls.waiting(self._claims.list())

    def _again(self, wakes: Iterable[datetime]) -> Result:
        now = self._clock.now()
        soonest = min(((at - now).total_seconds() for at in wakes), default=LONGEST_WAIT)
        return Result(requeue_after=max(0.2, min(soonest, self._view.due())))

    def _inputs(self, waiting: Sequence[NodeClaim], types: Mapping[str, InstanceType]) -> Inputs:
        inventory, objects = self._inventory.snapshot(), {claim.uid: claim for claim in waiting}
        return Inputs(
            waiting=objects,
            classes={
                name: self._class(name) for name in sorted({c.spec.node_class_ref.name for c in waiting})
            },
            types=types,
            inventory=inventory,
            shortages=self.shortages,
            gangs=planning.in_gangs(self._claims.list()),
            entitled=self._entitling.entitlements(objects, inventory, types),
        )

    def _class(self, name: str) -> LaunchClass | tuple[str, str]:
        try:
            return self._classes.ready(name)
        except Unresolved as error:
            return error.reason, error.message

    def _tell(self, claim: NodeClaim, **said: Any) -> None:
        """Why the claim waits; where that could not be written it is said again in the next pass."""
        if not self._reporter.waiting(claim, **said):
            self._untold = True

    def _hear(self) -> None:
        """Remembers what EC2 announced since the last pass."""
        inventory = self._inventory.snapshot()
        while self._announced:
            scope, code, message = self._announced.popleft()
            self._outcomes.shortages = self.shortages.record(
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
            self._reporter.waiting(
                claim, reason=answer(error.class_, code=error.code).reason, message=str(error)
            )

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
                    self._tell(claim, reason=error.reason, message=error.message)
                continue
            if self._outcomes.holds.holds(claim.uid, ready, now=now):
                continue
            work.classes[wanted.node_class] = ready
            work.plans[wanted.node_class] = ready.plan
            work.waiting[claim.uid] = wanted
            work.objects[claim.uid] = claim
        launched = self._executor.calls.by_claim()
        for claim in waiting:
            if claim.uid not in work.waiting:
                work.held |= launched.get(claim.uid, frozenset())
        return work

    def _launch(self, work: Pass) -> list[datetime]:
        """Plans and launches until nothing more can be; returns when remembered shortages end."""
        try:
            result = self._rounds(work)
        finally:
            self._outcomes.finish(work)
            self._unsure = self._waits_for_call()
            self._launching = frozenset()
        left = [unplaced for unplaced in result.unplaced if unplaced.claim.uid in work.waiting]
        self._writers.each(lambda unplaced: self._tell_unplaced(unplaced, work), left)
        cut_off = any(each.claim.uid in work.waiting for each in result.assignments)
        soon = [self._clock.now() + RETRY[0]] if cut_off else []
        return [*soon, *(unplaced.retry_at for unplaced in left if unplaced.retry_at)]

    def _rounds(self, work: Pass) -> Plan:
        """The last plan, when nothing more of it can be launched."""
        result = Plan()
        for _ in range(ROUNDS):
            if not work.waiting:
                self._entitling.planned(Plan())  # nobody waits for a slot any more, who did before
                break
            now = self._clock.now()
            inventory = self._inventory.snapshot()
            with self._entitling.alone():
                result = planning.solved(
                    work.waiting.values(),
                    work.plans,
                    work.types,
                    inventory,
                    self._outcomes.shortages,
                    now,
                    launched=planning.in_gangs(self._claims.list()),
                    entitlements=self._entitling.entitlements(
                        {uid: work.objects[uid] for uid in work.waiting}, inventory, work.types
                    ),
                    seconds=self._plan_seconds,
                    clock=self._clock,
                )
                self._entitling.planned(result)
            if not result.assignments:
                break
            work.skipped = result.skipped
            self._round(self._waves(result, work, now), work, inventory)
        return result

    def _waves(self, result: Plan, work: Pass, now: datetime) -> list[list[launches.LaunchGroup]]:
        groups = launches.group(
            result.assignments,
            node_classes=work.plans,
            types=work.types,
            shortages=self._outcomes.shortages,
            now=now,
        )
        return [list(wave) for _, wave in groupby(groups, key=lambda each: each.wave)]

    def _round(
        self, waves: Sequence[Sequence[launches.LaunchGroup]], work: Pass, inventory: Inventory
    ) -> None:
        """The calls of one plan, those that do not compete for a slot at the same time; then what follows.

        When a wave leaves somebody over, what follows it is planned anew: the slots that were meant for it
        may be there for another, who would be sent on demand. Only gangs that were begun, and may still be
        whole, are gone on with.
        """
        self._launching |= {a.claim.uid for wave in waves for group in wave for a in group.assignments}
        gangs: list[tuple[launches.LaunchGroup, Answered]] = []
        stopped = False
        for wave in waves:
            broken = {group.gang for group, answered in gangs if answered.dealt.left}
            whole = {group.gang for group, _ in gangs} - broken
            made = [group for group in wave if not stopped or group.gang in whole]
            for group, answered in self._answers(made, work):
                if group.gang:
                    gangs.append((group, answered))
                    stopped = stopped or bool(answered.dealt.left)
                else:
                    stopped = self._settle([(group, answered)], work, inventory) or stopped
        self._settle(gangs, work, inventory)

    def _answers(
        self, wave: Sequence[launches.LaunchGroup], work: Pass
    ) -> Iterator[tuple[launches.LaunchGroup, Answered]]:
        """Each call's answer: of many claims as they come, of a few when all are there."""
        calls = {self._pool.submit(self._call, each, work.classes[each.node_class]): each for each in wave}
        few = sum(group.count for group in wave) < MANY
        if few:
            wait(calls)
        for call in calls if few else as_completed(calls):
            yield calls[call], call.result()

    def _settle(
        self,
        answers: Sequence[tuple[launches.LaunchGroup, Answered]],
        work: Pass,
        inventory: Inventory,
    ) -> bool:
        """Whether a claim is left over."""
        kept = self._given_back([answered for _, answered in answers])
        for (group, _), answered in zip(answers, kept, strict=True):
            self._outcomes.settle(group, answered, work, inventory)
        return any(answered.dealt.left for answered in kept)

    def _call(self, group: launches.LaunchGroup, ready: LaunchClass) -> Answered:
        """One call; a bug in it is not the bug of the others, whose instances are to be told of."""
        with guarded("launch", nodeclass=group.node_class, claims=group.count) as guard:
            return self._executor.launch(group, ready)
        if guard.panic is not None and guard.panic.suspects:
            self._failed[guard.panic] = {a.claim.uid for a in group.assignments}
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

    def _not_yet(self, work: Pass) -> Callable[[str, ProviderError | None], None]:
        def hold(uid: str, error: ProviderError | None) -> None:
            ready = work.classes[work.objects[uid].spec.node_class_ref.name]
            self._outcomes.hold(uid, ready, STOPPED if error and answer(error.class_).stops else RETRY)

        return hold

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
        self._tell(
            known,
            reason=reason,
            message=message,
            attempts=attempts,
            skipped=unplaced.skipped,
        )
