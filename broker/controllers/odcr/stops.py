"""A Warning event on a CapacityReservation when buying or an adoption stops, once for each change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.kube.events import Recorder
from broker.reservations.ownership import ReservationProblem
from broker.reservations.reading import INVALID
from broker.reservations.spec import Reservation

STOPPING: Final = frozenset(
    {
        "SpendingCapReached",
        "PriceUnknown",
        "PurchaseSkipped",
        INVALID,
        # Adoptions that an annotation asks for, and that cannot be done.
        "AdoptionNotAllowed",
        "GroupNotFound",
        "ReservationDisputed",
        "ReservationNotFound",
    }
)


class StopEvents:
    """Reports each problem that stops buying or an adoption once. One process, one thread. `end_pass`
    forgets problems that were not reported in the pass.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._before: dict[str, frozenset[ReservationProblem]] = {}  # by uid, of the last pass
        self._now: dict[str, frozenset[ReservationProblem]] = {}

    def report(self, one: Reservation, problems: Sequence[ReservationProblem]) -> None:
        stops = [each for each in dict.fromkeys(problems) if each.reason in STOPPING]
        self._now[one.uid] = frozenset(stops)
        for each in stops:
            if each not in self._before.get(one.uid, ()):
                self._recorder.event(one, "Warning", each.reason, each.message)

    def end_pass(self) -> None:
        self._before, self._now = self._now, {}
