"""The time of local AWS: the wall clock until a test moves or freezes it.

Every rule of the extension that mentions time (end dates, start dates, slots coming free, describe lag) reads
this clock and no other. It reads moto's `utcnow`, so a test that patches `datetime` moves it too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from moto.core.utils import utcnow


def _wall() -> datetime:
    return utcnow().replace(tzinfo=UTC)


class LocalClock:
    def __init__(self) -> None:
        self._offset = timedelta()
        self._frozen: datetime | None = None

    @property
    def frozen(self) -> bool:
        return self._frozen is not None

    def now(self) -> datetime:
        return self._frozen if self._frozen is not None else _wall() + self._offset

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"advance: {seconds} is negative; time in EC2 only goes forward")
        if self._frozen is not None:
            self._frozen += timedelta(seconds=seconds)
        self._offset += timedelta(seconds=seconds)

    def freeze(self, at: datetime | None = None) -> None:
        """Stop at `at`, or at this moment."""
        self._frozen = aware(at) if at is not None else self.now()

    def unfreeze(self) -> None:
        """Run on from the time at which the clock was frozen."""
        if self._frozen is not None:
            self._offset = self._frozen - _wall()
            self._frozen = None

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]


def aware(at: datetime | str) -> datetime:
    """A time in UTC from the value in a request or a control call."""
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    return at if at.tzinfo else at.replace(tzinfo=UTC)
