"""Ownership and fulfilment of ODCRs, as the provisioner published them last.

Invariant: `holdings` and every `state` come from one pass over one description of EC2. Before the first pass
there is none, and no reservation is settled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from broker.quota.usage import Reserved
from broker.reservations.desired import FlavorCount
from broker.reservations.ownership import Ownership, ReservationProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class OdcrStatus:
    """One reservation's EC2 side. `managed`: its policy is Manage. `detail`: a line for people, or empty."""

    managed: bool = False
    flavors: Mapping[str, FlavorCount] = field(default_factory=dict)
    group_arn: str = ""
    problems: tuple[ReservationProblem, ...] = ()
    detail: str = ""

    @property
    def wanted(self) -> int:
        return sum(each.wanted for each in self.flavors.values())

    @property
    def obtained(self) -> int:
        return sum(each.obtained for each in self.flavors.values())

    @property
    def pending(self) -> int:
        return sum(each.pending for each in self.flavors.values())


class OwnershipView:
    """Written by one loop, read by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holdings: Ownership | None = None
        self._states: Mapping[Reserved, OdcrStatus] = {}
        self._settled: Mapping[Reserved, str] = {}
        self._readers: list[Callable[[], None]] = []

    def on_change(self, reader: Callable[[], None]) -> None:
        """Calls `reader` after each pass with a change."""
        self._readers.append(reader)

    @property
    def known(self) -> bool:
        """Whether there was a pass."""
        return self._holdings is not None

    def holdings(self) -> Ownership:
        """The owner of each ODCR; empty before the first pass."""
        with self._lock:
            return self._holdings or Ownership()

    def state(self, reserved: Reserved) -> OdcrStatus:
        """A reservation's state; an empty one for a reservation that no pass has seen."""
        with self._lock:
            return self._states.get(reserved, OdcrStatus())

    def settled(self, reserved: Reserved, *, uid: str = "") -> bool:
        """Whether a pass saw the object deleted, and no remaining work in EC2 before it may go.

        `uid` distinguishes an object from an earlier one of its name.
        """
        with self._lock:
            return reserved in self._settled and uid in ("", self._settled[reserved])

    def settle(self, settled: Mapping[Reserved, str]) -> None:
        """Records deleted objects that may go, whatever EC2 has."""
        with self._lock:
            same, self._settled = self._settled == settled, settled
        if not same:
            for reader in self._readers:
                reader()

    def publish(
        self, holdings: Ownership, states: Mapping[Reserved, OdcrStatus], settled: Mapping[Reserved, str]
    ) -> None:
        """`settled`: the uid of each object that is deleted and may go."""
        with self._lock:
            same = (self._holdings, self._states, self._settled) == (holdings, states, settled)
            self._holdings, self._states, self._settled = holdings, states, settled
        if not same:
            for reader in self._readers:
                reader()
