"""The decision of a plan about one claim, in words: the same for a claim of a file and one of a cluster.

Invariant: `plan` and `explain claim` use these sentences and no others for a decision.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.capacity.model import Option, Plan, Skipped
from broker.text import format_time, plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`option` is the claim's next launch, `rest` the options after it; None: nothing now."""

    sentence: str
    option: Option | None = None
    rest: tuple[Option, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def decided(result: Plan, uid: str) -> Decision:
    """About a claim that was planned."""
    assigned = next((entry for entry in result.assignments if entry.claim.uid == uid), None)
    unplaced = next((entry for entry in result.unplaced if entry.claim.uid == uid), None)
    skipped = result.skipped.get(uid, ()) or (unplaced.skipped if unplaced else ())
    if assigned is not None:
        return Decision(
            sentence=f"is launched next into {assigned.option.pool.shown}",
            option=assigned.option,
            rest=assigned.rest,
            skipped=skipped,
        )
    if unplaced is None:
        return unplanned("it is being deleted")
    retry_text = f"; tried again at {format_time(unplaced.retry_at)}" if unplaced.retry_at else ""
    return Decision(sentence=f"waits: {unplaced.reason}: {unplaced.message}{retry_text}", skipped=skipped)


def unplanned(why: str) -> Decision:
    """About a claim that cannot be planned."""
    return Decision(sentence=f"not planned: {why}")


def because(reason: str, message: str, *, pool: str) -> str:
    """Why an option is not taken; its name has a place of its own."""
    return ": ".join(filter(None, (reason, message.removeprefix(f"{plain(pool)}: "))))
