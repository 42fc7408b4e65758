"""Where in its life a reservation is: the next state, from the last one and from what stands in its way.

Invariant: a reservation begins as Creating and comes to Active; from there a new spec leads over Updating
back to Active; Failed is reached from each of these and left by itself once nothing stands in the way;
Deleting is the last. Nothing is remembered beside what the reservation's own status says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

State = Literal["Active", "Creating", "Deleting", "Failed", "Updating"]


class ObstacleKind(IntEnum):
    """What an obstacle is about; when there are several, the lowest decides."""

    SPEC = 0  # it cannot be served as it is written
    QUEUE = 1  # nothing is admitted
    SUPPLY = 2  # there is not enough hardware
    BUYING = 3  # what is missing is being bought, or begins later
    USE = 4  # more is used than it is entitled to


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """What stands in the way of being Active: `reason` for programs, `message` for people."""

    kind: ObstacleKind
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds after which what does not come is called Failed."""

    creating: float
    updating: float


# How an Obstacle's kind is waited for, by the state that it meets: the name of the limit, or at once.
_WAITS: Final[Mapping[State, Mapping[ObstacleKind, str]]] = {
    "Creating": {
        ObstacleKind.QUEUE: "creating",
        ObstacleKind.SUPPLY: "creating",
        ObstacleKind.BUYING: "never",
    },
    "Updating": {
        ObstacleKind.QUEUE: "updating",
        ObstacleKind.SUPPLY: "updating",
        ObstacleKind.BUYING: "updating",
    },
    "Active": {
        ObstacleKind.QUEUE: "at once",
        ObstacleKind.SUPPLY: "creating",
        ObstacleKind.BUYING: "creating",
    },
}


def patience(state: State | None, obstacle: Obstacle | None, limits: Limits) -> float:
    """Seconds for which an obstacle may last in a state before the state is Failed."""
    if obstacle is None or state is None or state not in _WAITS:
        return float("inf")
    if obstacle.kind is ObstacleKind.USE:
        return limits.updating if state == "Updating" else float("inf")
    how = _WAITS[state].get(obstacle.kind, "at once")
    return {
        "at once": 0.0,
        "never": float("inf"),
        "creating": limits.creating,
        "updating": limits.updating,
    }[how]


def advance(
    before: State | None,
    obstacle: Obstacle | None,
    *,
    deleting: bool,
    changed: bool,
    lasted: float,
    limits: Limits,
) -> State:
    """The state to be shown. `changed`: the spec is another than the one that `before` was about; `lasted`:
    for how long, in seconds, what it asks for has been missing."""
    if deleting:
        return "Deleting"
    if before is None or before == "Deleting":
        return "Creating"
    if changed and before == "Active":
        return "Updating"
    if obstacle is None:
        return "Active"
    if obstacle.kind is ObstacleKind.SPEC:
        return "Failed"
    if before == "Failed":
        return "Updating" if changed else "Active" if obstacle.kind is ObstacleKind.USE else "Failed"
    over = lasted >= patience(before, obstacle, limits)
    if obstacle.kind is ObstacleKind.USE:
        return "Updating" if before == "Updating" and not over else "Active"
    return "Failed" if over else before


def ready(state: State, obstacle: Obstacle | None, *, was_ready: bool) -> bool:
    """Whether it serves: while it is updated, as long as what it had before does."""
    if state == "Updating":
        return was_ready and (
            obstacle is None or obstacle.kind not in (ObstacleKind.SPEC, ObstacleKind.QUEUE)
        )
    return state == "Active"
