"""What is written on an object before something is bought for it, and the client token made of that.

Invariant: a token follows from the object, its generation, the number that is on the object and every
parameter of the call, and from no clock: whoever comes after a process that died at a purchase, or lost its
answer, makes the same call under the same token, and EC2 answers it with what it made then (Amazon EC2 API
Reference, "Ensuring idempotency"). The number rises once something was made under it, so that another
purchase of the same shape is another piece of work. The time only says until when EC2 may show less than
there is.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from providers.model import OdcrRequest

_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Mark:
    """The number of a purchase, and when the broker set out to make it."""

    number: int
    at: datetime

    def __str__(self) -> str:
        return f"{self.number} {self.at.isoformat()}"


def read(text: str) -> Mark | None:
    """What an annotation says; None where it says nothing that is understood. A time alone has number 0."""
    number, _, rest = text.strip().rpartition(" ")
    at = moment(rest)
    if at is None or (number and not _NUMBER.fullmatch(number)):
        return None
    return Mark(int(number or 0), at)


def moment(text: str) -> datetime | None:
    """A time with its zone; None where there is none."""
    try:
        found = datetime.fromisoformat(text.strip())
        return found.astimezone(UTC) if found.tzinfo and found.year > 1 else None
    except (ValueError, OverflowError):  # a zone may lead out of all years
        return None


def token(uid: str, generation: int, mark: Mark, request: OdcrRequest) -> str:
    """Of at most 64 characters, as EC2 wants it."""
    of = [uid, generation, mark.number, asdict(request) | {"token": ""}]
    return hashlib.sha256(json.dumps(of, sort_keys=True, default=str).encode()).hexdigest()
