"""Writes a NodeClaim's status as the broker applies it: always all of its own fields, and no others.

Server-side apply drops the fields that a manager no longer sends, so each apply has all of the broker's. The
uid goes along, so that a new claim under the old name is not written to.

Several loops write to one claim, each in its own thread. They take turns, and each starts from the previous
write, as the cache has it. An apply from an older copy would undo that write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from operator import is_
from typing import Any

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import Condition, ConditionStatus, ConditionUpdate, condition
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.conditions import changed, condition_body, set_conditions
from broker.kube.conflicts import after_conflicts
from broker.kube.context import ControllerContext
from broker.kube.events import EventType
from providers.model import Instance

BROKER_CONDITIONS = (
    names.LAUNCHED,
    names.REGISTERED_CONDITION,
    names.INITIALIZED_CONDITION,
    names.READY,
    names.CAPACITY_RESERVATION,
    names.DRAINED,
    names.VOLUMES_DETACHED,
    names.INSTANCE_TERMINATING,
    names.INSTANCE_LISTED,
    *names.INSTANCE_SIGNS,
    names.PREEMPTED,
    names.RECLAIMING,
    names.DRIFTED,
    names.CONSOLIDATABLE,
    names.DISRUPTION_REASON,
)
_FIELDS = ("nodeName", "providerID", "imageID", "capacity", "allocatable", "lastPodEventTime")
STEPS = (names.LAUNCHED, names.REGISTERED_CONDITION, names.INITIALIZED_CONDITION)
MESSAGE_LIMIT = 1000
# Reasons that other rooms read or write, too.
REGISTRATION_TIMED_OUT = "RegistrationTimeout"
AVAILABLE, LIMIT_EXCEEDED = "Available", "LimitExceeded"
OF_LAUNCHES = (AVAILABLE, LIMIT_EXCEEDED)
_TURNS = tuple(threading.Lock() for _ in range(64))  # a claim always has the same lock


def place_outside(claim: NodeClaim) -> tuple[str, str] | None:
    """Instance type and zone of an instance that may run outside reservations, as far as its claim shows."""
    if not claim.instance_id or claim.labels.get(names.CAPACITY_TYPE, "on-demand") != "on-demand":
        return None
    return claim.labels.get(names.INSTANCE_TYPE, ""), claim.labels.get(names.ZONE, "")


def replaces(claim: NodeClaim) -> tuple[str, str | None]:
    """The name and the uid of the claim that this one replaces; no uid if it replaces none."""
    if (text := claim.annotations.get(names.REPLACES)) is None:
        return "", None
    name, slash, uid = text.partition("/")
    return (name, uid) if slash and uid else ("", None)


def replaced_claims(claim: NodeClaim) -> tuple[tuple[str, str], ...]:
    """The names and the uids of all claims that this one replaces."""
    name, uid = replaces(claim)
    if uid is None:
        return ()
    others = (text.partition("/") for text in claim.annotations.get(names.REPLACES_ALSO, "").split(","))
    return (name, uid), *((other, also) for other, _, also in others if also)


def replaced_uids(claim: NodeClaim) -> tuple[str, ...]:
    """The uids of all claims that this one replaces."""
    return tuple(uid for _, uid in replaced_claims(claim)) if names.REPLACES in claim.annotations else ()


def provider_id(instance: Instance) -> str:
    """The instance's name in claims and nodes."""
    return f"aws:///{instance.zone}/{instance.id}"


def body(
    claim: NodeClaim,
    *changes: ConditionUpdate,
    now: datetime,
    fields: Mapping[str, Any] | None = None,
    clear: Collection[str] = (),
) -> dict[str, Any] | None:
    """The apply body after these changes, without the conditions to clear; None if nothing changes."""
    known: tuple[Condition, ...] = tuple(c for c in claim.status.conditions if c.type in BROKER_CONDITIONS)
    conditions = set_conditions(
        tuple(c for c in known if c.type not in clear) if clear else known,
        *changes,
        now=now,
        observed_generation=claim.metadata.generation,
        message_limit=MESSAGE_LIMIT,
    )
    conditions = _with_ready(conditions, now=now, generation=claim.metadata.generation)
    if not fields and len(conditions) == len(known) and all(map(is_, conditions, known)):
        return None  # so for most claims, without comparing the whole status
    own = {key: value for key, value in claim.status.wire().items() if key in _FIELDS}
    status = own | dict(fields or {}) | {"conditions": [condition_body(c) for c in conditions]}
    before = own | {"conditions": [condition_body(c) for c in known]}
    if not changed(before, status):
        return None
    # An apply without a condition of the broker removes it.
    return {
        "apiVersion": claim.KIND.api_version,
        "kind": claim.KIND.kind,
        "metadata": {"name": claim.name, "uid": claim.uid},
        "status": status,
    }


def write(
    client: Client,
    cache: Cache[NodeClaim],
    claim: NodeClaim,
    *changes: ConditionUpdate,
    now: datetime,
    fields: Mapping[str, Any] | None = None,
    clear: Collection[str] = (),
) -> NodeClaim:
    """Applies the changes to the claim as last written, and returns the result. Raises ApiError."""
    with _TURNS[hash(claim.uid) % len(_TURNS)]:
        claim = _newer(claim, cache.get(claim.name))
        desired = body(claim, *changes, now=now, fields=fields, clear=clear)
        if desired is None:
            return claim
        return cache.written(client.apply(NodeClaim.KIND, desired, subresource="status"))


class ConditionWriter:
    """Writes a condition of a claim and, if asked for, an event of the same words."""

    def __init__(self, context: ControllerContext, claims: Cache[NodeClaim]) -> None:
        self._context = context
        self._claims = claims

    def set(
        self,
        claim: NodeClaim,
        type_: str,
        status: ConditionStatus,
        reason: str,
        message: str = "",
        *,
        event: EventType | None = None,
        **fields: str,
    ) -> NodeClaim:
        """Returns the claim as written, also with these fields of its status. Raises ApiError."""
        if event is not None:
            self._context.recorder.event(claim, event, reason, message)
        change = ConditionUpdate(type=type_, status=status, reason=reason, message=message)
        now = self._context.clock.now()
        return write(self._context.client, self._claims, claim, change, now=now, fields=fields)


def _newer(claim: NodeClaim, known: NodeClaim | None) -> NodeClaim:
    """The claim as in the cache, if that is newer."""
    if known is None or known.uid != claim.uid:
        return claim
    then, now = (int(copy.metadata.resource_version or 0) for copy in (claim, known))
    return known if now > then else claim


def patch(
    client: Client,
    cache: Cache[NodeClaim],
    claim: NodeClaim,
    metadata_for: Callable[[NodeClaim], Mapping[str, Any]],
) -> NodeClaim:
    """Merges the result of `metadata_for` the claim into its metadata; writes nothing if that is empty.

    After another writer's change, `metadata_for` is called again with the new claim. Raises ApiError.
    """

    def write(current: NodeClaim) -> NodeClaim:
        metadata = metadata_for(current)
        if not metadata:
            return current
        body_ = {"metadata": {**metadata, "resourceVersion": current.metadata.resource_version}}
        return cache.written(client.patch(NodeClaim.KIND, claim.name, body_))

    return after_conflicts(write, claim, lambda: cache.written(client.get(NodeClaim.KIND, claim.name)))


def no_node_yet(provider_id: str) -> ConditionUpdate:
    """The Registered condition of a launched claim until its node joins."""
    return ConditionUpdate(
        type=names.REGISTERED_CONDITION,
        status="Unknown",
        reason="NodeNotFound",
        message=f"no node with providerID {provider_id} has joined yet",
    )


def missing_finalizer(claim: NodeClaim) -> dict[str, Any]:
    """The metadata that adds the broker's finalizer; empty if it is there, or can no longer be added."""
    # Kubernetes accepts no new finalizer on an object that is being deleted.
    if claim.deleting or names.TERMINATION_FINALIZER in claim.metadata.finalizers:
        return {}
    return {"finalizers": [*claim.metadata.finalizers, names.TERMINATION_FINALIZER]}


def _with_ready(
    conditions: tuple[Condition, ...], *, now: datetime, generation: int
) -> tuple[Condition, ...]:
    """Sets Ready from the three steps together, as Karpenter's root condition."""
    missing = next(
        (
            step
            for step in STEPS
            if (current := condition(conditions, step)) is None or current.status != "True"
        ),
        None,
    )
    if missing is None:
        status: ConditionStatus = "True"
        reason, message = "Ready", ""
    else:
        current = condition(conditions, missing)
        status = current.status if current and current.status == "False" else "Unknown"
        reason, message = f"Not{missing}", f"{missing}: {current.reason if current else 'not yet'}"
    return set_conditions(
        conditions,
        ConditionUpdate(type=names.READY, status=status, reason=reason, message=message),
        now=now,
        observed_generation=generation,
    )
