"""Writes the ids of full reservations into a reason, and reads them from it.

Why from text: the reason of a pod or claim is an event or a condition, which other processes read, and
Kubernetes has no field for ids there.

Invariant: `full_ids` finds the ids that a function of this module wrote, at most `MOST_NAMED` of one list,
and no id that the reason names for another cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from broker.text import abridged

MOST_NAMED: Final = 3
_NONE_LEFT: Final = "no free slot is left for it in "
_ID: Final = r"cr-[0-9a-z]+"
_ENTRY: Final = rf"{_ID}(?: \([^()]*\))?"
# The counts of one option, or a list of reservations.
_WRITTEN: Final = re.compile(rf"\b({_ID}) 0 of \d+|{_NONE_LEFT}({_ENTRY}(?:, {_ENTRY})*)")


def none_of(id_: str, total: int) -> str:
    """The free slots of a full reservation: `cr-1 0 of 4`."""
    return f"{id_} 0 of {total}"


def none_left(places: Mapping[str, str]) -> str:
    """A clause about full reservations. `places`: by id, their type and zone; empty to leave them out."""
    entries = [f"{id_} ({place})" if place else id_ for id_, place in sorted(places.items())]
    return f"{_NONE_LEFT}{abridged(entries, MOST_NAMED)}"


def full_ids(reason: str) -> tuple[str, ...]:
    """The full reservations of a reason, in its order."""
    return tuple(dict.fromkeys(_ids(reason)))


def _ids(reason: str) -> Iterable[str]:
    for counted, listed in _WRITTEN.findall(reason):
        yield from [counted] if counted else re.findall(rf"(?:^|, )({_ID})", listed)
