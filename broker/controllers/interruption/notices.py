"""Responds to EC2's announcements: drains the claims that they concern, and records shortages.

Invariant: an instance without a claim of the broker, and a claim that is being deleted, are left alone. A
claim is deleted, never its instance, so that its node is cordoned and drained like any other. The choice of
announcements that end a claim is Karpenter's (its interruption controller). All that end the instance do; a
rebalance recommendation is only reported. The end of a Capacity Block may move after its announcement, so
that only makes the broker describe the block again. A message that comes twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog
from prometheus_client import Counter, Histogram

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.model import Pool
from broker.capacity.shortages import Scope
from broker.controllers.claim_caches import BY_INSTANCE, ClaimCaches
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.resolve import Unresolved
from broker.controllers.provisioning.unused import UnusedNodes
from broker.kube.context import ControllerContext
from broker.kube.for_each import for_each
from broker.kube.removal import remove
from broker.oncall.metrics import REGISTRY
from broker.placement.claims import required_tenancy
from broker.reservations.claims import occupied_odcr
from providers.notices import Notice, NoticeKind, QueueMessage

MALFORMED = "malformed"

_RECEIVED = Counter(
    "capacity_broker_interruption_messages",
    "Messages received from the interruption queue, by kind of notice.",
    ["kind"],
    registry=REGISTRY,
)
_DRAINED = Counter(
    "capacity_broker_interruption_claims",
    "Claims that a notice concerns, by action: drain or report.",
    ["kind", "action", "nodepool"],
    registry=REGISTRY,
)
_AGE = Histogram(
    "capacity_broker_interruption_message_age_seconds",
    "Time from EC2's announcement to the broker's answer.",
    registry=REGISTRY,
    buckets=(0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600),
)
_log = structlog.get_logger("interruption")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeResponse:
    """The response to a notice: reason and text of the event, and whether the claim is drained."""

    reason: str
    text: str
    drains: bool = True


RESPONSES: Mapping[NoticeKind, NoticeResponse] = {
    NoticeKind.SPOT_INTERRUPTION: NoticeResponse(
        reason="SpotInterrupted", text="EC2 takes the spot instance {id} in two minutes"
    ),
    NoticeKind.REBALANCE: NoticeResponse(
        reason="SpotRebalanceRecommendation",
        text="EC2 expects to take the spot instance {id} sooner than others",
        drains=False,
    ),
    NoticeKind.RESERVATION_INTERRUPTION: NoticeResponse(
        reason="CapacityReservationInterrupted",
        text="the owner of interruptible reservation {odcr} takes it back: EC2 ends {id} in two minutes",
    ),
    NoticeKind.SCHEDULED_CHANGE: NoticeResponse(
        reason="InstanceUnhealthy", text="AWS Health announces {code} for {id}"
    ),
    NoticeKind.STOPPED: NoticeResponse(reason="InstanceStopping", text="instance {id} stops or has stopped"),
    NoticeKind.TERMINATED: NoticeResponse(
        reason="InstanceTerminating", text="instance {id} ends or has ended"
    ),
}
# Notices after which the description of the reservations is outdated.
REFRESHES = frozenset(
    {NoticeKind.RESERVATION_CHANGED, NoticeKind.BLOCK_EXPIRATION, NoticeKind.RESERVATION_INTERRUPTION}
)


class NoticeResponder:
    """`take` handles one message; any thread may call it, one at a time."""

    def __init__(
        self,
        context: ControllerContext,
        caches: ClaimCaches,
        nodeclasses: NodeClassController,
        *,
        short: Callable[[Scope, str, str], None],
        describe: Callable[[], None],
    ) -> None:
        self._client, self._recorder, self._clock = context.client, context.recorder, context.clock
        self._claims, self._nodes, self._owns = caches.claims, caches.nodes, caches.owns
        self._short = short  # called with each exhausted pool, EC2's code and its message
        self._nodeclasses = nodeclasses
        self._describe = describe  # requests a new description of the reservations
        self._unused = UnusedNodes(context, caches)

    def take(self, message: QueueMessage) -> None:
        """Raises ApiError after every claim was handled: the message must be received again."""
        notice = message.notice
        _RECEIVED.labels(notice.kind if notice else MALFORMED).inc()
        if notice is None:
            _log.error("message is no notice", problem=message.problem, body=message.body[:1000])
            return
        if notice.kind in REFRESHES:
            self._describe()
        if (response := RESPONSES.get(notice.kind)) is not None:
            for_each(self._about(notice), lambda claim: self._respond(claim, notice, response))
        if notice.at is not None:
            _AGE.observe(max(0.0, (self._clock.now() - notice.at).total_seconds()))

    def _about(self, notice: Notice) -> list[NodeClaim]:
        claims = (claim for id_ in notice.instance_ids for claim in self._claims.by(BY_INSTANCE, id_))
        return [claim for claim in claims if self._owns(claim) and not claim.deleting]

    def _respond(self, claim: NodeClaim, notice: Notice, response: NoticeResponse) -> None:
        odcr = occupied_odcr(claim)
        if scope := self._scope(claim, notice):
            self._short(scope, response.reason, notice.type)
        text = response.text.format(id=claim.instance_id, odcr=odcr or "(unknown)", code=notice.code)
        if response.drains:
            self._unused.record(claim, self._clock.now(), loss=text)
            remove(self._client, claim, self._claims)
        consequence = ": the claim is deleted, so that its node drains before" if response.drains else ""
        nodes = self._nodes.by(BY_INSTANCE, claim.instance_id)
        for subject in (claim, *nodes):
            self._recorder.event(
                subject, "Warning" if response.drains else "Normal", response.reason, text + consequence
            )
        _log.warning(
            "notice of EC2's", claim=claim.name, kind=str(notice.kind), type=notice.type, odcr=odcr or None
        )
        _DRAINED.labels(notice.kind, "drain" if response.drains else "report", claim.node_pool).inc()

    def _placement(self, claim: NodeClaim) -> str:
        """The placement of launches for the claim, as in their pools; empty if its class launches nothing."""
        try:
            plan = self._nodeclasses.ready(claim.spec.node_class_ref.name).plan
        except Unresolved:
            return ""
        return plan.of_tenancy(required_tenancy(claim)).placement

    def _scope(self, claim: NodeClaim, notice: Notice) -> Scope | None:
        """The pool that EC2 takes the claim's instance back into: it gives no other soon. Else None."""
        if notice.kind is NoticeKind.RESERVATION_INTERRUPTION:
            odcr = occupied_odcr(claim)
            return Scope("reservation", odcr) if odcr else None
        type_, zone = claim.labels.get(names.INSTANCE_TYPE), claim.labels.get(names.ZONE)
        if notice.kind is not NoticeKind.SPOT_INTERRUPTION or not type_ or not zone:
            return None
        placed = self._placement(claim)
        return Scope(
            "pool", str(Pool(capacity_type="spot", instance_type=type_, zone=zone, placement=placed))
        )
