"""Specs of reservations, judged once by the broker's settings."""

from __future__ import annotations

from broker.apis.ome import CapacityReservation, ClusterCapacityReservation, ReservationSpec
from broker.apis.ome_rules import JudgedSpec, judge
from broker.quota.usage import ReservationKey

Reservation = CapacityReservation | ClusterCapacityReservation


def reserved_of(reservation: Reservation) -> ReservationKey:
    """The name of a reservation."""
    return ReservationKey(reservation.namespace, reservation.name)


class JudgedSpecs:
    """Judges each spec once, by the broker's settings.

    Invariant: no controller judges a spec itself, so all of them refuse the same specs.
    """

    def __init__(self, *, default_cohort: str = "", strict: bool = False) -> None:
        self._default_cohort = default_cohort
        self._strict = strict
        self._known: dict[str, tuple[ReservationSpec, JudgedSpec]] = {}  # by the object's UID

    def of(self, reservation: Reservation) -> JudgedSpec:
        """The judgement of the object's spec."""
        known = self._known.get(reservation.uid)
        if known is None or known[0] is not reservation.spec:
            judged = judge(reservation.spec, default_cohort=self._default_cohort, strict=self._strict)
            known = self._known[reservation.uid] = reservation.spec, judged
        return known[1]

    def forget(self, uid: str) -> None:
        """Drops an object that is gone."""
        self._known.pop(uid, None)
