"""EC2's refusals to reserve instances, with their back-off, by the number requested.

Invariant: during the back-off neither as many instances nor more are requested there. Fewer may be requested
at once, since EC2 creates an ODCR whole or not at all. Back-offs are those of any other shortage
(`shortages`): three minutes, doubled up to thirty. An account's limit lasts a quarter of an hour, in every
zone. A type that a zone does not offer is not requested there for hours, for any count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from broker.capacity.shortages import Scope, Shortage, Shortages
from providers.errors import ErrorClass, ProviderError

_ANYWHERE: Final = "*"


@dataclass(frozen=True, slots=True)
class Refusals:
    """Immutable: each change returns a new object."""

    shortages: Shortages = field(default_factory=Shortages)

    def record(
        self, instance_type: str, zone: str, count: int, error: ProviderError, now: datetime
    ) -> Refusals:
        """After a refusal about the place: any other is about the request or is transient."""
        if error.class_ is ErrorClass.QUOTA:
            zone = _ANYWHERE
        if error.class_ is ErrorClass.NOT_OFFERED:
            count = 1
        return Refusals(
            self.shortages.record(
                _scope(instance_type, zone, count),
                class_=error.class_,
                code=error.code,
                now=now,
                message=error.message,
            )
        )

    def succeeded(self, instance_type: str, zone: str, count: int) -> Refusals:
        """After a purchase: that many are not short there, and doubling starts over."""
        gone = [
            shortage.scope
            for place in (zone, _ANYWHERE)
            for requested, shortage in self._of(instance_type, place)
            if requested <= count
        ]
        return Refusals(self.shortages.succeeded(gone)) if gone else self

    def lasting(self, instance_type: str, zone: str, count: int, now: datetime) -> Shortage | None:
        """The last-ending refusal that forbids to request that many there."""
        shortages = [
            shortage
            for place in (zone, _ANYWHERE)
            for requested, shortage in self._of(instance_type, place)
            if requested <= count and shortage.until > now
        ]
        return max(shortages, key=lambda shortage: shortage.until, default=None)

    def _of(self, instance_type: str, zone: str) -> Iterator[tuple[int, Shortage]]:
        begin = _key(instance_type, zone)
        for scope, shortage in self.shortages.by_scope.items():
            place, _, count = scope.key.rpartition(":")
            if place == begin:
                yield int(count), shortage


def _key(instance_type: str, zone: str) -> str:
    return f"reserve:{instance_type}:{zone}"


def _scope(instance_type: str, zone: str, count: int) -> Scope:
    return Scope("pool", f"{_key(instance_type, zone)}:{count}")
