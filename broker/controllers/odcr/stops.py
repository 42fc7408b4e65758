"""A Warning event on a CapacityReservation when buying or an adoption stops, once for each change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.kube.events import Recorder
from broker.reservations.annotations import INVALID
from broker.reservations.moves import MOVED
from broker.reservations.ownership import ReservationProblem
from broker.reservations.spec import Reservation

STOPPING: Final = frozenset(
    {
        "SpendingCapReached",
        "PriceUnknown",
        "PurchaseSkipped",
        MOVED,
        INVALID,
        # Adoptions that an annotation requests, and that are not possible.
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

    def report(self, reservation: Reservation, problems: Sequence[ReservationProblem]) -> None:
        stops = [problem for problem in dict.fromkeys(problems) if problem.reason in STOPPING]
        self._now[reservation.uid] = frozenset(stops)
        for problem in stops:
            if problem not in self._before.get(reservation.uid, ()):
                self._recorder.event(reservation, "Warning", problem.reason, problem.message)

    def end_pass(self) -> None:
        self._before, self._now = self._now, {}
