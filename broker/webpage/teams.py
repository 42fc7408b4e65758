"""A team: a CapacityReservation or a namespace, with its pods, its loans and its cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.placement.node_prices import Cost, total
from broker.webpage.lending import LoanRow
from broker.webpage.nodes import PodRow

MOST_PODS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamCost:
    """Dollars an hour, and the number of pods or slots without a known price. `idle`: None if it may not be
    seen."""

    pods: Cost
    idle: Cost | None = None


def team(
    pods: Sequence[PodRow], loans: Iterable[LoanRow], reservations: Iterable[str], *, idle: Cost | None
) -> dict[str, Any]:
    """The values of a team. `reservations`: those with the team's loans."""
    names = {*reservations}
    return {
        "team_pods": pods[:MOST_PODS],
        "pod_count": len(pods),
        "team_loans": [loan for loan in loans if loan.owner in names or loan.borrower in names],
        "cost": TeamCost(
            pods=total(pod.usd_hour for pod in pods),
            idle=idle,
        ),
    }
