"""Writes the status of the broker's NodePools as Karpenter writes that of its own.

Fields: the number and the resources of the nodes, and the condition NodeRegistrationHealthy with the
generation of the class (karpenter pkg/controllers/nodepool/counter and registrationhealth). Karpenter
counts failures of the last four launches; here one node that never joined makes the condition False, until
another joins.

Invariant: everything follows from the claims and nodes that exist; a pool at rest is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import structlog

from broker.apis import names
from broker.apis.hashes import pool_stamp
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Condition, ConditionUpdate, condition, is_true
from broker.capacity.model import NodeClass
from broker.capacity.options import tenancy
from broker.capacity.requirements import InvalidRequirement
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.claim_status import OF_LAUNCHES, REGISTRATION_TIMED_OUT
from broker.controllers.nodeclass.status import requests_reservations
from broker.controllers.pool_conditions import write_conditions
from broker.controllers.provisioning.unused import show, used_again
from broker.controllers.provisioning.usage import (
    NODES,
    exceeded,
    limit_amounts,
    misspelt,
    pool_usage,
    shown,
    unreadable,
)
from broker.kube.cache import Cache
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.derived import Derived
from broker.kube.errors import ApiError
from broker.kube.panics import guarded
from broker.lists import lists_by_key
from broker.placement.reading import requirements_of
from broker.quota.resolve import UnresolvedName
from broker.reservations.drawing import DrawRights, namespaces_of

HEALTHY: Final = "NodeRegistrationHealthy"
WITHIN_LIMITS: Final = "WithinLimits"
LIMIT_UNKNOWN: Final = "LimitUnknown"
DRAWING: Final = "ReservationAllowed"
AGAIN: Final = 10.0  # seconds after a refused write
_log = structlog.get_logger("provisioning")


class PoolStatusController:
    """`run` compares all pools with their nodes. `counts`: the broker launches the pool's claims.

    `rights`: None until the reservations are read.
    """

    def __init__(
        self,
        context: ControllerContext,
        caches: ClaimCaches,
        classes: Cache[EC2NodeClass],
        plan: Callable[[str], NodeClass | None],
        *,
        rights: Callable[[], DrawRights | None],
        counts: Callable[[NodePool], bool],
    ) -> None:
        self._client, self._recorder, self._clock = context.client, context.recorder, context.clock
        self._caches, self._classes, self._plan = caches, classes, plan
        self._rights, self._counts = rights, counts
        self._usage = Derived(
            lambda: pool_usage(caches.claims.list(), caches.nodes.list()), caches.claims, caches.nodes
        )

    def run(self, _items: Sequence[str]) -> Result | None:
        """Writes the changes. A pool that cannot be written does not stop the others."""
        used, claims = self._usage(), self._caches.claims.list()
        by_pool = lists_by_key((claim.node_pool, claim) for claim in claims)
        refused = False
        show(filter(self._counts, self._caches.pools.list()), self._clock.now())
        for pool in self._caches.pools.list():
            if pool.deleting or not self._counts(pool):
                continue
            written = False
            with guarded("nodepool", object=pool.name):
                written = self._written(pool, used.get(pool.name, {}), by_pool.get(pool.name, ()))
            refused = refused or not written
        return Result(requeue_after=AGAIN) if refused else None

    def _written(self, pool: NodePool, used: Mapping[str, int], claims: Sequence[NodeClaim]) -> bool:
        try:
            self._write_resources(pool, used)
            self._write_limits(pool, used)
            self._write_use(pool, claims)
            self._write_reservations(pool)
            self._write_health(pool, claims)
            self._write_drawing(pool, claims)
        except ApiError as error:
            _log.warning("pool not written", nodepool=pool.name, error=str(error))
            return False
        return True

    def _write_resources(self, pool: NodePool, used: Mapping[str, int]) -> None:
        status, resources = pool.status, shown(used)
        if (status.nodes, status.resources) == (used.get(NODES, 0), resources):
            return
        gone: dict[str, Any] = dict.fromkeys(status.resources.keys() - resources.keys())
        self._patch(pool, {"nodes": used.get(NODES, 0), "resources": {**gone, **resources}})

    def _write_limits(self, pool: NodePool, used: Mapping[str, int]) -> None:
        """The condition of a pool over its limits, which gets no more nodes, or with a limit that has no
        effect. Others have none, or True.
        """
        readable = not unreadable(pool)
        over = exceeded(limit_amounts(pool.spec.limits), used) if readable else ""
        unknown = misspelt(pool.spec.limits, used) if readable else ""
        update = ConditionUpdate(type=WITHIN_LIMITS, status="True", reason=WITHIN_LIMITS)
        if over:
            message = f"spec.limits: {over}; the pool gets no node until others of it end, or they are raised"
            update = ConditionUpdate(
                type=WITHIN_LIMITS, status="False", reason="LimitsExceeded", message=message
            )
        elif unknown:
            update = ConditionUpdate(
                type=WITHIN_LIMITS, status="Unknown", reason=LIMIT_UNKNOWN, message=f"spec.limits: {unknown}"
            )
        if over or unknown or condition(pool.status.conditions, WITHIN_LIMITS) is not None:
            changed = write_conditions(self._client, self._caches.pools, pool, update, now=self._clock.now())
            if changed and update.status != "True":
                self._recorder.event(pool, "Warning", update.reason, update.message)

    def _write_use(self, pool: NodePool, claims: Sequence[NodeClaim]) -> None:
        """Ends the back-off of a pool with nodes that serve pods again."""
        now = self._clock.now()
        if (update := used_again(pool, claims, now)) is not None:
            write_conditions(self._client, self._caches.pools, pool, update, now=now)

    def _write_reservations(self, pool: NodePool) -> None:
        """Replaces the result of launches once the class has no reservation left, until it has one again."""
        of_pool = condition(pool.status.conditions, names.CAPACITY_RESERVATION)
        node_class = self._classes.get(pool.spec.template.spec.node_class_ref.name)
        if of_pool is None or node_class is None:
            return
        of_class = self._of_class(pool, node_class)
        now = self._clock.now()
        if of_class is not None and of_class.reason not in OF_LAUNCHES:
            update = ConditionUpdate(
                type=of_class.type, status=of_class.status, reason=of_class.reason, message=of_class.message
            )
            write_conditions(self._client, self._caches.pools, pool, update, now=now)
        elif of_pool.reason not in OF_LAUNCHES or not requests_reservations(node_class):
            write_conditions(self._client, self._caches.pools, pool, now=now, without=of_pool.type)

    def _of_class(self, pool: NodePool, node_class: EC2NodeClass) -> Condition | None:
        """The condition of the class about reservations; None if nodes of the tenancy that the pool requires
        have usable ones.
        """
        plan = self._plan(node_class.name)
        with suppress(InvalidRequirement):
            wanted = tenancy(requirements_of(pool.spec.template.spec))
            if plan is not None and wanted and plan.of_tenancy(wanted).resolved.usable:
                return None
        return condition(node_class.status.conditions, names.CAPACITY_RESERVATION)

    def _write_health(self, pool: NodePool, claims: Sequence[NodeClaim]) -> None:
        node_class = self._classes.get(pool.spec.template.spec.node_class_ref.name)
        if node_class is None:
            return
        generation = node_class.metadata.generation
        before = condition(pool.status.conditions, HEALTHY)
        stale = (
            before is None
            or pool.status.node_class_observed_generation != generation
            or before.observed_generation != pool.metadata.generation
        )
        update = _health(pool, claims)
        if update is None and stale:
            update = ConditionUpdate(
                type=HEALTHY,
                status="Unknown",
                reason="AwaitingReconciliation",
                message="no node has joined yet",
            )
        if update is not None:
            write_conditions(self._client, self._caches.pools, pool, update, now=self._clock.now())
        if pool.status.node_class_observed_generation != generation:
            self._patch(pool, {"nodeClassObservedGeneration": generation})

    def _write_drawing(self, pool: NodePool, claims: Sequence[NodeClaim]) -> None:
        """Whether the reservation that the template names serves the pods of the pool's claims."""
        named, rights = pool.draws_from, self._rights()
        if rights is None or (not named and condition(pool.status.conditions, DRAWING) is None):
            return
        requesting = [claim for claim in claims if claim.annotations.get(names.DRAWS_FROM) == named]
        namespaces = {space for claim in requesting if not claim.deleting for space in namespaces_of(claim)}
        decided = rights.decide(named, namespaces) if named else None
        update = ConditionUpdate(type=DRAWING, status="True", reason=DRAWING)
        if isinstance(decided, UnresolvedName):
            message = f"its template's annotation {names.DRAWS_FROM} is {named!r}: {decided.message}"
            update = ConditionUpdate(type=DRAWING, status="False", reason=decided.reason, message=message)
        write_conditions(self._client, self._caches.pools, pool, update, now=self._clock.now())

    def _patch(self, pool: NodePool, status: Mapping[str, Any]) -> None:
        answer = self._client.patch(NodePool.KIND, pool.name, {"status": status}, subresource="status")
        self._caches.pools.observe(answer)


def _health(pool: NodePool, claims: Sequence[NodeClaim]) -> ConditionUpdate | None:
    """Decides by the claims of the pool's present template; None if none of them has shown it yet."""
    stamp = pool_stamp(pool)
    present = [claim for claim in claims if claim.annotations | stamp == claim.annotations]
    if any(is_true(claim, names.REGISTERED_CONDITION) for claim in present):
        return ConditionUpdate(type=HEALTHY, status="True", reason=HEALTHY)
    for claim in present:
        registered = condition(claim.status.conditions, names.REGISTERED_CONDITION)
        if registered is not None and registered.reason == REGISTRATION_TIMED_OUT:
            return ConditionUpdate(
                type=HEALTHY,
                status="False",
                reason="RegistrationFailed",
                message=f"NodeClaim {claim.name}: {registered.message}",
            )
    return None
