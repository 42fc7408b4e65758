"""The conditions of claims that lead to a disruption: Drifted and Consolidatable; and when pods last came.

Invariant: a condition is there only while it is True, as in Karpenter. `lastPodEventTime` moves at most every
ten seconds, so that busy nodes cause few writes.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from broker.apis import names
from broker.apis.core import POD_SCHEDULED, Pod
from broker.apis.hashes import VERSION, class_stamp, pool_stamp
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import ConditionUpdate, is_true, since
from broker.capacity.future_labels import class_labels
from broker.controllers.disruption.drift import drift
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.nodeclass.resolve import LaunchClass
from broker.placement.disruption_pods import active, owned_by
from broker.text import InvalidText, decode_duration, format_time
from providers.model import Instance

NEVER: Final = "Never"
# Between two writes of the last event of pods (Karpenter: pkg/controllers/nodeclaim/podevents).
QUIET: Final = timedelta(seconds=10)
# After a failed replacement, until the claim is disrupted again.
RETRY: Final = timedelta(minutes=10)
FAILED: Final = "ReplacementFailed"


class PodEvents:
    """The last time that a pod left each node. Pods that are there show by themselves when they came.

    The times are lost with the process; up to QUIET of them are then not on the claim yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._departures: dict[str, datetime] = {}

    def observe(self, old: Pod | None, new: Pod | None, now: datetime) -> None:
        """Notes the node that a pod of no DaemonSet left."""
        if old is None or not old.spec.node_name or owned_by(old, "DaemonSet"):
            return
        if new is None or (active(old) and not active(new)):
            with self._lock:
                self._departures[old.spec.node_name] = now

    def last(self, node: ManagedNode) -> datetime | None:
        """The last event on the node, from the claim, its pods and this process."""
        if node.node is None:
            return node.claim.status.last_pod_event_time
        with self._lock:
            departure = self._departures.get(node.node.name)
        arrivals = (since(pod, POD_SCHEDULED) for pod in node.pods if not owned_by(pod, "DaemonSet"))
        known = [at for at in (node.claim.status.last_pod_event_time, departure, *arrivals) if at is not None]
        return max(known, default=None)

    def keep(self, nodes: Collection[str]) -> None:
        """Forgets nodes that are gone."""
        with self._lock:
            self._departures = {name: at for name, at in self._departures.items() if name in nodes}


def consolidatable(node: ManagedNode, last: datetime | None, now: datetime) -> tuple[bool, datetime | None]:
    """Whether the node was quiet for consolidateAfter, and otherwise when it will have been."""
    text = node.pool.spec.disruption.consolidate_after
    began = since(node.claim, names.INITIALIZED_CONDITION)
    if text == NEVER or node.static or node.claim.deleting or began is None:
        return False, None
    try:
        due = max(began, last or began) + decode_duration(text)
    except InvalidText:
        return False, None
    return (True, None) if now >= due else (False, due)


def changes(
    node: ManagedNode,
    ready: LaunchClass | None,
    instance: Instance | None,
    facts: Mapping[str, str] | None,
    *,
    quiet: bool,
    now: datetime,
) -> tuple[list[ConditionUpdate], list[str]]:
    """The conditions to set, and those to clear. Drifted stays as it is if the class is not known now."""
    updates: list[ConditionUpdate] = []
    clear: list[str] = []
    reason = ""
    if is_true(node.claim, names.LAUNCHED):
        reason = drift(node.claim, node.pool, ready, instance, facts)
    if reason:
        updates.append(_true(names.DRIFTED, reason))
    elif ready is not None or not is_true(node.claim, names.LAUNCHED):
        clear.append(names.DRIFTED)
    if quiet:
        updates.append(_true(names.CONSOLIDATABLE, names.CONSOLIDATABLE))
    else:
        clear.append(names.CONSOLIDATABLE)
    if since(node.claim, names.DISRUPTION_REASON, "False") and not backing_off(node.claim, now):
        clear.append(names.DISRUPTION_REASON)
    present = {item.type for item in node.claim.status.conditions}
    return updates, [type_ for type_ in clear if type_ in present]


def fields(node: ManagedNode, last: datetime | None) -> dict[str, Any]:
    """The status fields to write: the last event of pods, if it is much newer than the known one."""
    known = node.claim.status.last_pod_event_time
    if last is None or (known is not None and last - known < QUIET):
        return {}
    return {"lastPodEventTime": format_time(last)}


def stamps(node: ManagedNode, ready: LaunchClass | None) -> dict[str, str]:
    """The hashes that the claim lacks: it was made before the broker wrote them, or by another launcher.

    A claim that drifted keeps its hash.
    """
    annotations = node.claim.annotations
    if not node.claim.status.provider_id or since(node.claim, names.DRIFTED) is not None:
        return {}
    hashes: dict[str, str] = {}
    if annotations.get(names.NODEPOOL_HASH_VERSION) != VERSION:
        hashes |= pool_stamp(node.pool)
    if ready is not None and annotations.get(names.NODECLASS_HASH_VERSION) != VERSION:
        hashes |= class_stamp(ready.source)
    return hashes


def missing_labels(claim: NodeClaim, facts: Mapping[str, str] | None) -> dict[str, str]:
    """The labels of its instance that the claim lacks: it was launched before they were written."""
    if facts is None or not claim.status.provider_id:
        return {}
    every = {**facts, **class_labels(claim.spec.node_class_ref.name)}
    return {key: value for key, value in every.items() if key not in claim.labels}


def backing_off(claim: NodeClaim, now: datetime) -> bool:
    """Whether a replacement of the claim failed a short time ago."""
    failed = since(claim, names.DISRUPTION_REASON, "False")
    return failed is not None and now - failed < RETRY


def soonest(times: Iterable[datetime | None]) -> datetime | None:
    return min((at for at in times if at is not None), default=None)


def _true(type_: str, reason: str) -> ConditionUpdate:
    return ConditionUpdate(type=type_, status="True", reason=reason, message=reason)
