"""Recovers from lost answers and ended processes: orphaned instances, and calls without an answer.

Invariant: no claim is planned while an instance may exist that was launched for it. Orphans go first to the
claims that they were launched for; a gang's orphans go only to the whole gang. No claim adopts an instance if
its Node is being deleted, or may be while it is left out of the cache: the claim would go with the Node. An
instance that EC2 does not list is found by repeating the call. If claims or class have changed since, the
broker waits until EC2 must show the instance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import structlog

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.capacity.adopt import adopt
from broker.capacity.answers import answer
from broker.capacity.model import Claim, Outcome, Pool
from broker.controllers.nodeclaim.caches import ClaimCaches, Ec2State
from broker.controllers.nodeclaim.calls import FleetCall
from broker.controllers.nodeclaim.execute import Executor
from broker.controllers.nodeclaim.feedback import ClassFeedback
from broker.controllers.nodeclaim.instances import SETTLED
from broker.controllers.nodeclaim.launch_pass import LaunchPass
from broker.controllers.nodeclaim.registration import nodes_at
from broker.controllers.nodeclaim.report import Reporter
from broker.controllers.nodeclaim.results import LaunchResults
from broker.controllers.nodeclaim.status import provider_id
from broker.kube.clock import Clock
from providers.launch import LaunchRequest
from providers.model import Instance, ProviderError

UNCONFIRMED = "LaunchNotConfirmed"
_log = structlog.get_logger("launch")

Why = str | ProviderError


class Recovery:
    """`recover` is a step of the launch loop's pass, before any plan."""

    def __init__(
        self,
        caches: ClaimCaches,
        ec2: Ec2State,
        executor: Executor,
        reporter: Reporter,
        feedback: ClassFeedback,
        *,
        clock: Clock,
    ) -> None:
        self._claims, self._nodes = caches.claims, caches.nodes
        self._inventory, self._view = ec2.inventory, ec2.view
        self._executor = executor
        self._calls = executor.calls
        self._reporter = reporter
        self._clock = clock
        self._feedback = feedback
        self._met: dict[str, float] = {}  # open calls by launch id: when this process first saw them

    def unsettled(self) -> list[FleetCall]:
        """Calls without a known answer; the time for which each is open counts from here."""
        now = self._clock.monotonic()
        open_ = self._calls.open(self._claims.list())
        self._met = {each.launch: self._met.get(each.launch, now) for each in open_}
        return open_

    def recover(self, work: LaunchPass, orphans: Sequence[Instance], results: LaunchResults) -> None:
        """Resolves open calls, gives orphans to claims, and terminates instances that no claim takes.

        `results` holds back each claim that must wait. Raises ProviderError.
        """
        open_ = self.unsettled()
        unknown = {call.launch: why for call in open_ if (why := self._find_out(call, work, results))}
        if len(unknown) < len(open_):
            orphans = self._view.orphans(self._claims.list())
        left = self._adopt(work, self._without_owner(orphans), results, unknown)
        for call in open_:
            if call.launch in unknown:
                self._wait(call, work, unknown[call.launch])
        self._wait_for_unseen(work, left)
        kept = {each.tags.get(names.TAG_LAUNCH) for each in left} | work.held | self._of_left_out()
        for launch in ({each.launch for each in open_} | self._calls.unfinished()) - kept:
            self._calls.done(launch)
        self._end(work, left)

    def finish(self) -> bool:
        """Ends the unfinished calls, if no orphans are left to adopt. True if there were any."""
        over = self._calls.unfinished() - self._of_left_out()
        for launch in over:
            self._calls.done(launch)
        return bool(over)

    # ---- instances without a claim

    def _without_owner(self, orphans: Sequence[Instance]) -> Sequence[Instance]:
        """The orphans without a claim that is left out of the cache, by instance id or by launch."""
        left_out = self._claims.left_out
        ids = {partial.provider_id.rpartition("/")[2] for partial in left_out}
        launches = self._of_left_out()
        return [
            each for each in orphans if each.id not in ids and each.tags.get(names.TAG_LAUNCH) not in launches
        ]

    def _of_left_out(self) -> set[str]:
        """The calls that were made for claims that are left out."""
        launched = self._calls.by_claim()
        return {launch for partial in self._claims.left_out for launch in launched.get(partial.uid, ())}

    def _adopt(
        self, work: LaunchPass, orphans: Sequence[Instance], results: LaunchResults, unknown: Collection[str]
    ) -> Sequence[Instance]:
        """Gives orphans to claims; returns the rest. A claim of an `unknown` call gets only its instances."""
        if not orphans:
            return ()
        owners = {claim.uid for claim in self._claims.list() if not claim.deleting}
        leaving = [each for each in orphans if self._node_leaves(each, owners)]
        pairs, left = self._pairs(work, [each for each in orphans if each not in leaving], unknown)
        for claim, instance in pairs:
            ready = work.classes[claim.node_class]
            pool = Pool(
                capacity_type="reserved" if instance.reservation_id else "on-demand",
                instance_type=instance.instance_type,
                zone=instance.zone,
                reservation=instance.reservation_id,
            )
            attempt = self._executor.binder.record(
                claim.name,
                ready,
                pool=pool,
                outcome=Outcome.ADOPTED,
                instance_id=instance.id,
                message="an instance of ours that had no claim",
            )
            self._feedback.limit(attempt)
            del work.waiting[claim.uid]
            if not self._executor.binder.bind(claim.name, claim.uid, instance, ready, work.types, [attempt]):
                results.hold_unconfirmed(claim.uid, work, None)
                work.held.add(instance.tags.get(names.TAG_LAUNCH, ""))  # its call is not finished
        return [*left, *leaving]

    def _node_leaves(self, instance: Instance, owners: Collection[str]) -> bool:
        """Whether a Node of the instance is being deleted, or may be.

        Kubernetes' garbage collector deletes a Node after all its owners (kubernetes.io, "Owners and
        Dependents"). A Node that is left out may be deleted too. `owners`: uids of claims that stay.
        """

        def leaves(node: Node) -> bool:
            references = node.metadata.owner_references
            gone = [r for r in references if r.kind == NodeClaim.KIND.kind and r.uid not in owners]
            return node.deleting or (bool(gone) and len(gone) == len(references))

        nodes, left_out = nodes_at(self._nodes, provider_id(instance), name=instance.private_dns_name)
        return left_out is not None or any(map(leaves, nodes))

    def _pairs(
        self, work: LaunchPass, orphans: Sequence[Instance], unknown: Collection[str]
    ) -> tuple[list[tuple[Claim, Instance]], Sequence[Instance]]:
        """Pairs claims with orphans; returns the other orphans too. An orphan's own launch comes first."""
        launched = self._calls.by_claim()
        own_first = {*unknown, *(i.tags.get(names.TAG_LAUNCH, "") for i in orphans if not i.described)}
        bound = {uid for uid, calls in launched.items() if calls & own_first}
        # The remaining claims of a gang that was complete once adopt one by one.
        begun = {c.annotations.get(names.GANG) for c in self._claims.list() if c.status.provider_id} - {None}
        units: dict[tuple[str, str], list[Claim]] = defaultdict(list)
        for claim in work.waiting.values():
            single = replace(claim, gang="") if claim.gang in begun else claim
            made = ",".join(sorted(launched.get(claim.uid, ())))
            units["gang" if single.gang else "launch", single.gang or made].append(single)
        paired: dict[str, tuple[Claim, Instance]] = {}
        left = orphans
        own = [(unit, _all(launched, unit)) for _, unit in sorted(units.items())]
        anyone = [
            claim
            for (kind, _), unit in units.items()
            if kind == "launch"
            for claim in unit
            if claim.uid not in bound
        ]
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

    def _wait_for_unseen(self, work: LaunchPass, left: Sequence[Instance]) -> None:
        """Lets the claims of instances that EC2 does not describe yet wait.

        Such an instance cannot be adopted, and its claims must not be launched again meanwhile.
        """
        unseen = {i.tags.get(names.TAG_LAUNCH, ""): i.id for i in left if not i.described}
        launched = self._calls.by_claim()
        for uid, claim in work.objects.items():
            calls = launched.get(uid, frozenset()) & unseen.keys()
            if not calls or work.waiting.pop(uid, None) is None:
                continue
            work.held |= calls
            self._view.doubt()
            id_ = unseen[min(calls)]
            self._tell(claim, f"instance {id_} was launched for it, and EC2 does not describe it yet")

    def _end(self, work: LaunchPass, left: Sequence[Instance]) -> None:
        """Terminates unwanted orphans after their grace time, and those of an incomplete gang at once."""
        gangs = _all(self._calls.by_claim(), [c for c in work.waiting.values() if c.gang]) - work.held
        free = [each for each in left if each.tags.get(names.TAG_LAUNCH) not in work.held]
        partial = [each for each in free if each.described and each.tags.get(names.TAG_LAUNCH) in gangs]
        try:
            self._view.terminate(partial, why="their gang is not whole with them")
            self._view.terminate(
                [each for each in self._view.overdue(free) if each not in partial], why="no claim wants them"
            )
        except ProviderError as error:
            # The next pass tries again; waiting claims are launched in any case.
            _log.warning("instances without a claim could not be terminated", error=str(error))

    # ---- calls without an answer

    def _find_out(self, call: FleetCall, work: LaunchPass, results: LaunchResults) -> Why | None:
        """The reason why the answer of a call is still unknown, or None. Its claims wait for the answer."""
        request = call.request
        if request is not None and len(self._view.launched_by(call.launch)) >= request.count:
            self._calls.answered(call.launch)  # every instance that it can have given
            return None
        differs = self._differs(call, work)
        if request is not None and not differs:
            return self._repeat(call, request, work, results)
        now = self._clock.monotonic()
        if now - self._met.setdefault(call.launch, now) >= SETTLED.total_seconds():
            self._calls.answered(call.launch)  # an instance that EC2 has not listed by now does not exist
            return None
        _log.warning("a call to EC2 without an answer is not made again", launch=call.launch, why=differs)
        return f"it is not made again, since {differs}"

    def _differs(self, call: FleetCall, work: LaunchPass) -> str:
        """The difference between the call and the present request of its claims and class; empty if none."""
        known = {claim.uid: claim for claim in self._claims.list()}
        members = [known.get(uid) for uid in call.claims]
        for claim in members:
            if claim is None:
                return "one of its claims is gone"
            if claim.deleting:
                return f"claim {claim.name} is deleted"
            if claim.annotations.get(names.LAUNCH) != call.launch:
                return f"claim {claim.name} does not name it (annotation {names.LAUNCH})"
        waiting = [work.waiting[uid] for uid in call.claims if uid in work.waiting]
        missing = [c.name for c in members if c and not c.status.provider_id and c.uid not in work.waiting]
        if missing or not waiting:
            return f"claim {missing[0]} cannot be launched now" if missing else "none of its claims waits"
        ready = work.classes.get(call.node_class)
        if ready is None or any(claim.node_class != call.node_class for claim in waiting):
            return f"its claims do not launch with EC2NodeClass {call.node_class}"
        if ready.source.metadata.generation != call.generation:
            return f"EC2NodeClass {call.node_class} has changed"
        return self._executor.differs(call, waiting, ready, self._clock.now())

    def _repeat(
        self, call: FleetCall, request: LaunchRequest, work: LaunchPass, results: LaunchResults
    ) -> ProviderError | None:
        wanted = [uid for uid in call.claims if uid in work.waiting]
        try:
            self._view.put(self._executor.repeat(call, request))
        except ProviderError as error:
            self._met[call.launch] = self._clock.monotonic()  # EC2 may have accepted only this repeat
            for uid in wanted:
                results.hold_unconfirmed(uid, work, error)
            return error
        _log.info("a call whose answer was lost was made again", launch=call.launch, claims=len(wanted))
        return None

    def _wait(self, call: FleetCall, work: LaunchPass, why: Why) -> None:
        """The call's claims are not planned in this pass, and its instances not ended."""
        work.held.add(call.launch)
        self._view.doubt()
        for uid in call.claims:
            if work.waiting.pop(uid, None) is None:
                continue
            if isinstance(why, ProviderError):
                told = answer(why.class_, code=why.code)
                message = f"{why.code}: {why.message}; {told.next_step}"
                self._reporter.waiting(work.objects[uid], reason=told.reason, message=message)
            else:
                asked = "a launch was asked of EC2 before, and whether it came about is not known yet"
                self._tell(work.objects[uid], f"{asked} ({why})")

    def _tell(self, claim: NodeClaim, why: str) -> None:
        self._reporter.waiting(claim, reason=UNCONFIRMED, message=f"{why}: nothing is launched twice")


def _all(launched: Mapping[str, frozenset[str]], claims: Sequence[Claim]) -> set[str]:
    """The calls that were made for any of these claims."""
    return {launch for claim in claims for launch in launched.get(claim.uid, ())}
