"""One attempt for one claim, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from broker.capacity.model import Pool
from providers.errors import ErrorClass


class Outcome(StrEnum):
    """The outcome of an attempt."""

    LAUNCHED = "Launched"
    REFUSED = "Refused"  # by EC2
    SKIPPED = "Skipped"  # not requested: shortage remembered, no room, does not fit
    ADOPTED = "Adopted"  # it took an existing instance without a claim instead
    SPILLED = "Spilled"  # launched, but outside the planned reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt for one claim: written once, read by status, events, metrics, journal and explain.

    `also` are further pools with the same result at the same moment. `odcr_ids` is the reservation in which
    the instance runs, or those that the attempt could use if EC2 shows none. Only the history reads
    `odcr_ids` and `node_pool`.
    """

    claim: str
    node_class: str
    pool: Pool
    outcome: Outcome
    at: datetime
    code: str = ""
    class_: ErrorClass | None = None
    message: str = ""
    request_id: str = ""
    next_step: str = ""
    instance_id: str = ""
    also: tuple[Pool, ...] = ()
    odcr_ids: tuple[str, ...] = ()
    node_pool: str = ""
