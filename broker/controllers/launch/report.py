"""Reports attempts, and the planner's reasons for none, to a claim, its pods, its class and its pool.

Conditions: Launched is Unknown, with one reason for each class of refusal; it is never False, since the claim
keeps waiting. CapacityReservation is LimitExceeded while reservations cannot serve, and Available after the
next launch into one. While the class names none that can serve, it has the reason of the first. Once no slot
is short any more, a claim that still waits has the reason that is left, so that no old one stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import structlog

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, pods_of
from broker.apis.meta import ConditionUpdate, condition
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.matching import NAME_ANOTHER
from broker.capacity.model import NodeClass, Skipped
from broker.capacity.requirements import Requirements
from broker.capacity.shortages import BACKING_OFF
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.claim_status import AVAILABLE, LIMIT_EXCEEDED, patch, write
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.pool_conditions import try_conditions
from broker.controllers.provisioning.pending import provisionable
from broker.controllers.provisioning.unused import UnusedNodes
from broker.kube.context import ControllerContext
from broker.kube.errors import ApiError, NotFound
from broker.kube.events import EventType
from broker.kube.removal import remove
from broker.oncall.journal import attempt_id, dump, recorded
from broker.placement.future_nodes import future_node
from broker.placement.pool_room import TypeRoom
from broker.placement.quantities import amounts
from broker.placement.reading import pod_info
from providers.errors import ErrorClass, ProviderError
from providers.model import InstanceType

# The reasons for a skipped option that mean LimitExceeded if the option is a reservation.
FULL = frozenset({"ReservationFull", "OutbidInPlan", "HeldForGang", BACKING_OFF})
MOST_PODS = 10

_log = structlog.get_logger("launch")


def limit(attempt: Attempt) -> ConditionUpdate | None:
    """The condition about reservations after an attempt; None if the attempt shows nothing about them."""
    reserved = attempt.pool.reserved
    if attempt.outcome in (Outcome.LAUNCHED, Outcome.ADOPTED) and reserved:
        return ConditionUpdate(
            type=names.CAPACITY_RESERVATION,
            status="True",
            reason=AVAILABLE,
            message=f"{attempt.pool.shown} took {attempt.claim}",
        )
    short = (
        attempt.outcome is Outcome.SPILLED
        or (attempt.outcome is Outcome.REFUSED and _shows_full(attempt.class_))
        or (attempt.outcome is Outcome.SKIPPED and _full(attempt.code, attempt.class_))
    )
    if reserved and short:
        return ConditionUpdate(
            type=names.CAPACITY_RESERVATION,
            status="False",
            reason=LIMIT_EXCEEDED,
            message=": ".join(filter(None, (attempt.pool.shown, attempt.code, attempt.message))),
        )
    return None


def unusable(attempts: Iterable[Attempt]) -> Attempt | None:
    """The first reservation or group that was skipped because the class must name another."""
    skips = (attempt for attempt in attempts if attempt.outcome is Outcome.SKIPPED)
    return next((skip for skip in skips if skip.code in NAME_ANOTHER), None)


def passed_over(attempts: Sequence[Attempt]) -> str:
    """Why an instance outside reservations has no slot: the first that the claim did not get; empty if it
    requested none.
    """
    reserved = [attempt for attempt in attempts if attempt.pool.reserved]
    if not reserved or reserved[-1].outcome is Outcome.LAUNCHED:
        return ""
    first = unusable(reserved) or reserved[0]
    return ": ".join(filter(None, (first.code, first.message)))


def reservations_full(skipped: Iterable[Skipped]) -> bool:
    """Whether a reservation was skipped only because it has no free slots."""
    return any(skip.pool.reserved and _full(skip.reason, skip.class_) for skip in skipped)


def _reservations_now(
    claim: NodeClaim, reason: str, message: str, skipped: Sequence[Skipped]
) -> list[ConditionUpdate]:
    """The condition of a claim that waits without an attempt: it changes with what is short, if it exists."""
    if reservations_full(skipped):
        reason = LIMIT_EXCEEDED
    elif condition(claim.status.conditions, names.CAPACITY_RESERVATION) is None:
        return []
    elif first := next((skip for skip in skipped if skip.pool.reserved), None):
        reason, message = first.reason, first.message
    return [ConditionUpdate(type=names.CAPACITY_RESERVATION, status="False", reason=reason, message=message)]


def _full(reason: str, class_: ErrorClass | None) -> bool:
    return reason in FULL and (class_ is None or _shows_full(class_))


def _shows_full(class_: ErrorClass | None) -> bool:
    return class_ is not None and (class_.policy.full or class_.policy.of_reservation)


class Reporter:
    """Writes to claims, pods' events and pools. A failed write does not stop the others."""

    def __init__(
        self,
        context: ControllerContext,
        caches: ClaimCaches,
        nodeclasses: NodeClassController,
        types: Callable[[], Mapping[str, InstanceType]],
    ) -> None:
        self._client, self._recorder, self._clock = context.client, context.recorder, context.clock
        self._claims, self._pools, self._pods = caches.claims, caches.pools, caches.pods
        self._nodeclasses = nodeclasses
        self._unused = UnusedNodes(context, caches)
        self._types = types

    def waiting(
        self,
        claim: NodeClaim,
        *,
        reason: str,
        message: str,
        attempts: Iterable[Attempt] = (),
        skipped: Iterable[Skipped] = (),
        quiet: bool = False,
    ) -> bool:
        """Reports why the claim could not be launched now, `quiet` without an event.

        False if the reason could not be written.
        """
        written = True
        attempts = list(attempts)
        before = condition(claim.status.conditions, names.LAUNCHED)
        changes = [ConditionUpdate(type=names.LAUNCHED, status="Unknown", reason=reason, message=message)]
        limits = self.limits(attempts) or _reservations_now(claim, reason, message, list(skipped))
        try:
            current = self._remember(claim, attempts)
            write(self._client, self._claims, current, *changes, *limits, now=self._clock.now())
        except NotFound:
            return True
        except ApiError as error:
            _log.warning("claim status not written", claim=claim.name, reason=reason, error=str(error))
            written = False
        changed = before is None or (before.reason, before.message) != (reason, message[:1000])
        if not quiet and (changed or attempts):
            self.record_event(claim, "Warning", reason, message, attempts)
        return written

    def remembered(self, claim: NodeClaim, attempts: Iterable[Attempt]) -> dict[str, str]:
        """The annotation with the claim's last attempts."""
        return {names.ATTEMPTS: dump([*recorded(claim), *attempts])}

    def limits(self, attempts: Iterable[Attempt]) -> list[ConditionUpdate]:
        """The condition of the last attempt that shows something about reservations."""
        attempts = list(attempts)
        if limits := [change for attempt in attempts if (change := limit(attempt))]:
            return limits[-1:]
        if (skip := unusable(attempts)) is None:
            return []
        return [
            ConditionUpdate(
                type=names.CAPACITY_RESERVATION, status="False", reason=skip.code, message=skip.message
            )
        ]

    def _remember(self, claim: NodeClaim, attempts: list[Attempt]) -> NodeClaim:
        if not attempts:
            return claim
        return patch(
            self._client, self._claims, claim, lambda now: {"annotations": self.remembered(now, attempts)}
        )

    def record_event(
        self, claim: NodeClaim, type_: EventType, reason: str, message: str, attempts: Iterable[Attempt] = ()
    ) -> None:
        """Records an event on the claim, and a warning also on its pods, with the AWS request ids."""
        attempts = list(attempts)
        ids = sorted({a.request_id for a in attempts if a.request_id})
        text = f"{message} (AWS request {', '.join(ids)})" if ids else message
        marks = {names.ATTEMPT_IDS: ",".join(map(attempt_id, attempts)), names.AWS_REQUESTS: ",".join(ids)}
        marks = {key: value for key, value in marks.items() if value}
        self._recorder.event(claim, type_, reason, text, annotations=marks)
        if type_ == "Normal":
            return
        for pod in self._pods_for(claim):
            # Without the ids, which differ with each attempt: the same cause is written once.
            about_claim = f"NodeClaim {claim.name}: {message}"
            self._recorder.event(pod, "Warning", reason, about_claim, annotations=marks, topic=reason)

    def lost(self, claim: NodeClaim, cause: str) -> None:
        """Deletes a claim after its instance is gone from EC2, as Karpenter would, and logs the cause."""
        self._unused.record(claim, self._clock.now(), loss=cause)  # before its pods get the next machine
        try:
            if not remove(self._client, claim, self._claims):
                return
        except ApiError as error:
            _log.warning("claim could not be deleted", claim=claim.name, error=str(error))
            return
        _log.warning(
            "claim ends: its instance is gone", claim=claim.name, instance=claim.instance_id, why=cause
        )

    def _pods_for(self, claim: NodeClaim) -> list[Pod]:
        """The pods named on the claim; if none are named, the waiting pods that it would take."""
        if named := pods_of(claim):
            return [pod for key in named if (pod := self._pods.find(key))]
        room = TypeRoom(self._types)
        node_class = self._nodeclasses.plan(claim.spec.node_class_ref.name)
        pods = (pod for pod in self._pods.list() if would_take(claim, pod, room, node_class))
        try:
            return [*islice(pods, MOST_PODS)]
        except ProviderError:
            return []  # the types of instances are not known

    def limit(self, attempt: Attempt) -> None:
        """Writes the attempt's result about reservations to its class and its NodePool."""
        change, claim = limit(attempt), self._claims.get(attempt.claim)
        if change is None:
            return
        self._nodeclasses.limit(attempt.node_class, change)
        pool = self._pools.get(claim.node_pool) if claim is not None else None
        if pool is None:
            return
        # The message names the latest claim; only a changed status or reason is worth a write.
        known = condition(pool.status.conditions, change.type)
        if known is not None and (known.status, known.reason) == (change.status, change.reason):
            return
        try_conditions(self._client, self._pools, pool, change, now=self._clock.now())


def would_take(claim: NodeClaim, pod: Pod, room: TypeRoom, node_class: NodeClass | None) -> bool:
    """Whether an unschedulable pod would fit the claim's node, of a type that claim and class allow.

    `node_class`: None while it cannot launch. Raises ProviderError.
    """
    if not provisionable(pod):
        return False
    try:
        node, info = future_node(claim.spec, claim.labels), pod_info(pod)
        requests = amounts(claim.spec.resources.requests)
    except ValueError:
        return False
    if node_class is not None:
        node = replace(node, requirements=node.requirements & _possible(node_class))
    requested = all(amount <= requests.get(name, amount) for name, amount in info.requests.items())
    return requested and room.fits(node, info) and not room.unknown(info)


def _possible(node_class: NodeClass) -> Requirements:
    """The zones and architectures of a class's nodes."""
    zones = {subnet.zone for subnet in node_class.subnets}
    architectures = {image.architecture for image in node_class.images}
    return Requirements.of([(names.ZONE, "In", [*zones]), (names.ARCH, "In", [*architectures])])
