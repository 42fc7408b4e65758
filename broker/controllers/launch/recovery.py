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
from broker.capacity.adopt import adopt, capacity_type
from broker.capacity.answers import answer
from broker.capacity.attempts import Outcome
from broker.capacity.model import Claim, Pool
from broker.controllers.claim_caches import ClaimCaches, Ec2State
from broker.controllers.instances import LISTING_LAG
from broker.controllers.launch.calls import FleetCall
from broker.controllers.launch.execute import Executor
from broker.controllers.launch.launch_pass import LaunchPass
from broker.controllers.launch.report import Reporter
from broker.controllers.launch.results import LaunchResults
from broker.kube.cache import ObjectGuard
from broker.kube.clock import Clock
from providers.errors import ProviderError
from providers.launch import LaunchRequest
from providers.model import Instance

UNCONFIRMED = "LaunchNotConfirmed"
_log = structlog.get_logger("launch")

Cause = str | ProviderError


class Recovery:
    """`recover` is a step of the launch loop's pass, before any plan."""

    def __init__(
        self,
        caches: ClaimCaches,
        ec2: Ec2State,
        executor: Executor,
        reporter: Reporter,
        *,
        clock: Clock,
    ) -> None:
        self._caches = caches
        self._claims = caches.claims
        self._view = ec2.view
        self._executor = executor
        self._calls = executor.calls
        self._reporter = reporter
        self._clock = clock
        self._first_seen: dict[str, float] = {}  # open calls by launch id: when this process first saw them

    def open_calls(self) -> list[FleetCall]:
        """Calls without a known answer. The time for which a call is open counts from its first read here."""
        now = self._clock.monotonic()
        open_ = self._calls.open(self._claims.list())
        self._first_seen = {call.launch: self._first_seen.get(call.launch, now) for call in open_}
        return open_

    def recover(self, work: LaunchPass, orphans: Sequence[Instance], results: LaunchResults) -> None:
        """Resolves open calls, gives orphans to claims, and terminates instances that no claim takes.

        `results` holds back each claim that must wait. Raises ProviderError.
        """
        open_ = self.open_calls()
        unknown = {call.launch: cause for call in open_ if (cause := self._resolve_call(call, work, results))}
        if len(unknown) < len(open_):
            orphans = self._view.orphans(self._caches.claimed_ids())
        unadopted = self._adopt(work, self._without_owner(orphans), results, unknown)
        for call in open_:
            if call.launch in unknown:
                self._wait(call, work, unknown[call.launch])
        self._wait_for_unseen(work, unadopted)
        kept = {orphan.tags.get(names.TAG_LAUNCH) for orphan in unadopted} | work.held | self._of_left_out()
        for launch in ({call.launch for call in open_} | self._calls.unfinished()) - kept:
            self._calls.done(launch)
        self._end(work, unadopted)

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
        ids = {partial.instance_id for partial in left_out}
        launches = self._of_left_out()
        return [
            orphan
            for orphan in orphans
            if orphan.id not in ids and orphan.tags.get(names.TAG_LAUNCH) not in launches
        ]

    def _of_left_out(self) -> set[str]:
        """The calls that were made for claims that are left out."""
        launched = self._calls.by_claim()
        return {launch for partial in self._claims.left_out for launch in launched.get(partial.uid, ())}

    def _adopt(
        self, work: LaunchPass, orphans: Sequence[Instance], results: LaunchResults, unknown: Collection[str]
    ) -> Sequence[Instance]:
        """Gives orphans to claims; returns the rest. A claim of an `unknown` call gets only its instances.

        A claim on which this fails is left out, and keeps the instances that were launched for it.
        """
        if not orphans:
            return ()
        owners = {claim.uid for claim in self._claims.list() if not claim.deleting}
        ending = [orphan for orphan in orphans if self._node_ending(orphan, owners)]
        guards = {uid: self._claims.guard(work.objects[uid]) for uid in work.waiting}
        staying = [orphan for orphan in orphans if orphan not in ending]
        pairs, unpaired = self._pairs(work, staying, unknown, guards)
        for claim, instance in pairs:
            bound = False
            with guards[claim.uid]:
                bound = self._bind(claim, instance, work)
            del work.waiting[claim.uid]
            if not bound:
                results.hold_unconfirmed(claim.uid, work, None)
                work.held.add(instance.tags.get(names.TAG_LAUNCH, ""))  # its call is not finished
        launched = self._calls.by_claim()
        for uid in [uid for uid in work.waiting if guards[uid].error]:
            work.held |= launched.get(uid, frozenset())
            del work.waiting[uid]
        return [*unpaired, *ending]

    def _bind(self, claim: Claim, instance: Instance, work: LaunchPass) -> bool:
        """Gives the orphan to the claim. False if the claim was not written."""
        ready, binder = work.classes[claim.node_class], self._executor.binder
        pool = Pool(
            capacity_type=capacity_type(instance),
            instance_type=instance.instance_type,
            zone=instance.zone,
            reservation=instance.reservation_id,
        )
        attempt = binder.record(
            claim.name,
            ready,
            pool=pool,
            outcome=Outcome.ADOPTED,
            instance_id=instance.id,
            message="an instance of this cluster that had no claim",
        )
        self._reporter.limit(attempt)
        return binder.bind(claim.name, claim.uid, instance, ready, work.snapshot.types, [attempt])

    def _node_ending(self, instance: Instance, owners: Collection[str]) -> bool:
        """Whether a Node of the instance is being deleted, or may be.

        Kubernetes' garbage collector deletes a Node after all its owners (kubernetes.io, "Owners and
        Dependents"). A Node that is left out may be deleted too. `owners`: uids of claims that stay.
        """

        def is_ending(node: Node) -> bool:
            references = node.metadata.owner_references
            gone = [r for r in references if r.kind == NodeClaim.KIND.kind and r.uid not in owners]
            return node.deleting or (bool(gone) and len(gone) == len(references))

        nodes, left_out = self._caches.nodes_at(instance.id, name=instance.private_dns_name)
        return left_out is not None or any(map(is_ending, nodes))

    def _pairs(
        self,
        work: LaunchPass,
        orphans: Sequence[Instance],
        unknown: Collection[str],
        guards: Mapping[str, ObjectGuard],
    ) -> tuple[list[tuple[Claim, Instance]], Sequence[Instance]]:
        """Pairs claims with orphans; returns the other orphans too. An orphan's own launch comes first."""
        launched = self._calls.by_claim()
        own_first = {*unknown, *(i.tags.get(names.TAG_LAUNCH, "") for i in orphans if not i.described)}
        bound = {uid for uid, calls in launched.items() if calls & own_first}
        # The remaining claims of a gang that was complete once adopt one by one.
        begun = {c.gang for c in self._claims.list() if c.status.provider_id} - {""}
        units: dict[tuple[str, str], list[Claim]] = defaultdict(list)
        for claim in work.waiting.values():
            single = replace(claim, gang="") if claim.gang in begun else claim
            launch_ids = ",".join(sorted(launched.get(claim.uid, ())))
            units["gang" if single.gang else "launch", single.gang or launch_ids].append(single)
        paired: dict[str, tuple[Claim, Instance]] = {}
        unpaired = orphans
        own = [(unit, _all(launched, unit)) for _, unit in sorted(units.items())]
        unbound = [
            claim
            for (kind, _), unit in units.items()
            if kind == "launch"
            for claim in unit
            if claim.uid not in bound
        ]
        for candidates, calls in [*own, (unbound, None)]:
            new_pairs = adopt(
                [
                    orphan
                    for orphan in unpaired
                    if calls is None or orphan.tags.get(names.TAG_LAUNCH) in calls
                ],
                [claim for claim in candidates if claim.uid not in paired],
                work.plans,
                work.snapshot.types,
                odcrs=work.snapshot.inventory.odcrs,
                guard=lambda claim: guards[claim.uid],
            )
            paired |= {claim.uid: (claim, instance) for claim, instance in new_pairs}
            paired_ids = {instance.id for _, instance in new_pairs}
            unpaired = [orphan for orphan in unpaired if orphan.id not in paired_ids]
        return [*paired.values()], unpaired

    def _wait_for_unseen(self, work: LaunchPass, orphans: Sequence[Instance]) -> None:
        """Lets the claims of instances that EC2 does not describe yet wait.

        Such an instance cannot be adopted, and its claims must not be launched again meanwhile.
        """
        unseen = {i.tags.get(names.TAG_LAUNCH, ""): i.id for i in orphans if not i.described}
        launched = self._calls.by_claim()
        for uid, claim in work.objects.items():
            calls = launched.get(uid, frozenset()) & unseen.keys()
            if not calls or work.waiting.pop(uid, None) is None:
                continue
            work.held |= calls
            self._view.doubt()
            id_ = unseen[min(calls)]
            self._report_unconfirmed(
                claim, f"instance {id_} was launched for it, and EC2 does not describe it yet"
            )

    def _end(self, work: LaunchPass, orphans: Sequence[Instance]) -> None:
        """Terminates unwanted orphans after their grace time, and those of an incomplete gang at once."""
        gangs = _all(self._calls.by_claim(), [c for c in work.waiting.values() if c.gang]) - work.held
        free = [orphan for orphan in orphans if orphan.tags.get(names.TAG_LAUNCH) not in work.held]
        partial = [
            orphan for orphan in free if orphan.described and orphan.tags.get(names.TAG_LAUNCH) in gangs
        ]
        try:
            self._view.terminate(partial, reason="their gang stays incomplete")
            self._view.terminate(
                [orphan for orphan in self._view.overdue(free) if orphan not in partial],
                reason="no claim can adopt them",
            )
        except ProviderError as error:
            # The next pass tries again; waiting claims are launched in any case.
            _log.warning("instances without a claim could not be terminated", error=str(error))

    # ---- calls without an answer

    def _resolve_call(self, call: FleetCall, work: LaunchPass, results: LaunchResults) -> Cause | None:
        """The reason why the answer of a call is still unknown, or None. Its claims wait for the answer."""
        request = call.request
        if request is not None and len(self._view.launched_by(call.launch)) >= request.count:
            self._calls.answered(call.launch)  # every instance that it can have given
            return None
        differs = self._differs(call, work)
        if request is not None and not differs:
            return self._repeat(call, request, work, results)
        now = self._clock.monotonic()
        if now - self._first_seen.setdefault(call.launch, now) >= LISTING_LAG.total_seconds():
            self._calls.answered(call.launch)  # an instance that EC2 has not listed by now does not exist
            return None
        _log.warning("call without an answer not repeated", launch=call.launch, why=differs)
        return f"it is not repeated, since {differs}"

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
        return self._executor.differs(call, waiting, ready, work.snapshot, self._clock.now())

    def _repeat(
        self, call: FleetCall, request: LaunchRequest, work: LaunchPass, results: LaunchResults
    ) -> ProviderError | None:
        uids = [uid for uid in call.claims if uid in work.waiting]
        try:
            self._view.put(self._executor.repeat(call, request))
        except ProviderError as error:
            self._first_seen[call.launch] = self._clock.monotonic()  # EC2 may have accepted only this repeat
            for uid in uids:
                results.hold_unconfirmed(uid, work, error)
            return error
        _log.info("call with a lost answer repeated", launch=call.launch, claims=len(uids))
        return None

    def _wait(self, call: FleetCall, work: LaunchPass, cause: Cause) -> None:
        """The call's claims are not planned in this pass, and its instances not ended."""
        work.held.add(call.launch)
        self._view.doubt()
        for uid in call.claims:
            if work.waiting.pop(uid, None) is None:
                continue
            if isinstance(cause, ProviderError):
                response = answer(cause.class_, code=cause.code)
                message = f"{cause.code}: {cause.message}; {response.next_step}"
                self._reporter.waiting(work.objects[uid], reason=response.reason, message=message)
            else:
                launch = "an earlier launch request to EC2 has no known result yet"
                self._report_unconfirmed(work.objects[uid], f"{launch} ({cause})")

    def _report_unconfirmed(self, claim: NodeClaim, cause: str) -> None:
        self._reporter.waiting(claim, reason=UNCONFIRMED, message=f"{cause}: nothing is launched twice")


def _all(launched: Mapping[str, frozenset[str]], claims: Sequence[Claim]) -> set[str]:
    """The calls that were made for any of these claims."""
    return {launch for claim in claims for launch in launched.get(claim.uid, ())}
