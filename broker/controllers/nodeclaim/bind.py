"""Writes the results of a fleet call: attempts to the journal, labels and providerID to the claims.

Order, so that a kill at any point loses nothing: labels before the providerID, so a claim with a providerID
is complete. If a claim could not be written, its instance is an orphan that the next pass adopts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import structlog

from broker.apis import names
from broker.apis.hashes import VERSION, class_hash
from broker.apis.karpenter import NodeClaim
from broker.capacity.adopt import capacity_type
from broker.capacity.answers import answer
from broker.capacity.launches import LaunchedClaim, RefusedAssignment
from broker.capacity.model import Attempt, Option, Outcome, Pool, Skipped
from broker.capacity.types import allocatable, capacity, node_labels
from broker.controllers.inventory import InventoryCache
from broker.controllers.nodeclaim.launch_pass import FleetResult
from broker.controllers.nodeclaim.report import Reporter
from broker.controllers.nodeclaim.status import (
    is_true,
    missing_finalizer,
    no_node_yet,
    patch,
    provider_id,
    write,
)
from broker.controllers.nodeclaim.translate import asked_tenancy
from broker.controllers.nodeclass.resolve import LaunchClass
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.conditions import ConditionUpdate
from broker.kube.errors import ApiError
from broker.kube.panics import guarded
from broker.oncall.journal import Journal
from providers.launch import LaunchError
from providers.model import Instance, InstanceType

Story = tuple[LaunchedClaim, Sequence[Attempt]]  # a claim with its instance, and all attempts for it
Begin = Callable[[Callable[[Story], bool], Sequence[Story]], Callable[[], Sequence[bool]]]
MOST_SKIPPED = 8
_EC2_SAYS = frozenset({names.CAPACITY_TYPE, *names.RESERVATION_LABELS})

_log = structlog.get_logger("launch")


class Binder:
    """Gives instances to claims; `done` is called with a launch id once all its instances have claims."""

    def __init__(
        self,
        client: Client,
        claims: Cache[NodeClaim],
        inventory: InventoryCache,
        journal: Journal,
        reporter: Reporter,
        *,
        clock: Clock,
        done: Callable[[str], None],
    ) -> None:
        self._client = client
        self._claims = claims
        self._inventory = inventory
        self._journal = journal
        self._reporter = reporter
        self._clock = clock
        self._done = done

    def bind_all(
        self,
        result: FleetResult,
        ready: LaunchClass,
        types: Mapping[str, InstanceType],
        *,
        skipped: Mapping[str, Sequence[Skipped]],
        before: Mapping[str, Sequence[Attempt]],
        begin: Begin,
    ) -> tuple[list[Attempt], Callable[[], None]]:
        """Writes attempts, claims, labels and status of the claims that launched.

        Returns every new attempt, and a function that waits until the claims are written. `skipped` and
        `before` are, by claim uid, the better options and the attempts of this pass. `begin` starts a
        function on items.
        """
        attempts: list[Attempt] = []
        stories: list[Story] = []
        for pair in result.distribution.pairs:
            asked = {pool for a in before.get(pair.claim.uid, ()) for pool in (a.pool, *a.also)}
            passed = [
                self.record(
                    pair.claim.name,
                    ready,
                    pool=first.pool,
                    outcome=Outcome.SKIPPED,
                    code=first.reason,
                    class_=first.class_,
                    message=first.message,
                    next_step="the next option is taken",
                    also=tuple(each.pool for each in alike),
                    odcr_ids=tuple(id_ for each in (first, *alike) for id_ in each.odcr_ids),
                )
                for first, *alike in _alike(skipped.get(pair.claim.uid, ()), asked)
            ]
            option = result.group.option(pair.instance.instance_type, pair.instance.zone)
            elsewhere = pair.instance.reservation_id
            made = self.record(
                pair.claim.name,
                ready,
                pool=option.pool,
                outcome=Outcome.SPILLED if pair.spilled and not elsewhere else Outcome.LAUNCHED,
                instance_id=pair.instance.id,
                request_id=result.request_id,
                message=_spill(option, elsewhere) if pair.spilled else "",
                odcr_ids=(elsewhere,) if elsewhere else option.odcr_ids,
            )
            attempts += [*passed, made]
            stories.append((pair, [*before.get(pair.claim.uid, ()), *passed, made]))

        def bind(story: Story) -> bool:
            pair, attempts_made = story
            with guarded("bind", claim=pair.claim.name, instance=pair.instance.id):
                return self.bind(pair.claim.name, pair.claim.uid, pair.instance, ready, types, attempts_made)
            return False

        begun = begin(bind, stories)

        def wait() -> None:
            if all(begun()) and result.launch and not result.uncertain:
                self._done(result.launch)

        return attempts, wait

    def refusals(self, result: FleetResult, left: RefusedAssignment, ready: LaunchClass) -> list[Attempt]:
        """One attempt for each error code that EC2 returned for the pools of this claim."""
        by_code: dict[str, list[LaunchError]] = {}
        for error in left.errors:
            by_code.setdefault(error.code, []).append(error)
        attempts = []
        for code, errors in by_code.items():
            first = errors[0]
            tried = [result.group.option(each.instance_type, each.zone) for each in errors]
            option, *others = dict.fromkeys(tried)
            attempts.append(
                self.record(
                    left.claim.name,
                    ready,
                    pool=option.pool,
                    outcome=Outcome.REFUSED,
                    code=code,
                    class_=first.class_,
                    message=first.message,
                    request_id=result.request_id,
                    next_step=answer(first.class_, option=option).next_step,
                    also=tuple(each.pool for each in others),
                    odcr_ids=tuple(id_ for each in (option, *others) for id_ in each.odcr_ids),
                )
            )
        return attempts

    def record(self, claim: str, ready: LaunchClass, **what: Any) -> Attempt:
        cached = self._claims.get(claim)
        attempt = Attempt(
            claim=claim,
            node_class=ready.source.name,
            at=self._clock.now(),
            node_pool=cached.labels.get(names.NODEPOOL, "") if cached is not None else "",
            **what,
        )
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
        """Gives the instance to the claim. False if the claim could not be written: then it is an orphan."""
        claim = self._claims.get(name)
        if claim is None or claim.uid != uid:
            _log.warning("claim went away while it was launched", claim=name, instance=instance.id)
            return False
        type_ = types[instance.instance_type]
        odcr = self._inventory.odcr(instance.reservation_id)
        facts = node_labels(
            type_,
            instance.zone,
            zone_id=instance.zone_id,
            capacity_type=capacity_type(instance),
            odcr=odcr,
            tenancy=instance.tenancy
            if instance.described
            else ready.plan.of_tenancy(asked_tenancy(claim)).tenancy,
        )
        if instance.reservation_id:
            facts[names.RESERVATION_ID] = instance.reservation_id
        if not instance.described:
            del facts[names.CAPACITY_TYPE]  # labelled when EC2 shows the capacity type

        def dressed(now: NodeClaim) -> dict[str, Any]:
            labels: dict[str, str | None] = {**_requirement_labels(now), **now.labels}
            labels |= {key: None for key in names.RESERVATION_LABELS if key in now.labels}
            metadata = missing_finalizer(now) | {"labels": labels | facts}
            return metadata | {
                "annotations": {**self._reporter.remembered(now, attempts), **_class_stamp(ready)}
            }

        running = provider_id(instance)
        changes = [ConditionUpdate(type=names.LAUNCHED, status="True", reason="Launched")]
        if not is_true(claim, names.REGISTERED_CONDITION):
            changes.append(no_node_yet(running))  # as registration would write next, in the same write
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
                    "providerID": running,
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


def _class_stamp(ready: LaunchClass) -> dict[str, str]:
    """The hash of the class that the instance was launched with, for drift."""
    return {names.NODECLASS_HASH: class_hash(ready.source), names.NODECLASS_HASH_VERSION: VERSION}


def _alike(skipped: Iterable[Skipped], asked: Collection[Pool]) -> list[list[Skipped]]:
    """Groups adjacent options that were skipped for the same reason; their order stays."""
    left = (each for each in skipped if each.pool not in asked)
    return [
        list(alike)
        for _, alike in groupby(left, key=lambda each: (each.pool.capacity_type, each.reason, each.class_))
    ][:MOST_SKIPPED]


def _requirement_labels(claim: NodeClaim) -> dict[str, str]:
    """The node labels of requirements with one value, as Karpenter's launch makes them.

    Labels about capacity are left out: EC2's description decides them.
    """
    return {
        r.key: r.values[0]
        for r in claim.spec.requirements
        if r.operator == "In" and len(r.values) == 1 and r.key not in _EC2_SAYS
    }


def _spill(option: Option, elsewhere: str) -> str:
    wanted = ", ".join(option.odcr_ids) or option.pool.shown
    if elsewhere:
        return f"EC2 counts it in {elsewhere}, not in {wanted}"
    return f"EC2 launched it on demand: {wanted} had no free slot left when it was asked"


def _quantities(amounts: Mapping[str, float]) -> dict[str, str]:
    """Base units as Kubernetes writes them: cores may be thousandths, all else is whole."""
    return {
        name: f"{round(amount * 1000)}m" if name == "cpu" and amount != int(amount) else str(int(amount))
        for name, amount in sorted(amounts.items())
    }
