"""The one loop that launches: observe, plan, act, until no waiting claim can be launched now.

Invariant: it never runs twice at once and never plans without EC2's description. Orphans are adopted before
anything is launched. A pool that refused is not tried again in the pass, so the pass ends.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from broker.apis.karpenter import NodeClaim
from broker.capacity.answers import answer
from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim, Plan, Unplaced
from broker.capacity.shortages import BACKING_OFF, Scope, Shortages
from broker.controllers.claim_caches import ClaimCaches, Ec2State
from broker.controllers.launch.execute import NOT_RECORDED, Executor
from broker.controllers.launch.launch_pass import LaunchPass
from broker.controllers.launch.planning import Planner
from broker.controllers.launch.published import PublishedShortages
from broker.controllers.launch.recovery import Recovery
from broker.controllers.launch.report import Reporter
from broker.controllers.launch.results import RETRY, LaunchResults
from broker.controllers.launch.unchanged import NoClass, PassInputs, UnchangedInputs
from broker.controllers.launch.waves import FleetWaves
from broker.controllers.lifecycle.losses import LossDetector
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.resolve import LaunchClass, Unresolved
from broker.kube.clock import Clock
from broker.kube.controller import Result
from broker.kube.errors import ApiError
from broker.kube.writers import WriterPool
from broker.placement.claims import BadClaim, planned, waiting_since
from broker.text import format_time
from providers.errors import ErrorClass, ProviderError

ROUNDS = 64
LONGEST_WAIT = 60.0
LONGEST_CREATION = 10.0  # a slow API server does not stop launches


@dataclass(frozen=True, kw_only=True)
class LaunchSteps:
    """The steps of a pass, in their order."""

    losses: LossDetector
    recovery: Recovery
    planner: Planner
    waves: FleetWaves
    results: LaunchResults
    published: PublishedShortages


class Launcher:
    """`run` makes one pass."""

    def __init__(
        self,
        caches: ClaimCaches,
        ec2: Ec2State,
        nodeclasses: NodeClassController,
        executor: Executor,
        reporter: Reporter,
        steps: LaunchSteps,
        *,
        writers: WriterPool,
        clock: Clock,
    ) -> None:
        self._caches, self._claims, self._pods = caches, caches.claims, caches.pods
        self._inventory, self._view = ec2.inventory, ec2.view
        self._nodeclasses = nodeclasses
        self._executor = executor
        self._reporter = reporter
        self._steps = steps
        self._recovery, self._planner, self._results = steps.recovery, steps.planner, steps.results
        self._writers = writers
        self._clock = clock
        self._announced: deque[tuple[Scope, str, str]] = deque()
        self._creation = threading.Lock()
        self._unchanged = UnchangedInputs()
        self._unreported = False  # whether a claim could not be written in this pass
        self._unsure: frozenset[str] | None = None  # claims of calls without a known answer
        self._restored = False  # whether the shortages of the leader before are known

    @property
    def shortages(self) -> Shortages:
        return self._results.shortages

    def launching(self, uid: str) -> bool:
        """Whether a call for this claim is under way, or its answer is not known."""
        return uid in self._steps.waves.launching or self._unsure is None or uid in self._unsure

    def creating(self) -> AbstractContextManager[object]:
        """Held while claims that are planned together are created: no pass begins meanwhile. For any thread.

        Otherwise the first of them could take slots that only later ones can use.
        """
        return self._creation

    def announced(self, scope: Scope, code: str, message: str) -> None:
        """Counts EC2's announcement that a pool is exhausted as a refusal. For any thread."""
        self._announced.append((scope, code, message))

    def close(self) -> None:
        self._steps.waves.close()
        self._executor.close()
        self._writers.close()
        self._steps.losses.close()

    def run(self, _items: Sequence[str]) -> Result | None:
        """Makes one pass. Raises ProviderError if EC2 cannot be read at all."""
        by_uid = self._created()
        waiting = by_uid.values()
        try:
            self._executor.calls.load()
        except ApiError as error:
            for claim in waiting:
                self._report(claim, reason=NOT_RECORDED, message=f"open calls to EC2 cannot be read: {error}")
            raise
        open_calls = self._recovery.open_calls()
        self._unsure = self._waits_for_call()
        if not self._inventory.described:
            self._report_unreadable(waiting, self._inventory.error)
            return Result(requeue_after=1.0)
        if not self._planner.slots.begin():
            return Result(requeue_after=0.2)
        try:
            self._view.refresh()
            self._steps.losses.end_lost(self._view.missing(self._caches.launched()))
            orphans = self._view.orphans(self._caches.claimed_ids())
            inputs = self._inputs(by_uid)
        except ProviderError as error:
            self._report_unreadable(waiting, error)
            raise
        if not orphans and not open_calls and (until := self._unchanged.until(inputs, self._clock.now())):
            if self._recovery.finish():
                self._executor.tidy(self._claims.list())
            return self._again([until])
        self._unchanged.forget()
        self._unreported = False
        work = self._observe(inputs)
        self._recovery.recover(work, orphans, self._results)
        self._unsure = self._waits_for_call()
        retry_at = self._launch(work)
        self._executor.tidy(self._claims.list())
        now = self._clock.now()
        self._steps.published.publish(self.shortages, self._inventory.odds(), now)
        wakes = [at for at in (*retry_at, *self._results.holds.ends()) if at > now]
        if not self._unreported:
            self._unchanged.record_pass(inputs, now=now, wakes=min(wakes, default=None))
        return self._again(wakes)

    def _inputs(self, waiting: Mapping[str, NodeClaim]) -> PassInputs:
        """All inputs of the pass's decisions. Raises ProviderError."""
        self._restore_shortages()
        snapshot = self._planner.slots.snapshot()
        self._results.shortages = self.shortages.observed(snapshot.inventory, self._clock.now())
        self._record_announced(snapshot.inventory)
        self._results.holds.keep(waiting.keys())
        requested = sorted({claim.spec.node_class_ref.name for claim in waiting.values()})
        classes = {name: self._class(name) for name in requested}
        return self._planner.inputs(waiting, classes, snapshot, self.shortages)

    def _created(self) -> Mapping[str, NodeClaim]:
        """The claims that wait; those that are created together are all among them, or none is."""
        locked = self._creation.acquire(timeout=LONGEST_CREATION)
        try:
            return self._caches.waiting()
        finally:
            if locked:
                self._creation.release()

    def _waits_for_call(self) -> frozenset[str]:
        return self._executor.calls.waiting(self._claims.list())

    def _again(self, wakes: Iterable[datetime]) -> Result:
        now = self._clock.now()
        soonest = min(((at - now).total_seconds() for at in wakes), default=LONGEST_WAIT)
        return Result(requeue_after=max(0.2, min(soonest, self._view.due())))

    def _class(self, name: str) -> LaunchClass | NoClass:
        try:
            return self._nodeclasses.ready(name)
        except Unresolved as error:
            return NoClass(reason=error.reason, message=error.message, passing=error.passing)

    def _report(self, claim: NodeClaim, **status: Any) -> None:
        """Writes why the claim waits; if the write fails, the next pass repeats it."""
        if not self._reporter.waiting(claim, **status):
            self._unreported = True

    def _restore_shortages(self) -> None:
        if not self._restored:
            self._results.shortages = self._steps.published.restored(self._clock.now())
            self._restored = True

    def _record_announced(self, inventory: Inventory) -> None:
        """Records the shortages that EC2 announced since the last pass."""
        while self._announced:
            scope, code, message = self._announced.popleft()
            taken_back = scope.kind == "reservation"
            self._results.shortages = self.shortages.record(
                scope,
                class_=ErrorClass.RESERVATION_GONE if taken_back else ErrorClass.CAPACITY,
                code=code,
                now=self._clock.now(),
                free=inventory.unused(scope.key) if taken_back else 0,
                message=message,
            )

    def _report_unreadable(self, waiting: Iterable[NodeClaim], error: ProviderError | None) -> None:
        """Reports to the claims why EC2 could not be read: no decision is made before."""
        if error is None:
            return  # the first description is under way
        for claim in waiting:
            self._reporter.waiting(
                claim, reason=answer(error.class_, code=error.code).reason, message=str(error)
            )

    def _observe(self, inputs: PassInputs) -> LaunchPass:
        """The claims that can be planned; each other claim gets the reason in its status.

        Each class was read once: a class that gets ready meanwhile is used for all of its claims or for none.
        """
        work = LaunchPass(snapshot=inputs.snapshot)
        now = self._clock.now()
        for claim in inputs.waiting.values():
            ready = inputs.classes[claim.spec.node_class_ref.name]
            planned_claim = self._translated(claim, ready)
            if planned_claim is None or isinstance(ready, NoClass):
                continue
            if self._results.holds.holds(claim.uid, ready, now=now):
                continue
            work.classes[planned_claim.node_class] = ready
            work.plans[planned_claim.node_class] = ready.plan
            work.waiting[claim.uid] = planned_claim
            work.objects[claim.uid] = claim
        launched = self._executor.calls.by_claim()
        for uid in inputs.waiting.keys() - work.waiting.keys():
            work.held |= launched.get(uid, frozenset())
        return work

    def _translated(self, claim: NodeClaim, ready: LaunchClass | NoClass) -> Claim | None:
        """The claim as a plan reads it; None, with the reason in its status, if it cannot be launched."""
        invalid: BadClaim | NoClass | None = ready if isinstance(ready, NoClass) else None
        with self._claims.guard(claim):
            try:
                translated = planned(claim, since=waiting_since(claim, self._pods.find))
                if invalid is None:
                    return translated
            except BadClaim as error:
                invalid = error
        if invalid is not None and not (isinstance(invalid, NoClass) and invalid.passing):
            self._report(claim, reason=invalid.reason, message=invalid.message)
        return None

    def _launch(self, work: LaunchPass) -> list[datetime]:
        """Plans and launches until no more can be launched; returns the times at which shortages end."""
        try:
            result = self._rounds(work)
        finally:
            self._results.await_binds(work)
            self._unsure = self._waits_for_call()
            self._steps.waves.finish()
        still_waiting = [unplaced for unplaced in result.unplaced if unplaced.claim.uid in work.waiting]
        self._writers.each(lambda unplaced: self._report_unplaced(unplaced, work), still_waiting)
        cut_off = any(assignment.claim.uid in work.waiting for assignment in result.assignments)
        cut_off = cut_off or not result.later.isdisjoint(work.waiting)
        soon = [self._clock.now() + RETRY[0]] if cut_off else []
        return [*soon, *(unplaced.retry_at for unplaced in still_waiting if unplaced.retry_at)]

    def _rounds(self, work: LaunchPass) -> Plan:
        """Repeats plan and launch until a plan launches nothing; returns the last plan.

        A plan of many unlike claims may end before it considered all of them: the next one continues.
        """
        result = Plan()
        aside: dict[str, Unplaced] = {}
        for _ in range(ROUNDS):
            if not work.waiting:
                self._planner.slots.planned(Plan())  # no claim waits for a slot any more
                break
            now = self._clock.now()
            result = self._planner.plan(work, self.shortages, now)
            waits = _set_aside(result, work)
            aside |= waits
            if not result.assignments and not waits:
                break
            work.skipped = result.skipped
            if result.assignments:
                self._steps.waves.run(result, work, now)
        work.waiting |= {uid: unplaced.claim for uid, unplaced in aside.items()}
        return replace(result, unplaced=(*result.unplaced, *aside.values()))

    def _report_unplaced(self, unplaced: Unplaced, work: LaunchPass) -> None:
        uid = unplaced.claim.uid
        attempts = work.attempts.pop(uid, [])
        reason, message = unplaced.reason, unplaced.message
        refused = [a for a in attempts if a.class_]
        # EC2's refusal, new or remembered, explains more than that no option is left.
        if refused and refused[-1].class_:
            reason = answer(refused[-1].class_).reason
            message = (
                f"{refused[-1].pool.shown}: {refused[-1].code}: {refused[-1].message}; {unplaced.message}"
            )
        elif reason == BACKING_OFF:
            reason = next((answer(s.class_).reason for s in unplaced.skipped if s.class_), reason)
        if unplaced.retry_at:
            message += f"; tried again at {format_time(unplaced.retry_at)}"
        known = self._claims.get(unplaced.claim.name) or work.objects[uid]
        self._report(
            known,
            reason=reason,
            message=message,
            attempts=attempts,
            skipped=unplaced.skipped,
        )


def _set_aside(result: Plan, work: LaunchPass) -> dict[str, Unplaced]:
    """Takes claims that wait out of the pass if a plan did not consider all of it, so that others are next.

    Claims with a nominated slot stay: a plan without them would end the nomination.
    """
    if not result.later:
        return {}
    waits = {
        unplaced.claim.uid: unplaced
        for unplaced in result.unplaced
        if unplaced.claim.uid not in result.later and unplaced.claim.uid not in result.nominated
    }
    for uid in waits:
        work.waiting.pop(uid, None)
    return waits
