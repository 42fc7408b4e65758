"""The hold that a pod takes, of those through which it fits.

The lowest order above zero comes first, then the fullest hold, then the name: the choice is the same after
every restart. Source: Koordinator, nominator.go and scoring.go.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.placement.holds import Amounts, HoldState
from broker.placement.holds_fit import score


def preferred(requests: Amounts, states: Iterable[HoldState]) -> tuple[HoldState, ...]:
    """The holds in the order in which a pod tries them."""

    def rank(state: HoldState) -> tuple[bool, int, int, str, str]:
        hold = state.hold
        return (hold.order <= 0, hold.order, -score(requests, state), hold.name, hold.id)

    return tuple(sorted(states, key=rank))
