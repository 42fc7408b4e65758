"""The ends of Capacity Blocks as their extensions change them.

Why: EC2 moves the end of a block when an extension is paid, which may be later than the start of its drain.

Invariant: a block counts as one without an extension only by EC2's own answer. While EC2 gives none, the last
one holds. A block without a last one counts as extending, so that it drains as late as it safely can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import structlog

from broker.capacity.matching import ULTRASERVER_DRAIN
from providers.base import ReservationListing
from providers.errors import ProviderError
from providers.model import BlockExtension, Odcr

# Before the earliest drain there is nothing to decide.
WITHIN: Final = ULTRASERVER_DRAIN + timedelta(minutes=20)
# So long before its end a block can be extended for the last time (EC2 User Guide, "Extend Capacity Blocks").
LAST_PURCHASE: Final = timedelta(hours=1)

_log = structlog.get_logger("reservations")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """EC2's last answer about one block. `extensions`: the earliest first."""

    at: datetime
    extensions: tuple[BlockExtension, ...]


class BlockEnds:
    """Reads the extensions of blocks that end soon.

    `refused`: by block, why EC2 does not give them, if that does not pass by itself.
    """

    def __init__(self, listing: ReservationListing) -> None:
        self._listing = listing
        self._answers: dict[str, _Answer] = {}
        self.refused: Mapping[str, ProviderError] = {}

    def applied(self, odcrs: Mapping[str, Odcr], now: datetime) -> Mapping[str, Odcr]:
        """The reservations; if blocks end soon, one call gets their extensions."""
        ending = {
            odcr.id: odcr.end
            for odcr in odcrs.values()
            if odcr.prepaid and odcr.end is not None and now < odcr.end <= now + WITHIN
        }
        self._answers = {id_: answer for id_, answer in self._answers.items() if id_ in ending}
        self.refused = {}
        if not ending:
            return odcrs
        try:
            self._ask(ending, now)
        except ProviderError as error:
            _log.warning("extensions of capacity blocks not read", odcrs=sorted(ending), error=str(error))
            if not error.class_.passes:
                self.refused = dict.fromkeys(ending, error)
        changed = {
            id_: _extended(odcrs[id_], self._answers.get(id_), min(now, end - LAST_PURCHASE))
            for id_, end in ending.items()
        }
        return {**odcrs, **changed}

    def _ask(self, ending: Mapping[str, datetime], now: datetime) -> None:
        extensions = sorted(self._listing.extensions([*ending]), key=lambda extension: extension.start)
        for id_ in ending:
            own = tuple(extension for extension in extensions if extension.odcr_id == id_)
            self._answers[id_] = _Answer(at=now, extensions=own)


def _extended(odcr: Odcr, answer: _Answer | None, final: datetime) -> Odcr:
    """The block with its extensions. An answer from before `final` may lack one that was bought since."""
    extended = odcr
    for extension in answer.extensions if answer is not None else ():
        if extension.start == extended.end:  # else it has begun
            paid, unpaid = replace(extended, end=extension.end), replace(extended, extending=True)
            extended = paid if extension.paid else unpaid
    unknown = answer is None or (extended is odcr and answer.at < final)
    return replace(odcr, extending=True) if unknown else extended
