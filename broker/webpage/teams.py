"""A team: a CapacityReservation or a namespace, with its pods, its loans and its cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.webpage.lending import LoanRow
from broker.webpage.nodes import PodRow

MOST_PODS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamCost:
    """Dollars an hour. `unpriced`: the pods on nodes without a known price."""

    pods: float
    unpriced: int
    idle: float | None = None  # of the idle slots of a reservation; None where it is not known


def team(
    pods: Sequence[PodRow], loans: Iterable[LoanRow], reservations: Iterable[str], *, idle: float | None
) -> dict[str, Any]:
    """The values of a team. `reservations`: those with the team's loans."""
    names = {*reservations}
    return {
        "team_pods": pods[:MOST_PODS],
        "pod_count": len(pods),
        "team_loans": [loan for loan in loans if loan.owner in names or loan.borrower in names],
        "cost": TeamCost(
            pods=sum(pod.usd_hour or 0.0 for pod in pods),
            unpriced=sum(pod.usd_hour is None for pod in pods),
            idle=idle,
        ),
    }
