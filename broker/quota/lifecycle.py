"""The state of a reservation: the next state, from the last one and the obstacle to being Active.

Invariant: a reservation begins as Creating and becomes Active. A new spec leads over Updating back to
Active. Failed is reached from each of these and left without action once there is no obstacle. Deleting
is the last. The only input besides the obstacle is the reservation's own status.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

State = Literal["Active", "Creating", "Deleting", "Failed", "Updating"]


class ObstacleKind(IntEnum):
    """The subject of an obstacle; if there are several, the lowest decides."""

    SPEC = 0  # the spec cannot be served
    QUEUE = 1  # nothing is admitted
    SUPPLY = 2  # hardware is missing
    BUYING = 3  # missing hardware is being bought, or begins later
    USE = 4  # usage exceeds the quota


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """A reason for not being Active: `reason` for programs, `message` for people."""

    kind: ObstacleKind
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds after which a missing change is reported as Failed."""

    creating: float
    updating: float


def patience(state: State | None, obstacle: Obstacle | None, limits: Limits) -> float:
    """Seconds for which an obstacle may last in a state before the state is Failed."""
    if obstacle is None or state not in ("Creating", "Updating", "Active"):
        return float("inf")
    kind = obstacle.kind
    if kind is ObstacleKind.SPEC or (state == "Active" and kind is ObstacleKind.QUEUE):
        return 0.0
    if state == "Updating":
        return limits.updating
    buys = state == "Creating" and kind is ObstacleKind.BUYING
    return float("inf") if buys or kind is ObstacleKind.USE else limits.creating


def advance(
    before: State | None,
    obstacle: Obstacle | None,
    *,
    deleting: bool,
    changed: bool,
    lasted: float,
    limits: Limits,
) -> State:
    """The state to report. `changed`: the spec differs from the one that `before` was about.

    `lasted`: the seconds for which the requested quota has been missing.
    """
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
    """Whether it serves; during an update, as long as its earlier quota does."""
    if state == "Updating":
        return was_ready and (
            obstacle is None or obstacle.kind not in (ObstacleKind.SPEC, ObstacleKind.QUEUE)
        )
    return state == "Active"
