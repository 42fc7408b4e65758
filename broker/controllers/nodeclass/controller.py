"""Keeps each EC2NodeClass resolved, and reports the result on the class.

Invariant: `ready` returns a class only while its spec, as it is now, is valid and everything that it names
exists. The result was resolved against the last description of EC2's reservations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

import structlog

from broker.apis import names
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import ConditionUpdate
from broker.capacity.model import LAUNCH_DEFAULTS, LaunchDefaults, NodeClass, Resolved, Selection
from broker.capacity.reasons import CLASS_NOT_FOUND, CLASS_NOT_READY
from broker.controllers.inventory import InventoryCache
from broker.controllers.nodeclass.resolve import (
    LaunchClass,
    ServiceNetwork,
    Surroundings,
    Unresolved,
    launch_class,
    read_surroundings,
    require_kept,
    selection,
    unread,
)
from broker.controllers.nodeclass.status import described, patch_status, status_patch
from broker.kube.cache import Cache
from broker.kube.conditions import changed
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.errors import Invalid
from broker.kube.watches import Signal
from providers.base import AccountFacts, ClassLookups
from providers.errors import ErrorClass, ProviderError

# Subnets, groups and images change rarely; Karpenter looks them up as often.
RECHECK = 300.0
RECHECK_UNRESOLVED = 30.0
SOON = 0.2

Written = tuple[str, int, str]

_log = structlog.get_logger("nodeclass")


def group_arns(classes: Cache[EC2NodeClass]) -> Collection[str]:
    """The groups that classes name, for the inventory to describe."""
    arns = set()
    for node_class in classes.list():
        with classes.guard(node_class), suppress(Unresolved):  # its condition has the reason
            arns.add(selection(node_class).group_arn)
    return arns - {""}


class ClassProvider(AccountFacts, ClassLookups, Protocol):
    """The account, and what its classes select."""


class NodeClassController:
    """Reconciles classes by name. The launch loop calls `ready` on its own thread."""

    def __init__(
        self,
        context: ControllerContext,
        provider: ClassProvider,
        inventory: InventoryCache,
        cache: Cache[EC2NodeClass],
        *,
        describe: Callable[[], None],
        requeue: Callable[[str], None],
        defaults: LaunchDefaults = LAUNCH_DEFAULTS,
        network: Callable[[], ServiceNetwork] = ServiceNetwork,
    ) -> None:
        self._client, self._recorder, self._clock = context.client, context.recorder, context.clock
        self._provider = provider
        self._inventory = inventory
        self._cache = cache
        self._defaults = defaults
        self._network = network
        self._describe = describe  # requests a new description of the reservations
        self._requeue = requeue
        self._lock = threading.Lock()
        self._outcomes: dict[str, LaunchClass | Unresolved] = {}
        self._around: dict[str, tuple[Written, float, Surroundings]] = {}
        self._readers = Signal()
        self._limits: dict[str, ConditionUpdate] = {}
        self._chosen: dict[str, tuple[Selection, datetime]] = {}  # by class, and since when
        self._resolved: dict[str, LaunchClass] = {}  # also classes that the broker may not launch from
        self._forbidden: dict[str, tuple[Written, str]] = {}  # the permission that a trial found missing
        self._doubted: set[str] = set()  # classes of which EC2 refused something
        self._cut: dict[str, Mapping[str, Any]] = {}  # the last status, if the CRD drops some of it

    def limit(self, name: str, update: ConditionUpdate) -> None:
        """Takes a result of launches about the class's reservations, which is written soon."""
        with self._lock:
            self._limits[name] = update
        self._requeue(name)

    def resolved(self, name: str) -> LaunchClass | None:
        """The class as it could be launched from, if the broker's role is allowed to."""
        with self._lock:
            launchable = self._resolved.get(name)
        known = self._cache.get(name)
        return launchable if _current(launchable, known) and known and not known.deleting else None

    def forbid(self, node_class: EC2NodeClass, reason: str) -> None:
        """Records why the broker's role may not launch from the class as it is; empty if it may."""
        with self._lock:
            before = self._forbidden.pop(node_class.name, None)
            after = (_written(node_class), reason) if reason else None
            if after is not None:
                self._forbidden[node_class.name] = after
        if before != after:
            self._requeue(node_class.name)

    def on_change(self, reader: Callable[[str], None]) -> None:
        """Calls `reader` with the name of a class when its resolution changes."""
        self._readers.subscribe(reader)

    def plan(self, name: str) -> NodeClass | None:
        """The class as the planner reads it; None if it cannot launch now."""
        try:
            return self.ready(name).plan
        except Unresolved:
            return None

    def plans(self, names_: Iterable[str]) -> dict[str, NodeClass]:
        """Those of these classes that can launch now, by name."""
        return {name: plan for name in names_ if (plan := self.plan(name)) is not None}

    def ready(self, name: str) -> LaunchClass:
        """The class as launches need it. Raises Unresolved with a reason for the user."""
        with self._lock:
            outcome = self._outcomes.get(name)
        known = self._cache.get(name)
        if isinstance(outcome, LaunchClass) and _current(outcome, known) and known and not known.deleting:
            return outcome
        if isinstance(outcome, Unresolved):
            # A new exception: one that is raised again and again grows by a frame each time.
            raise Unresolved(outcome.reason, outcome.message, passing=outcome.passing)
        if broken := self._cache.broken.get(name):
            raise Unresolved("NodeClassInvalid", f"EC2NodeClass {name} cannot be read: {broken}")
        if known is not None:
            require_kept(known)
        else:
            raise Unresolved(
                CLASS_NOT_FOUND,
                f"spec.nodeClassRef.name {name!r}: no such EC2NodeClass; create it or delete the claim",
            )
        raise Unresolved(CLASS_NOT_READY, f"EC2NodeClass {name} has not been resolved yet", passing=True)

    def resolved_reservations(self, name: str) -> Resolved:
        """The reservations that the class selects, also if only Karpenter launches it. Raises as `ready`."""
        return self._plan_of(name).resolved

    def used_reservations(self, name: str) -> Resolved:
        """Also those for claims that require dedicated tenancy. Raises as `ready`."""
        plan = self._plan_of(name)
        own, other = plan.resolved, plan.dedicated
        return Resolved(usable=(*own.usable, *other.usable), pending=(*own.pending, *other.pending))

    def _plan_of(self, name: str) -> NodeClass:
        with self._lock:
            outcome = self._outcomes.get(name)
        launchable = outcome.resolved if isinstance(outcome, Unresolved) else None
        if launchable is None or not _current(launchable, self._cache.get(name)):
            launchable = self.ready(name)
        return launchable.plan

    def reconcile(self, name: str) -> Result | None:
        node_class = self._cache.get(name)
        if node_class is None or node_class.deleting:
            with self._lock:
                gone = self._outcomes.pop(name, None)
                self._limits.pop(name, None)
                self._around.pop(name, None)
                self._chosen.pop(name, None)
                self._cut.pop(name, None)
                self._resolved.pop(name, None)
                self._forbidden.pop(name, None)
                self._doubted.discard(name)
            if gone is not None:
                self._readers(name)
            return None
        result: tuple[LaunchClass | Unresolved, ProviderError | None] | None = None
        with self._cache.guard(node_class):
            result = self._resolve(node_class)
        if result is None:
            return None  # it is left out, and reconciled as if it were gone
        outcome, failure = result
        with self._lock:
            before = self._outcomes.get(name)
            self._outcomes[name] = outcome
        if _differs(before, outcome):
            self._readers(name)
        if isinstance(outcome, Unresolved):
            if outcome.passing:
                return Result(requeue_after=SOON)
            if str(before) != str(outcome):
                _log.warning("class not ready", nodeclass=name, reason=outcome.reason, why=outcome.message)
                self._recorder.event(node_class, "Warning", outcome.reason, outcome.message)
        self._write(node_class, outcome, keep=failure is not None)
        if failure is not None:
            raise failure
        return Result(requeue_after=RECHECK if isinstance(outcome, LaunchClass) else RECHECK_UNRESOLVED)

    def _resolve(self, node_class: EC2NodeClass) -> tuple[LaunchClass | Unresolved, ProviderError | None]:
        """The class as launches need it, or why not; and EC2's error, if that is the cause."""
        name = node_class.name
        failure: ProviderError | None = None
        outcome: LaunchClass | Unresolved
        resolved: LaunchClass | None = None  # the result for a class that only Karpenter can launch
        try:
            self._described_since(name, selection(node_class))
            around, obstacle = self._surroundings(node_class)
            resolved = launch_class(
                node_class,
                around,
                self._inventory.snapshot(),
                account_id=self._provider.account_id(),
                now=self._clock.now(),
                group_errors=self._inventory.group_errors,
                defaults=self._defaults,
            )
            if obstacle is not None:
                raise obstacle
            kubelet = node_class.spec.kubelet.wire() if node_class.spec.kubelet else {}
            outcome = replace(
                resolved,
                network=self._network(),
                kubelet_not_applied=tuple(
                    self._provider.kubelet_not_applied(family=around.family, kubelet=kubelet)
                    if kubelet
                    else ()
                ),
            )
            with self._lock:
                self._resolved[name] = resolved = outcome
                written, forbidden = self._forbidden.get(name, (None, ""))
            if forbidden and written == _written(node_class):
                raise Unresolved(ErrorClass.PERMISSION.policy.read_reason, forbidden)
        except Unresolved as error:
            outcome = (
                error if resolved is None else Unresolved(error.reason, error.message, resolved=resolved)
            )
        except ProviderError as error:
            failure = error
            reason = error.class_.policy.read_reason
            cause, known = (error.operation, error.code), self._outcomes.get(name)
            message = f"{error} (request {error.request_id or 'unknown'})"
            if isinstance(known, Unresolved) and known.cause == cause:
                message = known.message  # the same error under another request id needs no write
            outcome = Unresolved(reason, message, cause=cause, resolved=resolved)
        return outcome, failure

    def doubt(self, name: str) -> None:
        """Reads a class and the reservations again, since EC2 refused something that the class names."""
        self._doubted.add(name)
        self._around.pop(name, None)
        self._requeue(name)
        self._describe()

    def _described_since(self, name: str, chosen: Selection) -> None:
        """Raises Unresolved until EC2 was described; for unknown reservations, since the class names them.

        Otherwise a claim would leave a reservation that is only too new to be known.
        """
        now = self._clock.now()
        known = self._chosen.get(name)
        if known is None or known[0] != chosen:
            known = self._chosen[name] = (chosen, now)
            with self._lock:
                self._limits.pop(name, None)  # of launches into other reservations
        inventory = self._inventory.snapshot()
        missing = unread(chosen, inventory, self._inventory.group_errors)
        if inventory.described and (not missing or inventory.described >= known[1]):
            return
        self._describe()
        if error := self._inventory.error:
            raise error
        raise Unresolved(
            "ReservationsNotDescribed",
            "EC2 has not described the reservations since the class names them",
            passing=True,
        )

    def _surroundings(
        self, node_class: EC2NodeClass
    ) -> tuple[Surroundings, Unresolved | ProviderError | None]:
        written, now = _written(node_class), self._clock.monotonic()
        known = self._around.get(node_class.name)
        if known and known[0] == written and now < known[1]:
            return known[2], None
        name = node_class.name
        around, obstacle = read_surroundings(node_class, self._provider, doubted=name in self._doubted)
        if obstacle is None:
            self._doubted.discard(name)
            self._around[node_class.name] = (written, now + RECHECK, around)
        return around, obstacle

    def _write(self, node_class: EC2NodeClass, outcome: LaunchClass | Unresolved, *, keep: bool) -> None:
        with self._lock:
            limit = self._limits.get(node_class.name)
        status = status_patch(
            node_class,
            outcome,
            limit=limit,
            described=described(node_class, self._inventory.unreadable, self._inventory.snapshot().described),
            now=self._clock.now(),
            keep=keep,
        )
        current, conditions = node_class.status.wire(), {"conditions": status["conditions"]}
        if not changed(current, status) or (
            self._cut.get(node_class.name) == status and not changed(current, conditions)
        ):
            return
        try:
            answer = patch_status(self._client, self._cache, node_class, status)
        except Invalid:
            # Karpenter's own CRD knows fewer states: then only the conditions are written.
            answer = patch_status(self._client, self._cache, node_class, conditions)
        self._cut.pop(node_class.name, None)
        if changed(answer["status"], status):
            self._cut[node_class.name] = status


def _current(launchable: LaunchClass | None, known: EC2NodeClass | None) -> bool:
    """Whether the class is still as it was resolved."""
    return launchable is not None and known is not None and _written(known) == _written(launchable.source)


def _written(node_class: EC2NodeClass) -> Written:
    """A value that changes with the user's part of the class, or if a new class takes its name."""
    annotation = node_class.annotations.get(names.RESERVATION_SPEC, "")
    copy = node_class.annotations.get(names.ACCEPTED_SPEC, "")
    return node_class.uid, node_class.metadata.generation, annotation + copy


def _differs(before: LaunchClass | Unresolved | None, after: LaunchClass | Unresolved) -> bool:
    if isinstance(before, LaunchClass) and isinstance(after, LaunchClass):
        return (before.plan, before.surroundings, before.network, _written(before.source)) != (
            after.plan,
            after.surroundings,
            after.network,
            _written(after.source),
        )
    if isinstance(before, Unresolved) and isinstance(after, Unresolved):
        old, new = before.resolved, after.resolved
        if (old is None or new is None) and old is not new:
            return True
        if old is not None and new is not None and _differs(old, new):
            return True
    return str(before) != str(after) or type(before) is not type(after)
