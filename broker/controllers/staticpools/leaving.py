"""The order in which the claims of a static pool end when it has too many.

Source: Karpenter, pkg/controllers/static/deprovisioning: claims without an instance, then empty nodes, then
those without do-not-disrupt, then the cheapest to move. Before that, nodes outside reservations end first,
unless pods may not be disrupted: a slot is paid for in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import heapify, heappop, heappush

from pydantic import ValidationError

from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.controllers.claim_caches import BY_NODE, ClaimCaches
from broker.controllers.newest import newest, pods_on
from broker.controllers.nodereservation.occupancy import NodeOccupancy
from broker.kube.client import Client
from broker.placement.disruption_cost import lifetime_remaining, rescheduling_cost
from broker.placement.disruption_pods import annotated, protected, reschedulable
from broker.reservations.claims import occupied_odcr


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleInCandidate:
    """A claim that may end. `ending`: it ends already. `empty`: no pod needs another node. `cost`: of moving
    its pods.
    """

    claim: NodeClaim
    ending: bool = False
    empty: bool = False
    protected: bool = False
    cost: float = 0.0

    @property
    def rank(self) -> tuple[bool, bool, bool, bool, bool, float, str]:
        """The least one ends first."""
        claim, paid = self.claim, bool(occupied_odcr(self.claim))
        started = bool(claim.status.provider_id)
        held_up = self.protected and not self.empty
        return not self.ending, started, held_up, paid, not self.empty, self.cost, claim.name


def first_to_end(
    candidates: Iterable[ScaleInCandidate], count: int, newest: Callable[[NodeClaim], ScaleInCandidate]
) -> Sequence[NodeClaim]:
    """So many claims, the first to end in front. `newest`: a candidate as the API server has it.

    The watch of the NodePool may be before those of pods and nodes, so none ends by what is cached alone.
    """
    ordered = [(candidate.rank, False, candidate.claim) for candidate in candidates]
    heapify(ordered)
    chosen: list[NodeClaim] = []
    while ordered and len(chosen) < count:
        _, read, claim = heappop(ordered)
        if read:
            chosen.append(claim)
        else:
            heappush(ordered, (newest(claim).rank, True, claim))
    return chosen


class Candidates:
    """What is on the nodes of claims. A node with room that is kept for pods is not empty."""

    def __init__(self, client: Client, caches: ClaimCaches, occupancy: NodeOccupancy, now: datetime) -> None:
        self._client, self._caches = client, caches
        self._occupancy, self._now = occupancy, now

    def cached(self, claim: NodeClaim) -> ScaleInCandidate:
        nodes, left_out = self._caches.nodes_of(claim)
        pods = [pod for node in nodes for pod in self._caches.pods.by(BY_NODE, node.name)]
        return self._candidate(claim, nodes, pods, known=left_out is None)

    def newest(self, claim: NodeClaim) -> ScaleInCandidate:
        """The candidate with its objects read from the API server. Raises ApiError."""
        nodes, left_out = self._caches.nodes_of(claim)
        try:
            current = newest(self._client, NodeClaim, claim.name)
            read = [newest(self._client, Node, node.name) for node in nodes]
            pods = [pod for node in nodes for pod in pods_on(self._client, node.name)]
        except ValidationError:
            return self._candidate(claim, nodes, (), known=False)
        if current is None or current.uid != claim.uid or current.deleting:
            return ScaleInCandidate(claim=claim, ending=True)
        return self._candidate(current, [node for node in read if node], pods, known=left_out is None)

    def _candidate(
        self, claim: NodeClaim, nodes: Sequence[Node], pods: Iterable[Pod], *, known: bool
    ) -> ScaleInCandidate:
        present = [pod for pod in pods if not pod.ended]
        moving = [pod for pod in present if reschedulable(pod)]
        kept = any(self._occupancy.held.get(node.name) for node in nodes)
        keeps = any(protected(pod, self._now) for pod in present)
        kept_by_hand = bool(annotated((claim, *nodes)))
        return ScaleInCandidate(
            claim=claim,
            empty=not moving and not keeps and not kept and known,
            protected=kept_by_hand or keeps or not known,
            cost=rescheduling_cost(moving) * lifetime_remaining(claim, self._now),
        )
