"""What a launcher last reported on a pod: why it makes no machine for it, or which has room for it."""

from __future__ import annotations

from typing import Final, NamedTuple

# The beginning of the events of Karpenter and of the broker on a pod without a node.
FAILED_POD: Final = "Failed to schedule pod, "
# The reason of events on a pod that gets no node, and on one that gets one.
FAILED: Final = "FailedScheduling"
NOMINATED: Final = "Nominated"


class PodReport(NamedTuple):
    """`held`: a reason of the pod's own, such as a volume that does not exist, keeps it from any machine.

    `room`: the NodeClaim or node that has room for the pod, which then needs no other machine.
    """

    message: str
    held: bool = False
    room: str = ""


def of_event(message: str) -> PodReport:
    return PodReport(message.removeprefix(FAILED_POD))
