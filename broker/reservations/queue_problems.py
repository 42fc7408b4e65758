"""The reasons of problems with a reservation's queues in Kueue."""

from __future__ import annotations

from typing import Final

CONFLICT: Final = "ObjectConflict"
REFUSED: Final = "QueueRefused"
UNAVAILABLE: Final = "KueueUnavailable"
REMOVED: Final = "KueueRemoved"
UNMARKED: Final = "QueueMarkRemoved"
TERMINATING: Final = "QueueTerminating"
COHORT_CYCLE: Final = "CohortCycle"
STOPPED: Final = "QueueStopped"  # by the reservation's annotation, or while users hold a renamed flavor
# These keep workloads out. Any other problem leaves the queue active.
BLOCKERS: Final = (
    CONFLICT,
    REFUSED,
    UNAVAILABLE,
    REMOVED,
    UNMARKED,
    TERMINATING,
    COHORT_CYCLE,
    STOPPED,
)
