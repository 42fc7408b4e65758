"""Resolves a name to a reservation.

Invariant: an ambiguous name resolves to none, so nothing is drawn from a reservation that was not chosen.
`namespace/name` is that CapacityReservation. A name alone is the ClusterCapacityReservation of that name,
or the only CapacityReservation with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from broker.lists import lists_by_key
from broker.quota.usage import ReservationKey
from broker.text import similar

NEAR: Final = 0.75  # of difflib's ratio; `gpu` is so near to `gpus`, and to `cpu` it is not


@dataclass(frozen=True, slots=True)
class UnresolvedName:
    """Why a name resolves to no reservation: `reason` for a condition, `message` for people."""

    reason: str
    message: str


class ReservationNames:
    """Reservations by their names, for many lookups."""

    def __init__(self, known: Iterable[ReservationKey]) -> None:
        self._known = tuple(sorted(known))
        self._named = lists_by_key((reservation.name, reservation) for reservation in self._known)

    def resolve(self, given: str) -> ReservationKey | UnresolvedName:
        """The reservation of this name, or why there is none."""
        if not given:
            return UnresolvedName(
                "ReservationNotNamed",
                "no reservation is named: write namespace/name of a CapacityReservation, or the name of a "
                "ClusterCapacityReservation",
            )
        namespace, slash, name = given.rpartition("/")
        named = self._named.get(name, [])
        if slash:
            if namespace and (reserved := ReservationKey(namespace, name)) in named:
                return reserved
            return UnresolvedName(
                "ReservationNotFound",
                f"there is no CapacityReservation {name} in namespace {namespace!r}{self._suggestion(given)}",
            )
        if (reserved := ReservationKey("", name)) in named:
            return reserved
        if len(named) == 1:
            return named[0]
        if named:
            return UnresolvedName(
                "ReservationAmbiguous",
                f"{given} could be {' or '.join(map(str, named))}: write the intended one",
            )
        return UnresolvedName(
            "ReservationNotFound",
            f"there is no ClusterCapacityReservation and no CapacityReservation named {given}"
            f"{self._suggestion(given)}",
        )

    def _suggestion(self, given: str) -> str:
        """The suggested fix: the nearest existing name, if any is near."""
        near = _nearest(given, tuple(map(str, self._known)))
        return f": write {near} if that is meant, or make it" if near else ": make it, or name another"


@lru_cache(maxsize=64)
def _nearest(given: str, known: tuple[str, ...]) -> str:
    """The nearest name, with its namespace, or by the name alone if the namespace differs or is missing."""
    named = {known_name.rpartition("/")[2]: known_name for known_name in known}
    near = similar(given.rpartition("/")[2], named, ratio=NEAR)
    return similar(given, known, ratio=NEAR) or named.get(near, "")
