"""One fleet call, from marking its claims to telling them what came of it.

Order, so that a kill at any point loses nothing: the finalizer and the launch id go on the claim before EC2
is asked; labels before the providerID, so a claim with a providerID is complete; an instance whose claim
could not be written is an orphan that the next pass adopts. The client token follows from the launch id and
everything that is asked, so the same call made again after a lost reply gives the same instances.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import orjson
import structlog

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.adopt import capacity_type
from broker.capacity.answers import answer
from broker.capacity.launches import Distribution, LaunchGroup, LeftOver, distribute, refused
from broker.capacity.model import Attempt, Option, Outcome, Skipped
from broker.capacity.types import allocatable, capacity, node_labels
from broker.controllers.inventory import InventoryKeeper
from broker.controllers.nodeclaim.answered import Answered
from broker.controllers.nodeclaim.report import Reporter
from broker.controllers.nodeclaim.status import Change, instance_id, missing_finalizer, patch, write
from broker.controllers.nodeclaim.template import ClusterFacts, instance_tags, template
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
    InstanceType,
    LaunchError,
    LaunchRequest,
    ProviderError,
    TemplateRef,
)

_log = structlog.get_logger("launch")

MOST_SKIPPED = 8
# A reply that may have been lost: the call may have worked.
UNCERTAIN = (ErrorClass.TRANSIENT,)


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
        used: Callable[[TemplateRef], None],
        ids: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._client = client
        self._provider = provider
        self._claims = claims
        self._inventory = inventory
        self._journal = journal
        self._reporter = reporter
        self._clock = clock
        self._cluster = cluster
        self._used = used
        self._ids = ids
        self._settled: set[str] = set()  # uids whose last call was answered: the next one is a new launch

    def forget(self, uids: set[str]) -> None:
        """Drops what is remembered of claims that are no more."""
        self._settled &= uids

    def launch(self, group: LaunchGroup, ready: LaunchClass) -> Answered:
        """Marks the claims, makes the template, asks EC2. Raises nothing that concerns EC2."""
        marked, launch = self._mark(group)
        if not marked:
            return Answered(group=group, dealt=Distribution(), errors=())
        group = _only(group, marked)
        try:
            made = template(
                ready, group, next(iter(marked.values())), provider=self._provider, cluster=self._cluster
            )
            ref = self._provider.ensure_template(made, owner=ready.source.name)
            self._used(ref)
            request = LaunchRequest(
                token=_token(launch, group, ref.name),
                template=ref,
                overrides=group.overrides,
                count=group.count,
                market="spot" if group.capacity_type == "spot" else group.market,
                minimum=group.minimum,
                tags=instance_tags(ready, launch=launch, cluster=self._cluster.name),
            )
            self._client.check()  # EC2 knows nothing of the Lease
            result = self._provider.launch(request)
        except ProviderError as error:
            uncertain = error.class_ in UNCERTAIN
            if not uncertain:
                self._settled |= {c.uid for c in marked.values()}
            dealt = refused(group, error)
            return Answered(
                group=group,
                dealt=dealt,
                errors=dealt.left[0].errors if dealt.left else (),
                uncertain=uncertain,
                request_id=error.request_id,
            )
        self._settled |= {c.uid for c in marked.values()}
        # A token that an earlier process used gives its instances again, also those that have ended since
        # and those that another claim has adopted.
        taken = {instance_id(claim) for claim in self._claims.list()}
        ours = (i for i in result.instances if i.alive and i.id not in taken)
        result = replace(result, instances=tuple(self._as_asked(i, group, request) for i in ours))
        for instance in result.instances:
            if odcr_id := instance.reservation_id or self._meant(instance, group):
                self._inventory.launched(instance_id=instance.id, odcr_id=odcr_id)
        return Answered(
            group=group,
            dealt=distribute(group, result),
            errors=result.errors,
            request_id=result.request_id,
        )

    def _as_asked(self, instance: Instance, group: LaunchGroup, request: LaunchRequest) -> Instance:
        """One that EC2 does not show yet, with what is true of it whatever EC2 will show."""
        if instance.described:
            return instance
        return replace(instance, image_id=group.image.id, launched=self._clock.now(), tags=dict(request.tags))

    def _meant(self, instance: Instance, group: LaunchGroup) -> str:
        """The reservation whose slot an instance may hold that EC2 does not show yet: nobody else gets it."""
        if instance.described:
            return ""
        inventory = self._inventory.snapshot()
        option = group.option(instance.instance_type, instance.zone)
        return next((each for each in option.odcr_ids if inventory.free(each)), "")

    def _mark(self, group: LaunchGroup) -> tuple[dict[str, NodeClaim], str]:
        """Finalizer and launch id on each claim; one that cannot be written waits for another pass."""
        current = [self._claims.get(a.claim.name) for a in group.assignments]
        claims = [
            c
            for c, a in zip(current, group.assignments, strict=True)
            if c is not None and c.uid == a.claim.uid and not c.deleting and not c.status.provider_id
        ]
        open_ = {c.annotations.get(names.LAUNCH, "") for c in claims if c.uid not in self._settled}
        whole = len(open_) == 1 and all(c.uid not in self._settled for c in claims)
        launch = (open_.pop() if whole else "") or self._ids()
        marked: dict[str, NodeClaim] = {}
        for claim in claims:
            try:
                mine = patch(self._client, self._claims, claim, lambda now: _marks(now, launch))
            except ApiError as error:
                _log.warning("claim not launched: it could not be marked", claim=claim.name, error=str(error))
                continue
            if not mine.deleting:
                marked[mine.uid] = mine
        if group.gang and len(marked) < group.count:
            return {}, launch  # a gang that is not whole is not asked for
        return marked, launch

    def tell(
        self,
        answered: Answered,
        ready: LaunchClass,
        types: Mapping[str, InstanceType],
        *,
        skipped: Mapping[str, Sequence[Skipped]],
        before: Mapping[str, Sequence[Attempt]],
    ) -> list[Attempt]:
        """Writes attempts, claims, labels and status of those that launched; returns every new attempt.

        `skipped` and `before` are, by claim uid, the better options and what was tried in this pass.
        """
        attempts: list[Attempt] = []
        for pair in answered.dealt.pairs:
            asked = {pool for a in before.get(pair.claim.uid, ()) for pool in (a.pool, *a.also)}
            passed = [
                self.record(
                    pair.claim.name,
                    ready,
                    pool=str(first.pool),
                    outcome=Outcome.SKIPPED,
                    code=first.reason,
                    class_=first.class_,
                    message=first.message,
                    next_step="the next option is taken",
                    also=tuple(str(each.pool) for each in alike),
                )
                for first, *alike in _alike(skipped.get(pair.claim.uid, ()), asked)
            ]
            option = answered.group.option(pair.instance.instance_type, pair.instance.zone)
            elsewhere = pair.instance.reservation_id
            made = self.record(
                pair.claim.name,
                ready,
                pool=str(option.pool),
                outcome=Outcome.SPILLED if pair.spilled and not elsewhere else Outcome.LAUNCHED,
                instance_id=pair.instance.id,
                request_id=answered.request_id,
                message=_spill(option, elsewhere) if pair.spilled else "",
            )
            attempts += [*passed, made]
            story = [*before.get(pair.claim.uid, ()), *passed, made]
            self.bind(pair.claim.name, pair.claim.uid, pair.instance, ready, types, story)
        return attempts

    def refusals(self, answered: Answered, left: LeftOver, ready: LaunchClass) -> list[Attempt]:
        """One attempt a distinct code: what EC2 said about the pools that this claim was tried in."""
        by_code: dict[str, list[LaunchError]] = {}
        for error in left.errors:
            by_code.setdefault(error.code, []).append(error)
        attempts = []
        for code, errors in by_code.items():
            first = errors[0]
            tried = [answered.group.option(each.instance_type, each.zone) for each in errors]
            option, *others = dict.fromkeys(tried)
            attempts.append(
                self.record(
                    left.claim.name,
                    ready,
                    pool=str(option.pool),
                    outcome=Outcome.REFUSED,
                    code=code,
                    class_=first.class_,
                    message=first.message,
                    request_id=answered.request_id,
                    next_step=answer(first.class_, option=option).next_step,
                    also=tuple(str(each.pool) for each in others),
                )
            )
        return attempts

    def record(self, claim: str, ready: LaunchClass, **what: Any) -> Attempt:
        attempt = Attempt(claim=claim, node_class=ready.source.name, at=self._clock.now(), **what)
        self._journal.write(attempt)
        return attempt

    def bind(
        self,
        name: str,
        uid: str,
        instance: Instance,
        ready: LaunchClass,
        types: Mapping[str, InstanceType],
        attempts: Sequence[Attempt],
    ) -> bool:
        """Gives the instance to the claim. False where the claim could not be written: an orphan then."""
        claim = self._claims.get(name)
        if claim is None or claim.uid != uid:
            _log.warning("claim went away while it was launched", claim=name, instance=instance.id)
            return False
        type_ = types[instance.instance_type]
        odcr = self._inventory.snapshot().odcrs.get(instance.reservation_id)
        facts = node_labels(
            type_,
            instance.zone,
            zone_id=instance.zone_id,
            capacity_type=capacity_type(instance),
            odcr=odcr,
            tenancy=ready.plan.tenancy,
        )
        if instance.reservation_id:
            facts[names.RESERVATION_ID] = instance.reservation_id
        if not instance.described:
            del facts[names.CAPACITY_TYPE]  # labelled as soon as EC2 says what it runs in

        def dressed(now: NodeClaim) -> dict[str, Any]:
            labels: dict[str, str | None] = {**_requirement_labels(now), **now.labels}
            labels |= {key: None for key in names.RESERVATION_LABELS if key in now.labels}
            metadata = missing_finalizer(now) | {"labels": labels | facts}
            return metadata | {"annotations": self._reporter.remembered(now, attempts)}

        changes = [Change(type=names.LAUNCHED, status="True", reason="Launched")]
        changes += self._reporter.limits(attempts)
        try:
            claim = patch(self._client, self._claims, claim, dressed)
            claim = write(
                self._client,
                self._claims,
                claim,
                *changes,
                now=self._clock.now(),
                fields={
                    "providerID": f"aws:///{instance.zone}/{instance.id}",
                    "imageID": instance.image_id,
                    "capacity": _quantities(capacity(type_, ready.plan)),
                    "allocatable": _quantities(allocatable(type_, ready.plan)),
                },
            )
        except ApiError as error:
            _log.warning(
                "instance waits for adoption: its claim could not be written",
                claim=name,
                instance=instance.id,
                error=str(error),
            )
            return False
        where = f" in {instance.reservation_id}" if instance.reservation_id else ""
        self._reporter.say(
            claim,
            "Normal",
            "Launched",
            f"instance {instance.id} ({instance.instance_type}, {instance.zone}){where}",
            attempts,
        )
        return True


def _alike(skipped: Iterable[Skipped], asked: Collection[str]) -> list[list[Skipped]]:
    """Options that were passed over for one and the same reason, together: those after another stay so."""
    left = (each for each in skipped if str(each.pool) not in asked)
    return [
        list(alike)
        for _, alike in groupby(left, key=lambda each: (each.pool.capacity_type, each.reason, each.class_))
    ][:MOST_SKIPPED]


def _marks(claim: NodeClaim, launch: str) -> dict[str, Any]:
    """What a claim gets before EC2 is asked for it; nothing more for one that is deleted."""
    if claim.deleting:
        return {}
    new = claim.annotations.get(names.LAUNCH) != launch
    return missing_finalizer(claim) | ({"annotations": {names.LAUNCH: launch}} if new else {})


def _only(group: LaunchGroup, marked: Mapping[str, NodeClaim]) -> LaunchGroup:
    kept = tuple(a for a in group.assignments if a.claim.uid in marked)
    return replace(group, assignments=kept, minimum=min(group.minimum, len(kept)))


def _token(launch: str, group: LaunchGroup, template_name: str) -> str:
    asked = [
        launch,
        template_name,
        group.capacity_type,
        group.market,
        [[o.instance_type, o.zone, o.subnet_id, o.priority] for o in group.overrides],
        sorted(a.claim.uid for a in group.assignments),
    ]
    return hashlib.sha256(orjson.dumps(asked)).hexdigest()


def _requirement_labels(claim: NodeClaim) -> dict[str, str]:
    """A requirement with one value is a label of the node, as Karpenter's launch makes it; what EC2 has made
    of the one about capacity is for EC2 to say."""
    return {
        r.key: r.values[0]
        for r in claim.spec.requirements
        if r.operator == "In" and len(r.values) == 1 and r.key != names.CAPACITY_TYPE
    }


def _spill(option: Option, elsewhere: str) -> str:
    wanted = ", ".join(option.odcr_ids) or str(option.pool)
    if elsewhere:
        return f"EC2 counts it in {elsewhere}, not in {wanted}"
    return f"EC2 launched it on demand: {wanted} had no free slot left when it was asked"


def _quantities(amounts: Mapping[str, float]) -> dict[str, str]:
    """Base units as Kubernetes writes them: cores may be thousandths, nothing else is less than whole."""
    return {
        name: f"{round(amount * 1000)}m" if name == "cpu" and amount != int(amount) else str(int(amount))
        for name, amount in sorted(amounts.items())
    }
