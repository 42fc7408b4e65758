"""A stop of purchases or of an adoption is a Warning event on its object, at its start and when its message
changes.
"""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker.apis.meta import Object
from broker.apis.ome import CapacityReservation
from broker.controllers.odcr.events import StopEvents
from broker.kube.events import Recorder
from broker.reservations.ownership import ReservationProblem

TRAINING = CapacityReservation.decode({"metadata": {"name": "training", "namespace": "ml", "uid": "u-1"}})
CAP = ReservationProblem(reason="SpendingCapReached", message="--buy-dollars is 0")
RAISED = ReservationProblem(reason="SpendingCapReached", message="--buy-dollars is 8")
SKIPPED = ReservationProblem(reason="PurchaseSkipped", message="flavor h100: why")
NOT_ALLOWED = ReservationProblem(reason="AdoptionNotAllowed", message="cr-1 is not adopted: why")
NO_ID = ReservationProblem(reason="ReservationNotFound", message="EC2 shows this account no cr-2")
OTHER = ReservationProblem(reason="ChangeRefused", message="cancelling cr-1 was refused")


class Recorded:
    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []

    def event(self, obj: Object, type_: str, reason: str, message: str, **_: Any) -> None:
        self.events.append((obj.name, type_, reason, message))


@pytest.mark.parametrize(
    ("passes", "warned"),
    [
        ([[CAP], [CAP], [CAP]], [CAP]),
        ([[CAP], [RAISED], [RAISED]], [CAP, RAISED]),
        ([[CAP], [], [CAP]], [CAP, CAP]),
        ([[CAP], [CAP, SKIPPED], [SKIPPED]], [CAP, SKIPPED]),
        ([[CAP, CAP, SKIPPED]], [CAP, SKIPPED]),
        ([[OTHER]], []),
        (
            [[ReservationProblem(reason="InvalidAnnotation", message="m")]],
            [ReservationProblem(reason="InvalidAnnotation", message="m")],
        ),
        (
            [[ReservationProblem(reason="PriceUnknown", message="m")]],
            [ReservationProblem(reason="PriceUnknown", message="m")],
        ),
        ([[NOT_ALLOWED, NO_ID], [NOT_ALLOWED, NO_ID]], [NOT_ALLOWED, NO_ID]),
    ],
)
def test_a_stop_of_buying_or_adopting_gives_one_event_per_change(
    passes: list[list[ReservationProblem]], warned: list[ReservationProblem]
) -> None:
    recorded = Recorded()
    stops = StopEvents(cast(Recorder, recorded))
    for problems in passes:
        stops.report(TRAINING, problems)
        stops.end_pass()
    assert recorded.events == [("training", "Warning", problem.reason, problem.message) for problem in warned]
