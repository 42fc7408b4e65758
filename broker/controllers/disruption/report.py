"""Events and counts of disruptions, in Karpenter's words (pkg/controllers/disruption/events)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Literal

import structlog
from prometheus_client import Counter

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.disruption.snapshot import ManagedNode
from broker.kube.errors import ApiError, Conflict, NotFound
from broker.kube.events import Recorder
from broker.oncall.metrics import REGISTRY

Cause = Literal["Empty", "Drifted", "Unhealthy", "Expired", "ReturnToReservation", "Underutilized", "Ended"]
BLOCKED: Final = "DisruptionBlocked"
TERMINATING: Final = "DisruptionTerminating"
LAUNCHING: Final = "DisruptionLaunching"
WAITING: Final = "DisruptionWaitingReadiness"
FAILED: Final = "DisruptionFailed"
RETURNING: Final = "ReturnToReservation"
CONSOLIDATED: Final = "ConsolidationApproved"

DISRUPTED = Counter(
    "capacity_broker_claims_disrupted",
    "Claims that the broker ended, by reason: Empty, Drifted, Unhealthy, Expired, Underutilized, or "
    "ReturnToReservation after its replacement in a reserved slot was ready.",
    ["reason", "nodepool"],
    registry=REGISTRY,
)
_FAILED = Counter(
    "capacity_broker_replacements_failed",
    "Replacements that were given up, so that the old claim stays, by reason of the disruption.",
    ["reason"],
    registry=REGISTRY,
)

_log = structlog.get_logger("disruption")


class DisruptionReporter:
    """Writes events. Several may last at once, so that each text is a topic."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def blocked(self, node: ManagedNode, message: str) -> None:
        """Reports why a node is not disrupted. The user's own do-not-disrupt is not reported."""
        if names.DO_NOT_DISRUPT in message:
            return
        for subject in (node.node, node.claim):
            if subject is not None:
                self._recorder.event(subject, "Normal", BLOCKED, message, topic=message)

    def pool_blocked(self, pool: NodePool, reason: str, error: str) -> None:
        """Reports that the budgets of a pool allow nothing, or cannot be read."""
        if error:
            self._recorder.event(pool, "Warning", BLOCKED, f"No disruption is allowed: {error}", topic=error)
        else:
            message = f"No allowed disruptions for disruption reason {reason} due to blocking budget"
            self._recorder.event(pool, "Normal", BLOCKED, message, topic=message)

    def stopped(self, pool: NodePool, message: str) -> None:
        self._recorder.event(pool, "Warning", FAILED, message)
        _log.warning("rollout stopped", nodepool=pool.name, why=message)

    def annotation_refused(self, pool: NodePool, message: str) -> None:
        self._recorder.event(pool, "Warning", BLOCKED, message, topic=message)

    @contextmanager
    def isolated(self, node: ManagedNode) -> Iterator[None]:
        """Reports a refused request on the node that it was about, so that other nodes go on.

        A conflict passes by itself: the next pass reads the newer object.
        """
        try:
            yield
        except (Conflict, NotFound) as error:
            _log.debug("object changed meanwhile", claim=node.claim.name, error=str(error))
        except ApiError as error:
            _log.warning("disruption did not go on", claim=node.claim.name, error=str(error))
            self.blocked(node, f"The API server refused a step: {error}")

    def launching(self, old: NodeClaim, replacement: NodeClaim, cause: Cause, message: str) -> None:
        """`message`: the way of the replacement, with the reservation."""
        detail = message.removeprefix(f"{cause}: ")
        for subject in (old, replacement):
            self._recorder.event(subject, "Normal", LAUNCHING, f"Launching NodeClaim: {cause}: {detail}")

    def waiting(self, replacement: NodeClaim) -> None:
        self._recorder.event(replacement, "Normal", WAITING, "Waiting on readiness to continue disruption")

    def returning(self, old: NodeClaim, replacement: NodeClaim, message: str) -> None:
        for subject in (old, replacement):
            self._recorder.event(subject, "Normal", RETURNING, message)

    def consolidating(self, claims: Iterable[NodeClaim], message: str) -> None:
        for claim in claims:
            self._recorder.event(claim, "Normal", CONSOLIDATED, message)

    def terminating(self, claim: NodeClaim, node: Node | None, cause: Cause) -> None:
        """Reports and counts a claim that ends."""
        if node is not None:
            self._recorder.event(node, "Normal", TERMINATING, f"Disrupting Node: {cause}")
        self._recorder.event(claim, "Normal", TERMINATING, f"Disrupting NodeClaim: {cause}")
        DISRUPTED.labels(cause, claim.node_pool).inc()
        _log.info("claim disrupted", claim=claim.name, reason=cause, node=node.name if node else "")

    def failed(self, claim: NodeClaim, cause: Cause, message: str) -> None:
        self._recorder.event(claim, "Warning", FAILED, message)
        _FAILED.labels(cause).inc()
        _log.warning("replacement failed: the claim stays", claim=claim.name, reason=cause, why=message)
