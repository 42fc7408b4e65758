"""One fleet call, from marking its claims to EC2's answer; what follows from that is `bind`'s.

Order, so that a kill at any point loses nothing: the finalizer, the launch id and the call itself go on the
claims before EC2 is asked. The launch id is the client token and stands for one call only: it is made again
as it was (`repeat`) until its answer is known.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.launches import Distribution, LaunchGroup, distribute, refused
from broker.controllers.inventory import InventoryKeeper
from broker.controllers.nodeclaim.answered import Answered
from broker.controllers.nodeclaim.bind import Binder
from broker.controllers.nodeclaim.intents import Intent, Intents, written
from broker.controllers.nodeclaim.report import Reporter
from broker.controllers.nodeclaim.status import instance_id, missing_finalizer, patch
from broker.controllers.nodeclaim.template import ClusterFacts, instance_tags, template
from broker.controllers.nodeclaim.writers import Writers
from broker.controllers.nodeclass.resolve import LaunchClass
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import ApiError
from broker.oncall.journal import Journal
from providers.base import CapacityProvider
from providers.model import (
    ErrorClass,
    Instance,
    LaunchRequest,
    LaunchResult,
    ProviderError,
    TemplateRef,
)

_log = structlog.get_logger("launch")

# A call that was made is answered again for its token, unless it is turned away before anybody looks at that;
# any other refusal of a repeat says that there is nothing to repeat.
AT_THE_DOOR = (ErrorClass.TRANSIENT, ErrorClass.THROTTLING, ErrorClass.PERMISSION)


class Executor:
    """Carries out launch groups; used by the one launch loop, for groups of one wave at the same time."""

    def __init__(
        self,
        client: Client,
        provider: CapacityProvider,
        claims: Cache[NodeClaim],
        inventory: InventoryKeeper,
        journal: Journal,
        reporter: Reporter,
        *,
        clock: Clock,
        cluster: ClusterFacts,
        owns: Callable[[NodeClaim], bool],
        used: Callable[[TemplateRef], None],
        ids: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._client = client
        self._provider = provider
        self._claims = claims
        self._inventory = inventory
        self._clock = clock
        self._cluster = cluster
        self._owns = owns
        self._writers = Writers("marks")
        self._used = used
        self._ids = ids
        self.intents = Intents()
        self.binder = Binder(
            client, claims, inventory, journal, reporter, clock=clock, done=self.intents.done
        )

    def close(self) -> None:
        self._writers.close()

    def launch(self, group: LaunchGroup, ready: LaunchClass) -> Answered:
        """Makes the template, marks the claims, asks EC2. Raises nothing that concerns EC2."""
        group, claims = self._still_waiting(group)
        if not claims:
            return Answered(group=group, dealt=Distribution(), errors=())
        try:
            made = template(ready, group, claims[0], provider=self._provider, cluster=self._cluster)
            ref = self._provider.ensure_template(made, owner=ready.source.name)
        except ProviderError as error:
            return _refused(group, error)
        self._used(ref)
        group, request = self._mark(group, claims, ready, ref)
        if request is None:
            return Answered(group=group, dealt=Distribution(), errors=())
        launch = request.token
        try:
            self._client.check()  # EC2 knows nothing of the Lease
            result = self._provider.launch(request)
        except ApiError as error:
            _log.warning("not launched: another process may lead by now", error=str(error))
            return Answered(group=group, dealt=Distribution(), errors=())
        except ProviderError as error:
            uncertain = error.lost and error.class_ in AT_THE_DOOR
            if not uncertain:
                self.intents.answered(launch)
                self.intents.done(launch)
            return _refused(group, error, uncertain=uncertain)
        self.intents.answered(launch)
        result = self._news(result, request, image=group.image.id)
        for instance in result.instances:
            option = group.option(instance.instance_type, instance.zone)
            self._debit(instance, option.odcr_ids)
        return Answered(
            group=group,
            dealt=distribute(group, result),
            errors=result.errors,
            request_id=result.request_id,
            launch=launch,
        )

    def repeat(self, intent: Intent, request: LaunchRequest) -> Sequence[Instance]:
        """Makes a call again whose answer nobody saw: its living instances that no claim has.

        What it refused is old news, and told to nobody. Raises ProviderError.
        """
        self._client.check()
        try:
            result = self._provider.launch(request)
        except ProviderError as error:
            if error.class_ not in AT_THE_DOOR:
                self.intents.answered(intent.launch)
            raise
        self.intents.answered(intent.launch)
        news = self._news(result, request)
        for instance in news.instances:
            self._debit(instance, intent.odcrs)
        return news.instances

    def tidy(self, claims: Iterable[NodeClaim]) -> None:
        """Takes the parameters of calls off their claims of which nobody waits any more."""
        for claim in self.intents.over(claims):
            try:
                patch(self._client, self._claims, claim, _without_request)
            except ApiError as error:
                _log.warning("claim not tidied", claim=claim.name, error=str(error))

    def _still_waiting(self, group: LaunchGroup) -> tuple[LaunchGroup, list[NodeClaim]]:
        """The group less the claims that were deleted, launched or taken over since it was planned, and those
        that carry a call which others still wait for: what they are marked with would take its place."""
        found = {a.claim.uid: self._claims.get(a.claim.name) for a in group.assignments}
        claims = [
            claim
            for uid, claim in found.items()
            if claim is not None
            and claim.uid == uid
            and not claim.deleting
            and not claim.status.provider_id
            and self._owns(claim)
            and not self.intents.needed(claim, self._claims.list())
        ]
        if group.gang and len(claims) < group.count:
            return group, []  # a gang that is not whole is not asked for
        return _only(group, {claim.uid for claim in claims}), claims

    def _news(self, result: LaunchResult, request: LaunchRequest, *, image: str = "") -> LaunchResult:
        """A token that was used before gives its instances again, also those that have ended since and those
        that another claim has adopted; and EC2 may not show a new one yet."""
        taken = {instance_id(claim) for claim in self._claims.list()}
        ours = (i for i in result.instances if i.alive and i.id not in taken)
        return replace(result, instances=tuple(self._as_asked(i, request, image) for i in ours))

    def _as_asked(self, instance: Instance, request: LaunchRequest, image: str) -> Instance:
        """One that EC2 does not show yet, with what is true of it whatever EC2 will show."""
        if instance.described:
            return instance
        return replace(instance, image_id=image, launched=self._clock.now(), tags=dict(request.tags))

    def _debit(self, instance: Instance, meant: Sequence[str]) -> None:
        """The slot that it holds, or may hold where EC2 does not show it yet: nobody else gets it."""
        odcr_id = instance.reservation_id
        if not instance.described:
            inventory = self._inventory.snapshot()
            odcr_id = next((each for each in meant if inventory.free(each)), "")
        if odcr_id:
            self._inventory.launched(instance_id=instance.id, odcr_id=odcr_id)

    def _mark(
        self, group: LaunchGroup, claims: Sequence[NodeClaim], ready: LaunchClass, ref: TemplateRef
    ) -> tuple[LaunchGroup, LaunchRequest | None]:
        """Finalizer and launch id on each claim, the call itself on the last; no call where none is left.

        A claim that cannot be written waits for another pass.
        """
        launch = self._ids()
        members = claims[:-1]
        done = self._writers.each(lambda c: self._marked(c, lambda now: _marks(now, launch)), members)
        marked = {claim.uid: claim for claim, is_done in zip(members, done, strict=True) if is_done}
        for carrier in (claims[-1], *reversed(marked.values())):
            marked.pop(carrier.uid, None)
            if group.gang and len(marked) + 1 < group.count:
                break
            asked = _only(group, {*marked, carrier.uid})
            request = LaunchRequest(
                token=launch,
                template=ref,
                overrides=group.overrides,
                count=asked.count,
                market="spot" if group.capacity_type == "spot" else group.market,
                minimum=asked.minimum,
                context=ready.source.spec.context,
                tags=instance_tags(ready, launch=launch, cluster=self._cluster.name),
            )
            intent = Intent(
                launch=launch,
                claims=tuple(a.claim.uid for a in asked.assignments),
                node_class=ready.source.name,
                generation=ready.source.metadata.generation,
                odcrs=group.assignments[0].option.odcr_ids if group.capacity_type == "reserved" else (),
                request=request,
            )
            if self._marked(carrier, lambda now, made=intent: _marks(now, launch, made)):  # type: ignore[misc]
                return asked, request
        return _only(group, set()), None

    def _marked(self, claim: NodeClaim, marks: Callable[[NodeClaim], Mapping[str, Any]]) -> bool:
        try:
            return not patch(self._client, self._claims, claim, marks).deleting
        except ApiError as error:
            _log.warning("claim not launched: it could not be marked", claim=claim.name, error=str(error))
            return False


def _marks(claim: NodeClaim, launch: str, intent: Intent | None = None) -> dict[str, Any]:
    """What a claim gets before EC2 is asked for it; nothing more for one that is deleted."""
    if claim.deleting:
        return {}
    old = _without_request(claim).get("annotations", {})
    return missing_finalizer(claim) | {
        "annotations": {**old, names.LAUNCH: launch, **(written(intent) if intent else {})}
    }


def _without_request(claim: NodeClaim) -> dict[str, Any]:
    there = names.LAUNCH_REQUEST in claim.annotations
    return {"annotations": {names.LAUNCH_REQUEST: None}} if there else {}


def _only(group: LaunchGroup, uids: Collection[str]) -> LaunchGroup:
    kept = tuple(a for a in group.assignments if a.claim.uid in uids)
    return replace(group, assignments=kept, minimum=min(group.minimum, len(kept)))


def _refused(group: LaunchGroup, error: ProviderError, *, uncertain: bool = False) -> Answered:
    dealt = refused(group, error)
    return Answered(
        group=group,
        dealt=dealt,
        errors=dealt.left[0].errors if dealt.left else (),
        uncertain=uncertain,
        request_id=error.request_id,
    )
