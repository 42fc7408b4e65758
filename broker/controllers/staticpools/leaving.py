"""The order in which the claims of a static pool end when it has too many.

Source: Karpenter, pkg/controllers/static/deprovisioning: claims without an instance, then empty nodes, then
those without do-not-disrupt, then the cheapest to move. Before that, nodes outside reservations end first,
unless pods may not be disrupted: a slot is paid for in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.controllers.claim_caches import BY_NODE, ClaimCaches
from broker.controllers.claim_status import held_odcr
from broker.controllers.nodereservation.occupancy import NodeOccupancy
from broker.placement.disruption_cost import lifetime_remaining, rescheduling_cost
from broker.placement.disruption_pods import protected, reschedulable


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleInCandidate:
    """A claim that may end. `empty`: no pod needs another node. `cost`: of moving its pods."""

    claim: NodeClaim
    empty: bool = False
    protected: bool = False
    cost: float = 0.0

    @property
    def rank(self) -> tuple[bool, bool, bool, bool, float, str]:
        """The least one ends first."""
        claim, paid = self.claim, bool(held_odcr(self.claim))
        started = bool(claim.status.provider_id)
        return started, self.protected and not self.empty, paid, not self.empty, self.cost, claim.name


def first_to_end(candidates: Iterable[ScaleInCandidate], count: int) -> Sequence[NodeClaim]:
    """So many claims, the first to end in front."""
    ordered = sorted(candidates, key=lambda candidate: candidate.rank)
    return [candidate.claim for candidate in ordered[:count]]


def candidates_of(
    claims: Iterable[NodeClaim], caches: ClaimCaches, occupancy: NodeOccupancy, now: datetime
) -> list[ScaleInCandidate]:
    """The claims with what is on their nodes. A node with room that is kept for pods is not empty."""
    return [_candidate(claim, caches, occupancy, now) for claim in claims]


def _candidate(
    claim: NodeClaim, caches: ClaimCaches, occupancy: NodeOccupancy, now: datetime
) -> ScaleInCandidate:
    nodes, left_out = caches.nodes_of(claim) if claim.status.provider_id else ([], None)
    pods = [pod for node in nodes for pod in caches.pods.by(BY_NODE, node.name) if not pod.ended]
    moving = [pod for pod in pods if reschedulable(pod)]
    kept = any(occupancy.held.get(node.name) for node in nodes)
    keeps = [_keeps(pod, now) for pod in pods]
    annotated = any(item.annotations.get(names.DO_NOT_DISRUPT) == "true" for item in (claim, *nodes))
    return ScaleInCandidate(
        claim=claim,
        empty=not moving and not any(keeps) and not kept and left_out is None,
        protected=annotated or any(keeps) or left_out is not None,
        cost=rescheduling_cost(moving) * lifetime_remaining(claim, now),
    )


def _keeps(pod: Pod, now: datetime) -> bool:
    return protected(pod.annotations.get(names.DO_NOT_DISRUPT, ""), pod.status.start_time, now)
