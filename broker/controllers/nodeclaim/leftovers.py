"""What a lost answer or an ended process left behind: instances without a claim, and calls without an answer.

Invariant: no claim is planned while an instance may exist that was launched for it. Orphans go to the claims
that they were launched for before all others, a gang's only to the whole gang; what EC2 does not list is
found by making the very call again, or, where the claims or the class are no longer what they were, by
waiting until EC2 must show it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.adopt import adopt
from broker.capacity.answers import answer
from broker.capacity.model import Attempt, Claim, Outcome
from broker.controllers.inventory import InventoryKeeper
from broker.controllers.nodeclaim.execute import Executor
from broker.controllers.nodeclaim.instances import SETTLED, InstanceView
from broker.controllers.nodeclaim.intents import Intent
from broker.controllers.nodeclaim.report import Reporter
from broker.controllers.nodeclaim.work import Pass
from broker.kube.cache import Cache
from broker.kube.clock import Clock
from providers.model import Instance, LaunchRequest, ProviderError

UNCONFIRMED = "LaunchNotConfirmed"
_log = structlog.get_logger("launch")

Hold = Callable[[str, ProviderError | None], None]


class Leftovers:
    """`settle` is a step of the launch loop's pass, before anything is planned."""

    def __init__(
        self,
        claims: Cache[NodeClaim],
        inventory: InventoryKeeper,
        view: InstanceView,
        executor: Executor,
        reporter: Reporter,
        *,
        clock: Clock,
        limits: Callable[[Attempt], None],
    ) -> None:
        self._claims = claims
        self._inventory = inventory
        self._view = view
        self._executor = executor
        self._intents = executor.intents
        self._reporter = reporter
        self._clock = clock
        self._limits = limits
        self._met: dict[str, float] = {}  # open calls by launch id: when this process first saw them

    def look(self, claims: Sequence[NodeClaim]) -> frozenset[str]:
        """Uids of the claims that EC2 may have given an instance that nobody knows of."""
        self._intents.keep(each.annotations.get(names.LAUNCH, "") for each in claims)
        now = self._clock.monotonic()
        open_ = self._intents.open(claims)
        self._met = {each.launch: self._met.get(each.launch, now) for each in open_}
        asked = {uid for each in open_ for uid in each.claims}
        return frozenset(each.uid for each in claims if each.uid in asked and not each.status.provider_id)

    def settle(self, work: Pass, orphans: Sequence[Instance], hold: Hold) -> None:
        """Gives orphans to claims, finds out about open calls, and ends what nobody wants.

        `hold` is told of each claim that is not to be tried before a while, with EC2's refusal if it was one.
        Raises ProviderError.
        """
        if self._claims.broken:
            # Whose instance it is cannot be told while a claim cannot be read.
            for intent in self._intents.open(self._claims.list()):
                self._wait(intent, work, None)
            return
        left = self._adopt(work, orphans, hold)
        open_ = self._intents.open(self._claims.list())
        found = [intent for intent in open_ if self._find_out(intent, work, hold)]
        if found:
            left = self._adopt(work, self._view.orphans(self._claims.list()), hold)
        self._wait_for_unseen(work, left)
        unknown = {each.tags.get(names.TAG_LAUNCH) for each in left} | work.held
        for launch in ({each.launch for each in open_} | self._intents.unfinished()) - unknown:
            self._intents.done(launch)
        self._end(work, left)

    # ---- instances without a claim

    def _adopt(self, work: Pass, orphans: Sequence[Instance], hold: Hold) -> Sequence[Instance]:
        if not orphans:
            return ()
        pairs, left = self._pairs(work, orphans)
        for claim, instance in pairs:
            ready = work.classes[claim.node_class]
            pool = f"{'reserved' if instance.reservation_id else 'on-demand'}:{instance.instance_type}:" + (
                f"{instance.zone}:{instance.reservation_id}" if instance.reservation_id else instance.zone
            )
            attempt = self._executor.binder.record(
                claim.name,
                ready,
                pool=pool,
                outcome=Outcome.ADOPTED,
                instance_id=instance.id,
                message="an instance of ours that had no claim",
            )
            self._limits(attempt)
            del work.waiting[claim.uid]
            if not self._executor.binder.bind(claim.name, claim.uid, instance, ready, work.types, [attempt]):
                hold(claim.uid, None)
                work.held.add(instance.tags.get(names.TAG_LAUNCH, ""))  # its call is not done with
        return left

    def _pairs(
        self, work: Pass, orphans: Sequence[Instance]
    ) -> tuple[list[tuple[Claim, Instance]], Sequence[Instance]]:
        """Who adopts what, and what is left: the claims of an orphan's own launch come before all others."""
        launched = {uid: claim.annotations.get(names.LAUNCH, "") for uid, claim in work.objects.items()}
        # What is left of a gang that was whole once is adopted one by one.
        begun = {c.annotations.get(names.GANG) for c in self._claims.list() if c.status.provider_id} - {None}
        units: dict[tuple[str, str], list[Claim]] = defaultdict(list)
        for claim in work.waiting.values():
            single = replace(claim, gang="") if claim.gang in begun else claim
            units["gang" if single.gang else "launch", single.gang or launched[claim.uid]].append(single)
        paired: dict[str, tuple[Claim, Instance]] = {}
        left = orphans
        own = [(unit, {launched[claim.uid] for claim in unit}) for _, unit in sorted(units.items())]
        anyone = [claim for (kind, _), unit in units.items() if kind == "launch" for claim in unit]
        for some, calls in [*own, (anyone, None)]:
            found, _ = adopt(
                [each for each in left if calls is None or each.tags.get(names.TAG_LAUNCH) in calls],
                [claim for claim in some if claim.uid not in paired],
                work.plans,
                work.types,
                odcrs=self._inventory.snapshot().odcrs,
                class_tag=names.TAG_NODECLASS,
            )
            paired |= {claim.uid: (claim, instance) for claim, instance in found}
            given = {instance.id for _, instance in found}
            left = [each for each in left if each.id not in given]
        return [*paired.values()], left

    def _wait_for_unseen(self, work: Pass, left: Sequence[Instance]) -> None:
        """What EC2 does not describe yet cannot be adopted, nor its claims launched again meanwhile."""
        unseen = {i.tags.get(names.TAG_LAUNCH, ""): i.id for i in left if not i.described}
        for uid, claim in work.objects.items():
            if (id_ := unseen.get(claim.annotations.get(names.LAUNCH, "-"))) and work.waiting.pop(uid, None):
                work.held.add(claim.annotations[names.LAUNCH])
                self._view.doubt()
                self._tell(claim, f"instance {id_} was launched for it, and EC2 does not describe it yet")

    def _end(self, work: Pass, left: Sequence[Instance]) -> None:
        """Orphans that nobody wants end after their grace time; those of a gang that is not whole at once."""
        gangs = {
            work.objects[uid].annotations.get(names.LAUNCH) for uid, c in work.waiting.items() if c.gang
        } - work.held
        free = [each for each in left if each.tags.get(names.TAG_LAUNCH) not in work.held]
        partial = [each for each in free if each.described and each.tags.get(names.TAG_LAUNCH) in gangs]
        try:
            self._view.terminate(partial, why="their gang is not whole with them")
            self._view.terminate(
                [each for each in self._view.overdue(free) if each not in partial], why="no claim wants them"
            )
        except ProviderError as error:
            # The next pass tries again; what waits is launched all the same.
            _log.warning("instances without a claim could not be terminated", error=str(error))

    # ---- calls without an answer

    def _find_out(self, intent: Intent, work: Pass, hold: Hold) -> bool:
        """Whether instances are known now that were not before. Until all is known, its claims wait."""
        members = {c.uid: c for c in self._claims.list() if c.uid in intent.claims}
        shown = self._view.launched_by(intent.launch)
        request = intent.request
        if request is not None and len(shown) >= request.count:
            self._intents.answered(intent.launch)  # all that it can have given
            return False
        wanted = [uid for uid in intent.claims if uid in work.waiting]
        made = bool(shown) or any(claim.status.provider_id for claim in members.values())
        if request is not None and wanted and (made or self._as_it_was(intent, members, work)):
            return self._repeat(intent, request, wanted, work, hold)
        now = self._clock.monotonic()
        if now - self._met.setdefault(intent.launch, now) >= SETTLED.total_seconds():
            self._intents.answered(intent.launch)  # what EC2 has not listed by now is not there
            return False
        self._wait(intent, work, None)
        return False

    def _repeat(
        self, intent: Intent, request: LaunchRequest, wanted: Sequence[str], work: Pass, hold: Hold
    ) -> bool:
        try:
            self._view.put(self._executor.repeat(intent, request))
        except ProviderError as error:
            self._met[intent.launch] = self._clock.monotonic()  # now it may have been made, if not before
            self._wait(intent, work, error)
            for uid in wanted:
                hold(uid, error)
            return False
        _log.info("a call whose answer was lost was made again", launch=intent.launch, claims=len(wanted))
        return True

    def _as_it_was(self, intent: Intent, members: Mapping[str, NodeClaim], work: Pass) -> bool:
        """Whether the call, should it never have been made, is still what the claims want."""
        ready = work.classes.get(intent.node_class)
        return (
            ready is not None
            and ready.source.metadata.generation == intent.generation
            and all(uid in members and not members[uid].deleting for uid in intent.claims)
        )

    def _wait(self, intent: Intent, work: Pass, error: ProviderError | None) -> None:
        """The call's claims are not planned in this pass, and its instances not ended."""
        work.held.add(intent.launch)
        self._view.doubt()
        for uid in intent.claims:
            if work.waiting.pop(uid, None) is None:
                continue
            if error is None:
                why = "a launch was asked of EC2 before, and whether it came about is not known yet"
                self._tell(work.objects[uid], why)
            else:
                told = answer(error.class_)
                message = f"{error.code}: {error.message}; {told.next_step}"
                self._reporter.waiting(work.objects[uid], reason=told.reason, message=message)

    def _tell(self, claim: NodeClaim, why: str) -> None:
        self._reporter.waiting(claim, reason=UNCONFIRMED, message=f"{why}: nothing is launched twice")
