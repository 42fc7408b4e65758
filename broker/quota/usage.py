"""The holders of a reservation's quota: the values of usage, quota and status.

Only data. A reservation is OME's (a CapacityReservation, or a ClusterCapacityReservation if `namespace`
is empty), never EC2's.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal, Self

from broker.quota.model import Amounts

_BETWEEN: Final = "--"

HolderKind = Literal["DedicatedAICluster", "Workload", "NodeClaim"]


@dataclass(frozen=True, slots=True, order=True)
class ReservationKey:
    """The name of a reservation. `str` is the form for people: `namespace/name`, or `name`."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`. The text is divided at its last `/`, and not checked."""
        namespace, _, name = text.rpartition("/")
        return cls(namespace, name)

    @property
    def resource(self) -> str:
        """Its arguments after the verb of a kubectl command."""
        kind = f"capacityreservation -n {self.namespace}" if self.namespace else "clustercapacityreservation"
        return f"{kind} {self.name}"

    @property
    def queue(self) -> str:
        """The name of its queue in the quota tree, and the preferred name of its ClusterQueue:
        `namespace--name`.

        If that is ambiguous, a hash of both parts is added.
        """
        plain = f"{self.namespace}{_BETWEEN}{self.name}" if self.namespace else self.name
        if _BETWEEN not in self.namespace and _BETWEEN not in self.name:
            return plain
        return f"{plain}-{sha256(str(self).encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationHolder:
    """A user of a reservation: its amounts by flavor, in whole units (cpu in milli).

    `name` is unique among a reservation's holders: a cluster's name, or a workload's or a claim's
    with a unique suffix. `since` is when it got its quota, in seconds since the epoch.
    """

    kind: HolderKind
    name: str
    reserved: ReservationKey
    usage: Amounts
    priority: int = 0
    since: float = float("inf")
    healthy: bool = True
    why: str = ""  # the reason why it is not healthy, for people
