"""A failing schedule made short: operations are dropped as long as the same invariant breaks (ddmin)."""

from __future__ import annotations

from tests.simulation.run import Report, run
from tests.simulation.world import Lab

TRIES = 150


def shrink(lab: Lab, report: Report, *, tries: int = TRIES) -> Report:
    """The shortest schedule found that breaks the same invariant; no operation of it can be dropped alone."""
    best, size = report, max(1, len(report.operations) // 2)
    while tries > 0:
        shorter = None
        for begin in range(0, len(best.operations), size):
            if tries <= 0:
                break
            tries -= 1
            left = best.operations[:begin] + best.operations[begin + size :]
            shorter_report = run(lab, report.seed, left)
            if shorter_report.invariant == report.invariant:
                shorter = shorter_report
                break
        if shorter is not None:
            best = shorter
            size = min(size, max(1, len(best.operations) // 2))
        elif size == 1:
            break
        else:
            size = max(1, size // 2)
    return best
