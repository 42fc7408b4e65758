"""Ends claims if EC2 no longer lists their instance, or keeps them until the loss is certain.

Why: a listing can be wrong. With another role, Region or account, or in an incident of EC2's, it is empty,
and every claim would end with pods that run. So a claim ends only if it was registered, its Node is known not
to be Ready, and few are missing at a time. The first two rules are Karpenter's
(pkg/controllers/nodeclaim/garbagecollection). An instance that EC2 lists as ended has ended.

Invariant: a claim that was missing together with too many is kept until EC2 lists its instance, or the claim
is deleted. While such a claim is kept, no other claim ends because a listing lacks it. The claim's condition
(MassLoss) is the record, which the next process reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
from prometheus_client import Gauge

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import ConditionUpdate, condition, is_true
from broker.controllers.claim_caches import BY_SIGN, ClaimCaches
from broker.controllers.claim_status import write
from broker.controllers.instances import Missing
from broker.controllers.lifecycle.registration import NODE_LEFT_OUT
from broker.kube.context import ControllerContext
from broker.kube.errors import ApiError, NotFound
from broker.kube.partial import PartialObject
from broker.oncall.metrics import REGISTRY
from broker.text import counted

# If one listing lacks more than both, it is not believed.
FEW, SHARE = 3, 0.1
NODE_READY, MASS_LOSS = "NodeReady", "MassLoss"
REASONS = (NODE_READY, NODE_LEFT_OUT, MASS_LOSS)

UNLISTED = Gauge(
    "capacity_broker_claims_unlisted",
    "Registered claims that are kept though EC2 does not list their instance: too many are missing at once "
    "(MassLoss), the Node is Ready (NodeReady), or the Node is left out (NodeLeftOut).",
    ["reason"],
    registry=REGISTRY,
)

_log = structlog.get_logger("instances")


def too_many(missing: int, registered: int) -> bool:
    """Whether so many claims cannot have lost their instances at once."""
    return missing > FEW and missing > SHARE * registered


class LossDetector:
    """`end_lost` is a step of the launch loop's pass; `end` deletes a claim and logs why it is lost."""

    def __init__(
        self,
        context: ControllerContext,
        caches: ClaimCaches,
        *,
        end: Callable[[NodeClaim, str], None],
    ) -> None:
        self._client, self._recorder, self._clock = context.client, context.recorder, context.clock
        self._caches = caches
        self._claims = caches.claims
        self._end = end
        self._kept: frozenset[str] = frozenset()  # uids of MassLoss, also if the condition was not written

    def end_lost(self, missing: Missing) -> None:
        """Ends the claims that are lost, and reports on the others why they are kept."""
        for claim, why in missing.ended:
            self._end(claim, f"EC2 lists it as ended: {why or 'without a reason'}")
        unlisted = [
            c for c in self._claims.by(BY_SIGN, names.INSTANCE_LISTED) if _reason(c) and not c.deleting
        ]
        registered: Sequence[NodeClaim] = ()  # at rest, nobody asks for them
        if missing.unlisted or missing.recent or unlisted or self._kept:
            claims = self._caches.launched().values()
            registered = [c for c in claims if is_true(c, names.REGISTERED_CONDITION)]
        together = self._missing_together(missing, registered)
        self._log(together, len(registered))
        kept = dict.fromkeys(REASONS, 0)
        kept[MASS_LOSS] = len(together)
        for claim in together:
            self._keep(claim, MASS_LOSS, _mass(claim, len(together), len(registered)))
        for claim in () if together else missing.unlisted:
            if not is_true(claim, names.REGISTERED_CONDITION):
                continue
            nodes, left_out = self._caches.nodes_of(claim)
            if any(node.ready for node in nodes):
                kept[NODE_READY] += 1
                self._keep(claim, NODE_READY, _ready(claim))
            elif left_out is not None:
                kept[NODE_LEFT_OUT] += 1
                self._keep(claim, NODE_LEFT_OUT, _unread(claim, left_out))
            else:
                self._end(claim, "EC2 no longer lists it, and its Node is not Ready")
        for reason, count in kept.items():
            UNLISTED.labels(reason).set(count)
        for claim in unlisted:
            if claim.instance_id in missing.listed and self._caches.owns(claim):
                change = ConditionUpdate(type=names.INSTANCE_LISTED, status="True", reason="Listed")
                self._write(claim, change)

    def close(self) -> None:
        """Clears the gauge: another process leads from now on, and reports its own kept claims."""
        for reason in REASONS:
            UNLISTED.labels(reason).set(0)

    def _missing_together(self, missing: Missing, registered: Sequence[NodeClaim]) -> Sequence[NodeClaim]:
        """All missing claims, if too many are or were missing; empty if claims may be judged singly.

        Fewer missing claims, or more registered ones, do not prove the listing right.
        """
        resolved = {claim.uid for claim, _ in missing.ended}
        resolved |= {claim.uid for claim in registered if claim.instance_id in missing.listed}
        missing_uids = {claim.uid for claim in (*missing.unlisted, *missing.recent)} & {
            c.uid for c in registered
        }
        before = {c.uid for c in registered if c.uid in self._kept or _reason(c) == MASS_LOSS} - resolved
        if not before and not too_many(len(missing_uids), len(registered)):
            return ()
        return [claim for claim in registered if claim.uid in before | missing_uids]

    def _log(self, together: Sequence[NodeClaim], registered: int) -> None:
        if together and not self._kept:
            _log.error(
                "too many instances are missing from one listing: no claim ends for it",
                missing=len(together),
                registered=registered,
                instances=sorted(claim.instance_id for claim in together)[:20],
            )
        elif self._kept and not together:
            _log.warning(
                "of the instances that were missing together, each is listed again or its claim is gone",
                registered=registered,
            )
        self._kept = frozenset(claim.uid for claim in together)

    def _keep(self, claim: NodeClaim, reason: str, message: str) -> None:
        before = condition(claim.status.conditions, names.INSTANCE_LISTED)
        self._write(
            claim, ConditionUpdate(type=names.INSTANCE_LISTED, status="False", reason=reason, message=message)
        )
        if before is None or (before.status, before.reason) != ("False", reason):
            self._recorder.event(claim, "Warning", "InstanceNotListed", message)

    def _write(self, claim: NodeClaim, change: ConditionUpdate) -> None:
        try:
            write(self._client, self._claims, claim, change, now=self._clock.now())
        except NotFound:
            return
        except ApiError as error:
            _log.warning("claim status not written", claim=claim.name, reason=change.reason, error=str(error))


def _reason(claim: NodeClaim) -> str:
    """The reason on the claim's condition for keeping it; empty if its instance is listed."""
    current = condition(claim.status.conditions, names.INSTANCE_LISTED)
    return current.reason if current is not None and current.status == "False" else ""


def _mass(claim: NodeClaim, missing: int, registered: int) -> str:
    all_ = counted(registered, "registered claim has", "registered claims have")
    return (
        f"EC2 does not list instance {claim.instance_id}. {missing} of {all_} "
        "the reason MassLoss: too many were missing at once, so none of these ends, nor any that vanishes "
        "meanwhile, until EC2 lists each or it is deleted. Check the broker's role, account and Region; if "
        "the instance is gone, delete this NodeClaim"
    )


def _ready(claim: NodeClaim) -> str:
    return (
        f"EC2 does not list instance {claim.instance_id}, but its Node is Ready: the claim is kept until "
        "the Node is not"
    )


def _unread(claim: NodeClaim, node: PartialObject) -> str:
    return (
        f"EC2 does not list instance {claim.instance_id}, but node {node.name} is left out, so it is not "
        f"known whether it is Ready: the claim is kept until the broker can read the Node: {node.error}"
    )
