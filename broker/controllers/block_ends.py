"""The ends of Capacity Blocks as their extensions change them.

Why: EC2 moves the end of a block when an extension is paid, which may be later than the start of its drain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import structlog

from broker.capacity.matching import ULTRASERVER_DRAIN
from providers.base import ReservationListing
from providers.errors import ProviderError
from providers.model import BlockExtension, Odcr

# Before the earliest drain there is nothing to decide.
WITHIN: Final = ULTRASERVER_DRAIN + timedelta(minutes=20)

_log = structlog.get_logger("reservations")


def with_extensions(
    odcrs: Mapping[str, Odcr], listing: ReservationListing, now: datetime
) -> Mapping[str, Odcr]:
    """The reservations, blocks that end soon with their extensions: one call if there is any, else none.

    If EC2 refuses it, the blocks end as described.
    """
    ids = [o.id for o in odcrs.values() if o.prepaid and o.end is not None and now < o.end <= now + WITHIN]
    if not ids:
        return odcrs
    try:
        extensions = listing.extensions(ids)
    except ProviderError as error:
        _log.warning("extensions of capacity blocks not read", odcrs=ids, error=str(error))
        return odcrs
    changed = dict(odcrs)
    for extension in sorted(extensions, key=lambda extension: extension.start):
        if (odcr := changed.get(extension.odcr_id)) is not None:
            changed[odcr.id] = _extended(odcr, extension)
    return changed


def _extended(odcr: Odcr, extension: BlockExtension) -> Odcr:
    if extension.start != odcr.end:
        return odcr  # it has begun
    return replace(odcr, end=extension.end) if extension.paid else replace(odcr, extending=True)
