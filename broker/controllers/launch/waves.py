"""Carries out a plan in waves of fleet calls, and applies their results.

Invariant: calls of one wave do not compete for a slot. An instance that its claim does not accept is
terminated at once, and so are the instances of an incomplete gang.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor as Threads
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from datetime import datetime
from itertools import groupby

import structlog

from broker.capacity import launches
from broker.capacity.launches import LaunchGroup
from broker.capacity.model import Plan
from broker.controllers.instances import InstanceView
from broker.controllers.launch.execute import Executor
from broker.controllers.launch.launch_pass import GANG_INCOMPLETE, FleetResult, LaunchPass
from broker.controllers.launch.results import LaunchResults
from broker.controllers.nodeclass.resolve import LaunchClass
from broker.kube.panics import guarded
from broker.kube.writers import MANY
from providers.errors import ProviderError

PARALLEL = 8
_log = structlog.get_logger("launch")


class FleetWaves:
    """Used by the one launch loop; `launching` is for any thread."""

    def __init__(
        self,
        view: InstanceView,
        executor: Executor,
        results: LaunchResults,
        *,
        threads: Threads | None = None,
    ) -> None:
        """`threads` makes the calls of a wave; by default a pool of its own."""
        self._view = view
        self._executor = executor
        self._results = results
        self._pool = threads or ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix="fleet")
        self.launching: frozenset[str] = frozenset()  # uids of claims in the calls of this pass

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def finish(self) -> None:
        self.launching = frozenset()

    def run(self, plan: Plan, work: LaunchPass, now: datetime) -> None:
        """Makes the calls of one plan.

        If a wave leaves a claim over, later waves are planned again: the slots meant for them may serve that
        claim, which would fall back to on-demand. Only gangs that were begun, and can still be complete,
        continue.
        """
        groups = launches.group(
            plan.assignments,
            node_classes=work.plans,
            types=work.snapshot.types,
            shortages=self._results.shortages,
            now=now,
        )
        self.launching |= {a.claim.uid for group in groups for a in group.assignments}
        gangs: list[tuple[LaunchGroup, FleetResult]] = []
        stopped = False
        for _, wave in groupby(groups, key=lambda group: group.wave):
            broken = {group.gang for group, result in gangs if result.distribution.refused}
            whole = {group.gang for group, _ in gangs} - broken
            calls = [group for group in wave if not stopped or group.gang in whole]
            for group, result in self._call_all(calls, work):
                if group.gang:
                    gangs.append((group, result))
                    stopped = stopped or bool(result.distribution.refused)
                else:
                    stopped = self._apply([(group, result)], work) or stopped
        self._apply(gangs, work)

    def _call_all(
        self, wave: Sequence[LaunchGroup], work: LaunchPass
    ) -> Iterator[tuple[LaunchGroup, FleetResult]]:
        """The results of the calls: for many claims as each arrives, for a few when all have arrived."""
        calls = {
            self._pool.submit(self._call, group, work.classes[group.node_class]): group for group in wave
        }
        few = sum(group.count for group in wave) < MANY
        if few:
            wait(calls)
        for call in calls if few else as_completed(calls):
            yield calls[call], call.result()

    def _apply(self, answers: Sequence[tuple[LaunchGroup, FleetResult]], work: LaunchPass) -> bool:
        """Applies the results. True if a claim is left over."""
        kept = self._give_back([result for _, result in answers])
        for (group, _), result in zip(answers, kept, strict=True):
            self._results.apply(group, result, work)
        return any(result.distribution.refused for result in kept)

    def _call(self, group: LaunchGroup, ready: LaunchClass) -> FleetResult:
        """Makes one call. An exception in it must not discard the results of the others."""
        with guarded("launch", nodeclass=group.node_class, claims=group.count):
            return self._executor.launch(group, ready)
        return FleetResult(group=group, distribution=launches.Distribution(), uncertain=True)

    def _give_back(self, results: Sequence[FleetResult]) -> list[FleetResult]:
        """Terminates the instances that no claim of their call accepts."""
        kept = [result.reject_unreserved() for result in results]
        broken = {pair.claim.uid for pair in launches.undone(result.distribution for result in kept)}
        whole = [result.release(broken, result.errors or (GANG_INCOMPLETE,)) for result in kept]
        unwanted = {
            pair.instance.id: pair.instance for result in results for pair in result.distribution.pairs
        }
        for result in whole:
            for pair in result.distribution.pairs:
                del unwanted[pair.instance.id]
        self._view.put(unwanted.values())
        try:
            self._view.terminate([*unwanted.values()], reason="no claim of its launch accepts it")
        except ProviderError as error:
            # They are orphans now, and end after their grace time.
            _log.warning("instances could not be given back", error=str(error))
        return whole
