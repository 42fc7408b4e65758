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
from broker.apis.hashes import class_stamp
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import ConditionUpdate, is_true
from broker.capacity.adopt import capacity_type
from broker.capacity.answers import answer
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.future_labels import class_labels
from broker.capacity.launches import LaunchedClaim, RefusedAssignment
from broker.capacity.model import Option, Pool, Skipped
from broker.capacity.types import WELL_KNOWN, allocatable, capacity, node_labels
from broker.controllers.claim_status import missing_finalizer, no_node_yet, patch, provider_id, write
from broker.controllers.inventory import InventoryCache
from broker.controllers.launch.launch_pass import FleetResult
from broker.controllers.launch.report import Reporter, passed_over
from broker.controllers.nodeclass.resolve import LaunchClass
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import ApiError
from broker.kube.panics import guarded
from broker.lists import lists_by_key
from broker.oncall.journal import Journal
from broker.placement.claims import required_tenancy
from broker.placement.reading import claim_requirements
from providers.model import Instance, InstanceType

History = tuple[LaunchedClaim, Sequence[Attempt]]  # a claim with its instance, and all attempts for it
Begin = Callable[[Callable[[History], bool], Sequence[History]], Callable[[], Sequence[bool]]]
MOST_SKIPPED = 8

_log = structlog.get_logger("launch")


class Binder:
    """Binds instances to claims; `done` is called with a launch id once all its instances have claims."""

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
        histories: list[History] = []
        for pair in result.distribution.pairs:
            tried = {pool for a in before.get(pair.claim.uid, ()) for pool in (a.pool, *a.also)}
            skip_attempts = [
                self.record(
                    pair.claim.name,
                    ready,
                    pool=first.pool,
                    outcome=Outcome.SKIPPED,
                    code=first.reason,
                    class_=first.class_,
                    message=first.message.removeprefix(f"{first.pool.shown}: "),  # which the attempt has
                    next_step="the next option is taken",
                    also=tuple(skip.pool for skip in alike),
                    odcr_ids=tuple(id_ for skip in (first, *alike) for id_ in skip.odcr_ids),
                )
                for first, *alike in _grouped_by_reason(skipped.get(pair.claim.uid, ()), tried)
            ]
            option = result.group.option(pair.instance.instance_type, pair.instance.zone)
            odcr_id = pair.instance.reservation_id
            launch_attempt = self.record(
                pair.claim.name,
                ready,
                pool=option.pool,
                outcome=Outcome.SPILLED if pair.spilled and not odcr_id else Outcome.LAUNCHED,
                instance_id=pair.instance.id,
                request_id=result.request_id,
                message=_spill(option, odcr_id) if pair.spilled else "",
                odcr_ids=(odcr_id,) if odcr_id else option.odcr_ids,
            )
            attempts += [*skip_attempts, launch_attempt]
            histories.append((pair, [*before.get(pair.claim.uid, ()), *skip_attempts, launch_attempt]))

        def bind(history: History) -> bool:
            pair, claim_attempts = history
            with guarded("bind", claim=pair.claim.name, instance=pair.instance.id):
                return self.bind(pair.claim.name, pair.claim.uid, pair.instance, ready, types, claim_attempts)
            return False

        begun = begin(bind, histories)

        def wait() -> None:
            if all(begun()) and result.launch and not result.uncertain:
                self._done(result.launch)

        return attempts, wait

    def refusals(self, result: FleetResult, refused: RefusedAssignment, ready: LaunchClass) -> list[Attempt]:
        """One attempt for each error code that EC2 returned for the pools of this claim."""
        by_code = lists_by_key((error.code, error) for error in refused.errors)
        attempts = []
        for code, errors in by_code.items():
            first = errors[0]
            tried = [result.group.option(refusal.instance_type, refusal.zone) for refusal in errors]
            option, *others = dict.fromkeys(tried)
            attempts.append(
                self.record(
                    refused.claim.name,
                    ready,
                    pool=option.pool,
                    outcome=Outcome.REFUSED,
                    code=code,
                    class_=first.class_,
                    message=first.message,
                    request_id=result.request_id,
                    next_step=answer(first.class_, option=option).next_step,
                    also=tuple(other.pool for other in others),
                    odcr_ids=tuple(
                        id_ for tried_option in (option, *others) for id_ in tried_option.odcr_ids
                    ),
                )
            )
        return attempts

    def record(self, claim: str, ready: LaunchClass, **fields: Any) -> Attempt:
        cached = self._claims.get(claim)
        attempt = Attempt(
            claim=claim,
            node_class=ready.source.name,
            at=self._clock.now(),
            node_pool=cached.node_pool if cached is not None else "",
            **fields,
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
        """Binds the instance to the claim. False if the claim was not written: its instance is an orphan."""
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
            else ready.plan.of_tenancy(required_tenancy(claim)).tenancy,
        )
        facts |= class_labels(claim.spec.node_class_ref.name)
        if instance.reservation_id:
            facts[names.RESERVATION_ID] = instance.reservation_id
        if not instance.described:
            del facts[names.CAPACITY_TYPE]  # labelled when EC2 shows the capacity type

        new_provider_id = provider_id(instance)

        def launch_metadata(current: NodeClaim) -> dict[str, Any]:
            if _taken(current, new_provider_id):
                return {}
            labels: dict[str, str | None] = {**_requirement_labels(current), **current.labels}
            labels |= {key: None for key in names.RESERVATION_LABELS if key in current.labels}
            metadata = missing_finalizer(current) | {"labels": labels | facts}
            return metadata | {
                "annotations": self._reporter.remembered(current, attempts)
                | _class_stamp(instance, ready)
                | self._launched_into(instance, current, attempts)
            }

        changes = [ConditionUpdate(type=names.LAUNCHED, status="True", reason="Launched")]
        if not is_true(claim, names.REGISTERED_CONDITION):
            changes.append(
                no_node_yet(new_provider_id)
            )  # as registration would write next, in the same write
        changes += self._reporter.limits(attempts)
        try:
            claim = patch(self._client, self._claims, claim, launch_metadata)
            if _taken(claim, new_provider_id):
                _log.warning("claim got another instance meanwhile", claim=name, instance=instance.id)
                return False
            claim = write(
                self._client,
                self._claims,
                claim,
                *changes,
                now=self._clock.now(),
                fields={
                    "providerID": new_provider_id,
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
        if why := "" if where else passed_over(attempts):
            where = f" outside reservations: {why}"
        self._reporter.record_event(
            claim,
            "Normal",
            "Launched",
            f"instance {instance.id} ({instance.instance_type}, {instance.zone}){where}",
            attempts,
        )
        return True

    def _launched_into(
        self, instance: Instance, claim: NodeClaim, attempts: Sequence[Attempt]
    ) -> dict[str, str | None]:
        """The annotation with the ODCR whose slot an instance without a description is taken to have."""
        named = attempts[-1].odcr_ids if attempts else ()
        taken = self._inventory.assumed.debits.get(instance.id)
        if not instance.described and (into := taken or next(iter(named), "")):
            return {names.LAUNCHED_INTO: into}
        return {names.LAUNCHED_INTO: None} if names.LAUNCHED_INTO in claim.annotations else {}


def _taken(claim: NodeClaim, new: str) -> bool:
    """Whether the claim has another instance."""
    return claim.status.provider_id not in ("", new)


def _class_stamp(instance: Instance, ready: LaunchClass) -> dict[str, str]:
    """The hash of the class that the instance was launched with, for drift.

    The class may have changed before a claim adopts the instance, which then has the old user data.
    """
    version, _, launched = instance.tags.get(names.TAG_NODECLASS_HASH, "").rpartition("/")
    if not version:
        return class_stamp(ready.source)
    return {names.NODECLASS_HASH: launched, names.NODECLASS_HASH_VERSION: version}


def _grouped_by_reason(skipped: Iterable[Skipped], tried: Collection[Pool]) -> list[list[Skipped]]:
    """Groups adjacent options that were skipped for the same reason; their order stays."""
    untried = (skip for skip in skipped if skip.pool not in tried)
    return [
        list(alike)
        for _, alike in groupby(untried, key=lambda skip: (skip.pool.capacity_type, skip.reason, skip.class_))
    ][:MOST_SKIPPED]


def _requirement_labels(claim: NodeClaim) -> dict[str, str]:
    """The node labels of requirements, as Karpenter's launch makes them: the only value, or the first that is
    allowed for a label of the user's own.

    Labels about capacity are left out: EC2's description decides them.
    """
    required = claim_requirements(claim)
    own = {key: values[0] for key in required if key not in WELL_KNOWN and (values := required.choices(key))}
    return own | {key: value for key, value in required.labels().items() if key not in names.SHOWN_LATER}


def _spill(option: Option, odcr_id: str) -> str:
    target = ", ".join(option.odcr_ids) or option.pool.shown
    if odcr_id:
        return f"EC2 counts it in {odcr_id}, not in {target}"
    return f"EC2 launched it on demand: {target} had no free slot left at the launch"


def _quantities(amounts: Mapping[str, float]) -> dict[str, str]:
    """Base units as Kubernetes writes them: cores may be thousandths, all else is whole."""
    return {
        name: f"{round(amount * 1000)}m" if name == "cpu" and amount != int(amount) else str(int(amount))
        for name, amount in sorted(amounts.items())
    }
