"""When the nodes of an ODCR drain, and when notices of its end are due.

Invariant: a Capacity Block's nodes drain before EC2 begins to terminate them: 30 minutes before its end, 60
for UltraServers (EC2 User Guide, "Capacity Blocks"). An extension that may still be paid delays the drain, as
long as some time is left for it. Nodes of other ODCRs are not drained, since their
instances run on. Instead each notice is published once.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from broker.capacity.matching import ends_at
from providers.model import Odcr

# Notices before the end of a default ODCR, the last one first.
NOTICES: Final = (timedelta(minutes=10), timedelta(minutes=60))


def drains(odcr: Odcr, now: datetime) -> bool:
    """Whether its nodes must drain now."""
    at = _drain_at(odcr)
    return at is not None and now >= at


def notice(odcr: Odcr, now: datetime) -> timedelta | None:
    """The notice that is due for a default reservation; None before the first and after the end."""
    if not _has_notices(odcr) or odcr.end is None or now >= odcr.end:
        return None
    return next((before for before in NOTICES if now >= odcr.end - before), None)


def next_moment(odcrs: Iterable[Odcr], now: datetime) -> datetime | None:
    """The next time at which one of them drains or has a notice due."""
    moments = []
    for odcr in odcrs:
        drain_at = _drain_at(odcr)
        if drain_at is not None:
            moments.append(drain_at)
        elif _has_notices(odcr) and odcr.end is not None:
            moments += [odcr.end - before for before in NOTICES]
    return min((at for at in moments if at > now), default=None)


def _drain_at(odcr: Odcr) -> datetime | None:
    return ends_at(odcr) if odcr.prepaid else None


def _has_notices(odcr: Odcr) -> bool:
    return not odcr.prepaid and not odcr.released
