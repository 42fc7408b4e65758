"""Makes one fleet call, from marking its claims to EC2's answer; `bind` writes the results.

Order, so that a kill at any point loses nothing: the finalizer and the launch id go on the claims, and the
call is recorded (`calls`), before EC2 is called. The launch id is the client token of one call only, which is
repeated unchanged (`repeat`) until its answer is known.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import structlog

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.launches import Distribution, LaunchGroup, distribute, refused
from broker.capacity.model import Claim
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.claim_status import missing_finalizer, patch
from broker.controllers.inventory import InventoryCache
from broker.controllers.launch.bind import Binder
from broker.controllers.launch.calls import FleetCall, FleetCalls
from broker.controllers.launch.launch_pass import FleetResult
from broker.controllers.launch.rebuild import CallDiffers, rebuilt
from broker.controllers.launch.report import Reporter
from broker.controllers.launch.template import NodeBootstrap, instance_tags, template
from broker.controllers.nodeclass.resolve import LaunchClass
from broker.controllers.snapshot import Snapshot
from broker.kube.context import ControllerContext
from broker.kube.errors import ApiError
from broker.kube.identity import NAMESPACE
from broker.kube.writers import WriterPool
from broker.oncall.journal import Journal
from providers.base import LaunchCalls
from providers.errors import ProviderError
from providers.launch import LaunchRequest, LaunchResult, TemplateRef
from providers.model import Instance

_log = structlog.get_logger("launch")

NOT_RECORDED = "LaunchNotRecorded"
# EC2 repeats its answer for a repeated token, unless it refuses the request before it reads the token. Any
# other refusal of a repeat means that the first call did not succeed.


class Executor:
    """Carries out launch groups for the one launch loop; groups of one wave at the same time."""

    def __init__(
        self,
        context: ControllerContext,
        caches: ClaimCaches,
        provider: LaunchCalls,
        inventory: InventoryCache,
        journal: Journal,
        reporter: Reporter,
        *,
        cluster: NodeBootstrap,
        used: Callable[[TemplateRef], None],
    ) -> None:
        """`used` is called with each launch template of a call."""
        self._client, self._clock = context.client, context.clock
        self._caches, self._claims, self._owns = caches, caches.claims, caches.owns
        self._provider, self._inventory = provider, inventory
        self._cluster = cluster
        self._writers = WriterPool("marks")
        self._used = used
        self._reporter = reporter
        self.calls = FleetCalls(context.client)
        self.binder = Binder(
            context.client,
            caches.claims,
            inventory,
            journal,
            reporter,
            clock=context.clock,
            done=self.calls.done,
        )

    def close(self) -> None:
        self._writers.close()

    def launch(self, group: LaunchGroup, ready: LaunchClass) -> FleetResult:
        """Makes the template, marks the claims, calls EC2. Raises nothing that concerns EC2."""
        group, claims = self._still_waiting(group)
        if not claims:
            return FleetResult(group=group, distribution=Distribution())
        try:
            launch_template = template(
                ready, group, claims[0], provider=self._provider, cluster=self._cluster
            )
            ref = self._provider.ensure_template(launch_template, owner=ready.source.name)
        except ProviderError as error:
            return _refused(group, error)
        self._used(ref)
        group, request = self._mark(group, claims, ready, ref)
        if request is None:
            return FleetResult(group=group, distribution=Distribution())
        with self._inventory.calling(group.assignments[0].option.odcr_ids):
            return self._called(group, request)

    def _called(self, group: LaunchGroup, request: LaunchRequest) -> FleetResult:
        launch = request.token
        try:
            self._client.check()  # EC2 does not check the Lease
            result = self._provider.launch(request)
        except ApiError as error:
            _log.warning("not launched: another process may lead by now", error=str(error))
            return FleetResult(group=group, distribution=Distribution())
        except ProviderError as error:
            uncertain = error.lost and error.class_.of_caller
            if not uncertain:
                self.calls.answered(launch)
                self.calls.done(launch)
            return _refused(group, error, uncertain=uncertain)
        self.calls.answered(launch)
        result = self._new_instances(result, request, image=group.image.id)
        for instance in result.instances:
            option = group.option(instance.instance_type, instance.zone)
            self._debit(instance, option.odcr_ids)
        return FleetResult(
            group=group,
            distribution=distribute(group, result),
            errors=result.errors,
            request_id=result.request_id,
            launch=launch,
        )

    def repeat(self, call: FleetCall, request: LaunchRequest) -> Sequence[Instance]:
        """Repeats a call after its answer was lost; returns its living instances that no claim has.

        Refusals in a repeated answer are ignored: the next plan meets them again. Raises ProviderError.
        """
        self._client.check()
        with self._inventory.calling(call.odcrs):
            try:
                result = self._provider.launch(request)
            except ProviderError as error:
                if not error.class_.of_caller:
                    self.calls.answered(call.launch)
                raise
            self.calls.answered(call.launch)
            new = self._new_instances(result, request)
            for instance in new.instances:
                self._debit(instance, call.odcrs)
        return new.instances

    def differs(
        self,
        call: FleetCall,
        claims: Sequence[Claim],
        ready: LaunchClass,
        snapshot: Snapshot,
        now: datetime,
    ) -> str:
        """The difference between a recorded call and a launch of its claims now; empty if there is none.

        `claims` have no instance yet, `ready` is their class. A call that differs must not be sent. Raises
        ProviderError.
        """
        try:
            group = rebuilt(call, claims, ready, snapshot.types, snapshot.inventory, now)
            first = self._claims.get(claims[0].name)
            if call.request is None or first is None:
                return "its record cannot be read"
            launch_template = template(ready, group, first, provider=self._provider, cluster=self._cluster)
        except CallDiffers as error:
            return str(error)
        ref = self._provider.ensure_template(launch_template, owner=ready.source.name)
        count = len(call.claims)
        request = replace(
            self._request(group, ready, ref, call.launch),
            count=count,
            minimum=count if group.gang else 0,
            max_price=call.request.max_price,  # prices change, and a limit launches nothing more
        )
        if (ref.name, ref.id) != (call.request.template.name, call.request.template.id):
            return "the launch template would be another"
        if replace(request, template=call.request.template) != call.request:
            return "count, market, context or tags would be others"
        return ""

    def tidy(self, claims: Iterable[NodeClaim]) -> None:
        """Deletes the records of calls that are over."""
        self._writers.each(self._forget, self.calls.obsolete(claims))

    def _forget(self, launch: str) -> None:
        try:
            self.calls.forget(launch)
        except ApiError as error:
            _log.warning("record of a fleet call not deleted", launch=launch, error=str(error))

    def _still_waiting(self, group: LaunchGroup) -> tuple[LaunchGroup, list[NodeClaim]]:
        """The group without the claims that were deleted, launched or taken over since it was planned."""
        by_uid = {a.claim.uid: self._claims.get(a.claim.name) for a in group.assignments}
        claims = [
            claim
            for uid, claim in by_uid.items()
            if claim is not None and claim.uid == uid and claim.waits and self._owns(claim)
        ]
        if group.gang and len(claims) < group.count:
            return group, []  # an incomplete gang is not launched
        return _only(group, {claim.uid for claim in claims}), claims

    def _new_instances(
        self, result: LaunchResult, request: LaunchRequest, *, image: str = ""
    ) -> LaunchResult:
        """The result without instances that have ended, or that another claim has adopted.

        A repeated token returns its first instances again. EC2 may not show a new one yet.
        """
        claimed_ids = self._caches.claimed_ids()
        unclaimed = (i for i in result.instances if i.alive and i.id not in claimed_ids)
        return replace(result, instances=tuple(self._completed(i, request, image) for i in unclaimed))

    def _completed(self, instance: Instance, request: LaunchRequest, image: str) -> Instance:
        """Completes an instance that EC2 does not show yet, with its known facts."""
        if instance.described:
            return instance
        return replace(instance, image_id=image, launched=self._clock.now(), tags=dict(request.tags))

    def _debit(self, instance: Instance, odcr_ids: Sequence[str]) -> None:
        """Reserves the slot that the instance holds, or may hold while EC2 does not show it yet."""
        odcr_id = instance.reservation_id
        if not instance.described:
            inventory = self._inventory.snapshot()
            # The slot of a successor is unused, but not free for others.
            rooms = (room for room in (inventory.free, inventory.unused))
            odcr_id = next((id_ for room in rooms for id_ in odcr_ids if room(id_)), "")
        if odcr_id:
            self._inventory.launched(instance_id=instance.id, odcr_id=odcr_id)

    def _mark(
        self, group: LaunchGroup, claims: Sequence[NodeClaim], ready: LaunchClass, ref: TemplateRef
    ) -> tuple[LaunchGroup, LaunchRequest | None]:
        """Puts finalizer and launch id on each claim and records the call; no request if no claim is left.

        A claim that cannot be written waits for another pass.
        """
        launch = uuid.uuid4().hex
        outcomes = self._writers.each(lambda claim: self._marked(claim, launch), claims)
        marked = {claim.uid for claim, succeeded in zip(claims, outcomes, strict=True) if succeeded}
        if not marked or (group.gang and len(marked) < group.count):
            return _only(group, set()), None
        marked_group = _only(group, marked)
        request = self._request(marked_group, ready, ref, launch)
        call = FleetCall(
            launch=launch,
            claims=tuple(a.claim.uid for a in marked_group.assignments),
            node_class=ready.source.name,
            generation=ready.source.metadata.generation,
            capacity_type=marked_group.assignments[0].option.pool.capacity_type,
            reservation=marked_group.assignments[0].option.pool.reservation,
            odcrs=marked_group.assignments[0].option.odcr_ids,
            closed=marked_group.closed,
            request=request,
        )
        try:
            self.calls.record(call)
        except ApiError as error:
            self._unrecorded(claims, error)
            return _only(group, set()), None
        return marked_group, request

    def _request(
        self, group: LaunchGroup, ready: LaunchClass, ref: TemplateRef, launch: str
    ) -> LaunchRequest:
        return LaunchRequest(
            token=launch,
            template=ref,
            overrides=group.overrides,
            count=group.count,
            market=group.fleet_market,
            minimum=group.minimum,
            context=ready.source.spec.context,
            max_price=group.count * group.price_limit,
            tags=instance_tags(ready, launch=launch, cluster=self._cluster.name),
        )

    def _marked(self, claim: NodeClaim, launch: str) -> bool:
        def marks(now: NodeClaim) -> Mapping[str, Any]:
            return missing_finalizer(now) | {"annotations": {names.LAUNCH: launch}} if now.waits else {}

        try:
            return patch(self._client, self._claims, claim, marks).waits
        except ApiError as error:
            _log.warning("claim not launched: it could not be marked", claim=claim.name, error=str(error))
            if error.by_policy:
                message = f"the claim could not be marked before the call to EC2: {error}"
                self._reporter.waiting(claim, reason=NOT_RECORDED, message=message)
            return False

    def _unrecorded(self, claims: Iterable[NodeClaim], error: ApiError) -> None:
        _log.warning("not launched: the call could not be recorded", error=str(error))
        for claim in claims:
            self._reporter.waiting(
                claim,
                reason=NOT_RECORDED,
                message=f"the call to EC2 could not be recorded in namespace {NAMESPACE}: {error}",
            )


def _only(group: LaunchGroup, uids: Collection[str]) -> LaunchGroup:
    kept = tuple(a for a in group.assignments if a.claim.uid in uids)
    return replace(group, assignments=kept, minimum=min(group.minimum, len(kept)))


def _refused(group: LaunchGroup, error: ProviderError, *, uncertain: bool = False) -> FleetResult:
    distribution = refused(group, error)
    return FleetResult(
        group=group,
        distribution=distribution,
        errors=distribution.refused[0].errors if distribution.refused else (),
        uncertain=uncertain,
        request_id=error.request_id,
    )
