"""Records that EC2's operations keep in the shared world, beside the ledger.

They are apart from the operations, which read the world, so that the world can name their types.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from local.aws.ec2.reservations import Ec2Reservation, Occupant


@dataclass(eq=False, kw_only=True)
class InterruptibleAllocation:
    source: Ec2Reservation
    reservation: Ec2Reservation  # the interruptible one
    target: int
    at_zero: str = "default"
    status: str = "active"
    reclaimed: list[Occupant] = field(default_factory=list)
    reclaim_count: int = 0  # of the reclamation that is under way
