"""Annotations of a CapacityReservation that have a fixed set of values.

Invariant: every reader of such an annotation reads it here, so all of them take the same value for it. Spaces
and line ends around a value do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from broker.apis import names
from broker.apis.kueue import StopPolicy
from broker.apis.meta import Object
from broker.reservations.sizing import Sizing
from broker.text import shortened
from providers.model import MatchCriteria, Tenancy

T = TypeVar("T", bound=str)

INVALID_ANNOTATION: Final = "InvalidAnnotation"


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """One annotation and its values, the default first.

    An invalid value counts as `otherwise`; without it, as the default.
    """

    key: str
    values: tuple[T, ...]
    otherwise: T | None = None

    def read(self, obj: Object) -> tuple[T, str]:
        """The value that counts, and the problem of an invalid one."""
        given = obj.annotations.get(self.key, "").strip()
        if value := next((value for value in self.values if value == given), None):
            return value, ""
        *others, last = self.values
        problem = f"annotation {self.key} is {shortened(given)}: write {', '.join(others)} or {last}"
        return (self.otherwise or self.values[0], problem) if given else (self.values[0], "")

    def of(self, obj: Object) -> T:
        """The value alone."""
        return self.read(obj)[0]


POLICY: Final[Choice[Literal["Observe", "Manage"]]] = Choice(names.RESERVATION_POLICY, ("Observe", "Manage"))
DELETION: Final[Choice[Literal["Retain", "Cancel"]]] = Choice(names.DELETION_POLICY, ("Retain", "Cancel"))
MATCH_CRITERIA: Final[Choice[MatchCriteria]] = Choice(names.MATCH_CRITERIA, ("targeted", "open"))
TENANCY: Final[Choice[Tenancy]] = Choice(names.TENANCY, ("default", "dedicated"))
SIZING: Final[Choice[Sizing]] = Choice(names.SIZING, ("accelerator", "max"))
ADMISSION: Final[Choice[Literal["Hold", "Off"]]] = Choice(names.ADMISSION, ("Hold", "Off"))
STOP: Final[Choice[StopPolicy]] = Choice(names.STOP_POLICY, ("None", "Hold", "HoldAndDrain"), "Hold")
