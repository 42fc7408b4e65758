"""A team: a CapacityReservation or a namespace, with its pods, its loans and its cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from broker.placement.node_prices import Cost, total
from broker.webpage.live import LiveState
from broker.webpage.nodes import PodRow

MOST_PODS: Final = 200
MOST_CLAIMS: Final = 100


def team(
    pods: Sequence[PodRow], live: LiveState, reservations: Iterable[str], *, idle: Cost | None
) -> dict[str, Any]:
    """The values of a team. `reservations`: those with the team's loans. Its claims are those that draw from
    them, and those of its pods. `idle`: the cost of its idle slots; None if it may not be seen.
    """
    names, keys = {*reservations}, {pod.key for pod in pods}
    of_pods = {pod.claim for pod in pods} | {pod.claim for pod in live.waiting_pods if pod.key in keys}
    rows = map(live.row, live.claims)
    claims = [claim for claim in rows if claim.owner in names or claim.name in of_pods]
    claims.sort(key=lambda claim: (not claim.waits, claim.name))
    return {
        "team_claims": claims[:MOST_CLAIMS],
        "claim_count": len(claims),
        "team_pods": pods[:MOST_PODS],
        "pod_count": len(pods),
        "team_loans": [loan for loan in live.loans if loan.owner in names or loan.borrower in names],
        "cost": {"pods": total(pod.usd_hour for pod in pods), "idle": idle},
    }
